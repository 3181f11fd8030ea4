# SPDX-License-Identifier: Apache-2.0
"""The tables against strace: the same calls, made once under strace, must read the same out of the C engine.

The calls' results and memory are captured by the rules that the BPF program gets (traced_calls.py plays it), so a
wrong number, name, order, kind or capture rule shows as a different line.
Source: the installed strace. What it is not: the recorder's own end-to-end test (tests/e2e).
"""

from __future__ import annotations

import shutil
import socket
import struct

import pytest
from traced_calls import Call
from traced_render import compare

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")

CWD = -100
NONE = -1
INET = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(80), socket.inet_aton("127.0.0.1"))
INET6 = struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(443), 0, socket.inet_pton(socket.AF_INET6, "::1"), 0)
UNIX = struct.pack("=H", socket.AF_UNIX) + b"/no/such.sock\0"
LENGTH = struct.pack("=I", 128)
ONE = struct.pack("=i", 1)

# One list is one process: descriptors of earlier calls are used by later ones.
FILES = [
    Call("openat", (CWD, b"/etc/hostname", 0o2000000)),
    Call("read", (3, b"", 10)),
    Call("pread64", (3, b"", 5, 1)),
    Call("lseek", (3, 0, 0)),
    Call("lseek", (3, -1, 0)),
    Call("openat", (CWD, b"/no/such/directory/file", 0)),
    Call("openat", (CWD, b"/no/such/file", 0o101102, 0o644)),
    Call("openat", (3, b"x", 0o20200000, 0o600)),
    Call("openat", (CWD, 0, 3)),
    Call("openat", (CWD, b"/" + b"long-name/" * 20, 0o400000)),
    Call("open", (b"/dev/null", 0o2)),
    Call("creat", (b"/no/such", 0o666)),
    Call("access", (b"/etc/ld.so.preload", 4)),
    Call("access", (b"/etc", 0)),
    Call("access", (b"/etc", 7)),
    Call("faccessat2", (CWD, b"/etc", 2, 0x200)),
    Call("readlink", (b"/proc/self/fd/0", b"", 100)),
    Call("readlink", (b"/etc/hostname", b"", 100)),
    Call("readlinkat", (CWD, b"/proc/self/exe", b"", 4095), room=4096),
    Call("getcwd", (b"", 4096), room=4096),
    Call("getcwd", (b"", 1)),
    Call("chdir", (b"/no/such",)),
    Call("mkdir", (b"/no/such", 0o755)),
    Call("mkdirat", (CWD, b"", 0o700)),
    Call("rename", (b"/no/a", b"/no/b")),
    Call("renameat2", (CWD, b"/no/a", CWD, b"/no/b", 1)),
    Call("unlinkat", (CWD, b"/no/such", 0x200)),
    Call("linkat", (CWD, b"/no/a", CWD, b"/no/b", 0x400)),
    Call("symlinkat", (b"target", CWD, b"/no/b")),
    Call("chmod", (b"/no/such", 0o4755)),
    Call("fchownat", (CWD, b"/no/such", 0, -1, 0x100)),
    Call("newfstatat", (CWD, b"/no/such", 0, 0x1100)),
    Call("statx", (CWD, b"/no/such", 0x2000, 0x7FF, 0)),
    Call("umask", (0o22,)),
    Call("umask", (0o77,)),
    Call("write", (4, b"hello\n\x00\xff", 8)),
    Call("write", (99, b"gone", 4)),
    Call("pwrite64", (4, b"x" * 100, 100, 1 << 40), room=128),
    Call("fcntl", (3, 1)),
    Call("fcntl", (3, 3)),
    Call("fcntl", (3, 2, 1)),
    Call("fcntl", (4, 4, 0o4002)),
    Call("fcntl", (3, 1030, 5)),
    Call("fcntl", (3, 0, 40)),
    Call("fcntl", (3, 1032)),
    Call("fcntl", (3, 77, 5)),
    Call("ioctl", (3, 0x5401, 0x1000)),
    Call("ioctl", (3, 0x541B, b"")),
    Call("ioctl", (3, 0x5421, ONE)),
    Call("flock", (3, 6)),
    Call("fallocate", (99, 3, 0, 4096)),
    Call("fadvise64", (3, 0, 0, 2)),
    Call("ftruncate", (3, 5)),
    Call("truncate", (b"/no/such", 7)),
    Call("fsync", (99,)),
    Call("dup", (3,)),
    Call("dup2", (3, 3)),
    Call("dup3", (3, 50, 0o2000000)),
    Call("close_range", (60, 70, 4)),
    Call("mknodat", (CWD, b"/no/such", 0o10644)),
    Call("memfd_create", (b"scratch", 3)),
    Call("mount", (b"none", b"/no/such", b"tmpfs", 0x1E, 0)),
    Call("umount2", (b"/no/such", 2)),
    Call("close", (3,)),
    Call("close", (3,)),
]

