# SPDX-License-Identifier: Apache-2.0
"""PerfReader, forward, over a real program: order, watermark, wake-ups, losses, metadata, closing, leaks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import heavy
from ring_program import check_mixed, number_of, send

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.errors import ConfigError, KernelError, NotOverwritable, ReaderClosed
from otel_perfbuf.rings import Batch, Lost, PerfReader, Sample
from otel_perfbuf.rings import ring_set as ring_set_module
from otel_perfbuf.rings._sys import ffi, lib
from otel_perfbuf.rings.readout import SLICE_BYTES

PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def open_reader(program: BpfObject) -> Iterator[Callable[..., PerfReader]]:
    """Opens readers of the program's map, and closes them."""
    opened: list[PerfReader] = []

    def open_one(per_cpu_bytes: int = 1 << 16, **options: Any) -> PerfReader:
        opened.append(PerfReader(program.maps["events"], per_cpu_bytes=per_cpu_bytes, **options))
        return opened[-1]

    yield open_one
    for reader in opened:
        reader.close()


class Reading(threading.Thread):
    """A thread that waits in one read; ``result`` is its batch or its error."""

    def __init__(self, reader: PerfReader, timeout: float | None = None) -> None:
        super().__init__(daemon=True)
        self.reader, self.timeout = reader, timeout
        self.result: Batch | Exception | None = None
        self.start()

    def run(self) -> None:
        """Reads once."""
        try:
            self.result = self.reader.read(self.timeout)
        except Exception as error:
            self.result = error

    def finish(self) -> Any:
        """What it got; it must be there within 10 seconds."""
        self.join(10)
        assert not self.is_alive()
        return self.result

    def still_waits(self) -> bool:
        """Whether it is still inside after a moment in which a wake-up had reached it many times."""
        self.join(0.2)
        return self.is_alive()


def samples(batch: Batch) -> list[Sample]:
    """Only the samples."""
    return [item for item in batch if isinstance(item, Sample)]


def test_samples_come_in_order_and_whole(open_reader: Callable[..., PerfReader]) -> None:
    """Mixed sizes, many turns of the ring: every byte is right, every number is there once."""
    reader = open_reader(1 << 14)
    numbers: list[int] = []
    for _ in range(400):
        for _ in range(20):
            os.getppid()
        batch = reader.read(0)
        assert (batch.lost, batch.malformed, batch.truncated, batch.unknown) == (0, 0, 0, 0)
        numbers += map(check_mixed, batch.data())
    assert len(numbers) == 8000
    assert numbers == list(range(numbers[0], numbers[0] + 8000))
    assert reader.stats.samples == 8000


def test_timeout_gives_what_is_below_the_watermark_first(open_reader: Callable[..., PerfReader]) -> None:
    """Without enough data read waits its time out, and then gives what is there; an empty batch when nothing is."""
    reader = open_reader()
    assert len(reader.read(0)) == 0
    send(100, 3)
    begun = time.monotonic()
    batch = reader.read(0.15)
    assert time.monotonic() - begun >= 0.149
    assert [len(sample.data) for sample in samples(batch)] == [100] * 3
    assert len(reader.read(0.01)) == 0


def test_the_watermark_wakes_and_less_does_not(open_reader: Callable[..., PerfReader]) -> None:
    """A blocked read sleeps on below watermark_bytes and wakes above."""
    reader = open_reader(watermark_bytes=8000)
    reader.read(0)
    waiting = Reading(reader)
    send(180, 41)  # 41 * 192 < 8000
    assert waiting.still_waits()
    send(180)
    assert len(waiting.finish()) == 42


def test_wakeup_events_counts_samples(open_reader: Callable[..., PerfReader]) -> None:
    """With wakeup_events=3 two samples wake nobody and the third does."""
    reader = open_reader(wakeup_events=3)
    reader.read(0)
    waiting = Reading(reader)
    send(20, 2)
    assert waiting.still_waits()
    send(20)
    assert len(waiting.finish()) == 3


def test_what_came_before_the_first_wait_is_given_at_once(open_reader: Callable[..., PerfReader]) -> None:
    """Nobody reports such data (FACTS 10): the first read looks itself."""
    reader = open_reader(watermark_bytes=8000)
    send(20)
    assert len(Reading(reader).finish()) == 1


