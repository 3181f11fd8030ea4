# SPDX-License-Identifier: Apache-2.0
"""Swapped rings on memory: nothing twice, nothing missing, and "all" goes back as far as it is unbroken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf.rings import Batch, Lost
from otel_perfbuf.rings.swap import SwapReadout
from otel_perfbuf.testing import RingWriter

FRAME = 24  # of a sample with a number and nothing else


class Pair:
    """One CPU with two rings, written through whichever is in the map."""

    def __init__(self, capacity: int, cpu: int = 0) -> None:
        self.rings = [RingWriter(capacity, backward=True, cpu=cpu) for _ in range(2)]
        self.flips = 0
        self.number = 0

    def send(self, count: int) -> None:
        """Numbered samples."""
        for _ in range(count):
            self.rings[self.flips % 2].sample(struct.pack("<Q", self.number))
            self.number += 1

    def flip(self) -> None:
        """What the reader does to the map."""
        self.flips += 1


def readout(*pairs: Pair, grace: bool = True, slack: int = 0) -> SwapReadout:
    """A readout of these CPUs."""

    def flip() -> None:
        for pair in pairs:
            pair.flip()

    return SwapReadout(
        [pair.rings[0].mapped for pair in pairs],
        [pair.rings[1].mapped for pair in pairs],
        pairs[0].rings[0].sample_type,
        slack_bytes=slack,
        grace_period=lambda: grace,
        flip=flip,
    )


def numbers(batch: Batch) -> list[int]:
    """The samples' numbers; losses as their negative count."""
    return [-item.count if isinstance(item, Lost) else struct.unpack_from("<Q", item.data)[0] for item in batch]


def test_last_gives_each_period_once() -> None:
    """What was written since the last snapshot, whichever ring holds it."""
    pair = Pair(4096)
    reader = readout(pair)
    for turn in range(6):
        pair.send(turn)
        batch = reader.snapshot(everything=False)
        assert numbers(batch) == list(range(pair.number - turn, pair.number))
        assert (batch.overwritten_bytes, batch.malformed, batch.truncated) == (0, 0, 0)


@given(
    steps=st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=12),
    capacity=st.sampled_from([64, 128, 256]),
)
def test_all_is_unbroken_and_what_is_gone_is_counted(steps: list[tuple[int, bool]], capacity: int) -> None:
    """Any mix of writes and snapshots: no gap inside a batch, the newest is there, bytes gone are exact to the byte."""
    pair = Pair(capacity)
    reader = readout(pair)
    seen = 0
    for count, everything in steps:
        pair.send(count)
        batch = reader.snapshot(everything=everything)
        got = numbers(batch)
        assert got == list(range(pair.number - len(got), pair.number))
        held = min(count, capacity // FRAME)
        assert len(got) >= held if everything else len(got) == held
        assert batch.overwritten_bytes == (count - held) * FRAME
        if everything and held == count and count <= capacity // FRAME:
            assert len(got) >= min(pair.number, count)
        seen = pair.number
    assert seen == pair.number


def test_all_repeats_what_earlier_snapshots_gave() -> None:
    """Three snapshots in a row lose no history while the rings have room."""
    a, b = Pair(4096, cpu=0), Pair(4096, cpu=3)
    reader = readout(a, b)
    for turn in range(1, 5):
        a.send(3)
        b.send(2)
        batch = reader.snapshot(everything=True)
        by_cpu = [(ring.cpu, ring.frame_count, ring.wrapped) for ring in batch.rings]
        assert by_cpu == [(0, 3 * turn, False), (3, 2 * turn, False)]
        assert numbers(batch) == [*range(3 * turn), *range(2 * turn)]
    a.send(1)
    assert numbers(reader.snapshot(everything=False)) == [12]


def test_periods_that_are_forgotten_are_told() -> None:
    """After very many snapshots "all" is still unbroken, and says that it does not go back to the beginning."""
    pair = Pair(1 << 16)
    reader = readout(pair)
    for _ in range(300):
        pair.send(1)
        batch = reader.snapshot(everything=True)
        got = numbers(batch)
        assert got == list(range(pair.number - len(got), pair.number))
        assert batch.rings[0].wrapped == (len(got) < pair.number)
    assert 100 < len(got) < 300


def test_an_overwritten_period_ends_the_history() -> None:
    """Where the newest period has lost its beginning, nothing older is given: there would be a gap."""
    pair = Pair(256)
    reader = readout(pair)
    pair.send(4)
    reader.snapshot(everything=False)
    pair.send(30)
    batch = reader.snapshot(everything=True)
    assert numbers(batch) == list(range(24, 34))
    assert batch.rings[0].wrapped
    assert batch.overwritten_bytes == 20 * FRAME


def test_losses_are_counted_over_both_rings() -> None:
    """A LOST record in an earlier period is given and counted again by "all"."""
    pair = Pair(4096)
    reader = readout(pair)
    pair.rings[0].lose(5)
    pair.send(1)
    assert reader.snapshot(everything=False).lost == 5
    pair.send(1)
    batch = reader.snapshot(everything=True)
    assert (numbers(batch), batch.lost) == ([-5, 0, 1], 5)


@pytest.mark.parametrize("everything", [False, True])
def test_a_writer_that_still_has_the_old_ring_is_read_next_time(everything: bool) -> None:
    """What it publishes behind the snapshot is not lost: that ring's next period begins where the snapshot ended."""
    pair = Pair(4096)
    reader = readout(pair, grace=False)
    pair.send(1)
    late = pair.rings[0].begin(struct.pack("<Q", 77))
    assert late is not None
    assert numbers(reader.snapshot(everything=everything)) == [0]
    late()
    reader.snapshot(everything=False)
    assert numbers(reader.snapshot(everything=False)) == [77]


def test_a_rescan_goes_on_where_it_was() -> None:
    """A readout that adopts another one repeats nothing by "last" and keeps the history for "all"."""
    pair, late = Pair(4096), Pair(4096, cpu=1)
    first = readout(pair)
    pair.send(3)
    first.snapshot(everything=False)
    pair.send(1)
    # The pair's second ring is the written one now.
    written, spare = pair.rings[pair.flips % 2], pair.rings[1 - pair.flips % 2]

    def flip() -> None:
        pair.flip()
        late.flip()

    second = SwapReadout(
        [written.mapped, late.rings[0].mapped],
        [spare.mapped, late.rings[1].mapped],
        written.sample_type,
        slack_bytes=0,
        grace_period=lambda: True,
        flip=flip,
    )
    second.adopt(first)
    late.send(2)
    assert numbers(second.snapshot(everything=False)) == [3, 0, 1]
    pair.send(1)
    assert numbers(second.snapshot(everything=True)) == [0, 1, 2, 3, 4, 0, 1]