SOCKETS = [
    Call("socket", (socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 6)),
    Call("bind", (3, struct.pack("=HH4s8x", 2, 0, socket.inet_aton("127.0.0.1")), 16)),
    Call("listen", (3, 5)),
    Call("getsockname", (3, b"", LENGTH), room=128),
    Call("getpeername", (3, b"", LENGTH), room=128),
    Call("accept4", (99, b"", LENGTH, 0o2004000)),
    Call("accept", (99, 0, 0)),
    Call("connect", (99, INET, 16)),
    Call("connect", (99, INET6, 28)),
    Call("connect", (99, UNIX, 16)),
    Call("connect", (99, 0x10, 16)),
    Call("sendto", (99, b"data", 4, 0x4040, INET, 16)),
    Call("recvfrom", (99, b"", 10, 2, 0, 0)),
    Call("shutdown", (3, 2)),
    Call("socketpair", (1, 1, 0, b"")),
    Call("sendto", (4, b"hello", 5, 0x4000, 0, 0)),
    Call("recvfrom", (5, b"", 64, 0, b"", LENGTH), room=128),
    Call("recvfrom", (5, b"", 64, 0x40, 0, 0)),
    Call("setsockopt", (3, 1, 2, ONE, 4)),
    Call("setsockopt", (3, 6, 1, ONE, 4)),
    Call("setsockopt", (3, 41, 26, ONE, 4)),
    Call("getsockopt", (3, 1, 7, b"", struct.pack("=I", 4))),
    Call("getsockopt", (3, 1, 4, b"", struct.pack("=I", 4))),
    Call("getsockopt", (99, 6, 1, 0x10, 0x20)),
    Call("socket", (16, 0x80003, 0)),
    Call("socket", (1, 2, 0)),
    Call("socket", (10, 0x80802, 17)),
    Call("socket", (77, 1, 3)),
]

MEMORY = [
    Call("mmap", (0, 8192, 3, 0x22, NONE, 0)),
    Call("mmap", (0, 4096, 1, 0x2, 99, 0x1000)),
    Call("mmap", (0, 0, 5, 0x812, 3, 0)),
    Call("mprotect", (1, 4096, 0)),
    Call("munmap", (1, 4096)),
    Call("mremap", (1, 4096, 8192, 1)),
    Call("mremap", (1, 4096, 8192, 3, 0x7000)),
    Call("madvise", (1, 4096, 4)),
    Call("msync", (1, 4096, 4)),
    Call("mlock2", (1, 4096, 1)),
    Call("brk", (0,)),
    Call("shmat", (NONE, 0, 0o10000)),
    Call("pkey_mprotect", (1, 4096, 3, 0)),
]

