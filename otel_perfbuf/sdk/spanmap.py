# SPDX-License-Identifier: Apache-2.0
"""The memory that a process shares with the kernel's recorder: a slot for each thread, and the way to get it.

What it is not: it knows no OpenTelemetry (publish.py decides what is written). Source: CONTRACT section 5 (`register`);
bpf/records.h, struct pb_span_slot; unix(7): SCM_RIGHTS.

Facts: the map is an array of buckets of slots; a thread's slot is in one of two buckets, by two hashes of its id. Only
the thread itself writes its slot, and the kernel reads it when that same thread makes a system call: what is needed is
an order of single stores, not a lock. A slot that is being written says that it holds nothing.
Decision: no thread waits for the agent's answer; it is looked for when a span starts. The agent's end of the pair
closes when it stops, which is looked for once a second: then the process registers again.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import threading
import time
from typing import Any, Final

__all__ = ["Registration", "Slot", "SpanMap"]

_SLOT_BYTES: Final = 32
_WORDS: Final = _SLOT_BYTES // 8
_ACTIVE: Final = 1 << 32
_ANSWER_MAX_BYTES: Final = 4096
_LOOK_AGAIN_S: Final = 1.0


class Slot:
    """One thread's place in the map; freed when the thread's own state goes, which is at the thread's end."""

    __slots__ = ("_at", "_bytes", "_idle", "_running", "_word", "_words")

    def __init__(self, words: memoryview, data: memoryview, index: int, tid: int) -> None:
        self._words, self._bytes = words, data
        self._word = index * _WORDS
        self._at = index * _SLOT_BYTES + 8
        self._idle, self._running = tid, tid | _ACTIVE

    def write(self, ids: bytes | None) -> None:
        """The thread runs the span of these 24 bytes (trace id, span id), or none."""
        self._words[self._word] = self._idle
        if ids is not None:
            self._bytes[self._at : self._at + 24] = ids
            self._words[self._word] = self._running

    def __del__(self) -> None:
        try:
            if self._words[self._word] & 0xFFFFFFFF == self._idle:
                self._words[self._word] = 0
        except (AttributeError, ValueError):
            pass  # never made, or the interpreter ends


class SpanMap:
    """A mapping of one map. ``full``: a thread has found no slot in it, and there are larger ones."""

    def __init__(self, fd: int, buckets: int, buckets_max: int, slots: int, hashes: tuple[int, int]) -> None:
        self._mapping = mmap.mmap(fd, buckets * slots * _SLOT_BYTES, mmap.MAP_SHARED)
        self._data = memoryview(self._mapping)
        self._words = self._data.cast("Q")
        self._lock = threading.Lock()
        self._buckets, self._slots, self._hashes = buckets, slots, hashes
        self._may_grow = buckets < buckets_max
        self.full = False

    @property
    def buckets(self) -> int:
        """How many; a power of two."""
        return self._buckets

    def claim(self, tid: int) -> Slot | None:
        """The slot of the calling thread, whose id that is; None when both of its buckets are full."""
        places = []
        with self._lock:
            for factor in self._hashes:
                first = ((tid * factor & 0xFFFFFFFF) >> 16 & (self._buckets - 1)) * self._slots
                owners = [self._words[index * _WORDS] & 0xFFFFFFFF for index in range(first, first + self._slots)]
                if tid in owners:
                    return Slot(self._words, self._data, first + owners.index(tid), tid)
                if 0 in owners:
                    places.append((owners.count(0), first + owners.index(0)))
            if not places:
                self.full = self._may_grow
                return None
            _, index = max(places)
            self._words[index * _WORDS] = tid
            return Slot(self._words, self._data, index, tid)


class Registration:
    """Asks the agent for this process's map, notices when the agent goes, and asks again.

    ``generation`` grows when ``map`` changes. ``conditions`` is what the agent wants to be told of besides errors.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pair: socket.socket | None = None
        self._look_at_s = 0.0
        self._asked_for = 0
        self.pid = os.getpid()
        self.map: SpanMap | None = None
        self.generation = 1
        self.conditions: dict[str, Any] = {}

    def ask(self) -> None:
        """Sends the datagram; without an agent nothing happens."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))
                sender.sendmsg([b'{"v":1,"kind":"register"}'], [rights], 0, self._path)
        except OSError:
            ours.close()
            return
        finally:
            theirs.close()
        self._pair, self._asked_for = ours, 0

    def look(self) -> None:
        """Takes what the agent has sent, without waiting; at most once a second when nothing is expected."""
        now_s = time.monotonic()
        expecting = self._pair is not None and (self.map is None or (self.map.full and self._asked_for))
        if not expecting and now_s < self._look_at_s:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._look_at_s = now_s + _LOOK_AGAIN_S
            if self._pair is None:
                self.ask()
            if self._pair is not None:
                self._receive(self._pair)
            if self._pair is not None and self.map is not None and self.map.full and not self._asked_for:
                self._asked_for = 8 * self.map.buckets
                self._pair.send(json.dumps({"buckets": self._asked_for}).encode())
        except (OSError, ValueError, KeyError, TypeError):
            self.drop()
        finally:
            self._lock.release()

    def wait(self, timeout_s: float) -> None:
        """Waits for the first answer, if there is an agent that was asked."""
        pair = self._pair
        if pair is None or self.map is not None:
            return
        pair.settimeout(timeout_s)
        try:
            pair.recv(1, socket.MSG_PEEK)
        except OSError:
            pass  # it comes later, or never
        finally:
            pair.setblocking(False)
        self.look()

    def _receive(self, pair: socket.socket) -> None:
        try:
            data, control, _, _ = pair.recvmsg(_ANSWER_MAX_BYTES, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        descriptors = array.array("i")
        for level, kind, passed in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(passed[: len(passed) - len(passed) % descriptors.itemsize])
        try:
            if not data:
                self.drop()  # the agent has gone
                return
            self._take(json.loads(data), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _take(self, answer: dict[str, Any], descriptors: array.array[int]) -> None:
        if len(descriptors) != 1 or answer.get("v") != 1 or answer["slot_bytes"] != _SLOT_BYTES:
            return  # refused, or an agent that speaks of another layout: nothing is written
        first, second = answer["hash"]
        buckets, most = int(answer["buckets"]), int(answer.get("buckets_max", 0))
        self.map = SpanMap(descriptors[0], buckets, most, int(answer["slots"]), (int(first), int(second)))
        self.conditions = answer.get("conditions") or {}
        self._asked_for = 0
        self.generation += 1

    def drop(self) -> None:
        """Forgets the agent and the map. A forked child does so first: what it has is its parent's."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()
        if self.map is not None:
            self.map = None
            self.generation += 1
        self.conditions = {}

    def after_fork(self) -> None:
        """In a forked child: a map of its own, as soon as the agent answers."""
        self._lock = threading.Lock()
        self.pid = os.getpid()
        self.drop()
        self._look_at_s = 0.0
        self.look()