def test_a_full_ring_loses_exactly_what_did_not_fit(open_reader: Callable[..., PerfReader]) -> None:
    """cilium/ebpf TestPerfReaderLostSample: floor(page/192)+1 samples of 180 bytes and one of 5 give 1 lost."""
    reader = open_reader(1)
    assert reader.per_cpu_bytes == PAGE
    send(180, PAGE // 192 + 1)
    assert reader.stats.kernel_lost in (1, None)  # at once, while no LOST record is there yet (FACTS 2)
    send(5)
    batch = reader.read(0)
    kinds = [type(item) for item in batch]
    assert kinds == [Sample] * (PAGE // 192) + [Lost, Sample]
    assert [item.count for item in batch if isinstance(item, Lost)] == [1]
    assert batch.lost == reader.stats.lost == 1
    assert len(samples(batch)[-1].data) == 12  # 5 bytes, padded (FACTS 8)


def test_what_a_batch_has_no_room_for_comes_with_the_next_ones_at_once(open_reader: Callable[..., PerfReader]) -> None:
    """cilium/ebpf's Remaining: a batch takes so much of each ring; the rest is there without waiting, and counted."""
    reader = open_reader(1 << 20)
    send(180, 5000)
    sizes = []
    while sum(sizes) < 5000:
        batch = reader.read()  # no timeout: it would hang where the rest needs a wake-up
        sizes.append(len(batch))
        assert reader.stats.samples == sum(sizes)
    assert sizes == [SLICE_BYTES // 192] * (5000 * 192 // SLICE_BYTES) + [5000 % (SLICE_BYTES // 192)]
    assert len(reader.read(0)) == 0


def test_flush_wakes_a_blocked_read_once(open_reader: Callable[..., PerfReader]) -> None:
    """The reader that waits gets what is below the watermark; the next read waits again."""
    reader = open_reader(watermark_bytes=8000)
    reader.read(0)
    waiting = Reading(reader)
    send(20, 2)
    assert waiting.still_waits()
    assert len(reader.flush()) == 0
    assert len(waiting.finish()) == 2
    waiting = Reading(reader)
    assert waiting.still_waits()
    reader.flush()
    assert len(waiting.finish()) == 0


def test_flush_with_nobody_waiting_gives_it(open_reader: Callable[..., PerfReader]) -> None:
    """Without a blocked read flush returns the batch itself and leaves no wake-up behind."""
    reader = open_reader(watermark_bytes=8000)
    send(20, 2)
    assert len(reader.flush()) == 2
    begun = time.monotonic()
    assert len(reader.read(0.1)) == 0
    assert time.monotonic() - begun >= 0.099


def test_close_wakes_a_blocked_read(open_reader: Callable[..., PerfReader]) -> None:
    """It raises ReaderClosed; a second close is fine; every other call raises."""
    reader = open_reader()
    waiting = Reading(reader)
    assert waiting.still_waits()
    reader.close()
    assert isinstance(waiting.finish(), ReaderClosed)
    reader.close()
    calls: list[Callable[[], object]] = [
        lambda: reader.read(0),
        reader.flush,
        reader.pause,
        reader.resume,
        reader.fileno,
        lambda: reader.stats,
    ]
    for call in calls:
        with pytest.raises(ReaderClosed):
            call()


def test_close_from_a_signal_handler_ends_the_read_of_its_own_thread(open_reader: Callable[..., PerfReader]) -> None:
    """Close must not wait for the thread that it runs in."""
    reader = open_reader()
    before = signal.signal(signal.SIGALRM, lambda *_: reader.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ReaderClosed):
            reader.read(30)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_pause_loses_and_resume_tells(open_reader: Callable[..., PerfReader]) -> None:
    """What was tried during a pause arrives as a LOST record with the next sample; twice is fine."""
    reader = open_reader()
    reader.pause()
    reader.pause()
    send(20, 7)
    reader.resume()
    reader.resume()
    send(20)
    batch = reader.read(0)
    assert [type(item) for item in batch] == [Lost, Sample]
    assert batch.lost == 7


@pytest.mark.parametrize("clock", ["monotonic", "boottime", "realtime"])
def test_kernel_metadata_of_a_chosen_clock(open_reader: Callable[..., PerfReader], clock: str) -> None:
    """Time, process, thread and CPU come without a word of the program (FACTS 12)."""
    reader = open_reader(sample_type=["time", "tid", "cpu"], clock=clock)
    number = getattr(time, f"CLOCK_{clock.upper()}")
    before = time.clock_gettime_ns(number)
    send(20, 2)
    after = time.clock_gettime_ns(number)
    first, second = samples(reader.read(0))
    assert before <= first.time_ns <= second.time_ns <= after
    assert (first.pid, first.tid) == (os.getpid(), threading.get_native_id())
    assert first.cpu == max(os.sched_getaffinity(0))


def test_the_largest_sample_is_whole_and_larger_ones_never_wrong(open_reader: Callable[..., PerfReader]) -> None:
    """65,516 bytes are the most that a 16-bit size holds; above, nothing wrong is given (FACTS 9)."""
    reader = open_reader(1 << 20)
    send(65508)
    (whole,) = samples(reader.read(0))
    assert len(whole.data) == 65508
    send(65524)  # 65,536 with its header: a size of 0, nothing is reserved, the next sample writes over it
    send(65535)  # 65,552: 16 bytes are reserved and 65,552 written
    send(24)
    batch = reader.read(0)
    assert batch.malformed == 1
    (last,) = samples(batch)
    assert number_of(last.data) == number_of(whole.data) + 3


def test_asyncio_is_told_by_the_file_descriptor(open_reader: Callable[..., PerfReader]) -> None:
    """fileno() in add_reader wakes the loop, and read(0) gives the batch."""
    reader = open_reader(wakeup_events=1)
    reader.read(0)

    async def one() -> Batch:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(reader.fileno(), ready.set)
        send(20)
        await asyncio.wait_for(ready.wait(), 10)
        loop.remove_reader(reader.fileno())
        return reader.read(0)

    assert len(asyncio.run(one())) == 1


def test_a_forked_child_leaves_the_rings_to_its_parent(open_reader: Callable[..., PerfReader]) -> None:
    """Closing and forgetting the reader in a child does not take the rings out of the map."""
    reader = open_reader()
    child = os.fork()
    if not child:
        reader.close()
        del reader
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    send(20)
    assert len(reader.read(0)) == 1


def test_a_batch_outlives_its_reader(open_reader: Callable[..., PerfReader]) -> None:
    """Samples own their memory: later reads and close leave them as they are."""
    reader = open_reader()
    os.getppid()
    kept = reader.read(0)
    for _ in range(50):
        os.getppid()
        reader.read(0)
    reader.close()
    (data,) = kept.data()
    check_mixed(data)


def test_snapshot_of_a_forward_reader_is_refused(open_reader: Callable[..., PerfReader]) -> None:
    """A forward ring has no findable record start behind its tail (FACTS 4)."""
    with pytest.raises(NotOverwritable, match="overwritable=True"):
        open_reader().snapshot()


def map_id(fd: int) -> int:
    """The kernel's id of a map."""
    info = ffi.new("struct pb_sys_map *")
    assert lib.pb_sys_map_info(fd, info) == 0
    return int(info.id)


def test_a_map_may_be_an_fd_or_a_pinned_path(program: BpfObject, tmp_path: Path) -> None:
    """Three ways to name the same map."""
    with PerfReader(program.maps["events"].fd, per_cpu_bytes=PAGE) as reader:
        send(20)
        assert len(reader.read(0)) == 1
    bpffs = tmp_path / "bpffs"
    bpffs.mkdir()
    subprocess.run(["mount", "-t", "bpf", "none", bpffs], check=True)
    try:
        number = str(map_id(program.maps["events"].fd))
        subprocess.run(["bpftool", "map", "pin", "id", number, bpffs / "events"], check=True)
        with PerfReader(str(bpffs / "events"), per_cpu_bytes=PAGE) as reader:
            send(20)
            assert len(reader.read(0)) == 1
        with pytest.raises(KernelError, match="is it pinned there") as caught:
            PerfReader(bpffs / "missing", per_cpu_bytes=PAGE)
        assert caught.value.errno == errno.ENOENT
    finally:
        subprocess.run(["umount", bpffs], check=True)


def test_other_maps_and_closed_fds_are_refused(program: BpfObject) -> None:
    """The sentence names what it is and what is needed."""
    with pytest.raises(ConfigError, match="need BPF_MAP_TYPE_PERF_EVENT_ARRAY"):
        PerfReader(program.maps["buffers"], per_cpu_bytes=PAGE)
    with pytest.raises(KernelError, match="not open"):
        PerfReader(987654, per_cpu_bytes=PAGE)


def resources() -> tuple[int, int, int, int]:
    """How many fds this process has, how many of them are BPF maps and programs, and how many perf mappings."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        mappings = sum("perf_event" in line for line in maps)
    fds = os.listdir("/proc/self/fd")
    said = []
    for fd in fds:
        with contextlib.suppress(OSError):  # the folder's own fd is gone by now
            said.append(Path(f"/proc/self/fdinfo/{fd}").read_text())
    return len(fds), sum("map_id:" in text for text in said), sum("prog_id:" in text for text in said), mappings


def test_1000_open_and_close_leave_nothing(program: BpfObject) -> None:
    """Fds, maps, programs and mappings are as before, in all modes, and with batches that are kept."""
    before = resources()
    assert min(before[:3]) > 0  # the program's own are there
    kept = []
    turns = heavy(1000, least=30)
    for turn in range(turns):
        mode = turn % 3  # forward, overwritable, swap
        with PerfReader(
            program.maps["events"], per_cpu_bytes=PAGE, overwritable=mode > 0, swap=mode == 2, max_sample_bytes=496
        ) as reader:
            os.getppid()
            kept.append(reader.snapshot() if mode else reader.read(0))
    assert resources() == before
    assert sum(len(batch) for batch in kept) == turns


def test_a_pause_in_the_middle_of_a_drain_loses_nothing_that_was_there(open_reader: Callable[..., PerfReader]) -> None:
    """What waited is given in order, then the loss of the pause, then what came after resume."""
    reader = open_reader(1 << 20)
    send(1000, 800)
    first = reader.read(0)
    assert 0 < len(first) < 800
    reader.pause()
    send(20, 3)
    reader.resume()
    send(20)
    items = list(first)
    while batch := reader.read(0):
        items += batch
    assert [item.count for item in items if isinstance(item, Lost)] == [3]
    assert isinstance(items[-2], Lost)
    numbers = [number_of(item.data) for item in items if isinstance(item, Sample)]
    assert numbers == [*range(numbers[0], numbers[0] + 800), numbers[0] + 803]


def test_a_failure_in_the_middle_of_opening_leaves_nothing(program: BpfObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second CPU's ring fails: the first one's and all the rest are given back."""
    before = resources()
    real = ring_set_module.open_ring

    def fail_at_second(cpu: int, options: Any) -> Any:
        if cpu != ring_set_module.online_cpus()[0]:
            raise KernelError(errno.EMFILE, "played")
        return real(cpu, options)

    monkeypatch.setattr(ring_set_module, "open_ring", fail_at_second)
    for overwritable in (False, True):
        with pytest.raises(KernelError, match="played"):
            PerfReader(program.maps["events"], per_cpu_bytes=PAGE, overwritable=overwritable)
    assert resources() == before


OPEN_IN_CHILD = """
import sys
from otel_perfbuf.errors import KernelError
from otel_perfbuf.rings import PerfReader
try:
    PerfReader(int(sys.argv[1]), per_cpu_bytes=int(sys.argv[2]))
except KernelError as error:
    print(error.errno, error)
"""


def open_in_child(program: BpfObject, without: str, per_cpu_bytes: int) -> str:
    """What opening says in a process that lacks capabilities."""
    fd = program.maps["events"].fd
    caps = f"-{without.replace(',', ',-')}"
    command = ["setpriv", "--bounding-set", caps, "--inh-caps", caps, sys.executable, "-c", OPEN_IN_CHILD]
    done = subprocess.run(
        ["prlimit", "--memlock=65536:65536", *command, str(fd), str(per_cpu_bytes)],
        pass_fds=[fd],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_missing_capabilities_are_named(program: BpfObject) -> None:
    """Without CAP_PERFMON the sentence says so; beyond the limit of locked memory it gives the limits (FACTS 14)."""
    assert "CAP_PERFMON" in open_in_child(program, "sys_admin,perfmon", PAGE)
    sentence = open_in_child(program, "ipc_lock", 1 << 23)
    assert sentence.startswith(f"{errno.EPERM} ")
    for word in ("perf_event_mlock_kb", "RLIMIT_MEMLOCK (65536 bytes)", "CAP_IPC_LOCK", "8388608 bytes"):
        assert word in sentence
