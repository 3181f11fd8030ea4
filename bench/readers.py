# SPDX-License-Identifier: Apache-2.0
"""What reading costs: nanoseconds a record to drain pre-filled perf rings, ours beside libbpf's and cilium/ebpf's.

One process makes getpgid calls; a program for each contender turns every call into a 100-byte sample in the contender's
own rings of 1 MiB, so all drain the same data; then each drains, in an order that is shuffled. Median of --rounds.
Then a full overwritable ring: the snapshot's copy beside memcpy of the same ring into the same kind of memory.
What it is not: what recording costs (recording.py). usage: readers.py [--rounds 21] [--check]  (--check: exit 1 when
ours miss their bounds: batches <= libbpf's empty callback, 2 x faster than ReadInto, bytes <= 1.2 libbpf, copy >= 90 %)
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
from collections.abc import Callable
from pathlib import Path

from otel_perfbuf._core._core import ffi
from otel_perfbuf._core._fast import Arena
from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.rings import Batch, PerfReader
from otel_perfbuf.rings.cpus import online_cpus

BUILT = Path(__file__).resolve().parents[1] / ".cache" / "bench"
RING_BYTES, SAMPLE_BYTES, RECORDS = 1 << 20, 100, 9000
HISTORY_BYTES = 16 << 20
libc = ctypes.CDLL(None)


class Process:
    """A contender in a process of its own: one line in, nanoseconds out."""

    def __init__(self, name: str, fd: int, *how: str) -> None:
        self._process = subprocess.Popen(
            [BUILT / name, str(fd), str(RING_BYTES), *how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[fd],
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        if self._out.readline() != "ready\n":
            raise SystemExit(f"bench: {name} did not start")

    def drain(self) -> float:
        """Reads RECORDS; seconds."""
        self._in.write(f"{RECORDS}\n")
        self._in.flush()
        return int(self._out.readline()) / 1e9

    def close(self) -> None:
        """Ends it."""
        self._in.close()
        self._process.wait(10)
        self._out.close()


class Ours:
    """PerfReader, with something done to every batch."""

    def __init__(self, fd: int, use: Callable[[Batch], object]) -> None:
        self._reader, self._use = PerfReader(fd, per_cpu_bytes=RING_BYTES), use
        self.close = self._reader.close

    def drain(self) -> float:
        """Reads RECORDS; seconds."""
        begun, seen = time.perf_counter(), 0
        while seen < RECORDS:
            batch = self._reader.read(0)
            self._use(batch)
            seen += len(batch)
        return time.perf_counter() - begun


def iterate(batch: Batch) -> None:
    """Every record as a Sample."""
    for _ in batch:
        pass


CONTENDERS: dict[str, Callable[[int], Ours | Process]] = {
    "ours, whole batches": lambda fd: Ours(fd, len),
    "ours, every Sample": lambda fd: Ours(fd, iterate),
    "ours, batch.data() of bytes": lambda fd: Ours(fd, Batch.data),
    "libbpf perf_buffer__poll, empty callback": lambda fd: Process("readers_libbpf", fd),
    "libbpf perf_buffer__poll, callback copies": lambda fd: Process("readers_libbpf", fd, "copy"),
    "cilium/ebpf ReadInto": lambda fd: Process("readers_cilium", fd),
}


def fill(cpu: int, home: set[int], calls: int) -> None:
    """Samples in the rings of one CPU."""
    os.sched_setaffinity(0, {cpu})
    for _ in range(calls):
        libc.getpgid(SAMPLE_BYTES)
    os.sched_setaffinity(0, home)


def drains(rounds: int, cpus: tuple[int, ...]) -> dict[str, float]:
    """Median nanoseconds a record of each contender."""
    names = [name for name in CONTENDERS if "cilium" not in name or (BUILT / "readers_cilium").exists()]
    times: dict[str, list[float]] = {name: [] for name in names}
    home, order = {cpus[0]}, random.Random(1)
    os.sched_setaffinity(0, home)
    with contextlib.ExitStack() as stack:
        readers = {}
        for name in names:
            program = stack.enter_context(BpfObject(BUILT / "rings.bpf.o"))
            program.set_rodata("target_tgid", os.getpid())
            program.load()
            program.attach()
            readers[name] = CONTENDERS[name](program.maps["events"].fd)
            stack.callback(readers[name].close)
        for turn in range(rounds + 2):
            fill(cpus[-1], home, RECORDS)
            # Shuffled, not rotated: else each would always follow the same one, with its caches.
            for name in order.sample(names, len(names)):
                seconds = readers[name].drain()
                if turn >= 2:  # the first two warm caches and memory
                    times[name].append(seconds * 1e9 / RECORDS)
    return {name: statistics.median(values) for name, values in times.items()}


def copies(rounds: int, cpus: tuple[int, ...]) -> tuple[float, float]:
    """Bytes a second of a full ring's snapshot (its copy), and of memcpy, in turns."""
    snapshot, memcpy = [], []
    with BpfObject(BUILT / "rings.bpf.o") as program:
        program.set_rodata("target_tgid", os.getpid())
        program.load()
        program.attach()
        with PerfReader(
            program.maps["events"], per_cpu_bytes=HISTORY_BYTES, overwritable=True, max_sample_bytes=SAMPLE_BYTES
        ) as reader:
            for cpu in cpus:
                fill(cpu, {cpus[0]}, HISTORY_BYTES // 112 + 1)
            rings = reader._set.rings
            total, arena = len(rings) * HISTORY_BYTES, Arena(len(rings) * HISTORY_BYTES)
            into = ffi.from_buffer("uint8_t[]", arena)
            for _ in range(rounds):
                snapshot.append(total / reader.snapshot(since="all").snapshot_ns)
                begun = time.perf_counter_ns()
                for index, ring in enumerate(rings):
                    source = ffi.cast("uint8_t *", int(ffi.cast("uintptr_t", ring.address)) + 4096)
                    ffi.memmove(into + index * HISTORY_BYTES, source, HISTORY_BYTES)
                memcpy.append(total / (time.perf_counter_ns() - begun))
    return statistics.median(snapshot), statistics.median(memcpy)


def main() -> int:
    """Runs and prints; with --check 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    cpus = online_cpus()
    before = os.sched_getaffinity(0)
    try:
        result = drains(options.rounds, cpus)
        snapshot, memcpy = copies(options.rounds, cpus)
    finally:
        os.sched_setaffinity(0, before)
    print(f"drain of a pre-filled ring, ns a {SAMPLE_BYTES}-byte record (median of {options.rounds}):")
    for name, nanoseconds in result.items():
        print(f"  {name:<42}{nanoseconds:8.1f}")
    if len(result) < len(CONTENDERS):
        print("  cilium/ebpf was left out: no Go here")
    print(f"full overwritable rings: snapshot {snapshot:.2f} GB/s, memcpy {memcpy:.2f} GB/s ({snapshot / memcpy:.0%})")
    libbpf = result["libbpf perf_buffer__poll, empty callback"]
    bounds = [
        result["ours, whole batches"] <= 1.1 * libbpf,
        result["ours, whole batches"] * 2 <= result.get("cilium/ebpf ReadInto", float("inf")),
        result["ours, batch.data() of bytes"] <= 1.2 * libbpf,
        snapshot >= 0.9 * memcpy,
    ]
    return int(options.check and not all(bounds))


if __name__ == "__main__":
    sys.exit(main())
