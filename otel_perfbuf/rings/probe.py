# SPDX-License-Identifier: Apache-2.0
"""What rings this host gives, found by opening one of each kind. Source: perf_event_open(2), bpf(2), FACTS 14 and 15.

What it is not: it decides nothing; `otel-perfbuf check` prints it. It leaves no ring and no map behind.
"""

from __future__ import annotations

import errno
import os
import resource
import time

from otel_perfbuf.bpf.probe import Finding, probe_bpf

from ._sys import ffi, lib
from .cpus import online_cpus

__all__ = ["probe_host"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAP_TYPE_ARRAY = 2


def _closed(fd: int) -> int:
    """0 for an fd, which is closed, else the errno that it stands for."""
    if fd < 0:
        return -fd
    os.close(fd)
    return 0


def _event(**fields: int) -> int:
    event = ffi.new("struct pb_sys_event *", {"sample_type": lib.PB_SYS_SAMPLE_RAW, "wakeup_events": 1, **fields})
    return _closed(lib.pb_sys_perf_open(event, online_cpus()[0]))


def _ringbuf(flags: int) -> int:
    return _closed(lib.pb_sys_map_create(lib.PB_SYS_MAP_RINGBUF, 0, 0, _PAGE_BYTES, flags))


def _array() -> int:
    return _closed(lib.pb_sys_map_create(_MAP_TYPE_ARRAY, 4, 4, 1, 0))


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def _finding(name: str, error: int, there: str, way_out: str = "", *, required: bool = False) -> Finding:
    return Finding(
        name, not error, required, there if not error else f"{there} is refused: {os.strerror(error)}", way_out
    )


def _perf() -> Finding:
    paranoid = _text("/proc/sys/kernel/perf_event_paranoid")
    what = f"an event of BPF output (perf_event_paranoid {paranoid})"
    way_out = "needs root or CAP_PERFMON, and without root perf_event_paranoid 2 or less on Debian and Ubuntu"
    return _finding("perf rings", _event(), what, way_out, required=True)


def _memory() -> Finding:
    """With a limit of 0, a map can be made only where its memory is not charged to the limit."""
    name, way_out = "memory cgroup accounting", "nothing to do for root: the limit is raised when programs load"
    if error := _array():
        return _finding(name, error, "a BPF map", "needs root or CAP_BPF")
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    try:
        error = _array()
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    if error == errno.EPERM:
        return Finding(name, False, False, "BPF memory is charged to RLIMIT_MEMLOCK", way_out)
    return _finding(name, error, "BPF memory is charged to the memory cgroup")


def probe_host() -> list[Finding]:
    """Every capability of this host, in the order in which they are shown."""
    return [
        *probe_bpf(),
        _perf(),
        _finding("ring clock", _event(use_clockid=1, clockid=time.CLOCK_MONOTONIC), "use_clockid"),
        _finding("lost counts", _event(count_lost=1), "PERF_FORMAT_LOST", "needs Linux 6.0; LOST records are counted"),
        _finding("ring buffer", _ringbuf(0), "BPF ring buffer", "needs Linux 5.8 and CAP_BPF"),
        _finding(
            "overwritable ring buffer",
            _ringbuf(lib.PB_SYS_RB_OVERWRITE),
            "BPF_F_RB_OVERWRITE",
            "needs Linux 6.19; perf rings are used",
        ),
        _memory(),
    ]
