# SPDX-License-Identifier: Apache-2.0
"""Plays the kernel's side of a BPF ring buffer on memory: reservations, commits, discards, overwriting.

What it is not: it maps no kernel memory and needs no privileges.
Source: Linux kernel/bpf/ringbuf.c (__bpf_ringbuf_reserve, bpf_ringbuf_commit).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from otel_perfbuf._core._core import ffi
from otel_perfbuf.rings.ringbuf_readout import MappedRingbuf

__all__ = ["Reservation", "RingbufWriter"]

PAGE_BYTES = 4096
BUSY, DISCARD = 1 << 31, 1 << 30
HEADER_BYTES = 8
U64 = 1 << 64


def _record_bytes(length: int) -> int:
    return (length + HEADER_BYTES + 7) // 8 * 8


@dataclass(frozen=True)
class Reservation:
    """A record in the making; readers stop at it until one of the two is called."""

    writer: RingbufWriter
    position: int
    length: int

    def submit(self, data: bytes | None = None) -> None:
        """Commits it, with these bytes (as many as were reserved) if given."""
        if data is not None:
            self.writer.store(self.position + HEADER_BYTES, data[: self.length])
        self.writer.set_header(self.position, self.length)

    def discard(self) -> None:
        """Commits it as one that readers pass over."""
        self.writer.set_header(self.position, self.length | DISCARD)


class RingbufWriter:
    """One ring buffer, written as the kernel writes it. ``capacity``: a power of two, at least 8.

    ``overwritable``: as a map with BPF_F_RB_OVERWRITE: a reservation pushes out the oldest records. ``position``:
    where all positions begin, any multiple of 8 (modulo 2^64).
    """

    def __init__(self, capacity: int, *, overwritable: bool = False, position: int = 0) -> None:
        if capacity < 8 or capacity & (capacity - 1):
            raise ValueError(f"a ring of {capacity} bytes: the capacity is a power of two, at least 8")
        self.capacity = capacity
        self.overwritable = overwritable
        self._memory = ffi.new("uint64_t[]", (2 * PAGE_BYTES + capacity) // 8)
        self._bytes = ffi.buffer(self._memory)
        self.consumer_pos = self.producer_pos = self.overwrite_pos = position % U64
        self._pending: list[Reservation] = []
        consumer = int(ffi.cast("uintptr_t", self._memory))
        self.mapped = MappedRingbuf(
            consumer, consumer + PAGE_BYTES, consumer + 2 * PAGE_BYTES, capacity, overwritable, owner=self._memory
        )
        """What a readout takes; it keeps the memory."""

    @property
    def consumer_pos(self) -> int:
        """Where the reader is."""
        return self._word(0)

    @consumer_pos.setter
    def consumer_pos(self, position: int) -> None:
        self._set_word(0, position)

    @property
    def producer_pos(self) -> int:
        """Where the next reservation goes; set it to play a broken ring."""
        return self._word(PAGE_BYTES)

    @producer_pos.setter
    def producer_pos(self, position: int) -> None:
        self._set_word(PAGE_BYTES, position)

    @property
    def overwrite_pos(self) -> int:
        """Where the oldest record is that an overwritable ring still holds."""
        return self._word(PAGE_BYTES + 16)

    @overwrite_pos.setter
    def overwrite_pos(self, position: int) -> None:
        self._set_word(PAGE_BYTES + 16, position)

    def reserve(self, length: int) -> Reservation | None:
        """Room for a record, or None where there is none (a record in the making is never overwritten)."""
        begin, size = self.producer_pos, _record_bytes(length)
        end = begin + size
        self._pending = [item for item in self._pending if self.header(item.position) & BUSY]
        oldest = self._pending[0].position if self._pending else begin
        if end - oldest >= self.capacity or (
            not self.overwritable and (end - self.consumer_pos) % U64 >= self.capacity
        ):
            return None
        if self.overwritable:
            over = self.overwrite_pos
            while (end - over) % U64 >= self.capacity:
                over = (over + _record_bytes(self.header(over) & (DISCARD - 1))) % U64
            self.overwrite_pos = over
        reservation = Reservation(self, begin, length)
        self.set_header(begin, length | BUSY)
        self._pending.append(reservation)
        self.producer_pos = end
        return reservation

    def sample(self, data: bytes) -> bool:
        """One whole record; False when there is no room."""
        reservation = self.reserve(len(data))
        if reservation is None:
            return False
        reservation.submit(data)
        return True

    def header(self, position: int) -> int:
        """Length and flags of the record there."""
        offset = 2 * PAGE_BYTES + position % self.capacity
        return int(struct.unpack("<I", self._bytes[offset : offset + 4])[0])

    def set_header(self, position: int, header: int) -> None:
        """Writes length and flags; any value plays a broken ring."""
        offset = 2 * PAGE_BYTES + position % self.capacity
        self._bytes[offset : offset + 8] = struct.pack("<II", header, 0)

    def store(self, position: int, data: bytes) -> None:
        """Writes bytes at a position, across the ring's end where need be."""
        for at in range(0, len(data), 8):
            offset = 2 * PAGE_BYTES + (position + at) % self.capacity
            piece = data[at : at + 8]
            self._bytes[offset : offset + len(piece)] = piece

    def _word(self, offset: int) -> int:
        return int(struct.unpack("<Q", self._bytes[offset : offset + 8])[0])

    def _set_word(self, offset: int, position: int) -> None:
        self._bytes[offset : offset + 8] = struct.pack("<Q", position % U64)
