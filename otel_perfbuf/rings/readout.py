# SPDX-License-Identifier: Apache-2.0
"""Reads mapped rings into batches, through the C core. What it is not: it opens, maps and waits for nothing.

It works on any memory that looks like a ring: the kernel's, or what otel_perfbuf.testing writes.
Source: otel_perfbuf/_core/ring.h; DESIGN section 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf._core._fast import Arena
from otel_perfbuf.rings.batch import FRAME_BYTES, Batch
from otel_perfbuf.rings.memory import ArenaPool

__all__ = ["ForwardReadout", "MappedRing", "ReverseReadout"]

# Of one ring in one batch: some 2,000 records of 100 bytes. Smaller ones pay more for each call, larger ones leave the
# cache before Python has seen them (FACTS, drain; `make bench-readers`).
SLICE_BYTES = 256 << 10
PERF_SAMPLE_TIME = 4
# Parsed once: a drain is short.
STATES, WALK = ffi.typeof("struct pb_ring_state[]"), ffi.typeof("struct pb_walk *")
TAIL_WORD = 1032 // 8  # of the header page, in words: data_tail (FACTS 1)


@dataclass(frozen=True, slots=True)
class MappedRing:
    """Where one ring lies: addresses of its header page and of its ``capacity`` data bytes (a power of two).

    ``owner`` is kept as long as a readout uses the ring; None where somebody else keeps the memory.
    """

    cpu: int
    page: int
    data: int
    capacity: int
    owner: object = None


class _Readout:
    def __init__(self, rings: Sequence[MappedRing], sample_type: int) -> None:
        for ring in rings:
            if ring.capacity < 8 or ring.capacity & (ring.capacity - 1):
                raise ValueError(f"a ring of {ring.capacity} bytes: the capacity is a power of two, at least 8")
        self._rings: Any = ffi.new("struct pb_ring[]", len(rings))
        for struct, ring in zip(self._rings, rings, strict=True):
            struct.page = ffi.cast("void *", ring.page)
            struct.data = ffi.cast("const uint8_t *", ring.data)
            struct.capacity = ring.capacity
            struct.cpu = ring.cpu
        self._mapped = tuple(rings)
        self._count = len(rings)
        self._sample_type = sample_type
        self._timed = bool(sample_type & PERF_SAMPLE_TIME)

    def _check(self, status: int) -> None:
        # The checks above leave no argument that the core refuses.
        if status != lib.PB_OK:
            raise AssertionError(f"the ring core refused its arguments with status {status}")


class ForwardReadout(_Readout):
    """Drains forward rings. Not thread-safe; its owner serialises, and keeps the mappings."""

    def __init__(self, rings: Sequence[MappedRing], sample_type: int, *, slice_bytes: int = SLICE_BYTES) -> None:
        """``slice_bytes``: of one ring in one batch; at least its largest record, 64 KiB."""
        super().__init__(rings, sample_type)
        largest = max(ring.capacity for ring in rings)
        self._slice = min(max(slice_bytes, lib.PB_FRAME_MAX_BYTES) + 7 & ~7, largest)
        frames = self._count * self._slice // lib.PB_FRAME_MIN_BYTES
        self._arenas = ArenaPool(self._count * self._slice, prefault=True)
        self._frames = ArenaPool(max(1, frames) * FRAME_BYTES, prefault=False)
        self._left: Any = ffi.new("uint64_t *")
        self.left_bytes = 0
        """What the last drain had no room for and left in the rings."""

    def has_more(self, ring: MappedRing) -> bool:
        """Whether something waits in this ring."""
        return any(
            struct.cpu == ring.cpu
            and int(ffi.cast("uintptr_t", struct.page)) == ring.page
            and lib.pb_rings_pending(ffi.addressof(struct), 1) > 0
            for struct in self._rings
        )

    def images(self) -> list[tuple[int, int, int, bytes]]:
        """Each ring's cpu, data_head, data_tail and data bytes; what waits in it is whole."""
        return [
            (
                ring.cpu,
                int(lib.pb_ring_head(ffi.addressof(ring))),
                int(ffi.cast("uint64_t *", ring.page)[TAIL_WORD]),
                bytes(ffi.buffer(ring.data, ring.capacity)),
            )
            for ring in self._rings
        ]

    def pending_bytes(self) -> int:
        """Bytes that wait in the rings now."""
        return int(lib.pb_rings_pending(self._rings, self._count))

    def drain(self) -> Batch:
        """What lies in the rings, at most one slice of each; whole records only. They are free for the kernel then."""
        arena, frames = self._arenas.take(), self._frames.take()
        states, total, left = ffi.new(STATES, self._count), ffi.new(WALK), self._left
        batch = Batch(arena, frames, states, total, timed=self._timed, unindexed=self._sample_type)
        status = lib.pb_rings_drain(
            self._rings, self._count, batch.arena, self._slice, self._sample_type, states, total, left
        )
        self._check(status)
        self.left_bytes = left[0]
        batch.frame_count = total.frames
        return batch


