# SPDX-License-Identifier: Apache-2.0
"""CPUs that come and go under a PerfReader, and asyncio. No CPU is taken offline here: the list of them is played.

What only a real hot-plug shows belongs to the kernel matrix (VMTEST.md).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from ring_program import number_of, send

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.rings import Batch, PerfReader
from otel_perfbuf.rings import ring_set as ring_set_module
from otel_perfbuf.rings._sys import lib

PAGE = os.sysconf("SC_PAGESIZE")


class Cpus:
    """The online CPUs as the readers see them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all = ring_set_module.online_cpus()
        self.here = max(os.sched_getaffinity(0))
        self.now = self.all
        monkeypatch.setattr(ring_set_module, "online_cpus", lambda: self.now)

    def without_here(self) -> None:
        """The CPU that this process runs on is said to be offline."""
        self.now = tuple(cpu for cpu in self.all if cpu != self.here)


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch, program: BpfObject) -> Cpus:
    """Played CPUs; two at least."""
    played = Cpus(monkeypatch)
    if len(played.all) < 2:
        pytest.skip("needs two CPUs")
    return played


def test_holes_in_the_online_set(program: BpfObject, cpus: Cpus) -> None:
    """The map's key is the CPU's number, never an index: with the first CPUs missing the last one's ring is written."""
    cpus.now = (cpus.here,)
    assert cpus.here > 0
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE) as reader:
        assert reader.cpus == (cpus.here,)
        send(100, 3)
        batch = reader.read(0)
        assert [sample.cpu for sample in batch] == [cpus.here] * 3
        assert [ring.cpu for ring in batch.rings] == [cpus.here]


def test_a_cpu_that_comes_gets_a_ring_and_one_that_comes_back_a_new_one(program: BpfObject, cpus: Cpus) -> None:
    """Forward: nothing is given from a CPU without a ring; what a gone CPU's ring holds is given; no fd is left."""
    fds = len(os.listdir("/proc/self/fd"))
    cpus.without_here()
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE) as reader:
        assert reader.cpus == cpus.now
        send(20)
        assert len(reader.read(0)) == 0
        cpus.now = cpus.all
        reader.rescan()
        assert reader.cpus == cpus.all
        send(20, 2)
        assert len(reader.read(0)) == 2
        send(20, 3)
        cpus.without_here()
        reader.rescan()
        assert reader.cpus == cpus.now
        send(20)  # nobody has a ring for it
        cpus.now = cpus.all
        reader.rescan()
        send(20)
        assert len(reader.read(0)) == 4
        open_now = len(os.listdir("/proc/self/fd"))
        reader.rescan()
        assert len(os.listdir("/proc/self/fd")) == open_now - 1  # the drained old ring
        assert reader.stats.samples == 6
    assert len(os.listdir("/proc/self/fd")) == fds


@pytest.mark.parametrize("swap", [False, True])
def test_history_of_a_cpu_that_went_is_kept(program: BpfObject, cpus: Cpus, swap: bool) -> None:
    """Overwritable: "last" repeats nothing over a rescan, "all" has the old ring's history and the new one's."""
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=True, swap=swap) as reader:
        send(20, 2)
        assert len(reader.snapshot()) == 2
        send(20)
        cpus.without_here()
        reader.rescan()
        send(20)  # nobody has a ring for it
        cpus.now = cpus.all
        reader.rescan()
        send(20)
        assert len(reader.snapshot()) == 2
        assert len(reader.snapshot(since="all")) == 4
        assert len(reader.snapshot()) == 0
        assert reader.stats.kernel_lost in (0, None)


def test_a_read_that_waits_takes_up_a_rescan(program: BpfObject, cpus: Cpus) -> None:
    """rescan returns at once, and the thread that waits reads the new CPU's ring."""
    cpus.without_here()
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, wakeup_events=1) as reader:
        got: list[Batch] = []
        thread = threading.Thread(target=lambda: got.append(reader.read(30)))
        thread.start()
        cpus.now = cpus.all
        reader.rescan()
        wait_for(lambda: reader.cpus == cpus.all)
        send(20)
        thread.join(10)
        assert not thread.is_alive()
        assert len(got[0]) == 1


