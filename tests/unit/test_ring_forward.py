# SPDX-License-Identifier: Apache-2.0
"""Forward rings on memory: what the kernel writes upward is drained whole, in order, once."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.rings import Batch, Lost, Sample
from otel_perfbuf.rings.readout import ForwardReadout
from otel_perfbuf.testing import U64, RingWriter, padded


def readout(*writers: RingWriter) -> ForwardReadout:
    """A readout of these rings."""
    return ForwardReadout([writer.mapped for writer in writers], writers[0].sample_type)


def contents(batch: Batch) -> list[bytes | int]:
    """Samples as what was sent (each begins with its length), losses as their count."""
    return [item.count if isinstance(item, Lost) else bytes(item.data[1 : 1 + item.data[0]]) for item in batch]


def send(writer: RingWriter, data: bytes) -> bool:
    """Writes a sample that begins with its length; False when it is lost."""
    return writer.sample(bytes([len(data)]) + data)


@given(
    capacity=st.sampled_from([32, 64, 128, 256]),
    head=st.sampled_from([0, 8, 24, U64 - 8, U64 - 64]),
    steps=st.lists(st.one_of(st.binary(max_size=40), st.none()), max_size=40),
)
def test_what_was_written_is_read_once_and_what_was_not_is_counted(
    capacity: int, head: int, steps: list[bytes | None]
) -> None:
    """Any mix of writes and drains: samples in order, each once, with the losses where they happened."""
    writer = RingWriter(capacity, head=head)
    reader = readout(writer)
    expected: list[bytes | int] = []
    seen: list[bytes | int] = []
    lost = 0
    for step in [*steps, None]:
        if step is None:
            seen += contents(reader.drain())
            assert writer.tail == writer.head
        elif not send(writer, step):
            lost += 1
        else:
            expected += [lost, step] if lost else [step]
            lost = 0
    assert seen == expected


def test_size_2_offset_0_gives_both_then_nothing() -> None:
    """cilium/ebpf TestForwardReader: a full ring is read from its beginning, then it is empty."""
    writer = RingWriter(32)
    reader = readout(writer)
    assert send(writer, b"0") and send(writer, b"1") and not send(writer, b"2")
    assert contents(reader.drain()) == [b"0", b"1"]
    assert contents(reader.drain()) == []


def test_size_2_offset_1_reads_across_the_end() -> None:
    """cilium/ebpf TestForwardReader: begun in the middle, the second record lies at the ring's start."""
    writer = RingWriter(32, head=16)
    reader = readout(writer)
    assert send(writer, b"1") and send(writer, b"0")
    assert contents(reader.drain()) == [b"1", b"0"]
    assert contents(reader.drain()) == []


def test_a_record_that_wraps_is_one_record() -> None:
    """A record whose bytes lie at both ends of the ring comes out whole."""
    writer = RingWriter(64, head=40)
    reader = readout(writer)
    assert send(writer, b"abcdefghijklmnopqrstuvwxyz")
    assert contents(reader.drain()) == [b"abcdefghijklmnopqrstuvwxyz"]


def test_samples_arrive_padded_by_the_kernel() -> None:
    """5 bytes arrive as 12, and the pad is whatever lay there (FACTS 8)."""
    writer = RingWriter(4096)
    writer.sample(b"12345")
    (data,) = readout(writer).drain().data()
    assert len(data) == padded(b"12345") == 12
    assert data[:5] == b"12345"


def test_an_unknown_type_in_mid_stream_is_passed_over() -> None:
    """Later record types do not disturb the ones that we know."""
    writer = RingWriter(4096)
    send(writer, b"a")
    writer.record(42, b"x" * 32)
    send(writer, b"b")
    batch = readout(writer).drain()
    assert contents(batch) == [b"a", b"b"]
    assert (batch.unknown, batch.malformed) == (1, 0)


def test_an_all_zero_header_is_an_unknown_record() -> None:
    """cilium/ebpf TestReadRecord's case: no sample, counted as unknown; its size 0 leads nowhere, so malformed too."""
    writer = RingWriter(4096)
    reader = readout(writer)
    send(writer, b"before")
    writer.junk(bytes(8))
    send(writer, b"behind")
    batch = reader.drain()
    assert (contents(batch), batch.unknown, batch.malformed) == ([b"before"], 1, 1)
    assert writer.tail == writer.head
    writer.record(0, bytes(16))
    send(writer, b"after")
    batch = reader.drain()
    assert (contents(batch), batch.unknown, batch.malformed) == ([b"after"], 1, 0)


