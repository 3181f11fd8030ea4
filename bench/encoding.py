# SPDX-License-Identifier: Apache-2.0
"""From ring bytes to OTLP chunks: how long a dump of 100,000 real syscall records takes, and how much of it is Python.

A load of opens, reads and failures is recorded, the rings are copied once, and the dump of that copy is made several
times. What it is not: the snapshot's own cost, which is printed beside it. usage: encoding.py [RECORDS]
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time

from load import Load

from otel_perfbuf.recorder.capture import Capture, Losses
from otel_perfbuf.recorder.dump import Dump, DumpOptions, make_dump
from otel_perfbuf.recorder.source import HistorySource, SourceOptions
from otel_perfbuf.triggers.firing import Firing

ROUNDS = 5


def make(capture: Capture, source: HistorySource, pid: int, records: int) -> Dump:
    """One dump of all that the load did, at most ``records``."""
    firing = Firing(kind="manual", reason="bench", unix_ns=time.time_ns(), pid=pid)
    options = DumpOptions(before_s=None, max_records=records)
    return make_dump([capture], [firing], options, plan=source.plan, started_ns=source.started_ns, losses=Losses())


def python_calls(work: object) -> int:
    """How many Python functions begin while ``work()`` runs."""
    begun = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal begun
        begun += event == "call"

    sys.setprofile(count)
    try:
        work()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return begun


def main() -> None:
    """Prints the figures."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    options = SourceOptions(whole_host=False, per_cpu_bytes=64 << 20)
    cpu = max(os.sched_getaffinity(0))
    with contextlib.closing(HistorySource(options)) as source, Load("mix", records + records // 5, cpu) as load:
        source.attach()
        source.program.follow(load.pid)
        load.run()
        capture = source.capture()
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            dump = make(capture, source, load.pid, records)
            times.append(time.perf_counter() - began)
        few, all_of_them = (
            python_calls(lambda n=n: make(capture, source, load.pid, n)) for n in (records // 10, records)
        )
    size = sum(len(chunk.body) for chunk in dump.payload.chunks)
    seconds = statistics.median(times)
    print(f"ring bytes to OTLP chunks: {dump.header.records:,} records in {seconds * 1e3:.0f} ms, median of {ROUNDS}")
    print(
        f"  {seconds / dump.header.records * 1e9:.0f} ns and {size / dump.header.records:.0f} bytes a record, "
        f"{len(dump.payload.chunks)} requests; the snapshot before it took {capture.snapshot_ns / 1e6:.1f} ms"
    )
    print(f"  Python calls: {all_of_them:,} for {records:,} records, {few:,} for {records // 10:,}")


if __name__ == "__main__":
    main()