PROCESSES = [
    Call("getpid"),
    Call("getuid"),
    Call("kill", (0x7FFFFFFF, 15)),
    Call("tgkill", (0x7FFFFFFF, 0x7FFFFFFF, 40)),
    Call("rt_sigaction", (99, 0, 0, 8)),
    Call("rt_sigprocmask", (0, 0, b"", 8)),
    Call("rt_sigprocmask", (2, struct.pack("=Q", 1 << 16 | 1 << 1), b"", 8)),
    Call("rt_sigprocmask", (1, struct.pack("=Q", (1 << 64) - 1), 0, 8)),
    Call("wait4", (NONE, 0, 1, 0)),
    Call("wait4", (12345678, b"", 0x40000001, 0)),
    Call("waitid", (1, 12345678, 0, 5, 0)),
    Call("execve", (b"/no/such/program", (b"program", b"-v", b"a\nb"), (b"A=1", b"B=2"))),
    Call("execveat", (CWD, b"/no/such/program", (b"x" * 40,), 0, 0x1000), room=128),
    Call("execve", (b"/no", 0, 0)),
    Call("prctl", (38, 1, 0, 0, 0)),
    Call("prctl", (3,)),
    Call("prctl", (15, b"worker")),
    Call("prctl", (1, 9)),
    Call("arch_prctl", (0x3001, 0x10)),
    Call("unshare", (0x80000000,)),
    Call("setns", (99, 0x20000000)),
    Call("futex", (b"", 129, 1)),
    Call("futex", (0, 128, 7, 0)),
    Call("futex", (b"", 137, 7, 0, 0, -1)),
    Call("futex", (b"", 3, 1, 2, b"", 0)),
    Call("prlimit64", (0x7FFFFFFF, 7, 0, 0)),
    Call("getrlimit", (7, 0)),
    Call("sched_getaffinity", (0x7FFFFFFF, 128, 0)),
    Call("sched_setscheduler", (0x7FFFFFFF, 1, 0)),
    Call("setpriority", (0, 0x7FFFFFFF, 5)),
    Call("seccomp", (1, 1, 0)),
    Call("sched_yield"),
    Call("set_robust_list", (0, 0)),
    Call("personality", (0xFFFFFFFF,)),
]

EVENTS = [
    Call("epoll_create1", (0o2000000,)),
    Call("epoll_ctl", (3, 2, 99, 0)),
    Call("epoll_wait", (99, 0, 10, 100)),
    Call("epoll_pwait", (99, 0, 10, -1, struct.pack("=Q", 1 << 1), 8)),
    Call("eventfd2", (3, 0o4000)),
    Call("pipe", (b"",)),
    Call("pipe2", (b"", 0o2004000)),
    Call("pipe2", (0, 0)),
    Call("inotify_init1", (0o2000000,)),
    Call("inotify_add_watch", (99, b"/etc", 0x102)),
    Call("signalfd4", (NONE, 0, 0, 0o2000000)),
    Call("timerfd_create", (1, 0o2004000)),
    Call("clock_gettime", (7, 0x10)),
    Call("clock_nanosleep", (1, 1, 0x10, 0)),
    Call("nanosleep", (0x10, 0)),
    Call("getrandom", (b"", 0, 1)),
    Call("poll", (0, 0, 0)),
    Call("select", (0, 0, 0, 0, 0x10)),
    Call("splice", (99, 0, 98, 0, 10, 3)),
    Call("io_uring_enter", (99, 1, 1, 1, 0, 8)),
    Call("bpf", (5, 0, 0)),
    Call("perf_event_open", (0, -1, 0, -1, 8)),
    Call("membarrier", (8, 0)),
    Call("renameat", (CWD, b"a", 99, b"b")),
    Call("copy_file_range", (99, 0, 98, 0, 10, 0)),
    Call("fanotify_mark", (99, 1, 0x20, CWD, b"/etc")),
    Call("mq_open", (b"queue", 0o102, 0o600, 0)),
    Call("pidfd_open", (0x7FFFFFFF, 0)),
    Call("pidfd_send_signal", (99, 9, 0, 0)),
]