def test_the_pad_is_never_seen_where_the_payload_carries_its_length() -> None:
    """What lay in the ring before shows in the pad only, behind the payload's own length (FACTS 8)."""
    writer = RingWriter(256)
    reader = readout(writer)
    stale = 0
    for size in range(60):
        writer.sample(b"\xee" * 60)
        reader.drain()
        assert send(writer, bytes(size))
        batch = reader.drain()
        assert contents(batch) == [bytes(size)]
        stale += b"\xee" in batch.data()[0]
    assert stale > 0


@given(
    pieces=st.lists(
        st.one_of(
            st.integers(1, 6000).map(lambda size: ("sample", size)),
            st.integers(1, 9).map(lambda count: ("lost", count)),
            st.integers(0, 40).map(lambda size: ("record", 8 * size)),
            st.binary(min_size=8, max_size=8).map(lambda header: ("junk", header)),
        ),
        max_size=30,
    ),
    head=st.sampled_from([0, 8200, U64 - 24]),
)
def test_a_drain_chunk_by_chunk_finds_what_one_walk_over_the_whole_finds(pieces: list[Any], head: int) -> None:
    """Records are counted 8 KiB at a time while they are copied; chunk borders change nothing."""
    writer = RingWriter(1 << 18, head=head)
    reader = readout(writer)
    for kind, what in pieces:
        if kind == "lost":
            writer.lose(what)
        else:
            getattr(writer, kind)(*{"sample": (bytes(what),), "record": (77, bytes(what)), "junk": (what,)}[kind])
    window = (writer.head - writer.tail) % U64
    start = writer.tail % writer.mapped.capacity
    ring = bytes(ffi.buffer(ffi.cast("uint8_t *", writer.mapped.data), writer.mapped.capacity))
    plain = (ring + ring)[start : start + window]
    walk, frames = ffi.new("struct pb_walk *"), ffi.new("struct pb_frame[]", window // 16 + 1)
    memory = ffi.from_buffer("uint8_t[]", plain or bytes(8))
    assert lib.pb_ring_walk(memory, 0, window, writer.sample_type, 0, 0, frames, len(frames), walk) == lib.PB_OK
    batch = reader.drain()
    assert bytes(ffi.buffer(batch.walk)) == bytes(ffi.buffer(walk))
    assert batch.data() == [
        plain[frame.offset : frame.offset + frame.bytes] for frame in frames[0 : walk.frames] if frame.type == 9
    ]
    assert [item.count for item in batch if isinstance(item, Lost)] == [
        frame.lost for frame in frames[0 : walk.frames] if frame.type == 2
    ]
    assert writer.tail == writer.head


@pytest.mark.parametrize(
    "junk", [b"\0" * 8, struct.pack("<IHH", 9, 0, 4), struct.pack("<IHH", 9, 0, 20), struct.pack("<IHH", 9, 0, 800)]
)
def test_after_bytes_that_are_no_record_the_ring_goes_on(junk: bytes) -> None:
    """Size 0, below a header, unaligned, beyond head: counted, and reading goes on with what is written next."""
    writer = RingWriter(4096)
    reader = readout(writer)
    send(writer, b"before")
    writer.junk(junk)
    batch = reader.drain()
    assert (contents(batch), batch.malformed) == ([b"before"], 1)
    assert writer.tail == writer.head
    send(writer, b"after")
    assert contents(reader.drain()) == [b"after"]


@pytest.mark.parametrize("jump", [4096 + 8, -8, 12])
def test_a_head_that_jumped_is_counted_and_followed(jump: int) -> None:
    """Ahead of the ring, behind the tail, between words: nothing is read, and the tail follows."""
    writer = RingWriter(4096, head=800)
    reader = readout(writer)
    writer.head = 800 + jump
    batch = reader.drain()
    assert (contents(batch), batch.malformed) == ([], 1)
    assert writer.tail == writer.head
    assert readout(writer).drain().malformed == 0


def test_a_sample_near_64_kib_is_whole_and_a_larger_one_is_not_believed() -> None:
    """65,516 bytes are the most; above, the header's size wraps, and the next record is still found (FACTS 9)."""
    writer = RingWriter(1 << 20)
    reader = readout(writer)
    writer.sample(b"x" * 65508)
    (data,) = reader.drain().data()
    assert data == b"x" * 65508
    writer.sample(b"y" * 65532)
    send(writer, b"next")
    batch = reader.drain()
    assert (contents(batch), batch.malformed) == ([b"next"], 1)


def test_a_batch_is_one_slice_and_the_next_gives_the_rest() -> None:
    """No more than a slice of a ring is copied at once; records that the slice cuts come whole with the next."""
    writer = RingWriter(1 << 20)
    reader = ForwardReadout([writer.mapped], writer.sample_type, slice_bytes=1)
    for number in range(200):
        writer.sample(struct.pack("<Q", number) + bytes(3000))
    numbers: list[int] = []
    batches = 0
    while True:
        batch = reader.drain()
        assert batch.truncated == 0
        numbers += [struct.unpack_from("<Q", item.data)[0] for item in batch if isinstance(item, Sample)]
        batches += 1
        if not reader.left_bytes:
            break
    assert numbers == list(range(200))
    assert batches == -(-200 * 3016 // 65528)
    assert reader.pending_bytes() == 0


def test_rings_are_merged_by_time_and_keep_their_own_order() -> None:
    """With time in the records a batch is one ascending stream; a loss stays before its sample."""
    a = RingWriter(4096, cpu=0, sample_type=("time",))
    b = RingWriter(4096, cpu=5, sample_type=("time",))
    for time_ns in (1, 4, 4, 9):
        a.sample(b"a", time_ns=time_ns)
    b.sample(b"b", time_ns=2)
    b.lose(7)
    b.sample(b"b", time_ns=4)
    batch = readout(a, b).drain()
    seen = [(item.time_ns, item.cpu, isinstance(item, Lost)) for item in batch]
    plain = [(1, 0), (2, 5), (4, 0), (4, 0), (4, 5), (4, 5), (9, 0)]
    assert [(time_ns, cpu) for time_ns, cpu, _ in seen] == plain
    assert [lost for *_, lost in seen] == [False, False, False, False, True, False, False]
    assert len(batch.data()) == 6
    assert [(ring.cpu, ring.first_frame, ring.frame_count) for ring in batch.rings] == [(0, 0, 4), (5, 4, 3)]


@given(st.lists(st.lists(st.integers(0, 50), max_size=12).map(sorted), min_size=1, max_size=9))
def test_merging_sorted_rings_gives_the_sorted_whole(times: list[list[int]]) -> None:
    """Any number of rings whose times ascend becomes one ascending stream with everything in it."""
    writers = [RingWriter(4096, cpu=cpu, sample_type=("time", "cpu")) for cpu in range(len(times))]
    for writer, own in zip(writers, times, strict=True):
        for time_ns in own:
            writer.sample(b"x", time_ns=time_ns)
    seen = [(item.time_ns, item.cpu) for item in readout(*writers).drain()]
    assert seen == sorted((time_ns, cpu) for cpu, own in enumerate(times) for time_ns in own)


@given(junk=st.lists(st.binary(min_size=8, max_size=64), max_size=10))
def test_any_bytes_never_break_the_reader(junk: list[bytes]) -> None:
    """Whatever was written, the ring is free afterwards and the next good record is read."""
    writer = RingWriter(1024)
    reader = readout(writer)
    for piece in junk:
        writer.junk(piece[: len(piece) & ~7])
    reader.drain()
    assert writer.tail == writer.head
    send(writer, b"good")
    assert contents(reader.drain()) == [b"good"]


def test_a_capacity_that_is_no_power_of_two_is_refused() -> None:
    """Offsets are taken by masking: another capacity would read beyond the ring."""
    with pytest.raises(ValueError, match="power of two"):
        RingWriter(48)
    good = RingWriter(64).mapped
    bad = type(good)(0, good.page, good.data, 48)
    with pytest.raises(ValueError, match="power of two"):
        ForwardReadout([bad], RingWriter(64).sample_type)
