# SPDX-License-Identifier: Apache-2.0
"""Snapshots by swapping: each CPU has two overwritable rings, and the one that is read is not written any more.

Facts: putting another event into the map's element takes microseconds, and a writer that began before may still move
  the old ring's head (FACTS, copies: 11 of 1,500). A writer runs under RCU, so a grace period ends it.
Decision: swap, wait, read the old ring by the same checked copy as ever: its head is read again behind the copy, so
  even where the kernel gives no grace period nothing torn is returned. Nothing that was held is lost meanwhile.
  The rings' contents alternate in time:   A: | period 1 |          | period 3 |
                                           B:            | period 2 |          | period 4: written now |
  "last" is the old ring's last period. "all" goes back from there, period by period, as long as each is whole.
Cost: twice the memory, a grace period a snapshot; "all" has two copies.
What it is not: it opens no rings (ring_set.py). Source: DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from otel_perfbuf._core._core import ffi
from otel_perfbuf._core._fast import Arena
from otel_perfbuf.rings.batch import FRAME_BYTES, Batch
from otel_perfbuf.rings.memory import ArenaPool
from otel_perfbuf.rings.readout import PERF_SAMPLE_TIME, MappedRing, ReverseReadout

__all__ = ["SwapReadout"]

PERF_RECORD_LOST = 2
_PERIODS_MAX = 64  # of each ring; what is older is not given any more


class _Part(NamedTuple):
    """One ring as it was copied, and where its periods began (head positions, newest first)."""

    frames: Arena
    state: Any
    bounds: list[int]


class SwapReadout:
    """Not thread-safe; its owner serialises. ``flip`` puts the other ring of every CPU into the map.

    ``written`` and ``spares`` hold the rings of the same CPUs in the same order.
    """

    def __init__(
        self,
        written: Sequence[MappedRing],
        spares: Sequence[MappedRing],
        sample_type: int,
        *,
        slack_bytes: int,
        grace_period: Callable[[], bool],
        flip: Callable[[], None],
    ) -> None:
        self._rings = (written, spares)
        self._flip = flip
        self._timed = bool(sample_type & PERF_SAMPLE_TIME)
        self._settled = True
        self._grace_period = grace_period
        self._sides = [
            ReverseReadout(rings, sample_type, slack_bytes=slack_bytes, grace_period=self._is_settled, prefault=False)
            for rings in (written, spares)
        ]
        # Where the periods of each ring began, newest first; a head of 0 is its beginning.
        self._bounds: dict[int, list[int]] = {ring.page: [0] for ring in (*written, *spares)}
        self._now = 0
        self._arenas = ArenaPool(2 * self._sides[0].bytes, prefault=True)

    def adopt(self, earlier: SwapReadout) -> None:
        """Goes on where another one ended, for the rings that both have; the written side is the same then."""
        for own, other in zip(
            self._sides, (earlier._sides[earlier._now], earlier._sides[1 - earlier._now]), strict=True
        ):
            own.adopt(other)
        for page in self._bounds:
            self._bounds[page] = earlier._bounds.get(page, [0])

    def _is_settled(self) -> bool:
        return self._settled

    def snapshot(self, *, everything: bool) -> Batch:
        """What was written since the last snapshot; everything: what is held without a gap before that, too."""
        old, new = self._sides[self._now], self._sides[1 - self._now]
        arena = self._arenas.take()
        if not everything:
            self._swap()
            frames, states, walk, took_ns = old.take(arena, 0, everything=False)
            self._end_period(states)
            return Batch(arena, frames, states, walk, timed=self._timed, snapshot_ns=took_ns)
        # The other side first: from the swap on it is overwritten.
        before = new.take(arena, new.bytes, everything=True)
        self._swap()
        current = old.take(arena, 0, everything=True)
        parts = [
            [
                _Part(current[0], current[1][index], self._bounds[self._rings[self._before()][index].page]),
                # Its newest bound is its head: it has been read and not written since.
                _Part(before[0], before[1][index], self._bounds[self._rings[self._now][index].page][1:]),
            ]
            for index in range(len(self._rings[0]))
        ]
        batch = _joined(arena, parts, current[2], current[3], self._timed)
        self._end_period(current[1])
        return batch

    def _before(self) -> int:
        return 1 - self._now

    def _swap(self) -> None:
        self._flip()
        self._now = 1 - self._now
        # Ends every writer that still had the old ring.
        self._settled = self._grace_period()

    def _end_period(self, states: Any) -> None:
        """The old side's rings begin their next period where they stand now."""
        for ring, state in zip(self._rings[self._before()], states, strict=True):
            self._bounds[ring.page] = [state.head, *self._bounds[ring.page]][:_PERIODS_MAX]


