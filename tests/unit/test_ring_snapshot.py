# SPDX-License-Identifier: Apache-2.0
"""Overwritable rings on memory: snapshots give what is held, oldest first, once, and count what is gone."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf.rings import Batch, Lost
from otel_perfbuf.rings.readout import ReverseReadout
from otel_perfbuf.testing import U64, RingWriter, padded


def readout(*writers: RingWriter, slack: int = 0, grace: Callable[[], bool] | None = None) -> ReverseReadout:
    """A readout of these rings."""
    mapped = [writer.mapped for writer in writers]
    return ReverseReadout(mapped, writers[0].sample_type, slack_bytes=slack, grace_period=grace)


def numbers(batch: Batch) -> list[int]:
    """The samples' numbers; losses as their negative count."""
    return [-item.count if isinstance(item, Lost) else struct.unpack_from("<Q", item.data)[0] for item in batch]


def number(value: int, extra: int = 0) -> bytes:
    """A payload that begins with its number."""
    return struct.pack("<Q", value) + bytes(extra)


def frame_bytes(data: bytes) -> int:
    """What a sample takes in the ring."""
    return 12 + padded(data)


def test_a_ring_that_was_never_written_is_empty() -> None:
    """Head 0: nothing, and nothing is missing (FACTS 3)."""
    batch = readout(RingWriter(4096, backward=True)).snapshot(everything=True)
    (ring,) = batch.rings
    assert (len(batch), batch.truncated, batch.overwritten_bytes, ring.wrapped) == (0, 0, 0, False)


def test_size_4_head_minus_6_gives_the_last_four_oldest_first() -> None:
    """cilium/ebpf TestReverseReader: six written into room for four leave slots [2,3],[0,1]; ours are oldest first."""
    writer = RingWriter(64, backward=True)
    for value in range(6):
        writer.sample(struct.pack("<I", value))  # frames of 16 bytes: four fit
    reader = readout(writer)
    batch = reader.snapshot(everything=False)
    assert [struct.unpack_from("<I", data)[0] for data in batch.data()] == [2, 3, 4, 5]
    assert (batch.truncated, batch.overwritten_bytes) == (0, 32)
    assert len(reader.snapshot(everything=False)) == 0


def test_two_more_give_only_the_two_and_four_more_give_everything() -> None:
    """cilium/ebpf TestReverseReader: head -= 2 gives only what is new, head -= 4 the whole ring."""
    writer = RingWriter(64, backward=True)
    reader = readout(writer)
    value = 0
    for count in (4, 2, 4):
        for _ in range(count):
            writer.sample(struct.pack("<I", value))
            value += 1
        batch = reader.snapshot(everything=False)
        assert [struct.unpack_from("<I", data)[0] for data in batch.data()] == list(range(value - count, value))
        assert batch.overwritten_bytes == 0


def test_a_wrapped_ring_ends_in_exactly_one_cut_record() -> None:
    """Written past its capacity the ring's oldest record is cut, its header whole (FACTS 3)."""
    writer = RingWriter(4096, backward=True)
    for value in range(1000):
        writer.sample(number(value, 48))
    batch = readout(writer).snapshot(everything=True)
    frame = frame_bytes(number(0, 48))
    held = 4096 // frame
    assert numbers(batch) == list(range(1000 - held, 1000))
    assert (batch.truncated, batch.malformed) == (1, 0)
    assert batch.overwritten_bytes == 1000 * frame - held * frame
    assert batch.rings[0].wrapped


def test_all_gives_again_what_last_has_given_and_last_begins_behind_it() -> None:
    """since="all" repeats; the next since="last" holds only what came after."""
    writer = RingWriter(4096, backward=True)
    reader = readout(writer)
    writer.sample(number(1))
    assert numbers(reader.snapshot(everything=False)) == [1]
    writer.sample(number(2))
    again = reader.snapshot(everything=True)
    assert (numbers(again), again.overwritten_bytes) == ([1, 2], 0)
    writer.sample(number(3))
    assert numbers(reader.snapshot(everything=False)) == [3]


