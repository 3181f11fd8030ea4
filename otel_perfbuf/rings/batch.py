# SPDX-License-Identifier: Apache-2.0
"""What a read or a snapshot gives: samples and losses of all rings, and how each ring was found.

What it is not: it reads no rings, and it does no work per record until it is iterated. Source: CONTRACT section 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf._core._fast import Arena, Lost, Sample, data_list, iterate

__all__ = ["Batch", "Lost", "RingState", "Sample"]

FRAME_BYTES: int = ffi.sizeof("struct pb_frame")
# Parsed once: a batch is made for every few hundred KiB.
BYTES, FRAMES = ffi.typeof("uint8_t[]"), ffi.typeof("struct pb_frame[]")
PERF_RECORD_SAMPLE = 9


@dataclass(frozen=True, slots=True)
class RingState:
    """One ring as a batch found it; counts are of this batch, bytes are of the ring.

    ``head`` is data_head where the copy began (forward: that was read). ``wrapped``: the ring has overwritten bytes at
    some time, so its history does not go back to the beginning. ``valid_bytes`` were walked; ``overwritten_bytes`` were
    written since the last snapshot and are gone. Its frames are ``frames[first_frame : first_frame + frame_count]``.
    """

    cpu: int
    wrapped: bool
    capacity: int
    head: int
    valid_bytes: int
    overwritten_bytes: int
    truncated: int
    malformed: int
    unknown: int
    lost: int
    first_frame: int
    frame_count: int


class Batch:
    """Samples and losses, oldest first in each CPU; merged by time where the records carry one (``sample_type=time``).

    It owns its memory: samples, their ``data`` and the pointers below stay valid as long as they or the batch live.
    For the C engine: ``arena`` (``uint8_t *``), ``frames`` (``struct pb_frame *``, oldest first, one ring after the
    other), ``frame_count``, and ``walk`` (``struct pb_walk *``: the sum over all rings).

    ``unindexed``: the PERF_SAMPLE_* bits of a drain whose frames are filled in when they are first asked for; None
    where they are there.
    """

    __slots__ = (
        "_arena",
        "_frames",
        "_merged",
        "_states",
        "_timed",
        "_unindexed",
        "arena",
        "frame_count",
        "snapshot_ns",
        "walk",
    )

    def __init__(
        self,
        arena: Arena,
        frames: Arena,
        states: Any,
        walk: Any,
        *,
        timed: bool = False,
        snapshot_ns: int = 0,
        unindexed: int | None = None,
    ) -> None:
        self._arena = arena
        self._frames = frames
        self._states = states
        self.walk = walk
        self._timed = timed
        self._unindexed = unindexed
        self._merged: Arena | None = None
        self.snapshot_ns = snapshot_ns
        """How long the copy of all rings took (snapshot only)."""
        self.arena = ffi.from_buffer(BYTES, arena)
        self.frame_count: int = walk.frames

    @property
    def frames(self) -> Any:
        """``struct pb_frame *``: see the class."""
        return ffi.from_buffer(FRAMES, self._indexed())

    @classmethod
    def empty(cls) -> Batch:
        """A batch of no rings with nothing in it."""
        nothing = Arena(1)
        return cls(nothing, nothing, ffi.new("struct pb_ring_state[]", 0), ffi.new("struct pb_walk *"))

    @classmethod
    def from_data(cls, samples: Sequence[bytes], *, cpu: int = 0) -> Batch:
        """A batch of these samples, for readers whose samples come from elsewhere; the bytes are copied."""
        arena, frames = Arena(max(1, sum(map(len, samples)))), Arena(max(1, len(samples)) * FRAME_BYTES)
        states, walk = ffi.new("struct pb_ring_state[]", 1), ffi.new("struct pb_walk *")
        memory, into = ffi.from_buffer("uint8_t[]", arena), ffi.from_buffer("struct pb_frame[]", frames)
        at = 0
        for frame, data in zip(into, samples, strict=False):
            ffi.memmove(memory + at, data, len(data))
            frame.offset, frame.bytes, frame.type, frame.cpu = at, len(data), PERF_RECORD_SAMPLE, cpu
            at += len(data)
        states[0].cpu, states[0].valid_bytes, states[0].walk.frames = cpu, at, len(samples)
        lib.pb_walk_add(walk, ffi.addressof(states[0].walk))
        return cls(arena, frames, states, walk)

    def __len__(self) -> int:
        """How many samples and losses it holds: what iterating it gives."""
        return self.frame_count

    def __iter__(self) -> Iterator[Sample | Lost]:
        """Samples and losses, oldest first."""
        return iterate(self._arena, self._in_order(), self.frame_count)

    def data(self) -> list[bytes]:
        """The samples' raw bytes as a list, oldest first, padded as the kernel padded them (FACTS 8)."""
        return data_list(self._arena, self._in_order(), self.frame_count)

    @property
    def rings(self) -> list[RingState]:
        """Every ring that was read, in the order of their CPUs, with or without frames."""
        return [_ring_state(state) for state in self._states]

    @property
    def states(self) -> Any:
        """For code that knows the C core: ``struct pb_ring_state[]``, one a ring."""
        return self._states

    @property
    def arena_memory(self) -> Arena:
        """For code that knows the C core: the bytes that ``arena`` points to, as a buffer."""
        return self._arena

    @property
    def lost(self) -> int:
        """Records that found no room, as the kernel's LOST records in this batch say."""
        return int(self.walk.lost)

    @property
    def overwritten_bytes(self) -> int:
        """Snapshot: bytes written since the last one that no snapshot has returned or will return; 0 when forward."""
        return sum(state.overwritten_bytes for state in self._states)

    @property
    def truncated(self) -> int:
        """Oldest records that were cut, one a ring at most."""
        return int(self.walk.truncated)

    @property
    def malformed(self) -> int:
        """Records or places whose bytes disagreed with themselves and were not returned."""
        return int(self.walk.malformed)

    @property
    def unknown(self) -> int:
        """Records of other types, passed over; an all-zero header is one, and malformed too: it leads nowhere."""
        return int(self.walk.unknown)

    def _indexed(self) -> Arena:
        if self._unindexed is not None:
            # Two threads at once write the same.
            into, count = ffi.from_buffer(FRAMES, self._frames), len(self._states)
            status = lib.pb_rings_drain_frames(self._states, count, self.arena, self._unindexed, into, self.frame_count)
            assert status == lib.PB_OK, status
            self._unindexed = None
        return self._frames

    def _in_order(self) -> Arena:
        rings = len(self._states)
        frames = self._indexed()
        if not self._timed or rings < 2 or not self.frame_count:
            return frames
        if self._merged is None:
            merged = Arena(self.frame_count * FRAME_BYTES)
            into = ffi.from_buffer(FRAMES, merged)
            lib.pb_frames_merge(self.frames, self._states, rings, ffi.new("struct pb_run[]", rings), into)
            self._merged = merged
        return self._merged


def _ring_state(state: Any) -> RingState:
    walk = state.walk
    return RingState(
        cpu=state.cpu,
        wrapped=bool(state.wrapped),
        capacity=state.capacity,
        head=state.head,
        valid_bytes=state.valid_bytes,
        overwritten_bytes=state.overwritten_bytes,
        truncated=walk.truncated,
        malformed=walk.malformed,
        unknown=walk.unknown,
        lost=walk.lost,
        first_frame=state.first_frame,
        frame_count=walk.frames,
    )
