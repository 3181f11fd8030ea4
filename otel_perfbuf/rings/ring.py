# SPDX-License-Identifier: Apache-2.0
"""One CPU's ring: a perf event, its mapping and its place in the BPF map. What it is not: it reads no ring memory.

Forward and overwritable differ here in one switch that sets direction and protection together: forward with a read-only
mapping overwrites silently, backward with a writable one stops when full (FACTS 4), so neither can be had.
Source: perf_event_open(2), Linux kernel/events/core.c (perf_mmap's limits).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from dataclasses import dataclass
from typing import Any

from otel_perfbuf.errors import KernelError
from otel_perfbuf.rings._sys import ffi, lib

__all__ = ["EventOptions", "PerfMap", "Ring", "open_ring"]


@dataclass(frozen=True, slots=True)
class EventOptions:
    """How each CPU's event is opened; ``capacity`` is a power of two of whole pages.

    ``watermark_bytes`` 0 means that ``wakeup_events`` counts. ``clock_id`` None means perf's own clock.
    """

    capacity: int
    overwritable: bool
    sample_type: int
    watermark_bytes: int
    wakeup_events: int
    clock_id: int | None


@dataclass(slots=True)
class Ring:
    """One CPU's ring: ``fd`` of its event, ``address`` of its mapping (header page, then ``capacity`` data bytes).

    ``gone``: its CPU went offline, so that nothing writes there any more.
    """

    cpu: int
    fd: int
    address: Any
    capacity: int
    counts_lost: bool
    gone: bool = False

    def lost(self) -> int | None:
        """Records that ever found no room, as the kernel counts them at once (Linux 6.0), else None."""
        lost = ffi.new("uint64_t *")
        if not self.counts_lost or lib.pb_sys_lost(self.fd, lost) < 0:
            return None
        return int(lost[0])

    def pause(self, pause: bool) -> None:
        """Makes writers fail (pause) or write again; twice is fine."""
        status = lib.pb_sys_ring_pause(self.fd, pause)
        if status < 0:
            raise KernelError(-status, f"{'pausing' if pause else 'resuming'} the ring of CPU {self.cpu}")

    def close(self) -> None:
        """Gives mapping and event back."""
        lib.pb_sys_ring_unmap(self.address, self.capacity)
        os.close(self.fd)


class PerfMap:
    """A BPF perf event array of somebody's program, held open.

    Facts: the kernel takes a ring out of the map when the file through which it was put in is closed.
    Decision: this holds its own reference for as long as the rings are to be fed.
    """

    def __init__(self, fd: int, name: str, max_entries: int) -> None:
        self.fd = fd
        self.name = name
        self.max_entries = max_entries

    def set(self, ring: Ring) -> None:
        """Puts the ring at its CPU's number: from now on the program writes there."""
        status = lib.pb_sys_map_set(self.fd, ring.cpu, ring.fd)
        if status < 0:
            raise KernelError(-status, f"putting the ring of CPU {ring.cpu} into the map {self.name} (needs CAP_BPF)")

    def delete(self, cpu: int) -> None:
        """Takes a CPU's ring out of the map; a place that is empty already is fine."""
        lib.pb_sys_map_delete(self.fd, cpu)

    def close(self) -> None:
        """Gives the reference back."""
        os.close(self.fd)


def open_ring(cpu: int, options: EventOptions) -> Ring | None:
    """Opens and maps one CPU's ring; None when the CPU has gone offline. Nothing stays open on an error."""
    fd, counts_lost = _open_event(cpu, options)
    if fd < 0:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        address = ffi.new("void **")
        status = lib.pb_sys_ring_map(fd, options.capacity, not options.overwritable, address)
        if status < 0:
            raise KernelError(-status, _map_sentence(-status, cpu, options.capacity))
        undo.callback(lib.pb_sys_ring_unmap, address[0], options.capacity)
        _check_layout(cpu, address[0], options.capacity)
        undo.pop_all()
        return Ring(cpu, fd, address[0], options.capacity, counts_lost)


def _open_event(cpu: int, options: EventOptions) -> tuple[int, bool]:
    event = ffi.new("struct pb_sys_event *")
    event.sample_type = options.sample_type
    event.watermark_bytes = options.watermark_bytes
    event.wakeup_events = options.wakeup_events
    event.backward = options.overwritable
    event.use_clockid = options.clock_id is not None
    event.clockid = options.clock_id or 0
    for count_lost in (True, False):  # a kernel before 6.0 refuses PERF_FORMAT_LOST with EINVAL
        event.count_lost = count_lost
        fd = int(lib.pb_sys_perf_open(event, cpu))
        if fd != -errno.EINVAL:
            break
    if fd in (-errno.ENODEV, -errno.ENXIO):
        return -1, False
    if fd < 0:
        raise KernelError(-fd, _open_sentence(-fd, cpu))
    return fd, count_lost


def _check_layout(cpu: int, address: Any, capacity: int) -> None:
    """The core trusts the capacity, so the kernel's own words about the mapping must agree with it."""
    offset, size = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    lib.pb_sys_ring_layout(address, offset, size)
    page = resource.getpagesize()
    if (offset[0], size[0]) not in ((page, capacity), (0, 0)):
        raise KernelError(
            errno.EINVAL,
            f"mapping the ring of CPU {cpu}: the kernel reports {size[0]} bytes at {offset[0]}, asked for were "
            f"{capacity} at {page}; please report this with `uname -r`",
        )


def _open_sentence(number: int, cpu: int) -> str:
    what = f"opening the perf ring of CPU {cpu}"
    if number in (errno.EPERM, errno.EACCES):
        paranoid = _sysctl("perf_event_paranoid")
        if paranoid.isdecimal() and int(paranoid) > 2:  # a level that only distributions' kernels have
            return (
                f"{what}: kernel.perf_event_paranoid is {paranoid}, with which Debian's and Ubuntu's kernels ask for "
                "CAP_SYS_ADMIN; run as root, or set it to 2, where CAP_PERFMON is enough"
            )
        return f"{what}: needs root or CAP_PERFMON (kernel.perf_event_paranoid is {paranoid})"
    if number in (errno.EMFILE, errno.ENFILE):
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{what}: the limit of open files ({soft}) is reached; each CPU needs one, raise it (ulimit -n)"
    if number == errno.ENOSYS:
        return f"{what}: this kernel has no perf_event_open, or a seccomp filter hides it (needs CONFIG_PERF_EVENTS)"
    return what


def _map_sentence(number: int, cpu: int, capacity: int) -> str:
    what = f"mapping {capacity} bytes for the ring of CPU {cpu}"
    if number in (errno.EPERM, errno.EAGAIN):
        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
        return (
            f"{what}: more locked memory than kernel.perf_event_mlock_kb ({_sysctl('perf_event_mlock_kb')} KiB a CPU) "
            f"and RLIMIT_MEMLOCK ({limit}) allow; grant CAP_IPC_LOCK, raise one of them, or make per_cpu_bytes smaller"
        )
    if number in (errno.ENOMEM, errno.EINVAL):
        return f"{what}: not enough memory, or more than the kernel maps at once; make per_cpu_bytes smaller"
    return what


def _sysctl(name: str) -> str:
    try:
        with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
