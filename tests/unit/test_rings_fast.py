# SPDX-License-Identifier: Apache-2.0
"""The CPython extension: samples borrow their batch's memory, and nothing outside it is ever read."""

from __future__ import annotations

import gc
import struct
import sys
from typing import Any

import pytest

from otel_perfbuf._core._core import ffi
from otel_perfbuf._core._fast import Arena, Lost, Sample, data_list, iterate
from otel_perfbuf.rings import Batch
from otel_perfbuf.rings.memory import ArenaPool
from otel_perfbuf.rings.readout import ForwardReadout
from otel_perfbuf.testing import RingWriter


def frames(*rows: dict[str, int]) -> Any:
    """Frames as the core lays them out."""
    array = ffi.new("struct pb_frame[]", list(rows))
    return ffi.buffer(array)


def test_an_arena_knows_whether_anyone_looks_at_it() -> None:
    """Views, slices, cffi pointers and samples all count; when the last is gone the arena is free."""
    arena = Arena(4096)
    assert (len(arena), arena.in_use) == (4096, False)
    view = memoryview(arena)[10:20]
    assert arena.in_use
    view.release()
    del view
    gc.collect()
    assert not arena.in_use
    pointer = ffi.from_buffer("uint8_t[]", arena)
    assert arena.in_use
    del pointer
    (sample,) = iterate(arena, frames({"type": 9, "bytes": 8}), 1)
    assert arena.in_use
    data = sample.data
    del sample
    assert arena.in_use
    assert bytes(data) == bytes(8)
    del data
    assert not arena.in_use


@pytest.mark.parametrize("size", [0, -1])
def test_an_arena_has_at_least_a_byte(size: int) -> None:
    """An empty mapping is an error of the caller."""
    with pytest.raises(ValueError, match="at least 1"):
        Arena(size)


def test_samples_and_losses_compare_and_show_by_value() -> None:
    """So that tests of programs can write down what they expect."""
    assert Sample(1, b"ab") == Sample(1, bytearray(b"ab"))
    assert Sample(1, b"ab") != Sample(2, b"ab")
    assert Sample(1, b"ab") != Sample(1, b"ac")
    assert Sample(1, b"ab", tid=3) != Sample(1, b"ab")
    assert Sample(1, b"") == Sample(1, b"")
    assert Sample(1, b"ab") != "ab"
    assert Lost(1, 5) == Lost(1, 5) != Lost(1, 6)
    assert Lost(0, 0) != Sample(0, b"")
    assert repr(Sample(3, b"a\n")) == "Sample(cpu=3, data=b'a\\n')"
    assert repr(Lost(3, 7)) == "Lost(cpu=3, count=7)"
    with pytest.raises(TypeError):
        hash(Sample(1, b"ab"))


def test_a_sample_is_read_only_and_speaks_the_buffer_protocol() -> None:
    """struct.unpack_from and bytes take it as it is; nobody can write the batch through it."""
    sample = Sample(0, struct.pack("<Q", 77), time_ns=1 << 63, pid=4, tid=2**32 - 1)
    assert struct.unpack_from("<Q", sample) == (77,)
    assert (sample.data.readonly, sample.time_ns, sample.pid, sample.tid) == (True, 1 << 63, 4, 2**32 - 1)
    with pytest.raises(TypeError):
        sample.data[0] = 1
    with pytest.raises(AttributeError):
        sample.cpu = 4  # type: ignore[misc]


def test_frames_that_lie_outside_their_arena_are_refused() -> None:
    """A mixed-up pair of arguments is an error, not a read beyond the memory."""
    arena = Arena(4096)
    for row in ({"offset": 4096, "bytes": 1}, {"offset": 2**64 - 4, "bytes": 8}, {"offset": 0, "bytes": 4097}):
        wrong = frames({"type": 9, **row})
        with pytest.raises(ValueError, match="outside its arena"):
            data_list(arena, wrong, 1)
        with pytest.raises(ValueError, match="outside its arena"):
            list(iterate(arena, wrong, 1))
    assert data_list(arena, frames({"type": 9, "offset": 4096, "bytes": 0}), 1) == [b""]
    one = frames({"type": 9, "bytes": 1})
    with pytest.raises(ValueError, match="too small for 2 frames"):
        data_list(arena, one, 2)
    with pytest.raises(ValueError, match="below 0"):
        iterate(arena, one, -1)
    with pytest.raises(TypeError):
        data_list(arena, one)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        iterate("text", one, 1)  # type: ignore[arg-type]
    assert not arena.in_use


def test_objects_are_given_back() -> None:
    """Types, arenas and samples leave no reference behind, half-read iterators included."""
    arena = Arena(4096)
    rows = frames({"type": 9, "bytes": 8}, {"type": 2, "lost": 3}, {"type": 9, "bytes": 4})
    list(iterate(arena, rows, 3))
    before = (sys.getrefcount(arena), sys.getrefcount(Sample), sys.getrefcount(Lost), sys.getrefcount(rows))
    for _ in range(100):
        half = iterate(arena, rows, 3)
        next(half)
        assert half.__length_hint__() == 2
        list(iterate(arena, rows, 3))
        data_list(arena, rows, 3)
        del half
    gc.collect()
    assert (sys.getrefcount(arena), sys.getrefcount(Sample), sys.getrefcount(Lost), sys.getrefcount(rows)) == before


def test_the_iterator_itself_cannot_be_made_by_hand() -> None:
    """It would have no arena."""
    with pytest.raises(TypeError):
        type(iterate(Arena(8), frames(), 0))()


def test_the_pool_gives_free_memory_again_and_never_memory_in_use() -> None:
    """A kept batch keeps its memory; given back, it is used again and the pool does not grow."""
    pool = ArenaPool(4096, prefault=True)
    first = pool.take()
    assert pool.take() is first
    kept = memoryview(first)
    second = pool.take()
    assert second is not first
    kept.release()
    del kept
    assert pool.take() is first


def test_a_kept_batch_never_changes() -> None:
    """Batches that are still held are not written over by later reads, however many."""
    writer = RingWriter(4096)
    reader = ForwardReadout([writer.mapped], writer.sample_type)
    kept: list[Batch] = []
    for number in range(30):
        writer.sample(struct.pack("<I", number))
        kept.append(reader.drain())
    assert [struct.unpack("<I", batch.data()[0]) for batch in kept] == [(number,) for number in range(30)]


def test_an_empty_batch() -> None:
    """It has no rings, no samples and no counts."""
    batch = Batch.empty()
    assert (len(batch), list(batch), batch.data(), batch.rings) == (0, [], [], [])
    assert (batch.lost, batch.overwritten_bytes, batch.truncated, batch.malformed) == (0, 0, 0, 0)