def test_a_loss_stands_before_the_sample_it_came_with() -> None:
    """A pause leaves a LOST record in the overwritable ring too, in one reservation with its sample (FACTS 5, 6)."""
    writer = RingWriter(4096, backward=True)
    writer.sample(number(1))
    writer.lose(9)
    writer.sample(number(2))
    writer.sample(number(3))
    batch = readout(writer).snapshot(everything=True)
    assert numbers(batch) == [1, -9, 2, 3]
    assert batch.lost == 9


def test_a_loss_that_the_window_cuts_in_half_is_truncated() -> None:
    """The window's end inside a LOST record: it is the cut one, and is not counted as a loss."""
    writer = RingWriter(64, backward=True)
    writer.lose(9)
    writer.sample(struct.pack("<I", 1))  # 24 + 16
    writer.sample(bytes(36))  # 48: what is left of the older reservation is the first 16 bytes of LOST
    batch = readout(writer).snapshot(everything=True)
    assert (len(batch), batch.lost, batch.truncated) == (1, 0, 1)


def test_a_loss_whose_sample_is_cut_is_given_alone() -> None:
    """LOST stands at the lower address: it may be whole where its sample is not."""
    writer = RingWriter(64, backward=True)
    writer.lose(9)
    writer.sample(struct.pack("<I", 1))  # 24 + 16
    writer.sample(bytes(20))  # 32: 32 are left: LOST and half its sample
    batch = readout(writer).snapshot(everything=True)
    kinds = [type(item).__name__ for item in batch]
    assert (kinds, batch.lost, batch.truncated) == (["Lost", "Sample"], 9, 1)