def _joined(arena: Arena, parts: list[list[_Part]], walk: Any, took_ns: int, timed: bool) -> Batch:
    """One batch out of both copies: per CPU the unbroken run of periods that ends now, oldest first."""
    states = ffi.new("struct pb_ring_state[]", len(parts))
    runs = [_unbroken(pair) for pair in parts]
    total = sum(last - first for run in runs for _, first, last in run)
    joined = Arena(max(1, total) * FRAME_BYTES)
    with memoryview(joined) as into:
        at = 0
        for state, run, (current, before) in zip(states, runs, parts, strict=True):
            ffi.memmove(ffi.addressof(state), ffi.addressof(current.state), ffi.sizeof("struct pb_ring_state"))
            state.first_frame = at
            forgotten = any(part.bounds and part.bounds[-1] for part in (current, before))
            state.wrapped = current.state.wrapped or before.state.wrapped or forgotten
            for frames, first, last in run:
                with memoryview(frames) as source:
                    size = (last - first) * FRAME_BYTES
                    into[at * FRAME_BYTES : at * FRAME_BYTES + size] = source[first * FRAME_BYTES : last * FRAME_BYTES]
                at += last - first
            state.walk.frames = at - state.first_frame
            if current.state.walk.lost_frames or before.state.walk.lost_frames:
                _count_losses(state, ffi.from_buffer("struct pb_frame[]", joined))
    walk.frames = total
    walk.lost = sum(state.walk.lost for state in states)
    walk.lost_frames = sum(state.walk.lost_frames for state in states)
    return Batch(arena, joined, states, walk, timed=timed, snapshot_ns=took_ns)


def _count_losses(state: Any, frames: Any) -> None:
    own = range(state.first_frame, state.first_frame + state.walk.frames)
    losses = [frames[index].lost for index in own if frames[index].type == PERF_RECORD_LOST]
    state.walk.lost, state.walk.lost_frames = sum(losses), len(losses)


def _unbroken(pair: list[_Part]) -> list[tuple[Arena, int, int]]:
    """Slices of frames, oldest first: the newest period, and each one before as long as the later one is whole."""
    run: list[tuple[Arena, int, int]] = []
    ends = [part.state.first_frame + part.state.walk.frames for part in pair]
    for turn in range(2 * len(pair[0].bounds)):
        part = pair[turn % 2]
        if turn // 2 >= len(part.bounds):
            break
        first, whole = _period(part, turn // 2, ends[turn % 2])
        run.append((part.frames, first, ends[turn % 2]))
        ends[turn % 2] = first
        if not whole:
            break
    return run[::-1]


def _period(part: _Part, age: int, end: int) -> tuple[int, bool]:
    """Where the frames of a ring's period begin (it ends at ``end``), and whether all that it wrote is there."""
    state = part.state
    reach = (part.bounds[age] - state.head) % (1 << 64)  # bytes from the head to the period's beginning
    frames = ffi.from_buffer("struct pb_frame[]", part.frames)
    first, high = state.first_frame, end
    while first < high:  # frames' offsets descend: the first one nearer to the head than the period's beginning
        middle = (first + high) // 2
        if frames[middle].offset - state.arena_offset < reach:
            high = middle
        else:
            first = middle + 1
    whole = state.valid_bytes - state.walk.truncated_bytes >= reach and not state.walk.malformed
    return first, whole
