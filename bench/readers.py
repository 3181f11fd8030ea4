# SPDX-License-Identifier: Apache-2.0
"""What reading costs: nanoseconds a record to drain pre-filled perf rings; ours beside libbpf, cilium/ebpf and bcc.

Every contender is a process of its own on one CPU, with rings of 4 MiB (the recorder's default) and its own writer: a
process on another CPU whose getpgid calls become 100-byte samples. So all find the same bytes in the same state: just
written by another CPU, in no cache of the reader's. In an order that is shuffled each round each drains full rings
twice; the first time brings its code back into the caches and is not counted. What counts is the process's CPU time:
nothing is waited for, and other work on the machine is left out. Medians.
Then full overwritable rings: the snapshot's copy beside memcpy of the same rings into the same kind of memory.
What it is not: what recording costs (recording.py). usage: readers.py [--rounds 15] [--check]  (--check: exit 1 when
ours miss their bounds: batches <= libbpf's empty callback, 2 x faster than ReadInto, bytes <= 1.2 libbpf, Sample faster
than bcc's callback, copy >= 90 % of memcpy)
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from otel_perfbuf._core._core import ffi
from otel_perfbuf._core._fast import Arena
from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.rings import PerfReader
from otel_perfbuf.rings.cpus import online_cpus
from otel_perfbuf.rings.reader import _mapped

HERE = Path(__file__).resolve().parent
BUILT = HERE.parent / ".cache" / "bench"
RING_BYTES, SAMPLE_BYTES, RECORDS = 4 << 20, 100, 36_000
DRAINS = 2  # in a row; the first is not counted
libc = ctypes.CDLL(None)
SYSTEM_PYTHON = "/usr/bin/python3"

OURS, LIBBPF = [sys.executable, str(HERE / "readers_ours.py")], [str(BUILT / "readers_libbpf")]
CILIUM, BCC = [str(BUILT / "readers_cilium")], [SYSTEM_PYTHON, str(HERE / "readers_bcc.py")]
BATCHES, SAMPLES, BYTES = "ours, whole batches", "ours, every Sample", "ours, list(batch.data()) of bytes"
EMPTY, READ_INTO = "libbpf perf_buffer__poll, empty callback", "cilium/ebpf ReadInto"
NOOP = "bcc open_perf_buffer, no-op callback"
CONTENDERS: dict[str, tuple[list[str], str]] = {  # its command and what is done with the records
    BATCHES: (OURS, "batches"),
    SAMPLES: (OURS, "samples"),
    BYTES: (OURS, "bytes"),
    "memcpy of the same bytes, nothing else": (OURS, "memcpy"),
    EMPTY: (LIBBPF, ""),
    "libbpf perf_buffer__poll, callback copies": (LIBBPF, "copy"),
    READ_INTO: (CILIUM, ""),
    NOOP: (BCC, "noop"),
    "bcc open_perf_buffer, callback casts": (BCC, "cast"),
}


class Process:
    """A process that answers each line with one."""

    def __init__(self, *command: str, pass_fd: int = -1) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[pass_fd] * (pass_fd >= 0)
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        if self._out.readline() != "ready\n":
            raise SystemExit(f"bench: {command[0]} did not start")

    def ask(self, number: int) -> int:
        """Its answer."""
        self._in.write(f"{number}\n")
        self._in.flush()
        return int(self._out.readline())

    def close(self) -> None:
        """Ends it."""
        self._in.close()
        self._process.wait(10)
        self._out.close()


class Contender:
    """A reader, its rings and its writer."""

    def __init__(self, name: str, stack: contextlib.ExitStack, cpu: int) -> None:
        self._writer = Process(str(BUILT / "readers_fill"), str(SAMPLE_BYTES), str(cpu))
        stack.callback(self._writer.close)
        program = stack.enter_context(BpfObject(BUILT / "rings.bpf.o"))
        program.set_rodata("target_tgid", self._writer.pid)
        program.load()
        fd = program.maps["events"].fd
        command, how = CONTENDERS[name]
        self._reader = Process(*command, str(fd), str(RING_BYTES), *([how] if how else []), pass_fd=fd)
        stack.callback(self._reader.close)
        program.attach()

    def drain(self) -> float:
        """Nanoseconds a record for full rings."""
        self._writer.ask(RECORDS)
        return self._reader.ask(RECORDS) / RECORDS


def can_run(command: list[str]) -> bool:
    """Whether a contender is there."""
    if command is CILIUM:
        return Path(command[0]).exists()
    return (
        command is not BCC or subprocess.run([SYSTEM_PYTHON, "-c", "import bcc"], capture_output=True).returncode == 0
    )


def drains(rounds: int, cpus: tuple[int, ...]) -> dict[str, float]:
    """Median nanoseconds a record of each contender that is there."""
    names = [name for name, (command, _) in CONTENDERS.items() if can_run(command)]
    times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(1)
    with contextlib.ExitStack() as stack:
        contenders = {name: Contender(name, stack, cpus[-1]) for name in names}
        for _ in range(rounds):
            # Shuffled, not rotated: else each would always follow the same one, with its caches.
            for name in order.sample(names, len(names)):
                times[name] += [contenders[name].drain() for _ in range(DRAINS)][1:]
    return {name: statistics.median(values) for name, values in times.items()}


def copies(rounds: int, cpus: tuple[int, ...]) -> tuple[float, float, float]:
    """Bytes a nanosecond of full rings' snapshots (their copy) and of memcpy, and the median ratio of neighbours."""
    speeds: list[tuple[float, float]] = []
    home, order = os.sched_getaffinity(0), random.Random(2)
    with BpfObject(BUILT / "rings.bpf.o") as program:
        program.set_rodata("target_tgid", os.getpid())
        program.load()
        program.attach()
        with PerfReader(
            program.maps["events"], per_cpu_bytes=RING_BYTES, overwritable=True, max_sample_bytes=SAMPLE_BYTES
        ) as reader:
            for cpu in cpus:
                os.sched_setaffinity(0, {cpu})
                for _ in range(RING_BYTES // 112 + 1):
                    libc.getpgid(SAMPLE_BYTES)
            os.sched_setaffinity(0, home)
            rings = [_mapped(ring) for ring in reader._set.rings]
            total = len(rings) * RING_BYTES
            memory = Arena(total)
            into = ffi.from_buffer("uint8_t[]", memory)

            def snapshot() -> float:
                return total / reader.snapshot(since="all").snapshot_ns

            def memcpy() -> float:
                begun = time.perf_counter_ns()
                for index, ring in enumerate(rings):
                    ffi.memmove(into + index * RING_BYTES, ffi.cast("uint8_t *", ring.data), RING_BYTES)
                return total / (time.perf_counter_ns() - begun)

            for _ in range(rounds):
                took = {call: call() for call in order.sample([snapshot, memcpy], 2)}
                speeds.append((took[snapshot], took[memcpy]))
    ours, plain = zip(*speeds, strict=True)
    return statistics.median(ours), statistics.median(plain), statistics.median(a / b for a, b in speeds)


def main() -> int:
    """Runs and prints; with --check 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    cpus, before = online_cpus(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpus[0]})  # the contenders inherit it
    try:
        result = drains(options.rounds, cpus)
        snapshot, memcpy, ratio = copies(20 * options.rounds, cpus)
    finally:
        os.sched_setaffinity(0, before)
    libbpf = result[EMPTY]
    print(
        f"drain of pre-filled rings, CPU ns a {SAMPLE_BYTES}-byte record (median of {options.rounds * (DRAINS - 1)}):"
    )
    for name in CONTENDERS:
        if name in result:
            print(f"  {name:<42}{result[name]:8.1f}{result[name] / libbpf:8.2f} x libbpf's empty callback")
        else:
            print(f"  {name:<42}       - (not to be had here)")
    print(f"full overwritable rings: snapshot {snapshot:.2f} GB/s, memcpy {memcpy:.2f} GB/s; side by side {ratio:.0%}")
    endless = float("inf")
    bounds = {
        "whole batches are no slower than libbpf's callback (10 % of noise)": result[BATCHES] <= 1.1 * libbpf,
        "whole batches are twice as fast as ReadInto": 2 * result[BATCHES] <= result.get(READ_INTO, endless),
        "bytes are at most 1.2 times libbpf's callback": result[BYTES] <= 1.2 * libbpf,
        "Samples are faster than bcc's callback": result[SAMPLES] < result.get(NOOP, endless),
        "a snapshot copies at 90 % of memcpy": ratio >= 0.9,
    }
    for bound, kept in bounds.items():
        print(f"  {'yes' if kept else 'NO '} {bound}")
    return int(options.check and not all(bounds.values()))


if __name__ == "__main__":
    sys.exit(main())
