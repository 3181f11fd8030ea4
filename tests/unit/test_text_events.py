# SPDX-License-Identifier: Apache-2.0
"""Lines of signals and process ends, against what strace 6.1 printed, and of what strace does not print.

Source: strace's output on Linux 6.18 for a small program that raises each of them.
"""

from __future__ import annotations

import struct

import pytest
from plans import Plan, Row
from samples import Engine, SampleWriter

from otel_perfbuf._core._core import lib

CODES = [
    [(-60, "SI_ASYNCNL"), (-6, "SI_TKILL"), (-5, "SI_SIGIO"), (-2, "SI_TIMER"), (-1, "SI_QUEUE"), (0, "SI_USER"),
     (128, "SI_KERNEL")],
    [(2, "ILL_ILLOPN")],
    [(1, "FPE_INTDIV")],
    [(1, "SEGV_MAPERR"), (2, "SEGV_ACCERR")],
    [(2, "BUS_ADRERR")],
    [(1, "TRAP_BRKPT")],
    [(1, "CLD_EXITED"), (2, "CLD_KILLED"), (3, "CLD_DUMPED")],
    [(1, "POLL_IN")],
    [(1, "SYS_SECCOMP")],
]  # fmt: skip
PLAN = Plan({39: Row("getpid")}, codes=CODES)


def sender(pid: int, uid: int, value: int = 0) -> bytes:
    """The union's fields of kill and sigqueue."""
    return struct.pack("=iIQ", pid, uid, value)


def child(pid: int, uid: int, status: int, utime: int = 0, stime: int = 0) -> bytes:
    """The union's fields of SIGCHLD."""
    return struct.pack("=iIi4xQQ", pid, uid, status, utime, stime)


def pointer(address: int) -> bytes:
    """The union's fields of a fault."""
    return struct.pack("=Q", address)


SIGNALS = [
    (11, 1, pointer(0), 0, "--- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=NULL} ---"),
    (11, 1, pointer(0xFFFF800000000000), 0,
     "--- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=0xffff800000000000} ---"),
    (11, 2, pointer(0x7F67A9552000), 0,
     "--- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_ACCERR, si_addr=0x7f67a9552000} ---"),
    (4, 2, pointer(0x55D604EAE377), 0, "--- SIGILL {si_signo=SIGILL, si_code=ILL_ILLOPN, si_addr=0x55d604eae377} ---"),
    (7, 2, pointer(0x7F8D9FA08000), 0, "--- SIGBUS {si_signo=SIGBUS, si_code=BUS_ADRERR, si_addr=0x7f8d9fa08000} ---"),
    (5, 128, pointer(0), 0, "--- SIGTRAP {si_signo=SIGTRAP, si_code=SI_KERNEL, si_addr=NULL} ---"),
    (13, 0, sender(14800, 0), 0, "--- SIGPIPE {si_signo=SIGPIPE, si_code=SI_USER, si_pid=14800, si_uid=0} ---"),
    (6, -6, sender(14805, 0), 0, "--- SIGABRT {si_signo=SIGABRT, si_code=SI_TKILL, si_pid=14805, si_uid=0} ---"),
    (34, -1, sender(14815, 0, 77), 0,
     "--- SIGRT_2 {si_signo=SIGRT_2, si_code=SI_QUEUE, si_pid=14815, si_uid=0, si_int=77, si_ptr=0x4d} ---"),
    (34, -1, sender(14815, 0), 0, "--- SIGRT_2 {si_signo=SIGRT_2, si_code=SI_QUEUE, si_pid=14815, si_uid=0} ---"),
    (64, 0, sender(14815, 0), 0, "--- SIGRT_32 {si_signo=SIGRT_32, si_code=SI_USER, si_pid=14815, si_uid=0} ---"),
    (10, -5, sender(5, 6), 2,
     "--- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_SIGIO, si_errno=ENOENT, si_band=25769803781, si_fd=0} ---"),
    (10, -60, sender(5, 6), 7777,
     "--- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_ASYNCNL, si_errno=7777, si_pid=5, si_uid=6} ---"),
    (34, -2, struct.pack("=iiQ", 0, 0, 9), 0,
     "--- SIGRT_2 {si_signo=SIGRT_2, si_code=SI_TIMER, si_timerid=0, si_overrun=0, si_int=9, si_ptr=0x9} ---"),
    (17, 1, child(18801, 0, 7, 7), 0,
     "--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=18801, si_uid=0, si_status=7, "
     "si_utime=7 /* 0.07 s */, si_stime=0} ---"),
    (17, 2, child(18802, 0, 11), 0,
     "--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_KILLED, si_pid=18802, si_uid=0, si_status=SIGSEGV, "
     "si_utime=0, si_stime=0} ---"),
    (29, 128, bytes(16), 0, "--- SIGIO {si_signo=SIGIO, si_code=SI_KERNEL} ---"),
    (34, 1, sender(65, 0, 3), 0,
     "--- SIGRT_2 {si_signo=SIGRT_2, si_code=0x1, si_pid=65, si_uid=0, si_int=3, si_ptr=0x3} ---"),
    (31, 1, struct.pack("=QiI", 0x7F0000000000, 39, 0xC000003E), 0,
     "--- SIGSYS {si_signo=SIGSYS, si_code=SYS_SECCOMP, si_call_addr=0x7f0000000000, si_syscall=__NR_getpid, "
     "si_arch=AUDIT_ARCH_X86_64} ---"),
    (2, 128, bytes(16), 0, "--- SIGINT {si_signo=SIGINT, si_code=SI_KERNEL} ---"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "code", "fields", "error", "expected"), SIGNALS)
def test_a_signal_reads_as_strace_prints_it(number: int, code: int, fields: bytes, error: int, expected: str) -> None:
    """Name, code and what the signal's kind carries."""
    writer = SampleWriter().signal(1, 5, number, code, fields, error)
    # Python calls 29 SIGIO or SIGPOLL, whichever it saw first
    assert Engine([writer.sample()]).join().line(PLAN.c).replace("SIGPOLL", "SIGIO") == expected


def test_a_signal_without_siginfo_is_its_name() -> None:
    """SIGKILL's delivery carries none."""
    assert Engine([SampleWriter().signal(1, 5, 9, has_info=0).sample()]).join().line(PLAN.c) == "--- SIGKILL ---"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (0, "+++ exited with 0 +++"),
        (5 << 8, "+++ exited with 5 +++"),
        (255 << 8, "+++ exited with 255 +++"),
        (9, "+++ killed by SIGKILL +++"),
        (139, "+++ killed by SIGSEGV (core dumped) +++"),
    ],
)
def test_a_process_end_reads_as_strace_prints_it(status: int, expected: str) -> None:
    """By the wait status."""
    assert Engine([SampleWriter().exit(1, 5, status).sample()]).join().line(PLAN.c) == expected


def test_what_strace_does_not_print_is_one_readable_line() -> None:
    """Exec, fork, thread, OOM kill, lost records."""
    writer = SampleWriter().exec(1, 1, b"/usr/bin/\xe9").fork(2, 2, 7, 7).fork(3, 3, 8, 100).oom_kill(4, 4, 42, 5)
    writer.lost(5, 5, 3, lib.PB_LOST_NO_SPACE).lost(6, 6, 1, lib.PB_LOST_OVERWRITTEN)
    engine = Engine([writer.sample()]).join()
    assert [engine.line(PLAN.c, index) for index in range(6)] == [
        "exec /usr/bin/\\351", "fork 7", "thread 8", "oom kill 42",
        "lost 3 records (no_space)", "lost 1 record (overwritten)",
    ]  # fmt: skip