@pytest.mark.parametrize(
    "calls", [FILES, SOCKETS, MEMORY, PROCESSES, EVENTS], ids=["files", "sockets", "memory", "processes", "events"]
)
def test_calls_read_as_strace_prints_them(calls: list[Call]) -> None:
    """Every call's line out of the engine is strace's line."""
    different = [(ours, theirs) for theirs, ours in compare(calls) if ours != theirs]
    assert [ours for ours, _ in different] == [theirs for _, theirs in different]


# Values that no table has a name for, and bits beside known ones: strace's words for them.
ODD = [
    Call("openat", (99, b"x", 0x80000004)),
    Call("access", (b"/x", 0x18)),
    Call("mprotect", (1, 1, 0x108)),
    Call("madvise", (1, 1, 77)),
    Call("lseek", (99, 0, 9)),
    Call("socket", (46, 1, 0)),
    Call("setsockopt", (99, 2, 3, 0, 0)),
    Call("setsockopt", (99, 1, 99, 0, 0)),
    Call("clock_gettime", (99, 0)),
    Call("flock", (99, 0x10)),
    Call("epoll_ctl", (99, 9, 98, 0)),
    Call("prlimit64", (0x7FFFFFFF, 99, 0, 0)),
    Call("shutdown", (99, 9)),
    Call("fcntl", (99, 999, 0)),
    Call("renameat2", (99, b"a", 99, b"b", 0x80)),
    Call("kill", (0x7FFFFFFF, 200)),
    Call("statx", (99, b"x", 0x10000, 0x80000000, 0)),
    Call("landlock_add_rule", (99, 9, 0, 0)),
]


def test_unknown_values_read_as_strace_prints_them() -> None:
    """A value without a name shows strace's comment; a bit without a name shows in hex behind the known ones."""
    different = [(ours, theirs) for theirs, ours in compare(ODD) if ours != theirs]
    assert [ours for ours, _ in different] == [theirs for _, theirs in different]


def struct_of(format: str, *values: int | bytes) -> bytes:
    """Native sizes, no padding but what the format says."""
    return struct.pack("=" + format, *values)


FOUR = struct_of("I", 4)
LINGER = struct_of("ii", 1, 30)
TIMEVAL = struct_of("qq", 2, 500000)
TIMESPEC = struct_of("qq", 1, 5)
NOWHERE = 0x7FFFFFFF  # a pid that there is not

# What each option's level does to how its value reads.
OPTIONS = [
    Call("socket", (2, 1, 6)),
    *(Call("setsockopt", (3, 1, option, ONE, 4)) for option in (2, 6, 7, 8, 9, 12, 15, 16, 46)),
    Call("setsockopt", (3, 1, 13, LINGER, 8)),
    Call("setsockopt", (3, 1, 20, TIMEVAL, 16)),
    Call("setsockopt", (3, 1, 21, TIMEVAL, 16)),
    Call("setsockopt", (3, 1, 25, b"lo\0", 3)),
    *(Call("setsockopt", (3, 6, option, ONE, 4)) for option in (1, 2, 3, 4, 5, 6, 9, 12, 18, 23)),
    Call("setsockopt", (3, 6, 13, b"cubic", 5)),
    *(Call("setsockopt", (3, 0, option, ONE, 4)) for option in (1, 2, 10)),
    Call("setsockopt", (3, 41, 16, ONE, 4)),
    Call("setsockopt", (99, 1, 2, ONE, 4)),
    *(Call("getsockopt", (3, 1, option, b"", FOUR)) for option in (2, 3, 4, 7, 8, 30, 38, 39)),
    Call("getsockopt", (3, 1, 13, b"", struct_of("I", 8))),
    Call("getsockopt", (3, 1, 20, b"", struct_of("I", 16))),
    Call("getsockopt", (3, 6, 13, b"", struct_of("I", 16))),
    Call("getsockopt", (3, 6, 1, b"", struct_of("I", 2))),
    Call("socketpair", (1, 1, 0, b"")),
    Call("getsockopt", (4, 1, 17, b"", struct_of("I", 12))),
]

