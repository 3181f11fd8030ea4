# SPDX-License-Identifier: Apache-2.0
"""A CPU goes and comes back while it is recorded: only where the kernel is the test's own (the matrix's guests)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bpf_recording import Recording, Target, compile_targets, recording, wait_until
from machine import SLOWNESS

from otel_perfbuf.rings.cpus import online_cpus

CPU = 1
ONLINE = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")
pytestmark = pytest.mark.needs("disposable kernel")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program to record."""
    return compile_targets(tmp_path_factory.mktemp("targets"))


@contextmanager
def offline() -> Iterator[None]:
    """The CPU is gone meanwhile."""
    ONLINE.write_text("0")
    try:
        assert CPU not in online_cpus()
        yield
    finally:
        ONLINE.write_text("1")
        assert CPU in online_cpus()


def calls_on(recorded: Recording, targets: Path, cpus: set[int]) -> tuple[int, set[int]]:
    """Runs 200 calls there: how many records there are of it, and their CPUs."""
    with Target(targets, "calls", "200") as target:
        os.sched_setaffinity(target.pid, cpus)
        recorded.program.follow(target.pid)
        assert target.run() == 0
        own = [record for record in recorded.records() if record.tgid == target.pid and record.name == "getppid"]
    return len(own), {record.cpu for record in own}


def test_a_cpu_that_comes_back_records_again(targets: Path) -> None:
    """Its ring is at the map's key of its number; what was recorded before it went is still there."""
    with recording() as recorded:
        assert recorded.reader is not None
        recorded.reader.watch_cpus()
        assert calls_on(recorded, targets, {CPU}) == (200, {CPU})
        held = len(recorded.samples())
        with offline():
            wait_until(lambda: recorded.reader.cpus == (0,), "the ring's end", 60)
            assert calls_on(recorded, targets, {0}) == (200, {0})
        wait_until(lambda: recorded.reader.cpus == (0, CPU), "the ring's return", 60)
        assert calls_on(recorded, targets, {CPU}) == (200, {CPU})
        batch = recorded.reader.snapshot(since="all")
        assert (batch.malformed, batch.lost) == (0, 0)
        assert {sample.cpu for sample in batch} == {0, CPU}
        assert len(batch) > held
        assert recorded.program.stats().lost == recorded.program.stats().no_ring


def test_a_target_whose_cpu_goes_is_recorded_on(targets: Path) -> None:
    """The kernel moves it to another CPU in the middle of its calls: each of them is there once, in order."""
    with recording(per_cpu_bytes=1 << 22) as recorded, Target(targets, "calls", "3000") as target:
        os.sched_setaffinity(target.pid, {CPU})
        recorded.program.follow(target.pid)
        target.go()
        with offline():
            assert target.process.wait(120 * SLOWNESS) == 0
        calls = [event for event in recorded.events(target.pid) if event.name == "getppid"]
        assert len(calls) == 3000
        assert recorded.program.stats().lost == 0
