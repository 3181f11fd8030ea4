# SPDX-License-Identifier: Apache-2.0
"""Which system calls a trigger watches, for an errno or for how long they take.

What it is not: the judgement, which is the program's (bpf/condition.bpf.h). Source: bpf/records.h (pb_syscall_flags).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from otel_perfbuf._core._core import lib
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records.classes import select_syscalls

__all__ = ["WAITING", "watched_syscalls"]

WAITING = frozenset({
    "accept", "accept4", "clock_nanosleep", "epoll_pwait", "epoll_pwait2", "epoll_wait", "futex", "futex_wait",
    "futex_waitv", "io_getevents", "io_pgetevents", "io_uring_enter", "msgrcv", "mq_timedreceive", "nanosleep",
    "pause", "poll", "ppoll", "pselect6", "read", "recvfrom", "recvmmsg", "recvmsg", "restart_syscall",
    "rt_sigsuspend", "rt_sigtimedwait", "select", "semop", "semtimedop", "wait4", "waitid",
})  # fmt: skip
"""Calls that wait by design: a thread that has nothing to do is in one of them."""


def watched_syscalls(
    known: Set[str], recorded: Set[str], error_syscalls: Sequence[str], slow_syscalls: Sequence[str] | None
) -> dict[str, int]:
    """The flags of the calls that are watched, by name; see `rules.syscall_rules`.

    ConfigError when none of those that were named is among the ``recorded``.
    """
    watched: dict[str, int] = {}
    chosen: list[tuple[int, Set[str]]] = []
    if error_syscalls:
        chosen.append((lib.PB_SYSCALL_ALERT_ERROR, select_syscalls(known, include=error_syscalls)))
    if slow_syscalls:
        chosen.append((lib.PB_SYSCALL_ALERT_SLOW, select_syscalls(known, include=slow_syscalls)))
    elif slow_syscalls is not None:
        chosen.append((lib.PB_SYSCALL_ALERT_SLOW, recorded - WAITING))
    for flag, names in chosen:
        if not names & recorded:
            sentence = f"none of {', '.join(sorted(names)[:5])} is recorded"
            raise ConfigError(f"watching system calls: {sentence}; add them to syscalls.include", (("", sentence),))
        for name in names:
            watched[name] = watched.get(name, 0) | flag
    return watched
