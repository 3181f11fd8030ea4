# SPDX-License-Identifier: Apache-2.0
"""What recording costs on per-CPU perf rings and on one shared ring, and how much history each holds.

The states are interleaved in every round; each figure is the median over the rounds of the load's own CPU time (what
else runs on the machine is not in it, spinning at a lock is): only ratios mean anything. Where the kernel has no
BPF_F_RB_OVERWRITE (before Linux 6.19), a plain BPF ring buffer stands in, new for each round so that it never fills:
the same lock and the same copy, without the overwriting. usage: shared_ring.py [ROUNDS [CALLS]]
What it is not: a test; it prints.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from load import Load

from otel_perfbuf.bpf.object import BpfObject
from otel_perfbuf.bpf.syscalls import SyscallProgram
from otel_perfbuf.errors import NotSupported
from otel_perfbuf.recorder.edges import ring_edges
from otel_perfbuf.recorder.history import History
from otel_perfbuf.recorder.history_rings import RingKind
from otel_perfbuf.recorder.source import HistorySource, SourceOptions
from otel_perfbuf.records import syscall_rules
from otel_perfbuf.rings import PerfReader, RingbufReader, create_ringbuf

RING_BYTES = 16 << 20  # of a CPU: more than a round writes
HISTORY_BYTES = 256 << 10
RINGS: tuple[RingKind, ...] = ("per_cpu", "shared")
RULES = syscall_rules()
State = Callable[[list[Load]], contextlib.AbstractContextManager[object]]


def has_overwritable() -> bool:
    """Whether the kernel makes the real thing."""
    try:
        os.close(create_ringbuf(os.sysconf("SC_PAGESIZE"), overwritable=True))
    except NotSupported:
        return False
    return True


@contextlib.contextmanager
def attached(loads: list[Load], shared_history_bytes: int = 0) -> Iterator[SyscallProgram]:
    """The flight recorder's program on the loads."""
    program = SyscallProgram(syscall_rules=RULES, filter_targets=True, shared_history_bytes=shared_history_bytes)
    with program:
        program.attach()
        for load in loads:
            program.follow(load.pid)
        yield program


@contextlib.contextmanager
def per_cpu(loads: list[Load]) -> Iterator[None]:
    """An overwritable perf ring a CPU."""
    with (
        attached(loads) as program,
        PerfReader(program.history_map, per_cpu_bytes=RING_BYTES, overwritable=True, max_sample_bytes=8192),
    ):
        yield


@contextlib.contextmanager
def shared(loads: list[Load]) -> Iterator[None]:
    """One overwritable BPF ring buffer."""
    with attached(loads, 2 * RING_BYTES) as program, RingbufReader(program.history_map):
        yield


@contextlib.contextmanager
def plain(loads: list[Load]) -> Iterator[None]:
    """One BPF ring buffer that does not overwrite."""
    make = BpfObject.make_ringbuf

    def without_the_flag(self: BpfObject, name: str, capacity: int, *, overwritable: bool) -> None:
        assert overwritable
        make(self, name, capacity)

    with mock.patch.object(BpfObject, "make_ringbuf", without_the_flag):
        made = attached(loads, 2 * RING_BYTES)
        program = made.__enter__()
    try:
        yield
        assert not program.stats().lost, "the ring buffer was full: give fewer CALLS"
    finally:
        made.__exit__(None, None, None)


def cpu_ns_a_call(load: Load, calls: int) -> float:
    """One round's CPU time of the load, by its process's clock (clock_getcpuclockid(3))."""
    clock = (~load.pid << 3) | 2
    begun_ns = time.clock_gettime_ns(clock)
    load.run()
    return (time.clock_gettime_ns(clock) - begun_ns) / calls


def measure(states: dict[str, State], rounds: int, calls: int, writers: int) -> dict[str, float]:
    """State -> median nanoseconds a call."""
    cpus = sorted(os.sched_getaffinity(0))[-writers:]
    figures: dict[str, list[float]] = {name: [] for name in states}
    with contextlib.ExitStack() as running, ThreadPoolExecutor(writers) as threads:
        loads = [running.enter_context(Load("getppid", calls, cpu)) for cpu in cpus]
        for load in loads:
            load.run()
        for _ in range(rounds):
            for name, state in states.items():
                with state(loads):
                    figures[name].append(statistics.mean(threads.map(cpu_ns_a_call, loads, [calls] * writers)))
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> None:
    """Prints a line for each number of writers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
    real = has_overwritable()
    states: dict[str, State] = {
        "untraced": lambda _: contextlib.nullcontext(),
        "per-CPU": per_cpu,
        "shared": shared if real else plain,
    }
    kind = "BPF_F_RB_OVERWRITE" if real else "a plain BPF ring buffer: this kernel cannot overwrite one"
    print(f"getppid recorded, {rounds} rounds of {calls:,} calls, CPU ns a call (median); shared: {kind}")
    for writers in range(1, min(2, len(os.sched_getaffinity(0))) + 1):
        got = measure(states, rounds, calls, writers)
        cost = {name: value - got["untraced"] for name, value in got.items()}
        words = f"{writers} writer{'s' * (writers > 1)}: untraced {got['untraced']:.0f}"
        rings = f"per-CPU rings +{cost['per-CPU']:.0f}, shared ring +{cost['shared']:.0f}"
        print(f"  {words}, {rings}; shared / per-CPU: {cost['shared'] / cost['per-CPU']:.2f}")
    if real:
        print_history()


def whole_records(ring: RingKind, writers: int) -> int:
    """How many records a dump holds from `complete_since` on, when each writer has filled its CPU's ring many times."""
    cpus = sorted(os.sched_getaffinity(0))[-writers:]
    options = SourceOptions(ring=ring, per_cpu_bytes=HISTORY_BYTES, whole_host=False)
    with contextlib.ExitStack() as running, HistorySource(options) as source, ThreadPoolExecutor(writers) as threads:
        source.attach()
        loads = [running.enter_context(Load("getppid", HISTORY_BYTES // 10, cpu)) for cpu in cpus]
        for load in loads:
            source.program.follow(load.pid)
        list(threads.map(Load.run, loads))
        capture = source.capture()
        since_ns = max(edge.since_ns for edge in ring_edges([capture], source.started_ns).values())
        history = History([capture.batch], [])
        return history.select([True] * len(history.processes()), since_ns, (1 << 63) - 1, 1 << 40)[0]


def print_history() -> None:
    """Records that are whole, in the same memory."""
    for writers in range(1, len(os.sched_getaffinity(0)) + 1):
        held = {ring: whole_records(ring, writers) for ring in RINGS}
        words = f"{writers} of {len(os.sched_getaffinity(0))} CPUs busy, same memory"
        ratio = held["shared"] / held["per_cpu"]
        print(f"  {words}: whole records per-CPU {held['per_cpu']:,}, shared {held['shared']:,}; {ratio:.2f} times")


if __name__ == "__main__":
    main()
