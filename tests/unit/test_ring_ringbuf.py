# SPDX-License-Identifier: Apache-2.0
"""BPF ring buffers on memory: forward up to a record in the making, overwritable by snapshots (FACTS 16)."""

from __future__ import annotations

import asyncio
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf.errors import ReaderClosed
from otel_perfbuf.rings import RingbufReader
from otel_perfbuf.rings.base import ReaderBase, Waiting
from otel_perfbuf.rings.ringbuf_readout import RingbufReadout
from otel_perfbuf.testing import U64, RingbufWriter

POSITIONS = st.sampled_from([0, 8, 4096, U64 - 64, U64 - 8])


@given(
    capacity=st.sampled_from([64, 128, 256]),
    position=POSITIONS,
    steps=st.lists(st.one_of(st.binary(max_size=40), st.just("discard"), st.just("drain")), max_size=40),
)
def test_what_was_submitted_is_read_once_whole_and_unpadded(
    capacity: int, position: int, steps: list[bytes | str]
) -> None:
    """Any mix of submits, discards and drains; payloads come with their own length: there is no pad to see."""
    writer = RingbufWriter(capacity, position=position)
    reader = RingbufReadout(writer.mapped)
    expected: list[bytes] = []
    seen: list[bytes] = []
    discards = 0
    for step in [*steps, "drain"]:
        if step == "discard":
            reservation = writer.reserve(8)
            if reservation is not None:
                reservation.discard()
                discards += 1
        elif isinstance(step, bytes):
            if writer.sample(step):
                expected.append(step)
        else:
            while reader.available_bytes():
                seen += reader.drain().data()
            assert writer.consumer_pos == writer.producer_pos
    assert seen == expected
    assert reader.discarded == discards


def test_a_record_in_the_making_stops_the_reader_and_what_is_behind_waits() -> None:
    """BUSY: nothing behind it is given before it is committed, and then in order."""
    writer = RingbufWriter(4096)
    reader = RingbufReadout(writer.mapped)
    writer.sample(b"before")
    busy = writer.reserve(6)
    writer.sample(b"behind")
    assert busy is not None
    assert (reader.drain().data(), reader.busy, reader.left_bytes) == ([b"before"], True, 32)
    assert (reader.drain().data(), reader.busy, reader.available_bytes()) == ([], True, 32)
    busy.submit(b"middle")
    assert (reader.drain().data(), reader.busy, reader.left_bytes) == ([b"middle", b"behind"], False, 0)


def test_a_slice_ends_behind_the_record_that_crosses_it() -> None:
    """Batches stay small, and a record as large as the ring allows is still one."""
    writer = RingbufWriter(1 << 16)
    reader = RingbufReadout(writer.mapped, slice_bytes=1000)
    written = [bytes([number]) * 300 for number in range(20)] + [b"x" * 50_000]
    for data in written:
        assert writer.sample(data)
    batches = []
    while reader.available_bytes():
        batches.append(reader.drain().data())
    assert [data for batch in batches for data in batch] == written
    assert max(map(len, batches)) == 4


@pytest.mark.parametrize("header", [5000, (1 << 30) - 1])
def test_a_header_that_leads_beyond_the_ring_is_malformed(header: int) -> None:
    """Nothing wrong is given, and reading goes on with what is written next."""
    writer = RingbufWriter(4096)
    reader = RingbufReadout(writer.mapped)
    writer.sample(b"good")
    at = writer.producer_pos
    writer.sample(b"bad")
    writer.set_header(at, header)
    batch = reader.drain()
    assert (batch.data(), batch.malformed) == ([b"good"], 1)
    writer.sample(b"next")
    assert reader.drain().data() == [b"next"]


@pytest.mark.parametrize("jump", [4096 + 8, -8, 12])
def test_a_position_that_jumped_is_counted_and_followed(jump: int) -> None:
    """Ahead of the ring, behind the reader, between words."""
    writer = RingbufWriter(4096, position=800)
    reader = RingbufReadout(writer.mapped)
    writer.producer_pos = 800 + jump
    batch = reader.drain()
    assert (len(batch), batch.malformed, writer.consumer_pos) == (0, 1, 800 + jump)


