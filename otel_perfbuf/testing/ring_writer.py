# SPDX-License-Identifier: Apache-2.0
"""Plays the kernel on memory: rings with exactly the bytes that a test wants, in either direction, whole or torn.

For tests of readers, ours and plug-in authors'. What it is not: it maps no kernel memory and needs no privileges.
Source: Linux kernel/events/ring_buffer.c (__perf_output_begin), include/uapi/linux/perf_event.h.

    writer = RingWriter(4096, backward=True)
    writer.sample(b"hello")
    readout = ReverseReadout([writer.mapped], writer.sample_type, slack_bytes=0, grace_period=None)
    list(readout.snapshot(everything=True))
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from otel_perfbuf._core._core import ffi
from otel_perfbuf.rings.options import SAMPLE_TYPES
from otel_perfbuf.rings.readout import MappedRing

__all__ = ["RECORD_LOST", "RECORD_SAMPLE", "RingWriter", "padded"]

RECORD_LOST = 2
RECORD_SAMPLE = 9
SAMPLE_RAW = 1024
PAGE_BYTES = 4096
DATA_HEAD = 1024
DATA_TAIL = 1032
U64 = 1 << 64


def padded(data: bytes) -> int:
    """How many bytes ``data`` has when it arrives: the kernel rounds up to 8n + 4 (FACTS 8)."""
    return (len(data) + 4 + 7) // 8 * 8 - 4


class RingWriter:
    """One ring, written as the kernel writes it.

    ``capacity``: data bytes, a power of two, at least 8 (the kernel's are whole pages; small ones wrap sooner).
    ``backward``: downward and overwriting, as behind an overwritable reader; else upward, and full means lost.
    ``sample_type``: names as PerfReader's. ``head``: the position to begin at, any multiple of 8 (modulo 2^64).
    """

    def __init__(
        self, capacity: int, *, backward: bool = False, cpu: int = 0, sample_type: tuple[str, ...] = (), head: int = 0
    ) -> None:
        if capacity < 8 or capacity & (capacity - 1):
            raise ValueError(f"a ring of {capacity} bytes: the capacity is a power of two, at least 8")
        self.capacity = capacity
        self.backward = backward
        self.sample_type: int = SAMPLE_RAW + sum(SAMPLE_TYPES[name] for name in sample_type)
        self.pending_lost = 0
        """Records that found no room since the last LOST record."""
        self._memory = ffi.new("uint64_t[]", (PAGE_BYTES + capacity) // 8)
        self._bytes = ffi.buffer(self._memory)
        self._reserved = head % U64
        self.head = head
        self.tail = head
        page = int(ffi.cast("uintptr_t", self._memory))
        self.mapped = MappedRing(cpu, page, page + PAGE_BYTES, capacity, owner=self._memory)
        """What a readout takes; it keeps the memory."""

    @property
    def head(self) -> int:
        """data_head, as readers see it; set it to play a broken ring."""
        return self._word(DATA_HEAD)

    @head.setter
    def head(self, position: int) -> None:
        self._bytes[DATA_HEAD : DATA_HEAD + 8] = struct.pack("<Q", position % U64)

    @property
    def tail(self) -> int:
        """data_tail, as a forward reader left it."""
        return self._word(DATA_TAIL)

    @tail.setter
    def tail(self, position: int) -> None:
        self._bytes[DATA_TAIL : DATA_TAIL + 8] = struct.pack("<Q", position % U64)

    def sample(self, data: bytes, *, time_ns: int = 0, pid: int = 0, tid: int = 0) -> bool:
        """Writes and publishes one sample; False (and one more lost) when a forward ring has no room.

        A LOST record for what was lost before shares its reservation and stands at the lower address (FACTS 6).
        """
        commit = self.begin(data, time_ns=time_ns, pid=pid, tid=tid)
        if commit is None:
            return False
        commit()
        return True

    def begin(self, data: bytes, *, time_ns: int = 0, pid: int = 0, tid: int = 0) -> Callable[[], None] | None:
        """A writer in flight: the bytes are there, data_head is not; calling the result publishes."""
        body = self._metadata(time_ns, pid, tid) + struct.pack("<I", padded(data)) + data
        size = 8 + len(body) - len(data) + padded(data)
        record = struct.pack("<IHH", RECORD_SAMPLE, 0, size & 0xFFFF) + body
        lost = b""
        if self.pending_lost:
            lost = struct.pack("<IHHQQ", RECORD_LOST, 0, 24, 0, self.pending_lost)
        # The reservation has the 16-bit size, the bytes are all written: what a too large sample does (FACTS 9).
        if not self._has_room(len(lost) + (size & 0xFFFF)):
            self.pending_lost += 1
            return None
        at = self._reserve(len(lost) + (size & 0xFFFF))
        self._store(at, lost + record)
        self.pending_lost = 0
        return self._publisher()

    def lose(self, count: int = 1) -> None:
        """Plays ``count`` outputs that failed (a pause): the next sample brings a LOST record."""
        self.pending_lost += count

    def record(self, kind: int, body: bytes = b"", *, size: int | None = None) -> None:
        """Writes any record; ``size`` is what its header claims (default: the truth), its bytes are header and body."""
        claimed = 8 + len(body) if size is None else size
        self.junk(struct.pack("<IHH", kind, 0, claimed & 0xFFFF) + body)

    def junk(self, data: bytes) -> None:
        """Writes and publishes any bytes as they are; a multiple of 8."""
        if len(data) % 8 or not self._has_room(len(data)):
            raise ValueError(f"{len(data)} bytes of junk: not a multiple of 8, or no room")
        self._store(self._reserve(len(data)), data)
        self._publisher()()

    def _metadata(self, time_ns: int, pid: int, tid: int) -> bytes:
        parts = b""
        if self.sample_type & SAMPLE_TYPES["tid"]:
            parts += struct.pack("<II", pid, tid)
        if self.sample_type & SAMPLE_TYPES["time"]:
            parts += struct.pack("<Q", time_ns)
        if self.sample_type & SAMPLE_TYPES["cpu"]:
            parts += struct.pack("<II", self.mapped.cpu, 0)
        return parts

    def _has_room(self, size: int) -> bool:
        if size > self.capacity:
            return False
        return self.backward or size <= self.capacity - (self._reserved - self.tail) % U64

    def _reserve(self, size: int) -> int:
        """The position where the reservation's lowest byte goes."""
        at = self._reserved
        if self.backward:
            at = self._reserved = (self._reserved - size) % U64
        else:
            self._reserved = (self._reserved + size) % U64
        return at

    def _publisher(self) -> Callable[[], None]:
        position = self._reserved

        def publish() -> None:
            self.head = position

        return publish

    def _store(self, position: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            offset = (position + at) % self.capacity
            piece = data[at : at + self.capacity - offset]
            self._bytes[PAGE_BYTES + offset : PAGE_BYTES + offset + len(piece)] = piece
            at += len(piece)

    def _word(self, offset: int) -> int:
        return int(struct.unpack("<Q", self._bytes[offset : offset + 8])[0])
