# SPDX-License-Identifier: Apache-2.0
"""Reads a mapped BPF ring buffer into batches, through the C core. What it is not: it maps and waits for nothing.

It works on any memory that looks like one: the kernel's, or what otel_perfbuf.testing writes.
Source: otel_perfbuf/_core/ringbuf.h.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf._core._fast import Arena
from otel_perfbuf.rings.batch import FRAME_BYTES, Batch
from otel_perfbuf.rings.memory import ArenaPool
from otel_perfbuf.rings.readout import SLICE_BYTES

__all__ = ["MappedRingbuf", "RingbufReadout"]

U64 = 1 << 64  # positions are counted modulo this


@dataclass(frozen=True, slots=True)
class MappedRingbuf:
    """Where a ring buffer lies: addresses of the reader's page, the writers' page and the ``capacity`` data bytes.

    ``owner`` is kept as long as a readout uses it; None where somebody else keeps the memory.
    """

    consumer: int
    producer: int
    data: int
    capacity: int
    overwritable: bool
    owner: object = None


class RingbufReadout:
    """Not thread-safe; its owner serialises, and keeps the mapping.

    ``pause(tries)``: a snapshot found a record that is still being written among what lay there when it began; True
    when it waited and the snapshot is to be tried again.
    """

    def __init__(
        self,
        ring: MappedRingbuf,
        *,
        slice_bytes: int = SLICE_BYTES,
        pause: Callable[[int], bool] = lambda _tries: False,
    ) -> None:
        if ring.capacity < 8 or ring.capacity & (ring.capacity - 1):
            raise ValueError(f"a ring of {ring.capacity} bytes: the capacity is a power of two, at least 8")
        self._mapped = ring
        self._pause = pause
        self._ring: Any = ffi.new("struct pb_ringbuf *")
        self._ring.consumer = ffi.cast("void *", ring.consumer)
        self._ring.producer = ffi.cast("const void *", ring.producer)
        self._ring.data = ffi.cast("const uint8_t *", ring.data)
        self._ring.capacity = ring.capacity
        # A slice ends behind the record that crosses it, and a record may be as large as the ring.
        self._slice = min(slice_bytes, ring.capacity)
        self._frame_capacity = self._slice // lib.PB_RINGBUF_HEADER_BYTES + 1
        self._arenas = ArenaPool(ring.capacity, prefault=ring.overwritable)
        self._frames = ArenaPool(self._frame_capacity * FRAME_BYTES, prefault=False)
        self.left_bytes = 0
        """What the last drain left in the ring."""
        self.busy = False
        """Whether the last drain stopped at a record that was being written."""
        self.discarded = 0
        """Records that were thrown away by their writers and passed over, ever."""

    def available_bytes(self) -> int:
        """Bytes in the ring that are not read yet (overwritable: that are held), headers and all."""
        return int(lib.pb_ringbuf_available(self._ring, self._mapped.overwritable))

    def drain(self) -> Batch:
        """Whole records from the oldest on, up to one that is being written; they are free for the kernel then."""
        arena, frames = self._arenas.take(), self._frames.take()
        state, rest = ffi.new("struct pb_ring_state[]", 1), ffi.new("struct pb_ringbuf_rest *")
        status = lib.pb_ringbuf_drain(
            self._ring,
            self._slice,
            ffi.from_buffer("uint8_t[]", arena),
            self._mapped.capacity,
            ffi.from_buffer("struct pb_frame[]", frames),
            self._frame_capacity,
            state,
            rest,
        )
        self._check(status)
        self.left_bytes, self.busy = rest.bytes, bool(rest.busy)
        self.discarded += rest.discarded
        return Batch(arena, frames, state, _sum(state))

    def snapshot(self, *, everything: bool) -> Batch:
        """What an overwritable ring holds behind the last snapshot (everything: at all), oldest first."""
        arena = self._arenas.take()
        memory, state = ffi.from_buffer("uint8_t[]", arena), ffi.new("struct pb_ring_state[]", 1)
        produced, tries = int(ffi.cast("const uint64_t *", self._ring.producer)[0]), 0
        while True:
            begun_ns = time.monotonic_ns()
            self._check(lib.pb_ringbuf_snapshot_copy(self._ring, everything, memory, state))
            took_ns = time.monotonic_ns() - begun_ns
            # A writer that lost its CPU hides what other CPUs have written behind its record.
            if (state[0].head - produced) % U64 < U64 // 2 or state[0].walk.malformed or not self._pause(tries):
                break
            tries += 1
        self._check(lib.pb_ringbuf_snapshot_frames(self._ring, memory, ffi.NULL, 0, state))
        count = state[0].walk.frames
        frames = Arena(max(1, count) * FRAME_BYTES)
        into = ffi.from_buffer("struct pb_frame[]", frames)
        self._check(lib.pb_ringbuf_snapshot_frames(self._ring, memory, into, count, state))
        return Batch(arena, frames, state, _sum(state), snapshot_ns=took_ns)

    def _check(self, status: int) -> None:
        # The checks above leave no argument that the core refuses.
        if status != lib.PB_OK:
            raise AssertionError(f"the ring core refused its arguments with status {status}")


def _sum(states: Any) -> Any:
    walk = ffi.new("struct pb_walk *")
    lib.pb_walk_add(walk, ffi.addressof(states[0].walk))
    return walk
