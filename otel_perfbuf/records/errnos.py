# SPDX-License-Identifier: Apache-2.0
"""Names and texts of errors, names of signals and of their si_code, as strace prints them.

From Python's errno, os and signal; tables only for what the kernel keeps to itself (512-516) and for si_code.
What it is not: the renderer. Source: include/linux/errno.h, include/uapi/asm-generic/siginfo.h; strace 6.1's output.
"""

from __future__ import annotations

import errno
import os
import signal

__all__ = ["SIGNAL_CODES", "error_rows", "signal_rows"]

# Never seen by a program: the kernel restarts the call. The texts are strace's.
_RESTARTS = {
    512: ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
    513: ("ERESTARTNOINTR", "To be restarted"),
    514: ("ERESTARTNOHAND", "To be restarted if no handler"),
    516: ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
}
# Kernel-internal errors that reach tracing only; strace has no text for them but their name.
_INTERNAL = {
    515: "ENOIOCTLCMD", 517: "EPROBE_DEFER", 518: "EOPENSTALE", 519: "ENOPARAM", 521: "EBADHANDLE", 522: "ENOTSYNC",
    523: "EBADCOOKIE", 524: "ENOTSUPP", 525: "ETOOSMALL", 526: "ESERVERFAULT", 527: "EBADTYPE", 528: "EJUKEBOX",
    529: "EIOCBQUEUED", 530: "ERECALLCONFLICT",
}  # fmt: skip
# Where one number has two names, Python may know the other one.
_PREFERRED = {"EWOULDBLOCK": "EAGAIN", "EDEADLOCK": "EDEADLK", "ENOTSUP": "EOPNOTSUPP"}
# Newer than some C libraries that Python was built with.
_LATER = {133: "EHWPOISON"}


def error_rows() -> list[tuple[int, str, str]]:
    """(number, name, text), ascending: ``(2, "ENOENT", "No such file or directory")``; 512 and up included."""
    names = {number: _PREFERRED.get(name, name) for number, name in errno.errorcode.items()}
    rows = [(number, name, os.strerror(number)) for number, name in (_LATER | names).items()]
    rows += [(number, name, text) for number, (name, text) in _RESTARTS.items()]
    rows += [(number, name, name) for number, name in _INTERNAL.items()]
    return sorted(rows)


def signal_rows() -> list[tuple[int, str]]:
    """(number, name) of signals 1 to 31; the renderer counts realtime signals itself (SIGRTMIN, SIGRT_1, ...)."""
    rows = {int(number): number.name for number in signal.Signals if number < 32}
    rows[16] = "SIGSTKFLT"  # Python 3.10 and older C libraries leave it out
    return sorted(rows.items())


# si_code by signal, in plan.h's order: generic, SIGILL, SIGFPE, SIGSEGV, SIGBUS, SIGTRAP, SIGCHLD, SIGPOLL, SIGSYS.
SIGNAL_CODES: tuple[tuple[tuple[int, str], ...], ...] = (
    (
        (0, "SI_USER"), (0x80, "SI_KERNEL"), (-1, "SI_QUEUE"), (-2, "SI_TIMER"), (-3, "SI_MESGQ"), (-4, "SI_ASYNCIO"),
        (-5, "SI_SIGIO"), (-6, "SI_TKILL"), (-7, "SI_DETHREAD"), (-60, "SI_ASYNCNL"),
    ),
    tuple(enumerate(("ILL_ILLOPC", "ILL_ILLOPN", "ILL_ILLADR", "ILL_ILLTRP", "ILL_PRVOPC", "ILL_PRVREG", "ILL_COPROC",
                     "ILL_BADSTK", "ILL_BADIADDR"), 1)),
    (*enumerate(("FPE_INTDIV", "FPE_INTOVF", "FPE_FLTDIV", "FPE_FLTOVF", "FPE_FLTUND", "FPE_FLTRES", "FPE_FLTINV",
                 "FPE_FLTSUB"), 1), (14, "FPE_FLTUNK"), (15, "FPE_CONDTRAP")),
    tuple(enumerate(("SEGV_MAPERR", "SEGV_ACCERR", "SEGV_BNDERR", "SEGV_PKUERR", "SEGV_ACCADI", "SEGV_ADIDERR",
                     "SEGV_ADIPERR", "SEGV_MTEAERR", "SEGV_MTESERR"), 1)),
    tuple(enumerate(("BUS_ADRALN", "BUS_ADRERR", "BUS_OBJERR", "BUS_MCEERR_AR", "BUS_MCEERR_AO"), 1)),
    tuple(enumerate(("TRAP_BRKPT", "TRAP_TRACE", "TRAP_BRANCH", "TRAP_HWBKPT", "TRAP_UNK", "TRAP_PERF"), 1)),
    tuple(enumerate(("CLD_EXITED", "CLD_KILLED", "CLD_DUMPED", "CLD_TRAPPED", "CLD_STOPPED", "CLD_CONTINUED"), 1)),
    tuple(enumerate(("POLL_IN", "POLL_OUT", "POLL_MSG", "POLL_ERR", "POLL_PRI", "POLL_HUP"), 1)),
    ((1, "SYS_SECCOMP"), (2, "SYS_USER_DISPATCH")),
)  # fmt: skip