@pytest.mark.parametrize("overwritable", [False, True])
def test_the_kernels_uevent_brings_the_rescan(program: BpfObject, cpus: Cpus, overwritable: bool) -> None:
    """With watch_cpus a CPU that comes has its ring without a call; close ends the thread that listens."""
    cpus.without_here()
    threads = threading.active_count()
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=overwritable) as reader:
        reader.watch_cpus()
        reader.watch_cpus()
        cpus.now = cpus.all
        assert reader.cpus != cpus.all
        # The kernel sends what one writes there: the event of a CPU that came.
        Path(f"/sys/devices/system/cpu/cpu{cpus.here}/uevent").write_text("online", encoding="ascii")
        wait_for(lambda: reader.cpus == cpus.all)
    assert threading.active_count() == threads


def test_a_cpus_uevent_is_taken_out_of_a_burst(program: BpfObject, cpus: Cpus) -> None:
    """A CPU that comes or goes sends several uevents at once, and the one that counts need not be the first."""
    cpus.without_here()
    with PerfReader(program.maps["events"], per_cpu_bytes=PAGE) as reader:
        reader.watch_cpus()
        cpus.now = cpus.all
        uevent = Path(f"/sys/devices/system/cpu/cpu{cpus.here}/uevent")
        for action in ["change"] * 20 + ["online"]:
            uevent.write_text(action, encoding="ascii")
        wait_for(lambda: reader.cpus == cpus.all)


def wait_for(true: object, seconds: float = 10) -> None:
    """Until it holds; fails after so long."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_map_with_fewer_entries_than_cpus_serves_those_it_has(cpus: Cpus) -> None:
    """CPUs beyond max_entries have no place; without any the sentence says so."""
    fd = lib.pb_sys_map_create(lib.PB_SYS_MAP_PERF_EVENT_ARRAY, 4, 4, 1, 0)
    assert fd >= 0
    try:
        with PerfReader(fd, per_cpu_bytes=PAGE) as reader:
            assert reader.cpus == (0,)
        cpus.now = (1, 5)
        with pytest.raises(ConfigError, match="has 1 entries and no online CPU"):
            PerfReader(fd, per_cpu_bytes=PAGE)
    finally:
        os.close(fd)


def test_async_for_gives_batches_until_the_reader_is_closed(program: BpfObject) -> None:
    """In a loop: data from before it, data that wakes it, and the end, with the loop free for others meanwhile."""

    async def run(reader: PerfReader) -> list[int]:
        loop = asyncio.get_running_loop()
        first = None
        numbers: list[int] = []
        async for batch in reader:
            assert len(batch)
            numbers += [number_of(data) for data in batch.data()]
            if first is None:
                first = numbers[0]
                loop.call_later(0.01, send, 20, 2)
            if len(numbers) == 3:
                loop.call_later(0.01, reader.close)
        return [number - (first or 0) for number in numbers]

    reader = PerfReader(program.maps["events"], per_cpu_bytes=PAGE, wakeup_events=1)
    send(20)
    assert asyncio.run(asyncio.wait_for(run(reader), 20)) == [0, 1, 2]
    assert reader.closed


def test_close_from_another_thread_ends_async_for(program: BpfObject) -> None:
    """It waits until the loop has left the reader; everything is given back."""
    fds = len(os.listdir("/proc/self/fd"))
    reader = PerfReader(program.maps["events"], per_cpu_bytes=PAGE)
    closer = threading.Timer(0.1, reader.close)

    async def run() -> int:
        closer.start()
        return len([batch async for batch in reader])

    assert asyncio.run(asyncio.wait_for(run(), 20)) == 0
    closer.join(10)
    assert len(os.listdir("/proc/self/fd")) == fds
