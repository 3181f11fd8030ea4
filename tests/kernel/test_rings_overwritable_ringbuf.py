# SPDX-License-Identifier: Apache-2.0
"""RingbufReader on an overwritable map over a real program: history, losses, and snapshots under a full-speed writer.

The race is real only with two CPUs that run at once: natively, or in a guest with `thread=multi` (VMTEST section 6).
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import SLOWNESS, heavy
from ring_program import (
    begin,
    beside_fast_writer,
    check_mixed,
    mixed_range_bytes,
    number_of,
    pinned,
    ring_program,
    send,
)

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.rings import PerfReader, RingbufReader
from otel_perfbuf.testing import save_rings

pytestmark = pytest.mark.needs("overwritable ring buffer")

_log = logging.getLogger(__name__)

PAGE = os.sysconf("SC_PAGESIZE")
RING_BYTES = 2 * PAGE
RECORD = 184  # bytes in the ring of one that was sent with 176
# `make test` takes 2,000; 20,000 need minutes in a guest: OTEL_PERFBUF_SNAPSHOTS=20000.
SNAPSHOTS = int(os.environ.get("OTEL_PERFBUF_SNAPSHOTS", heavy(2000)))


@pytest.fixture
def program(folder: Path) -> Iterator[BpfObject]:
    """The program on this process's own calls, with a ring of one page."""
    with ring_program(folder, os.getpid(), shared_bytes=PAGE) as program, pinned():
        yield program


def test_a_full_ring_holds_exactly_what_fits_oldest_first(program: BpfObject) -> None:
    """The newest without a gap; what did not fit is counted to the byte. The kernel keeps the last 8 bytes free."""
    with RingbufReader(program.maps["events"]) as reader:
        send(176, 100)
        batch = reader.snapshot()
        numbers = [number_of(data) for data in batch.data()]
        fits = (PAGE - 8) // RECORD
        assert numbers == list(range(numbers[-1] - fits + 1, numbers[-1] + 1))
        assert (batch.truncated, batch.malformed, batch.lost) == (0, 0, 0)
        assert batch.overwritten_bytes == (100 - fits) * RECORD
        assert (batch.rings[0].wrapped, batch.rings[0].head) == (True, 100 * RECORD)
        assert reader.available_bytes == fits * RECORD


def test_last_gives_only_the_new_and_all_gives_everything_held(program: BpfObject) -> None:
    """Nothing twice by "last"; "all" repeats, and counts nothing as overwritten that was returned before."""
    with RingbufReader(program.maps["events"]) as reader:
        send(176, 5)
        first = [number_of(data) for data in reader.snapshot().data()]
        assert len(first) == 5
        assert len(reader.snapshot()) == 0
        send(176, 3)
        assert [number_of(data) for data in reader.snapshot().data()] == [first[-1] + n for n in (1, 2, 3)]
        send(176)
        again = reader.snapshot(since="all")
        assert [number_of(data) for data in again.data()] == [first[0] + n for n in range(9)]
        assert again.overwritten_bytes == 0
        assert len(reader.snapshot(since="last")) == 0


def test_a_snapshot_acknowledges_what_poll_reports(program: BpfObject) -> None:
    """The kernel needs no reader's position to overwrite, and its poll looks at it all the same (FACTS 16)."""
    ring = program.maps["events"]
    with RingbufReader(ring) as reader:
        send(176)
        assert select.select([ring.fd], [], [], 0)[0]
        reader.snapshot()
        assert not select.select([ring.fd], [], [], 0)[0]


def test_a_live_ring_is_saved_and_read_without_bpf(program: BpfObject, tmp_path: Path) -> None:
    """save_rings takes nothing out; PerfReader.from_file gives the same samples."""
    with RingbufReader(program.maps["events"]) as reader:
        send(180, 15)
        save_rings(reader, tmp_path)
        live = reader.snapshot(since="all")
    with PerfReader.from_file(tmp_path) as saved:
        batch = saved.snapshot()
    assert [data[:180] for data in batch.data()] == live.data()
    assert len(batch) == 15


@pytest.mark.race
@pytest.mark.timeout((300 + SNAPSHOTS // 10) * SLOWNESS)
def test_snapshots_under_a_writer_at_full_speed(folder: Path) -> None:
    """No torn record, no gap that overwritten_bytes does not explain to the byte, nothing twice (FACTS 16)."""
    with (
        beside_fast_writer(folder, shared_bytes=RING_BYTES) as (program, writer),
        RingbufReader(program.maps["events"]) as reader,
    ):
        begin(writer)
        check_snapshots(reader, SNAPSHOTS)
        assert writer.poll() is None


def check_snapshots(reader: RingbufReader, snapshots: int) -> None:
    """Takes them one after the other; every byte is checked, and every number is seen or counted.

    Counted are snapshots that hold something; it goes on until the writer has filled the ring 50 times.
    """
    expected = good = gone = records = written = 0
    while good < snapshots or written < 50 * reader.capacity:
        everything = good % 4 != 0
        batch = reader.snapshot(since="all" if everything else "last")
        assert (batch.malformed, batch.lost, batch.unknown) == (0, 0, 0)
        gone += batch.overwritten_bytes
        numbers = [check_mixed(data, pads=False) for data in batch.data()]
        if not numbers:
            continue
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert everything or numbers[0] >= expected
        skipped = max(numbers[0] - expected, 0)
        # 8 bytes of header here, 16 of header, size and pad in a perf ring
        assert gone == mixed_range_bytes(expected, numbers[0]) - 8 * skipped, f"snapshot {good}"
        expected, gone, written = numbers[-1] + 1, 0, batch.rings[0].head
        records += len(numbers)
        good += 1
    _log.info("%d snapshots, %d records, ring filled %d times", good, records, written // reader.capacity)
