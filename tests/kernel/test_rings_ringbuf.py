# SPDX-License-Identifier: Apache-2.0
"""RingbufReader over a real program and a real map: the contract, discards, wake-ups, what the kernel refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from building import program as build
from ring_program import libc, number_of

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.errors import ConfigError, KernelError, NotOverwritable, NotSupported
from otel_perfbuf.rings import PerfReader, RingbufReader, create_ringbuf
from otel_perfbuf.testing import ReaderContract

PAGE = os.sysconf("SC_PAGESIZE")
NO_WAKEUP, DISCARD = 1 << 16, 1 << 17


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfObject]:
    """The program on this process's own calls."""
    target = build("ringbuf.bpf.o", tmp_path_factory.mktemp("ringbuf"))
    with BpfObject(target) as program:
        program.set_rodata("target_tgid", os.getpid())
        program.load()
        program.attach()
        yield program


@pytest.fixture
def reader(program: BpfObject) -> Iterator[RingbufReader]:
    """A reader that begins where the ring is empty."""
    with RingbufReader(program.maps["events"]) as reader:
        while len(reader.flush()):
            pass
        yield reader


def send(size: int, count: int = 1, how: int = 0) -> None:
    """Records of ``size`` bytes from this process."""
    for _ in range(count):
        libc.getpgid(size + how)


class TestContract(ReaderContract):
    """RingbufReader under the suite that plug-in readers run; samples' contents are the program's."""

    @pytest.fixture(autouse=True)
    def _program(self, program: BpfObject) -> None:
        self.map = program.maps["events"]

    def open_reader(self) -> RingbufReader:
        """A reader of the map, which is empty then."""
        reader = RingbufReader(self.map)
        while len(reader.flush()):
            pass
        self.written: list[bytes] = []
        return reader

    def write(self, data: bytes) -> None:
        """A record of the same length; what the suite wrote is kept for ``sent``."""
        self.written.append(data)
        send(max(8, len(data)))

    def sent(self, batch: object, length: int) -> list[bytes]:
        """What was written, in the order of the records' numbers."""
        numbers = [number_of(data) for data in batch.data()]  # type: ignore[attr-defined]
        assert numbers == sorted(numbers)
        texts, self.written = self.written[: len(numbers)], self.written[len(numbers) :]
        return texts

    def test_a_batch_outlives_later_reads_and_close(self) -> None:
        """The suite's own test needs the bytes that it wrote; here the numbers are looked at."""
        with self.opened() as reader:
            self.write(b"first   ")
            kept = reader.read(0)
            before = kept.data()
            for _ in range(20):
                self.write(b"later   ")
                reader.read(0)
        assert kept.data() == before


def test_records_come_unpadded_and_discards_are_passed_over(reader: RingbufReader) -> None:
    """cilium/ebpf TestRingbufReader: sizes are exact, a discarded record is never seen."""
    send(13)
    send(8, 2, DISCARD)
    send(100)
    batch = reader.read(1)
    assert [len(data) for data in batch.data()] == [13, 100]
    first, second = (number_of(data) for data in batch.data())
    assert second - first == 3
    assert reader.discarded == 2


def test_available_bytes_is_exact(reader: RingbufReader) -> None:
    """cilium/ebpf: headers and rounding count, discarded records too."""
    assert reader.available_bytes == 0
    send(13)
    assert reader.available_bytes == 24
    send(8, 1, DISCARD)
    assert reader.available_bytes == 24 + 72
    reader.read(0)
    assert reader.available_bytes == 0


def test_no_wakeup_data_comes_before_the_timeout(reader: RingbufReader) -> None:
    """Written before the read it is there at once; written meanwhile it comes at the deadline, not later."""
    send(8, 1, NO_WAKEUP)
    begun = time.monotonic()
    assert len(reader.read(30)) == 1
    assert time.monotonic() - begun < 10
    send(8, 1, NO_WAKEUP)
    assert len(reader.read(deadline=time.monotonic() - 1)) == 1
    begun = time.monotonic()
    assert len(reader.read(deadline=begun + 0.05)) == 0
    assert time.monotonic() - begun >= 0.049


def test_a_full_ring_refuses_and_goes_on_after_a_read(program: BpfObject, reader: RingbufReader) -> None:
    """No LOST records here: the program is told, and what fitted is whole and in order."""
    send(4096, 20)
    numbers: list[int] = []
    while batch := reader.flush():
        numbers += [number_of(data) for data in batch.data()]
    assert len(numbers) == (1 << 16) // 4104
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    send(8)
    assert number_of(reader.read(1).data()[0]) == numbers[0] + 20


def test_asyncio(reader: RingbufReader) -> None:
    """``async for`` gives batches and ends at close."""

    async def run() -> int:
        loop, count = asyncio.get_running_loop(), 0
        loop.call_later(0.01, send, 8, 3)
        async for batch in reader:
            count += len(batch)
            if count == 3:
                loop.call_later(0.01, reader.close)
        return count

    assert asyncio.run(asyncio.wait_for(run(), 20)) == 3


def test_snapshot_of_a_map_that_does_not_overwrite_is_refused(reader: RingbufReader) -> None:
    """The map's flags decide, and the sentence names the flag."""
    with pytest.raises(NotOverwritable, match="BPF_F_RB_OVERWRITE"):
        reader.snapshot()


def test_other_maps_are_refused(program: BpfObject) -> None:
    """Each reader names the type that it needs."""
    with pytest.raises(ConfigError, match="ring buffers need BPF_MAP_TYPE_RINGBUF"):
        RingbufReader(program.maps["buffers"])
    with pytest.raises(ConfigError, match="perf rings need BPF_MAP_TYPE_PERF_EVENT_ARRAY"):
        PerfReader(program.maps["events"], per_cpu_bytes=PAGE)


def kernel_version() -> tuple[int, ...]:
    """Of the running kernel, two numbers."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


def test_an_overwritable_ring_buffer_needs_linux_6_19() -> None:
    """Where the flag is asked for and refused the error names feature and first version; else an empty history."""
    if kernel_version() < (6, 19):
        with pytest.raises(NotSupported) as caught:
            create_ringbuf(PAGE, overwritable=True)
        assert (caught.value.first_kernel, caught.value.feature) == ("6.19", "BPF_F_RB_OVERWRITE")
        assert caught.value.errno == errno.EINVAL
        return
    fd = create_ringbuf(PAGE, overwritable=True)
    try:
        with RingbufReader(fd) as reader:
            assert reader.overwritable
            assert len(reader.snapshot()) == 0
            with pytest.raises(NotOverwritable, match="snapshot"):
                reader.read(0)
    finally:
        os.close(fd)


def test_creating_and_opening_leave_nothing() -> None:
    """Fds and mappings are as before."""
    before = len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("bpf-map")
    for _ in range(100):
        fd = create_ringbuf(PAGE)
        with RingbufReader(fd) as reader:
            assert len(reader.flush()) == 0
        os.close(fd)
    assert (len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("bpf-map")) == before
    with pytest.raises(ConfigError, match="power of two"):
        create_ringbuf(5000)
    with pytest.raises(KernelError, match="not open"):
        RingbufReader(fd)
