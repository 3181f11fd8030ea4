# SPDX-License-Identifier: Apache-2.0
"""PerfReader, overwritable, over a real program: history, losses, and snapshots while a writer runs at full speed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machine import heavy
from ring_program import (
    begin,
    beside_fast_writer,
    check_mixed,
    mixed_range_bytes,
    number_of,
    send,
)

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.errors import ConfigError, NotOverwritable
from otel_perfbuf.rings import Lost, PerfReader, Sample
from otel_perfbuf.rings.cpus import online_cpus
from otel_perfbuf.testing import save_rings

PAGE = os.sysconf("SC_PAGESIZE")
LARGEST = 62 * 8
# `make test` takes 2,000; 20,000 need a minute: OTEL_PERFBUF_SNAPSHOTS=20000.
SNAPSHOTS = int(os.environ.get("OTEL_PERFBUF_SNAPSHOTS", "2000"))


def test_a_full_ring_holds_exactly_what_fits_oldest_first(program: BpfObject) -> None:
    """cilium/ebpf TestPerfReaderOverwritable: the newest ids without a gap; what did not fit is counted in bytes."""
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=True) as reader:
        send(180, 100)
        batch = reader.snapshot()
        numbers = [number_of(sample.data) for sample in batch if isinstance(sample, Sample)]
        fits = PAGE // 192
        assert len(numbers) == fits
        assert numbers == list(range(numbers[-1] - fits + 1, numbers[-1] + 1))
        assert (batch.truncated, batch.malformed, batch.lost) == (1, 0, 0)
        assert batch.overwritten_bytes == (100 - fits) * 192
        (ring,) = [ring for ring in batch.rings if ring.frame_count]
        assert (ring.cpu, ring.wrapped) == (max(os.sched_getaffinity(0)), True)
        assert (1 << 64) - ring.head == 100 * 192


def test_last_gives_only_the_new_and_all_gives_everything_held(program: BpfObject) -> None:
    """Nothing twice by "last"; "all" repeats, and counts nothing as overwritten that was returned before."""
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE * 4, overwritable=True) as reader:
        send(180, 5)
        first = [number_of(data) for data in reader.snapshot().data()]
        assert len(first) == 5
        assert len(reader.snapshot()) == 0
        send(180, 3)
        assert [number_of(data) for data in reader.snapshot().data()] == [first[-1] + n for n in (1, 2, 3)]
        send(180)
        again = reader.snapshot(since="all")
        assert [number_of(data) for data in again.data()] == [first[0] + n for n in range(9)]
        assert again.overwritten_bytes == 0
        assert len(reader.snapshot(since="last")) == 0


def test_a_quiet_small_ring_gives_everything_without_a_known_largest_sample(program: BpfObject) -> None:
    """The grace period makes slack needless, however small the ring; with a known size nothing is waited for."""
    with PerfReader(program.maps["events"], per_cpu_bytes=1, overwritable=True) as reader:
        send(20, 3)
        assert len(reader.snapshot()) == 3
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=True, max_sample_bytes=180) as reader:
        send(180, 100)
        batch = reader.snapshot()
        slack = 3 * (192 + 24)
        assert len(batch) == (PAGE - slack) // 192
        assert batch.overwritten_bytes == (100 - len(batch)) * 192


def test_a_pause_leaves_a_loss_in_the_overwritable_ring_too(program: BpfObject) -> None:
    """The kernel's document says otherwise (FACTS 5); the loss stands before the sample it came with (FACTS 6)."""
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=True) as reader:
        send(20)
        reader.pause()
        send(20, 4)
        reader.resume()
        send(20, 2)
        batch = reader.snapshot()
        assert [item.count if isinstance(item, Lost) else 0 for item in batch] == [0, 4, 0, 0]
        assert batch.lost == 4


def test_reading_an_overwritable_reader_is_refused(program: BpfObject) -> None:
    """Each mode names the other's call; what wakes nobody takes no watermark."""
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=True) as reader:
        for call in (reader.read, reader.flush):
            with pytest.raises(NotOverwritable, match="snapshot"):
                call()
        with pytest.raises(ConfigError, match="'last' or 'all'"):
            reader.snapshot(since="first")  # type: ignore[arg-type]


@pytest.mark.timeout(300 + SNAPSHOTS // 10)  # every byte is checked in Python, on one CPU of a machine that may be busy
@pytest.mark.race
@pytest.mark.parametrize(
    ("max_sample_bytes", "snapshots", "swap"), [(LARGEST, SNAPSHOTS, False), (None, 150, False), (None, 300, True)]
)
def test_unpaused_snapshots_under_a_writer_at_full_speed(
    folder: Path, max_sample_bytes: int | None, snapshots: int, swap: bool
) -> None:
    """No torn record, no gap that overwritten_bytes does not explain to the byte, nothing twice (FACTS 7)."""
    with (
        beside_fast_writer(folder) as (program, writer),
        PerfReader(
            program.maps["events"],
            per_cpu_bytes=1 << 18,
            overwritable=True,
            swap=swap,
            max_sample_bytes=max_sample_bytes,
        ) as reader,
    ):
        begin(writer)
        check_snapshots(reader, heavy(snapshots))
        assert writer.poll() is None


def check_snapshots(reader: PerfReader, snapshots: int) -> None:
    """Takes them one after the other; every byte is checked, and every number is seen or counted.

    "all" copies the whole ring each time, where the writer is at work; "last" in between must repeat nothing. Counted
    are snapshots that hold something: when this process loses its CPU in the middle of a copy, the writer may overwrite
    everything, which is counted too. It goes on until the writer has filled the ring often enough, however slow it is.
    """
    expected = written = good = gone = 0
    while good < snapshots or written < heavy(50, least=3) * reader.per_cpu_bytes:
        everything = good % 4 != 0
        batch = reader.snapshot(since="all" if everything else "last")
        assert (batch.malformed, batch.lost, batch.unknown) == (0, 0, 0)
        gone += batch.overwritten_bytes
        numbers = [check_mixed(data) for data in batch.data()]
        if not numbers:
            continue
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert everything or numbers[0] >= expected
        assert gone == mixed_range_bytes(expected, numbers[0]), f"snapshot {good}"
        expected, gone = numbers[-1] + 1, 0
        written = max((-ring.head) % (1 << 64) for ring in batch.rings)
        good += 1


@pytest.mark.parametrize("overwritable", [False, True])
def test_rings_of_a_live_host_are_saved_and_read_without_bpf(
    program: BpfObject, tmp_path: Path, overwritable: bool
) -> None:
    """save_rings takes nothing out; from_file gives the same samples."""
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=overwritable) as reader:
        send(180, 15)
        save_rings(reader, tmp_path)
        live = reader.snapshot(since="all") if overwritable else reader.read(0)
    with PerfReader.from_file(tmp_path) as saved:
        assert saved.cpus == online_cpus()
        batch = saved.snapshot() if overwritable else saved.read(0)
    assert len(batch) == 15
    assert batch.data() == live.data()
