# SPDX-License-Identifier: Apache-2.0
"""The two windows and the checked walk, on plain bytes. Source: otel_perfbuf/_core/ring.h."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.testing import RECORD_LOST, RECORD_SAMPLE, SAMPLE_RAW, U64, padded

positions = st.integers(0, U64 // 8 - 1).map(lambda word: word * 8)


def record(kind: int, body: bytes = b"", size: int | None = None) -> bytes:
    """One record as the kernel frames it; `size` is what its header claims."""
    return struct.pack("<IHH", kind, 0, 8 + len(body) if size is None else size) + body


def sample(data: bytes) -> bytes:
    """A sample, padded as the kernel pads."""
    pad = padded(data) - len(data)
    return record(RECORD_SAMPLE, struct.pack("<I", padded(data)) + data + b"\xee" * pad)


def lost(count: int) -> bytes:
    """A LOST record."""
    return record(RECORD_LOST, struct.pack("<QQ", 1, count))


def walk(data: bytes, flags: int = 0, capacity: int = 1000, sample_type: int = SAMPLE_RAW) -> tuple[Any, list[Any]]:
    """The walk's findings and its frames; the bytes end where an unmapped redzone begins under ASan."""
    arena = ffi.new("uint8_t[]", data)
    frames = ffi.new("struct pb_frame[]", capacity)
    found = ffi.new("struct pb_walk *")
    status = lib.pb_ring_walk(arena, 0, len(data), sample_type, 3, flags, frames, capacity, found)
    assert status == lib.PB_OK
    assert found.bytes + found.malformed_bytes + found.truncated_bytes == len(data)
    return found, [frames[i] for i in range(found.frames)]


def test_forward_window_is_tail_to_head() -> None:
    """What lies between tail and head is the window, across the end of the 64-bit positions too."""
    window = lib.pb_window_forward(8, U64 - 24, 64)
    assert (window.start, window.end) == (U64 - 24, 8)


@pytest.mark.parametrize("head", [72, U64 - 8, 12])
def test_forward_window_of_a_jumped_or_unaligned_head_is_empty(head: int) -> None:
    """A head more than a ring ahead, behind the tail, or between words leaves nothing to read."""
    window = lib.pb_window_forward(head, 0, 64)
    assert (window.start, window.end) == (head, head)


@given(head=positions, written=st.integers(0, 40).map(lambda n: n * 8))
def test_reverse_window_is_at_most_a_ring_from_head_on(head: int, written: int) -> None:
    """The reverse window begins at head and ends where the last one began, or a ring later."""
    window = lib.pb_window_reverse(head, (head + written) % U64, 64)
    assert window.start == head
    assert (window.end - head) % U64 == min(written, 64)


def test_reverse_window_of_a_ring_that_was_never_written_is_empty() -> None:
    """Head == 0 means never written (FACTS 3)."""
    window = lib.pb_window_reverse(0, 0, 64)
    assert (window.start, window.end) == (0, 0)


def test_samples_losses_and_unknown_types_in_one_walk() -> None:
    """Samples and LOST become frames in address order, other types are passed over whole."""
    data = sample(b"a" * 12) + record(77, b"x" * 24) + lost(5) + sample(b"b" * 4)
    found, frames = walk(data)
    assert [(f.type, f.bytes, f.lost, f.cpu) for f in frames] == [(9, 12, 0, 3), (2, 24, 5, 3), (9, 4, 0, 3)]
    assert bytes(ffi.buffer(ffi.new("uint8_t[]", data) + frames[2].offset, 4)) == b"bbbb"
    assert (found.unknown, found.lost, found.lost_frames, found.malformed, found.truncated) == (1, 5, 1, 0, 0)


def test_metadata_of_the_kernel_is_taken_in_its_order() -> None:
    """TID, TIME and CPU stand between header and raw size, in this order (FACTS 12)."""
    body = struct.pack("<IIQII", 10, 11, 12345, 3, 0) + struct.pack("<I", 4) + b"data"
    _, frames = walk(record(RECORD_SAMPLE, body), sample_type=SAMPLE_RAW | 2 | 4 | 128)
    (frame,) = frames
    assert (frame.pid, frame.tid, frame.time_ns, frame.bytes, frame.offset) == (10, 11, 12345, 4, 36)


def test_a_loss_has_the_time_of_the_sample_it_came_with() -> None:
    """LOST carries no time; its sample follows it in the same reservation."""
    timed = record(RECORD_SAMPLE, struct.pack("<QI", 99, 4) + b"data")
    _, frames = walk(lost(2) + timed, sample_type=SAMPLE_RAW | 4)
    assert [f.time_ns for f in frames] == [99, 99]


@pytest.mark.parametrize(
    "bad",
    [b"\0" * 8, record(RECORD_SAMPLE, b"", size=0), record(5, b"", size=4), record(5, b"x" * 8, size=12)],
    ids=["zero header", "size 0", "size below a header", "unaligned size"],
)
@pytest.mark.parametrize("flags", [0, lib.PB_WALK_REVERSE | lib.PB_WALK_CUT])
def test_bytes_that_are_no_record_stop_the_walk(bad: bytes, flags: int) -> None:
    """The records before are given, the place is counted once, nothing behind it is believed."""
    found, frames = walk(sample(b"good") + bad + sample(b"behind..")[:16], flags)
    assert len(frames) == 1
    assert (found.malformed, found.stopped, found.truncated) == (1, 1, 0)
    assert found.unknown == (bad[:4] == bytes(4))  # as cilium/ebpf has it


