# SPDX-License-Identifier: Apache-2.0
"""Saved rings: what PerfReader.from_file reads is what the live reader held, and bad files get their sentence."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_perfbuf._core._core import ffi
from otel_perfbuf.errors import ConfigError, NotOverwritable
from otel_perfbuf.rings import Batch, PerfReader, RingbufReader
from otel_perfbuf.rings.base import ReaderBase, Waiting
from otel_perfbuf.rings.ring import Ring
from otel_perfbuf.rings.ringbuf_readout import RingbufReadout
from otel_perfbuf.rings.saved import SavedRings
from otel_perfbuf.testing import RingbufWriter, RingWriter, save_rings


def reader_of(writers: list[RingWriter], folder: Path) -> PerfReader:
    """A PerfReader over rings in memory: begun from empty files, then given the writers' memory."""
    folder.mkdir(exist_ok=True)
    first = writers[0]
    for writer in writers:
        (folder / f"{writer.mapped.cpu}.ring").write_bytes(bytes(4096 + first.capacity))
    index = {
        "version": 1,
        "overwritable": first.backward,
        "sample_type": first.sample_type,
        "capacity": first.capacity,
        "page_bytes": 4096,
        "rings": [{"cpu": writer.mapped.cpu, "file": f"{writer.mapped.cpu}.ring"} for writer in writers],
    }
    (folder / "rings.json").write_text(json.dumps(index))
    reader = PerfReader.from_file(folder)
    for ring, writer in zip(reader._set.rings, writers, strict=True):
        ring.address = ffi.cast("void *", writer.mapped.page)
    reader.kept = writers  # type: ignore[attr-defined]  # their memory is what it reads
    reader._read_rings()
    return reader


def ringbuf_reader_of(writer: RingbufWriter) -> RingbufReader:
    """A RingbufReader over a ring in memory."""
    reader = RingbufReader.__new__(RingbufReader)
    ReaderBase.__init__(reader, overwritable=writer.overwritable)
    reader._readout = RingbufReadout(writer.mapped)
    waiting = Waiting()
    reader._opened.callback(waiting.close)
    reader._start(waiting)
    return reader


def content(batch: Batch) -> list[tuple[Any, ...]]:
    """Everything that an item has."""
    return [
        (item.cpu, item.time_ns, bytes(item.data) if hasattr(item, "data") else item.count)  # type: ignore[union-attr]
        for item in batch
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    backward=st.booleans(),
    capacity=st.sampled_from([4096, 1 << 17]),
    sizes=st.lists(st.one_of(st.integers(0, 200), st.integers(30_000, 60_000)), max_size=40),
)
def test_saved_rings_give_what_the_live_ones_gave(
    tmp_path: Path, backward: bool, capacity: int, sizes: list[int]
) -> None:
    """Both directions, several CPUs, wrapped or not: the same samples, losses and times; saving takes nothing out."""
    writers = [RingWriter(capacity, backward=backward, cpu=cpu, sample_type=("time",)) for cpu in (0, 3)]
    for number, size in enumerate(sizes):
        writer = writers[number % 2]
        if size % 7 == 0:
            writer.lose()
        if size + 100 < capacity:
            writer.sample(struct.pack("<I", number) + bytes([number]) * size, time_ns=number)
    with reader_of(writers, tmp_path / "live") as live:
        save_rings(live, tmp_path / "saved")
        with PerfReader.from_file(tmp_path / "saved") as saved:
            assert (saved.cpus, saved.per_cpu_bytes, saved.overwritable) == ((0, 3), capacity, backward)
            if backward:
                expected, got = live.snapshot(since="all"), saved.snapshot()
                assert content(got) == content(expected)
                assert (got.malformed, got.lost, got.truncated <= 2) == (0, expected.lost, True)
                assert [ring.wrapped for ring in got.rings] == [ring.wrapped for ring in expected.rings]
                assert len(saved.snapshot()) == 0
            else:
                while batch := live.read(0):
                    assert content(saved.read(0)) == content(batch)
                assert len(saved.read(0)) == 0