def test_a_writer_in_flight_is_covered_by_slack() -> None:
    """What it has overwritten already, without publishing, is cut off when the slack is its frame; and not without."""
    data = number(1 << 40, 40)
    for slack, torn in ((0, 1), (frame_bytes(data), 0)):
        writer = RingWriter(4096, backward=True)
        for value in range(4096 // 64 * 3):
            writer.sample(struct.pack("<Q", value) + b"\x11" * 44)  # frames of 64 bytes: the ring is full of whole ones
        assert writer.begin(b"\xff" * 52) is not None
        batch = readout(writer, slack=slack).snapshot(everything=True)
        broken = sum(data[8:] != b"\x11" * 44 for data in batch.data()) + batch.malformed
        assert (broken, batch.truncated) == (torn, 0)


def test_a_grace_period_gives_everything_of_a_quiet_ring() -> None:
    """With a slack larger than the ring nothing is safe at once; after the writers' end all of it is."""
    writer = RingWriter(4096, backward=True)
    for value in range(200):
        writer.sample(struct.pack("<Q", value) + bytes(44))
    assert numbers(readout(writer, slack=1 << 20).snapshot(everything=True)) == []
    batch = readout(writer, slack=1 << 20, grace=lambda: True).snapshot(everything=True)
    assert numbers(batch) == list(range(200 - 64, 200))
    assert numbers(readout(writer, slack=1 << 20, grace=lambda: False).snapshot(everything=True)) == []


def test_what_was_written_during_the_copy_costs_the_oldest() -> None:
    """Until the grace period ends three frames more were published: so much of the oldest is not believed."""
    writer = RingWriter(4096, backward=True)
    for value in range(200):
        writer.sample(struct.pack("<Q", value) + bytes(44))

    def grace() -> bool:
        for value in range(200, 203):
            writer.sample(struct.pack("<Q", value) + bytes(44))
        return True

    reader = readout(writer, slack=1 << 20, grace=grace)
    batch = reader.snapshot(everything=True)
    assert numbers(batch) == list(range(200 - 64 + 3, 200))
    assert batch.overwritten_bytes == (200 - 61) * 64
    reader = readout(writer, slack=64)
    assert numbers(reader.snapshot(everything=False)) == list(range(203 - 63, 203))


def test_a_writer_a_whole_ring_ahead_leaves_nothing() -> None:
    """Everything that was copied may have been overwritten meanwhile: nothing is given, everything is counted."""
    writer = RingWriter(256, backward=True)
    writer.sample(number(1))

    def grace() -> bool:
        for value in range(100):
            writer.sample(number(value))
        return True

    batch = readout(writer, slack=1 << 10, grace=grace).snapshot(everything=True)
    assert (len(batch), batch.malformed, batch.overwritten_bytes) == (0, 0, frame_bytes(number(1)))


@given(
    capacity=st.sampled_from([128, 256, 1024]),
    head=st.sampled_from([0, U64 - 8, U64 - 4096]),
    slack=st.integers(0, 12).map(lambda n: n * 8),
    steps=st.lists(st.one_of(st.integers(0, 6), st.none()), max_size=60),
)
def test_snapshots_give_the_newest_that_fit_once_and_count_the_rest(
    capacity: int, head: int, slack: int, steps: list[int | None]
) -> None:
    """Any mix of writes and snapshots: a gapless newest run, nothing twice, and bytes that add up exactly."""
    writer = RingWriter(capacity, backward=True, head=head)
    reader = readout(writer, slack=slack)
    reader._rings[0].cursor = head  # as if a snapshot had ended there
    new: list[tuple[int, int]] = []
    count = 0
    for step in [*steps, None]:
        if step is not None:
            data = number(count, step * 8)
            writer.sample(data)
            new.append((count, frame_bytes(data)))
            count += 1
            continue
        batch = reader.snapshot(everything=False)
        seen = numbers(batch)
        # The newest that fit into what cannot have been torn.
        room, expected = capacity - slack, []
        for value, size in reversed(new):
            if size > room:
                break
            room -= size
            expected.insert(0, (value, size))
        assert seen == [value for value, _ in expected]
        assert batch.overwritten_bytes == sum(size for _, size in new) - sum(size for _, size in expected)
        assert batch.malformed == 0
        assert batch.truncated <= (len(expected) < len(new))
        new = []


def test_an_oversized_sample_ends_the_history_behind_it() -> None:
    """It has destroyed the start of the older record: newer ones are given, it and the older ones are not."""
    writer = RingWriter(1 << 18, backward=True)
    writer.sample(number(1))
    writer.sample(b"y" * 65532)
    writer.sample(number(2))
    batch = readout(writer).snapshot(everything=True)
    assert (numbers(batch), batch.malformed) == ([2], 1)


@pytest.mark.parametrize("head", [4, 4095])
def test_a_head_between_words_is_counted(head: int) -> None:
    """The kernel never publishes one: nothing is read there, and the cursor stays."""
    writer = RingWriter(4096, backward=True)
    writer.sample(number(1))
    reader = readout(writer)
    good, writer.head = writer.head, head
    batch = reader.snapshot(everything=False)
    assert (len(batch), batch.malformed) == (0, 1)
    writer.head = good
    assert numbers(reader.snapshot(everything=False)) == [1]


@given(junk=st.lists(st.binary(min_size=8, max_size=64), max_size=20), everything=st.booleans())
def test_any_bytes_never_break_a_snapshot(junk: list[bytes], everything: bool) -> None:
    """Whatever was written, frames lie inside the copy and what is written next is given."""
    writer = RingWriter(256, backward=True)
    reader = readout(writer)
    for piece in junk:
        writer.junk(piece[: len(piece) & ~7])
    assert all(len(data) < 256 for data in reader.snapshot(everything=everything).data())
    writer.sample(number(5))
    assert numbers(reader.snapshot(everything=False)) == [5]


def test_several_rings_lie_one_after_the_other() -> None:
    """Each ring has its frames, its CPU and its counts, in the order of the rings."""
    rings = [RingWriter(capacity, backward=True, cpu=cpu) for cpu, capacity in ((0, 64), (2, 4096), (7, 256))]
    for value in range(30):
        rings[1].sample(number(value))
        rings[2].sample(number(100 + value))
    batch = readout(*rings).snapshot(everything=True)
    assert [(r.cpu, r.first_frame, r.frame_count, r.wrapped) for r in batch.rings] == [
        (0, 0, 0, False),
        (2, 0, 30, False),
        (7, 30, 10, True),
    ]
    assert numbers(batch) == [*range(30), *range(120, 130)]
