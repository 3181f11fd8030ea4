# SPDX-License-Identifier: Apache-2.0
"""Processes that tell which span their threads run: each gets a map of its own over the socket that it sent.

What it is not: it verifies no sender (socket.py does, before) and reads no span (the BPF program does).
Source: CONTRACT section 5 (`register`); pidfd_open(2); the other side is otel_perfbuf/sdk/spanmap.py.

One thread does it all: putting a map into a map of maps waits for an RCU grace period (8 to 28 ms), which must not keep
a trigger waiting. The order is what makes it safe: a handle on the process first, then its map, then the look whether
the process still is there, then the answer. Before the answer nobody can write; after it the kernel closes the gate.
"""

from __future__ import annotations

import array
import json
import logging
import os
import resource
import select
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

__all__ = ["MapOwner", "SpanRegistry"]

_log = logging.getLogger("otel_perfbuf.triggers.spans")

_BUCKETS_FIRST: Final = 16  # 128 threads in one page
_WAITING_MAX: Final = 1024
_TOTAL_BYTES_MAX: Final = 64 << 20
_REQUEST_MAX_BYTES: Final = 256


class MapOwner(Protocol):
    """Where maps come from: otel_perfbuf.bpf.spans.SpanMaps."""

    processes_max: int
    buckets_max: int

    @property
    def bytes(self) -> int:
        """Memory of all that are open."""

    def geometry(self, buckets: int) -> dict[str, object]:
        """What a process must know of its map."""

    def open(self, tgid: int, buckets: int) -> int:
        """An fd of a new map in the process's place."""

    def close(self, tgid: int) -> None:
        """Takes it away."""


@dataclass(slots=True, eq=False)
class _Registered:
    pid: int
    pair: socket.socket
    pidfd: int
    buckets: int


class SpanRegistry:
    """Gives maps to processes, and takes them away when the process or its end of the pair goes.

    ``conditions``: what processes are told to report besides errors (contract, section 5). ``refused`` counts by cause.
    """

    def __init__(self, maps: MapOwner, conditions: Mapping[str, Any] | None = None) -> None:
        self._maps = maps
        self._conditions = dict(conditions or {})
        self._waiting: deque[tuple[int, socket.socket]] = deque()
        self._known: dict[int, _Registered] = {}
        self._selector: selectors.BaseSelector | None = None
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._stopping = False
        # Each process takes two descriptors; the rest of the agent needs some too.
        self._processes_max = min(maps.processes_max, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self.refused: Counter[str] = Counter()

    @property
    def registered(self) -> int:
        """Processes that have a map now."""
        return len(self._known)

    def start(self) -> None:
        """Begins to answer."""
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="perfbuf-spans", daemon=True)
        self._thread.start()

    def register(self, pid: int, pair: int) -> bool:
        """Takes over the fd of one end of a socket pair of process ``pid``, whom the kernel has vouched for.

        False: there are too many that wait, and the fd is closed.
        """
        taken = socket.socket(fileno=pair)
        if self._thread is None or len(self._waiting) >= _WAITING_MAX:
            taken.close()
            return False
        taken.setblocking(False)
        self._waiting.append((pid, taken))
        os.eventfd_write(self._wake, 1)
        return True

    def stop(self) -> None:
        """Closes every pair, which tells the processes to ask again later; twice is fine."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        thread.join()
        for registered in list(self._known.values()):
            self._forget(registered)
        while self._waiting:
            self._waiting.popleft()[1].close()
        assert self._selector is not None
        self._selector.close()
        os.close(self._wake)

    def _run(self) -> None:
        assert self._selector is not None
        while not self._stopping:
            for key, _ in self._selector.select():
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                elif isinstance(key.data, _Registered) and self._known.get(key.data.pid) is key.data:
                    self._guarded(partial(self._heard, key.data, key.fd))
            while self._waiting and not self._stopping:
                pid, pair = self._waiting.popleft()
                self._guarded(partial(self._admit, pid, pair))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as fault:  # noqa: BLE001 - whatever one process causes must not end the others' spans
            self._refuse("failed", f"a process could not be registered for exact spans: {fault}")

    def _refuse(self, cause: str, sentence: str) -> None:
        self.refused[cause] += 1
        if self.refused[cause] == 1:
            _log.warning("%s; more for this cause (%s) are only counted", sentence, cause)

    def _admit(self, pid: int, pair: socket.socket) -> None:
        known = self._known.get(pid)
        if known is not None:
            self._forget(known)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            pair.close()  # it has ended since
            return
        registered = _Registered(pid, pair, pidfd, _BUCKETS_FIRST)
        try:
            if len(self._known) >= self._processes_max or self._maps.bytes >= _TOTAL_BYTES_MAX:
                self._refuse(
                    "full", f"process {pid} gets no exact spans: {len(self._known)} processes have maps already"
                )
                return
            self._known[pid] = registered
            self._give(registered)
        finally:
            if self._known.get(pid) is not registered:
                pair.close()
                os.close(pidfd)
        assert self._selector is not None
        self._selector.register(pair, selectors.EVENT_READ, registered)
        self._selector.register(pidfd, selectors.EVENT_READ, registered)

    def _give(self, registered: _Registered) -> None:
        """A new map; on any fault the process has none and is forgotten."""
        try:
            fd = self._maps.open(registered.pid, registered.buckets)
            try:
                if select.select([registered.pidfd], [], [], 0)[0]:
                    raise ProcessLookupError(f"process {registered.pid} has ended")
                answer = {"v": 1, **self._maps.geometry(registered.buckets), "conditions": self._conditions}
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
                registered.pair.sendmsg([json.dumps(answer).encode()], [rights])
            finally:
                os.close(fd)
        except (BrokenPipeError, ConnectionResetError, ProcessLookupError):
            self._known.pop(registered.pid, None)  # it went away meanwhile: nothing to tell
            self._maps.close(registered.pid)
        except BaseException:
            self._known.pop(registered.pid, None)
            self._maps.close(registered.pid)
            raise

    def _heard(self, registered: _Registered, fd: int) -> None:
        if fd == registered.pidfd:
            self._forget(registered)
            return
        try:
            request = registered.pair.recv(_REQUEST_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            request = b""
        if not request:
            self._forget(registered)
            return
        buckets = _wanted_buckets(request, self._maps.buckets_max)
        if buckets <= registered.buckets:
            # Each request makes the map larger; who sends others only keeps this thread busy.
            self._refuse("request", f"process {registered.pid} sent a request that is none, and loses its exact spans")
            self._forget(registered)
            return
        if self._maps.bytes < _TOTAL_BYTES_MAX:
            registered.buckets = buckets
            self._give(registered)
            if registered.pid not in self._known:
                self._close(registered)

    def _forget(self, registered: _Registered) -> None:
        if self._known.get(registered.pid) is registered:
            del self._known[registered.pid]
            self._maps.close(registered.pid)
        self._close(registered)

    def _close(self, registered: _Registered) -> None:
        assert self._selector is not None
        for file in (registered.pair, registered.pidfd):
            try:
                self._selector.unregister(file)
            except (KeyError, ValueError):
                pass  # closed before it was watched
        registered.pair.close()
        if registered.pidfd >= 0:
            os.close(registered.pidfd)
            registered.pidfd = -1


def _wanted_buckets(request: bytes, most: int) -> int:
    """How many buckets a process asks for, as a power of two of at most ``most``; 0: it is no request."""
    try:
        wanted = json.loads(request)["buckets"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    if type(wanted) is not int or not 0 < wanted <= 1 << 20:
        return 0
    return min(1 << (wanted - 1).bit_length(), most)