def test_saved_files_are_private_and_replaced(tmp_path: Path) -> None:
    """They hold what programs did: mode 0600; a second save leaves no ring of the first."""
    writer = RingWriter(4096, backward=True)
    with reader_of([writer], tmp_path / "live") as live:
        for _ in range(2):
            writer.sample(b"12345678")
            save_rings(live, tmp_path / "saved")
    assert sorted(os.listdir(tmp_path / "saved")) == ["cpu0-0.ring", "rings.json"]
    assert {os.stat(tmp_path / "saved" / name).st_mode & 0o777 for name in os.listdir(tmp_path / "saved")} == {0o600}
    with PerfReader.from_file(tmp_path / "saved") as saved:
        assert len(saved.snapshot()) == 2
        assert saved.stats.kernel_lost is None
        saved.pause()
        saved.resume()
        saved.rescan()
        with pytest.raises(NotOverwritable):
            saved.read(0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("not JSON", lambda index: "x"),
        ("a list", lambda index: []),
        ("another version", lambda index: index | {"version": 2}),
        ("no rings", lambda index: index | {"rings": []}),
        ("odd capacity", lambda index: index | {"capacity": 4095}),
        ("short file", lambda index: index | {"capacity": 8192}),
        ("foreign path", lambda index: index | {"rings": [{"cpu": 0, "file": "../cpu0-0.ring"}]}),
        ("unknown sample type", lambda index: index | {"sample_type": 1}),
        ("no number", lambda index: index | {"sample_type": "x"}),
        ("missing file", lambda index: index | {"rings": [{"cpu": 0, "file": "gone"}]}),
    ],
)
def test_bad_files_get_a_sentence(tmp_path: Path, name: str, change: Any) -> None:
    """Index and files that disagree are refused with the directory's name and the way out."""
    with reader_of([RingWriter(4096, backward=True)], tmp_path / "live") as live:
        save_rings(live, tmp_path / "saved")
    index = tmp_path / "saved" / "rings.json"
    changed = change(json.loads(index.read_text()))
    index.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(ConfigError, match=r"reading saved rings from .*; give a directory"):
        PerfReader.from_file(tmp_path / "saved")
    with pytest.raises(ConfigError):
        SavedRings(tmp_path / "nowhere")


def test_a_ring_is_what_the_reader_expects() -> None:
    """SavedRing stands in for Ring: this fails when Ring gets a method that it has to answer."""
    public = {name for name in vars(Ring) if not name.startswith("_") and callable(getattr(Ring, name))}
    assert public == {"lost", "pause", "close"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    capacity=st.sampled_from([1 << 8, 1 << 14, 1 << 17]),
    sizes=st.lists(st.one_of(st.integers(0, 200), st.integers(4_000, 60_000)), max_size=60),
)
def test_a_shared_ring_is_saved_as_one_perf_ring(tmp_path: Path, capacity: int, sizes: list[int]) -> None:
    """The same samples in the same order, padded as perf pads; whether older ones are gone is kept."""
    writer = RingbufWriter(capacity, overwritable=True)
    for number, size in enumerate(sizes):
        writer.sample(struct.pack("<I", number) + bytes(min(size, capacity - 24)))
    with ringbuf_reader_of(writer) as reader:
        live = reader.snapshot(since="all")
        save_rings(reader, tmp_path / "saved")
    with PerfReader.from_file(tmp_path / "saved") as saved:
        batch = saved.snapshot(since="all")
    assert batch.data() == [data.ljust((len(data) + 11) // 8 * 8 - 4, b"\0") for data in live.data()]
    assert (batch.malformed, batch.unknown) == (0, 0)
    assert [ring.wrapped for ring in batch.rings] == [live.rings[0].wrapped] == [bool(writer.overwrite_pos)]


def test_a_ring_buffer_that_is_read_forward_is_not_saved(tmp_path: Path) -> None:
    """What has been read is gone there: a sentence, and nothing is written."""
    with ringbuf_reader_of(RingbufWriter(4096)) as reader, pytest.raises(ConfigError, match="read forward"):
        save_rings(reader, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_record_that_no_perf_ring_can_hold_is_not_saved(tmp_path: Path) -> None:
    """Perf's sizes have 16 bits (FACTS 9)."""
    writer = RingbufWriter(1 << 17, overwritable=True)
    assert writer.sample(bytes(65_517))
    with ringbuf_reader_of(writer) as reader, pytest.raises(ConfigError, match="65517 bytes"):
        save_rings(reader, tmp_path / "saved")