IOCTLS = [
    Call("openat", (CWD, b"/dev/ptmx", 2)),
    Call("ioctl", (3, 0x5413, b"")),
    Call("ioctl", (3, 0x5414, struct_of("HHHH", 24, 80, 0, 0))),
    Call("ioctl", (3, 0x5401, b"")),
    Call("ioctl", (3, 0x541B, b"")),
    Call("ioctl", (3, 0x5421, struct_of("i", 0))),
    Call("ioctl", (3, 0x80045430, b"")),
    Call("ioctl", (3, 0x40045431, struct_of("i", 0))),
    Call("ioctl", (3, 0x5451)),
    Call("ioctl", (3, 0x5450)),
    Call("ioctl", (99, 0x5413, b"")),
    Call("ioctl", (99, 0x1234, 0)),
    Call("ioctl", (99, 0xC0104567, b"")),
]

# Structs whose size the caller gives, of several versions of the kernel.
SIZED = [
    Call("openat2", (CWD, b"/etc/hostname", struct_of("QQQ", 0o2000000, 0, 0), 24)),
    Call("openat2", (CWD, b"/no/such", struct_of("QQQ", 0o102, 0o640, 0x1C), 24)),
    Call("openat2", (CWD, b"/no/such", struct_of("QQQ", 0, 0, 1 << 40), 24)),
    Call("openat2", (CWD, b"/no/such", struct_of("QQQ", 0, 0, 0), 8)),
    Call("openat2", (CWD, b"/no/such", struct_of("QQQQ", 0, 0, 0, 7), 32)),
    Call("openat2", (CWD, b"/no/such", 0, 24)),
    Call("clone3", (struct_of("8Q", 0x100 | 1 << 40, 0, 0, 0, 17, 0, 0, 0), 64)),
    Call("clone3", (struct_of("8Q", 0x10000, 0x10, 0x20, 0x30, 0, 0x1000, 0x2000, 0x3000), 64)),
    Call("clone3", (struct_of("8Q", 0, 0, 0, 0, 99, 0, 0, 0), 64)),
    Call("clone3", (struct_of("11Q", 0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 99), 88), room=128),
    Call("clone3", (struct_of("8Q", 0, 0, 0, 0, 17, 0, 0, 0), 32)),
    Call("clone3", (0, 64)),
    Call("mount_setattr", (99, b"x", 0x1000, struct_of("QQQQ", 1, 0x100000, 1 << 18, 0), 32)),
    Call("mount_setattr", (99, b"x", 0x8000, struct_of("QQQQ", 0, 0, 0, 3), 32)),
    Call("mount_setattr", (99, b"x", 0, struct_of("QQQQ", 0, 0, 0, 0), 8)),
    Call("statx", (CWD, b"/no/such", 0x4000, 0x1800, b""), room=256),
    Call("io_uring_setup", (1, struct_of("10I", 0, 0, 0xB, 1, 2000, 0, 99, 0, 0, 0)), room=128),
    Call("statx", (CWD, b"/no/such", 0x100, 0xFFF, b""), room=256),
    Call("io_uring_setup", (0, b""), room=128),
    Call("io_uring_setup", (1, struct_of("10I", 0, 0, 0xFFFF0000, 1, 2, 0, 0, 0, 0, 0)), room=128),
    Call("futex_waitv", (struct_of("QQII", 5, 0x1000, 2, 0), 1, 0, 0, 0)),
    Call("futex_waitv", (struct_of("QQIIQQII", 5, 0, 0x82, 0, 6, 0x2000, 0x10, 1), 2, 0, TIMESPEC, 1)),
    Call("futex_waitv", (b"", 0, 1, 0, 1)),
]

