# SPDX-License-Identifier: Apache-2.0
"""The ring tests' writer: a BPF program that turns one process's calls into samples. Not a test.

``RingProgram(pid)``: getppid() of that process sends a self-checking sample of mixed size, getpgid(n) one of n bytes
(see programs/rings.bpf.c). Loaded and attached inside the with block only.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from building import program as build

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.rings.cpus import online_cpus
from otel_perfbuf.testing import padded

libc = ctypes.CDLL(None)


def compile_programs(folder: Path) -> None:
    """rings.bpf.o and the writer in a folder."""
    build("rings.bpf.o", folder)
    build("ring_writer", folder)


@contextmanager
def ring_program(folder: Path, pid: int, *, shared_bytes: int = 0) -> Iterator[BpfObject]:
    """The program, attached and filtered on one process; ``maps["events"]`` is its perf event array.

    ``shared_bytes``: it is an overwritable BPF ring buffer of so many bytes.
    """
    with BpfObject(folder / "rings.bpf.o") as program:
        program.set_rodata("target_tgid", pid)
        if shared_bytes:
            program.set_rodata("shared", 1)
            program.make_ringbuf("events", shared_bytes, overwritable=True)
        program.load()
        program.attach()
        yield program


@contextmanager
def fast_writer(folder: Path, cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process pinned to a CPU that begins to write at full speed when a byte is sent to its stdin."""
    writer = subprocess.Popen([folder / "ring_writer", str(cpu)], stdin=subprocess.PIPE)
    try:
        yield writer
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdin is not None
        writer.stdin.close()


def begin(writer: subprocess.Popen[bytes]) -> None:
    """Lets a fast writer begin."""
    assert writer.stdin is not None
    writer.stdin.write(b"g")
    writer.stdin.flush()


@contextmanager
def beside_fast_writer(folder: Path, *, shared_bytes: int = 0) -> Iterator[tuple[BpfObject, subprocess.Popen[bytes]]]:
    """The program on a fast writer that has not begun yet; it has one CPU and this thread another.

    ``shared_bytes`` as `ring_program` has it.
    """
    before, cpus = os.sched_getaffinity(0), online_cpus()
    if len(cpus) < 2:
        pytest.skip("needs two CPUs: one for the writer, one for the reader")
    os.sched_setaffinity(0, {cpus[0]})
    try:
        with (
            fast_writer(folder, cpus[1]) as writer,
            ring_program(folder, writer.pid, shared_bytes=shared_bytes) as program,
        ):
            yield program, writer
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def pinned() -> Iterator[int]:
    """This thread on one CPU, so that all its samples go to one ring; gives the CPU's number."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, before)


def send(size: int, count: int = 1) -> None:
    """``count`` samples of ``size`` bytes from this process; each begins with its number where it has 8 bytes."""
    for _ in range(count):
        libc.getpgid(size)


def number_of(data: bytes | memoryview) -> int:
    """A sample's number: how many outputs were tried before it."""
    return int(struct.unpack_from("<Q", data)[0])


# Of a mixed sample with n words: word i is number ^ i, for all words at once.
ONES = [sum(1 << 64 * word for word in range(words - 2)) for words in range(2, 63)]
INDEXES = [sum(word << 64 * (word - 2) for word in range(2, words)) for words in range(2, 63)]


def mixed_words(number: int) -> int:
    """How many 8-byte words the mixed sample of this number has."""
    return 3 + number * 7 % 60


def mixed_frame_bytes(number: int) -> int:
    """What the mixed sample of this number takes in the ring."""
    return 12 + padded(bytes(mixed_words(number) * 8))


CYCLE = 60  # numbers after which the mixed samples' sizes repeat


def mixed_range_bytes(first: int, end: int) -> int:
    """What the mixed samples of these numbers take together: a fast writer sends millions between two snapshots."""
    turns, rest = divmod(max(0, end - first), CYCLE)
    return turns * sum(map(mixed_frame_bytes, range(CYCLE))) + sum(map(mixed_frame_bytes, range(first, first + rest)))


def check_mixed(data: bytes, *, pads: bool = True) -> int:
    """The number of a mixed sample whose every byte is right; AssertionError for a torn one.

    ``pads``: as perf rings do; ring buffers do not.
    """
    number, words = struct.unpack_from("<QQ", data)
    assert words == mixed_words(number), f"sample {number} claims {words} words"
    assert len(data) == (padded(bytes(words * 8)) if pads else words * 8), f"sample {number} has {len(data)} bytes"
    payload = int.from_bytes(data[16 : words * 8], "little")
    assert payload == (number * ONES[words - 2]) ^ INDEXES[words - 2], f"sample {number} is torn"
    return int(number)