def test_a_record_beyond_the_window_is_malformed_unless_the_end_is_cut() -> None:
    """Only where the window may end inside a record is such a record the truncated one."""
    data = sample(b"good") + sample(b"x" * 28)[:16]
    found, frames = walk(data, 0)
    assert (len(frames), found.malformed, found.stopped, found.truncated) == (1, 1, 1, 0)
    found, frames = walk(data, lib.PB_WALK_CUT)
    assert (len(frames), found.malformed, found.stopped, found.truncated, found.truncated_bytes) == (1, 0, 0, 1, 16)


@pytest.mark.parametrize("raw_size", [0, 3, 5, 11, 13, 65548, 2**32 - 1])
def test_a_raw_size_that_disagrees_with_its_frame_is_skipped_forward_and_stops_reverse(raw_size: int) -> None:
    """Forward the frame is what was reserved; reverse the overrun has destroyed the older record (FACTS 9)."""
    bad = record(RECORD_SAMPLE, struct.pack("<I", raw_size) + b"x" * 12)
    data = sample(b"aaaa") + bad + sample(b"bbbb")
    found, frames = walk(data, 0)
    assert (len(frames), found.malformed, found.malformed_bytes, found.stopped) == (2, 1, 24, 0)
    found, frames = walk(data, lib.PB_WALK_REVERSE)
    assert (len(frames), found.malformed, found.malformed_bytes, found.stopped) == (1, 1, 24 + 16, 1)


@pytest.mark.parametrize("bad", [record(RECORD_LOST, b"x" * 8), record(RECORD_SAMPLE, b""), record(RECORD_SAMPLE)])
def test_a_frame_too_small_for_its_type_is_not_looked_into(bad: bytes) -> None:
    """A LOST without its count and a sample without its size are malformed."""
    found, frames = walk(bad + sample(b"good"), 0)
    assert (len(frames), found.malformed) == (1, 1)


def test_counting_and_too_little_room() -> None:
    """Without an array the walk counts; with too small a one it says so and leaves the result alone."""
    data = sample(b"a") * 3
    arena, found = ffi.new("uint8_t[]", data), ffi.new("struct pb_walk *")
    assert lib.pb_ring_walk(arena, 0, len(data), SAMPLE_RAW, 0, 0, ffi.NULL, 0, found) == lib.PB_OK
    assert found.frames == 3
    found.frames = 77
    frames = ffi.new("struct pb_frame[]", 2)
    assert lib.pb_ring_walk(arena, 0, len(data), SAMPLE_RAW, 0, 0, frames, 2, found) == lib.PB_NO_ROOM
    assert found.frames == 77


def test_arguments_that_no_caller_may_give() -> None:
    """Unaligned bytes, unknown sample types and a missing RAW are refused."""
    arena, found = ffi.new("uint8_t[64]"), ffi.new("struct pb_walk *")
    for offset, size, kind in [(0, 12, SAMPLE_RAW), (4, 8, SAMPLE_RAW), (0, 8, SAMPLE_RAW | 1), (0, 8, 4)]:
        assert lib.pb_ring_walk(arena, offset, size, kind, 0, 0, ffi.NULL, 0, found) == lib.PB_INVALID


@given(data=st.binary(max_size=400), flags=st.integers(0, 3), kind=st.sampled_from([0, 2, 4, 128, 134]))
def test_any_bytes_are_walked_inside_their_bounds(data: bytes, flags: int, kind: int) -> None:
    """Whatever the bytes are: every frame lies inside, in order, and the fates of the bytes add up."""
    data = data[: len(data) & ~7]
    _, frames = walk(data, flags, sample_type=SAMPLE_RAW | kind)
    end = 0
    for frame in frames:
        assert frame.offset >= end
        end = frame.offset + frame.bytes
        assert end <= len(data)


chunks = st.one_of(
    st.binary(min_size=1, max_size=40).map(sample),
    st.integers(1, 9).map(lost),
    st.tuples(st.integers(0, 20), st.integers(0, 40)).map(lambda t: record(t[0], b"\0" * 4, size=t[1])[:8] + b"\0" * 8),
)


@given(parts=st.lists(chunks, max_size=12), flags=st.integers(0, 3))
def test_record_like_bytes_are_walked_inside_their_bounds(parts: list[bytes], flags: int) -> None:
    """The same for bytes that are mostly records, so that the deeper checks are reached."""
    data = b"".join(part[: len(part) & ~7] for part in parts)
    _, frames = walk(data, flags)
    assert all(frame.offset + frame.bytes <= len(data) for frame in frames)


def test_reversing_keeps_a_loss_before_the_sample_it_came_with() -> None:
    """Newest first [c, LOST+b, a] becomes oldest first [a, LOST, b, c] (FACTS 6); a lone LOST stands by itself."""
    data = sample(b"c" * 4) + lost(3) + sample(b"b" * 4) + sample(b"a" * 4) + lost(8)
    found, _ = walk(data)
    frames = ffi.new("struct pb_frame[]", found.frames)
    arena = ffi.new("uint8_t[]", data)
    lib.pb_ring_walk(arena, 0, len(data), SAMPLE_RAW, 0, lib.PB_WALK_REVERSE, frames, found.frames, found)
    lib.pb_frames_reverse(frames, found.frames, SAMPLE_RAW)
    seen = [f.lost or chr(data[f.offset]) for f in frames]
    assert seen == [8, "a", 3, "b", "c"]