WAITS = [
    Call("epoll_create1", (0,)),
    Call("eventfd2", (1, 0)),
    Call("epoll_ctl", (3, 1, 4, struct_of("IQ", 0x80000001, 7))),
    Call("epoll_ctl", (3, 3, 4, struct_of("IQ", 0x40002004, 1 << 40))),
    Call("epoll_ctl", (3, 1, 4, struct_of("IQ", 0x00FF0000, 0))),
    Call("epoll_wait", (3, b"", 4, 0), room=128),
    Call("epoll_ctl", (3, 3, 4, struct_of("IQ", 1, 1 << 63))),
    Call("epoll_wait", (3, b"", 4, 0), room=128),
    Call("epoll_pwait", (3, b"", 4, 0, struct_of("Q", 1 << 14), 8), room=128),
    Call("epoll_pwait2", (3, b"", 4, struct_of("qq", 0, 1), 0, 8), room=128),
    Call("epoll_wait", (3, b"", 0, 0)),
    Call("epoll_ctl", (3, 2, 4, 0)),
    Call("poll", (struct_of("ihhihh", 4, 1, 0, 99, 5, 0), 2, 0)),
    Call("poll", (struct_of("ihh", -1, 0x2FFF, 0), 1, 0)),
    Call("ppoll", (struct_of("ihh", 4, 4, 0), 1, TIMESPEC, struct_of("Q", 3), 8)),
    Call("timerfd_settime", (99, 1, TIMESPEC + TIMESPEC, 0)),
    Call("clock_nanosleep", (1, 0, struct_of("qq", 0, 1), b"")),
    Call("nanosleep", (struct_of("qq", 0, 1 << 40), 0)),
    Call("prlimit64", (0, 7, 0, b"")),
    Call("prlimit64", (NOWHERE, 3, struct_of("QQ", 8192 * 1024, (1 << 64) - 1), b"")),
]

CONTROLS = [
    *(Call("prctl", (option, 0, 0, 0, 0)) for option in (2, 3, 7, 21, 27, 30, 39)),
    Call("prctl", (4, 99)),
    Call("prctl", (8, 9)),
    Call("prctl", (15, b"a-name-that-is-too-long")),
    Call("prctl", (16, b"")),
    Call("prctl", (23, 12)),
    Call("prctl", (23, 99)),
    Call("prctl", (36, 1)),
    Call("prctl", (37, b"")),
    Call("prctl", (47, 2, 12, 0, 0)),
    Call("prctl", (47, 1, 99, 0, 0)),
    Call("prctl", (9999, 1, 2, 3, 4)),
    Call("capget", (struct_of("Ii", 0x20080522, 0), b"")),
    Call("sched_setscheduler", (NOWHERE, 2, struct_of("i", 50))),
    Call("sched_getparam", (0, b"")),
    Call("rt_sigaction", (10, struct_of("QQQQ", 1, 0x14000000, 0x1000, 1 << 1), b"", 8)),
    Call("rt_sigaction", (64, 0, b"", 8)),
    Call("rt_sigtimedwait", (struct_of("Q", 1 << 33), 0, struct_of("qq", 0, 1), 8)),
    Call("kcmp", (NOWHERE, NOWHERE, 0, 1, 2)),
    Call("waitid", (3, 99, b"", 0x1000005, 0), room=128),
]


@pytest.mark.parametrize(
    "calls",
    [OPTIONS, IOCTLS, SIZED, WAITS, CONTROLS],
    ids=["socket_options", "ioctls", "sized_structs", "waits", "controls"],
)
def test_structs_and_variants_read_as_strace_prints_them(calls: list[Call]) -> None:
    """By option, command or size: what most programs meet of what make test-decoders covers whole."""
    different = [(ours, theirs) for theirs, ours in compare(calls) if ours != theirs]
    assert [ours for ours, _ in different] == [theirs for _, theirs in different]
