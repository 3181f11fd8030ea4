# SPDX-License-Identifier: Apache-2.0
"""What recording costs: a getppid loop recorded, filtered out, under ftrace, under an empty program, and untraced.

The states are interleaved in every round and each figure is the median over the rounds, since a shared machine's speed
drifts. ftrace is the best peer (FACTS 23): an instance of its own in overwrite mode with both raw_syscalls events.
What it is not: a test; it prints, and says whether the goals are met. usage: recording.py [ROUNDS [CALLS]]
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from load import BUILT, Load

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.recorder.source import HistorySource, SourceOptions

TRACING = Path("/sys/kernel/tracing")
GOAL_OF_FTRACE = 0.9


@contextlib.contextmanager
def untraced(_: int) -> Iterator[None]:
    """Nothing attached."""
    yield


@contextlib.contextmanager
def recorded(pid: int) -> Iterator[None]:
    """The flight recorder follows the load."""
    with contextlib.closing(HistorySource(SourceOptions(whole_host=False, pids=[pid]))) as source:
        source.attach()
        yield


@contextlib.contextmanager
def filtered_out(_: int) -> Iterator[None]:
    """The flight recorder is attached and follows another process, one that has no descendants and does nothing."""
    with Load("getppid", 1, 0) as other, recorded(other.pid):
        yield


@contextlib.contextmanager
def empty(_: int) -> Iterator[None]:
    """Empty programs in the same two places."""
    with BpfObject(str(BUILT / "empty.bpf.o")) as programs:
        programs.load()
        programs.attach()
        yield


@contextlib.contextmanager
def ftrace(_: int) -> Iterator[None]:
    """An ftrace instance with as large a buffer as our rings, overwriting, nobody reads."""
    instance = TRACING / "instances" / f"otel-perfbuf-bench-{os.getpid()}"
    instance.mkdir()
    try:
        (instance / "buffer_size_kb").write_text("4096")
        (instance / "options/overwrite").write_text("1")
        for event in ("sys_enter", "sys_exit"):
            (instance / f"events/raw_syscalls/{event}/enable").write_text("1")
        yield
    finally:
        for event in ("sys_enter", "sys_exit"):
            (instance / f"events/raw_syscalls/{event}/enable").write_text("0")
        instance.rmdir()


STATES = {
    "untraced": untraced,
    "empty programs": empty,
    "filtered out": filtered_out,
    "recorded": recorded,
    "ftrace": ftrace,
}


def measure(rounds: int, calls: int) -> dict[str, list[float]]:
    """State -> nanoseconds a call, one for each round."""
    cpu = max(os.sched_getaffinity(0))
    figures: dict[str, list[float]] = {name: [] for name in STATES}
    with Load("getppid", calls, cpu) as load:
        load.run()
        for _ in range(rounds):
            for name, state in STATES.items():
                with state(load.pid):
                    figures[name].append(load.run())
    return figures


def main() -> None:
    """Prints a table and the two ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 500_000
    figures = measure(rounds, calls)
    base = statistics.median(figures["untraced"])
    print(f"getppid, {rounds} rounds of {calls:,} calls, wall ns a call (median, lowest to highest):")
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"  {name:16} {median:7.0f}  +{median - base:5.0f}   {min(values):.0f} to {max(values):.0f}")
    cost = {name: statistics.median(values) - base for name, values in figures.items()}
    print(f"recorded / ftrace: {cost['recorded'] / cost['ftrace']:.2f} (goal: at most {GOAL_OF_FTRACE})")
    print(f"filtered out / empty programs: {cost['filtered out'] / cost['empty programs']:.2f} (goal: 1, within noise)")


if __name__ == "__main__":
    main()
