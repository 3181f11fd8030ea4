# SPDX-License-Identifier: Apache-2.0
"""Gives up every capability that recording does not need. What it is not: it changes no user or group.

Facts: capabilities belong to threads, and a new thread has those of the one that made it.
Meaning: what is dropped while there is one thread is dropped in all; later only a signal to each thread could do it
  (libpsx), in the middle of gRPC's own.
Decision: dropped before the first thread and before anything is opened. What the configuration asks for beyond the four
  (a directory of somebody else's, a port below 1024) is kept, and the log says so; what a reload asks for anew is not
  there any more, so that the reload fails and the old configuration goes on.
Cost: none of the limits of before the drop helps later, so RLIMIT_MEMLOCK and RLIMIT_NOFILE are raised here.
Source: capabilities(7), capset(2), prctl(2), linux/capability.h; DESIGN section 7;
docs/decisions/0014-capabilities-and-sd-notify-without-a-library.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import stat
from collections.abc import Iterable, Mapping
from typing import Final

from otel_perfbuf.errors import KernelError

__all__ = ["KEPT", "Capability", "drop_capabilities", "raise_limits", "writing_needs"]

Capability = int
CAP_DAC_OVERRIDE: Final = 1
CAP_DAC_READ_SEARCH: Final = 2
CAP_KILL: Final = 5
CAP_SETPCAP: Final = 8
CAP_NET_BIND_SERVICE: Final = 10
CAP_IPC_LOCK: Final = 14
CAP_SYS_PTRACE: Final = 19
CAP_SYS_ADMIN: Final = 21
CAP_PERFMON: Final = 38
CAP_BPF: Final = 39

KEPT: Final = frozenset({CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH})
_NAMES: Final = {
    CAP_DAC_OVERRIDE: "CAP_DAC_OVERRIDE",
    CAP_KILL: "CAP_KILL",
    CAP_NET_BIND_SERVICE: "CAP_NET_BIND_SERVICE",
    CAP_IPC_LOCK: "CAP_IPC_LOCK",
    CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
}
_VERSION_3: Final = 0x20080522
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_LOWER: Final = 3


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def raise_limits() -> bool:
    """Lets rings and files be opened without CAP_IPC_LOCK and CAP_SYS_RESOURCE; False when memory stays limited."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        hard = resource.getrlimit(kind)[1]
        wanted = resource.RLIM_INFINITY if kind == resource.RLIMIT_MEMLOCK else hard
        for value in (wanted, hard):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (value, max(value, hard) if value != resource.RLIM_INFINITY else value))
                break
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY


def writing_needs(paths: Iterable[str]) -> dict[Capability, str]:
    """CAP_DAC_OVERRIDE, and why, where our user and groups may not write or create one of the files; else empty."""
    for path in paths:
        for place in (path, os.path.dirname(path) or "."):
            try:
                found = os.stat(place)
            except OSError:
                continue  # not there yet, or never: opening it tells
            if not _may_write(found):
                return {CAP_DAC_OVERRIDE: f"{place} belongs to another user"}
            if place == path and not stat.S_ISSOCK(found.st_mode):
                break
    return {}


def _may_write(found: os.stat_result) -> bool:
    if found.st_uid == os.geteuid():
        return bool(found.st_mode & stat.S_IWUSR)
    if found.st_gid in (os.getegid(), *os.getgroups()):
        return bool(found.st_mode & stat.S_IWGRP)
    return bool(found.st_mode & stat.S_IWOTH)


def drop_capabilities(needs: Mapping[Capability, str]) -> list[str]:
    """Keeps the four and ``needs`` (and why), of those that are there; no exec can give more from then on.

    Gives a sentence for each that is kept besides the four. Call it while there is one thread. KernelError when the
    kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = _Header(_VERSION_3, 0)
    sets = (_Set * 2)()
    _call(libc.capget(ctypes.byref(header), sets), "asking for this process's capabilities")
    permitted = {number for number in range(64) if sets[number // 32].permitted >> number % 32 & 1}
    kept = permitted & (KEPT | set(needs))
    sentences = [f"{_NAMES[number]} is kept: {why}" for number, why in needs.items() if number in kept]
    if not {CAP_BPF, CAP_PERFMON} <= permitted and CAP_SYS_ADMIN in permitted - kept:
        kept.add(CAP_SYS_ADMIN)  # it stands for both
        sentences.append("CAP_SYS_ADMIN is kept: CAP_BPF and CAP_PERFMON are not there")
    for number in range(64):
        # Without CAP_SETPCAP the bounding set stays; no_new_privs below does the same for an exec.
        if (
            number not in kept
            and libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0
            and ctypes.get_errno() == errno.EPERM
        ):
            break
    for number in permitted - kept:
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, number, 0, 0)
    _call(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "setting no_new_privs")
    for half in range(2):
        word = sum(1 << number % 32 for number in kept if number // 32 == half)
        sets[half].effective = sets[half].permitted = word
        sets[half].inheritable &= word
    _call(libc.capset(ctypes.byref(header), sets), "dropping capabilities")
    return sentences


def _call(result: int, doing: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise KernelError(number, doing)