class ReverseReadout(_Readout):
    """Takes snapshots of overwritable rings while their writers go on. Not thread-safe; its owner serialises.

    ``slack_bytes``: what writers in flight can have torn at most. ``grace_period`` returns True when it has waited for
    the end of every writer that ran when it was called; None: slack is all there is. ``prefault``: memory is
    had ready.
    """

    def __init__(
        self,
        rings: Sequence[MappedRing],
        sample_type: int,
        *,
        slack_bytes: int,
        grace_period: Callable[[], bool] | None,
        prefault: bool = True,
    ) -> None:
        super().__init__(rings, sample_type)
        self._slack = slack_bytes + 7 & ~7
        self._grace_period = grace_period
        self._arenas = ArenaPool(self.bytes, prefault=prefault)

    @property
    def bytes(self) -> int:
        """Room that a snapshot takes in an arena: all capacities."""
        return sum(ring.capacity for ring in self._mapped)

    def adopt(self, earlier: ReverseReadout) -> None:
        """Goes on where another readout ended, for the rings that both have."""
        cursors = {int(ffi.cast("uintptr_t", ring.page)): ring.cursor for ring in earlier._rings}
        for ring in self._rings:
            ring.cursor = cursors.get(int(ffi.cast("uintptr_t", ring.page)), 0)

    def snapshot(self, *, everything: bool) -> Batch:
        """What the rings hold behind the last snapshot (everything: at all), oldest first in each ring."""
        arena = self._arenas.take()
        frames, states, walk, took_ns = self.take(arena, 0, everything=everything)
        return Batch(arena, frames, states, walk, timed=self._timed, snapshot_ns=took_ns)

    def take(self, arena: Arena, at: int, *, everything: bool) -> tuple[Arena, Any, Any, int]:
        """A snapshot into ``arena`` from byte ``at`` on: frames, states, the walks' sum, and the copy's time in ns."""
        states = ffi.new("struct pb_ring_state[]", self._count)
        memory = ffi.from_buffer("uint8_t[]", arena)
        begun_ns = time.monotonic_ns()
        status = lib.pb_rings_snapshot_copy(self._rings, self._count, everything, self._slack, memory + at, states)
        took_ns = time.monotonic_ns() - begun_ns
        self._check(status)
        for state in states if at else ():
            state.arena_offset += at
        if self._grace_period is not None and self._grace_period():
            self._check(lib.pb_rings_snapshot_settle(self._rings, self._count, states))
        walk = ffi.new("struct pb_walk *")
        self._check(lib.pb_rings_snapshot_count(self._rings, self._count, memory, self._sample_type, states, walk))
        frames = Arena(max(1, walk.frames) * FRAME_BYTES)
        status = lib.pb_rings_snapshot_frames(
            self._rings,
            self._count,
            memory,
            self._sample_type,
            ffi.from_buffer("struct pb_frame[]", frames),
            walk.frames,
            states,
        )
        self._check(status)
        return frames, states, walk, took_ns
