# SPDX-License-Identifier: Apache-2.0
"""bcc's open_perf_buffer as a contender of readers.py; runs in the system's Python, where Debian's python3-bpfcc is.

What it is not: bcc's compiler, which needs kernel headers. The map comes from readers.py by its fd, and its table is
made by hand; opening, polling and the callbacks are bcc's.
usage: readers_bcc.py MAP_FD BYTES noop|cast; for each line "N": reads N records, prints the CPU nanoseconds.
Source: bcc/table.py (PerfEventArray), bcc/__init__.py (BPF.perf_buffer_poll).
"""

from __future__ import annotations

import ctypes
import resource
import sys
import time

from bcc import BPF
from bcc.table import PerfEventArray
from bcc.utils import get_possible_cpus

SAMPLE_BYTES = 100


class Sample(ctypes.Structure):
    """What a program with a struct does: cast, and look at a field."""

    _fields_ = (("number", ctypes.c_uint64), ("rest", ctypes.c_uint8 * (SAMPLE_BYTES - 8)))


def main() -> None:
    """Answers line by line."""
    fd, ring_bytes, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    seen = 0

    def noop(_cpu: int, _data: int, _size: int) -> None:
        nonlocal seen
        seen += 1

    def cast(_cpu: int, data: int, _size: int) -> None:
        nonlocal seen
        if ctypes.cast(data, ctypes.POINTER(Sample)).contents.number >= 0:
            seen += 1

    bpf = BPF.__new__(BPF)
    bpf.module, bpf.perf_buffers = None, {}
    table = PerfEventArray(bpf, 0, fd, ctypes.c_int, ctypes.c_int)
    table.max_entries = max(get_possible_cpus()) + 1
    # Its default, a wake-up for each sample, would cost the writer some 8 us a sample, and the reader nothing.
    table.open_perf_buffer(
        {"noop": noop, "cast": cast}[how], page_cnt=ring_bytes // resource.getpagesize(), wakeup_events=1000
    )
    print("ready", flush=True)
    for line in sys.stdin:
        wanted, seen = int(line), 0
        begun = time.process_time_ns()
        while seen < wanted:
            bpf.perf_buffer_poll(timeout=1000)
        print(time.process_time_ns() - begun, flush=True)


if __name__ == "__main__":
    main()