@given(
    capacity=st.sampled_from([64, 128, 256]),
    steps=st.lists(st.one_of(st.integers(0, 30), st.sampled_from(["last", "all"])), max_size=40),
)
def test_snapshots_of_an_overwritable_ring(capacity: int, steps: list[int | str]) -> None:
    """Oldest first and without a gap; "last" repeats nothing; bytes gone are exact to the byte."""
    writer = RingbufWriter(capacity, overwritable=True)
    reader = RingbufReadout(writer.mapped)
    written: list[bytes] = []
    returned = 0
    gone = 0
    for step in [*steps, "last"]:
        if isinstance(step, int):
            data = struct.pack("<I", len(written)) + bytes(step)
            assert writer.sample(data)
            written.append(data)
            continue
        batch = reader.snapshot(everything=step == "all")
        got = batch.data()
        assert got == written[len(written) - len(got) :]
        gone += batch.overwritten_bytes
        if step == "last":
            assert len(got) <= len(written) - returned
        returned = len(written)
        assert batch.malformed == 0
    held = sum((len(data) + 15) // 8 * 8 for data in reader.snapshot(everything=True).data())
    assert held == writer.producer_pos - writer.overwrite_pos == reader.available_bytes()


def test_overwritten_bytes_are_exact() -> None:
    """Eight records into room for three: five are gone since the last snapshot, each of 24 bytes."""
    writer = RingbufWriter(128, overwritable=True)
    reader = RingbufReadout(writer.mapped)
    writer.sample(bytes(16))
    assert reader.snapshot(everything=False).overwritten_bytes == 0
    for number in range(9):
        writer.sample(bytes([number]) * 16)
    batch = reader.snapshot(everything=False)
    assert [data[0] for data in batch.data()] == [4, 5, 6, 7, 8]
    assert batch.overwritten_bytes == 4 * 24
    assert batch.rings[0].wrapped


def test_a_snapshot_ends_before_a_record_in_the_making_and_the_next_begins_there() -> None:
    """What lies behind it comes with the next snapshot, once."""
    writer = RingbufWriter(4096, overwritable=True)
    reader = RingbufReadout(writer.mapped)
    writer.sample(b"a")
    busy = writer.reserve(1)
    writer.sample(b"c")
    assert busy is not None
    assert reader.snapshot(everything=False).data() == [b"a"]
    busy.submit(b"b")
    assert reader.snapshot(everything=False).data() == [b"b", b"c"]
    assert reader.snapshot(everything=True).data() == [b"a", b"b", b"c"]
    discarded = writer.reserve(1)
    assert discarded is not None
    discarded.discard()
    assert len(reader.snapshot(everything=False)) == 0


def test_a_snapshot_waits_for_a_record_that_was_in_the_making_when_it_began() -> None:
    """What other CPUs wrote behind it is in the snapshot then; a record that was begun later is not waited for."""
    writer = RingbufWriter(4096, overwritable=True)
    writer.sample(b"a")
    busy = writer.reserve(1)
    writer.sample(b"c")
    assert busy is not None
    pauses: list[int] = []

    def pause(tries: int) -> bool:
        pauses.append(tries)
        if len(pauses) == 3:
            busy.submit(b"b")
            assert writer.reserve(1) is not None
        return tries < 4

    reader = RingbufReadout(writer.mapped, pause=pause)
    batch = reader.snapshot(everything=False)
    assert (batch.data(), pauses) == ([b"a", b"b", b"c"], [0, 1, 2])
    assert reader.snapshot(everything=True).data() == [b"a", b"b", b"c"]
    assert pauses[3:] == [0, 1, 2, 3, 4]


def test_a_snapshot_gives_up_waiting_for_a_record_in_the_making() -> None:
    """Bounded: what is before the record is given, what is behind it comes with a later snapshot."""
    writer = RingbufWriter(4096, overwritable=True)
    writer.sample(b"a")
    busy = writer.reserve(1)
    writer.sample(b"c")
    assert busy is not None
    reader = RingbufReadout(writer.mapped, pause=lambda tries: tries < 5)
    assert reader.snapshot(everything=False).data() == [b"a"]
    busy.submit(b"b")
    assert reader.snapshot(everything=False).data() == [b"b", b"c"]


def test_the_consumers_position_is_not_where_an_overwritable_ring_begins() -> None:
    """The kernel ignores it there; it is written, so that poll is acknowledged."""
    writer = RingbufWriter(128, overwritable=True)
    for number in range(20):
        writer.sample(bytes([number]) * 8)
    assert writer.consumer_pos == 0
    reader = RingbufReadout(writer.mapped)
    assert [data[0] for data in reader.snapshot(everything=False).data()] == list(range(13, 20))
    assert writer.consumer_pos == writer.producer_pos


@given(junk=st.binary(min_size=64, max_size=256), words=st.tuples(st.integers(0, U64 - 1), st.integers(0, U64 - 1)))
def test_any_bytes_never_break_the_reader(junk: bytes, words: tuple[int, int]) -> None:
    """Whatever headers and positions say, nothing is read beyond the ring, and both calls return."""
    for overwritable in (False, True):
        writer = RingbufWriter(256, overwritable=overwritable)
        writer.store(0, junk)
        for producer, over in (words, (256, 0), (words[0] & ~7, (words[0] - 128) & ~7)):
            writer.producer_pos, writer.overwrite_pos = producer, over
            reader = RingbufReadout(writer.mapped)
            batch = reader.snapshot(everything=True) if overwritable else reader.drain()
            assert sum(map(len, batch.data())) <= 256


def test_snapshots_beside_a_writer_are_never_torn() -> None:
    """A writer in another thread: Python's steps interleave with the C core's; records come whole and in order."""
    writer = RingbufWriter(512, overwritable=True)
    reader = RingbufReadout(writer.mapped)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            writer.sample(struct.pack("<Q", number) * (1 + number % 5))
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(500):
            numbers = []
            for data in reader.snapshot(everything=True).data():
                words = struct.unpack(f"<{len(data) // 8}Q", data)
                assert words == (words[0],) * (1 + words[0] % 5)
                numbers.append(words[0])
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    finally:
        stop.set()
        thread.join()


def reader_of(writer: RingbufWriter) -> RingbufReader:
    """A RingbufReader over a ring in memory: nobody wakes it."""
    reader = RingbufReader.__new__(RingbufReader)
    ReaderBase.__init__(reader, overwritable=False)
    reader._readout = RingbufReadout(writer.mapped)
    waiting = Waiting()
    reader._opened.callback(waiting.close)
    reader._start(waiting)
    return reader


def test_busy_waits_no_longer_than_the_timeout() -> None:
    """A writer that never commits: read gives what is before it, then an empty batch at the timeout."""
    writer = RingbufWriter(4096)
    with reader_of(writer) as reader:
        writer.sample(b"before")
        assert writer.reserve(8) is not None
        assert reader.read(30).data() == [b"before"]
        begun = time.monotonic()
        assert len(reader.read(0.05)) == 0
        assert 0.049 <= time.monotonic() - begun < 5
        assert len(reader.read(0)) == 0
        assert len(reader.flush()) == 0


def test_busy_ends_when_the_writer_commits_without_a_wake_up() -> None:
    """The record and what lies behind it are given although no fd tells."""
    writer = RingbufWriter(4096)
    with reader_of(writer) as reader:
        busy = writer.reserve(6)
        assert busy is not None
        assert len(reader.read(0)) == 0
        timer = threading.Timer(0.05, busy.submit, [b"middle"])
        timer.start()
        assert reader.read(30).data() == [b"middle"]
        timer.join()


def test_busy_ends_at_close() -> None:
    """Close from another thread ends a read that waits for a writer."""
    writer = RingbufWriter(4096)
    reader = reader_of(writer)
    assert writer.reserve(8) is not None
    timer = threading.Timer(0.05, reader.close)
    timer.start()
    with pytest.raises(ReaderClosed):
        reader.read(30)
    timer.join()


def test_busy_leaves_the_loop_to_others() -> None:
    """``async for`` beside a writer that does not commit sleeps between its looks."""
    writer = RingbufWriter(4096)
    busy = writer.reserve(6)
    assert busy is not None

    async def run() -> list[bytes]:
        loop, got = asyncio.get_running_loop(), []
        loop.call_later(0.05, busy.submit, b"middle")
        with reader_of(writer) as reader:
            async for batch in reader:
                got += batch.data()
                reader.close()
        return got

    assert asyncio.run(asyncio.wait_for(run(), 20)) == [b"middle"]
