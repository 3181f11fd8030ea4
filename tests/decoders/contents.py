# SPDX-License-Identifier: Apache-2.0
"""What stands in memory behind the arguments of system calls: ordinary structs, odd ones, those of other sizes.

What it is not: expected lines; strace says those. Source: include/uapi of Linux for the layouts.
"""

from __future__ import annotations

import socket
import struct

from memory import UNREADABLE, Content, Memory, vector, words

__all__ = ["contents_of"]

NOBODY = 0x7FFFFFF0


def s(form: str, *values: object) -> bytes:
    """struct.pack in native order without alignment."""
    return struct.pack("=" + form, *values)


TIMESPEC = [
    s("qq", 0, 1000),
    s("qq", 1, 500),
    s("qq", -1, -1),
    s("qq", 5, 2_000_000_000),
    s("qq", 0, 0x3FFFFFFF),
    s("qq", 0, 0x3FFFFFFE),
]
TIMEVAL = [s("qq", 0, 1000), s("qq", 0, -7), s("qq", 3, 1_000_001)]
TIMEVALS = [s("qqqq", 1, 2, 3, 4), s("qqqq", -1, -1, 0, 0)]
TIMESPECS = [s("qqqq", 1, 2, 3, 4), s("qqqq", 0, 0x3FFFFFFF, 0, 0x3FFFFFFE), s("qqqq", 0, 0x3FFFFFFF, 0, 0x3FFFFFFF)]
ITIMERVAL = [s("qqqq", 0, 0, 100, 5), s("qqqq", 1, 0, 0, -1)]
ITIMERSPEC = [s("qqqq", 0, 0, 1000, 5), s("qqqq", 1, 0, 0, -1)]
SIGSET = [words(0), words(1), words(1 << 16 | 1 << 1), words((1 << 64) - 1), words(1 << 33 | 1 << 63)]
INET = s("HH4s8x", 2, socket.htons(9), socket.inet_aton("127.0.0.1"))
INET6 = s("HHI16sI", 10, socket.htons(443), 7, socket.inet_pton(socket.AF_INET6, "::1"), 0)
UNIX = s("H", 1) + b"/no/such.sock\0"
ABSTRACT = s("H", 1) + b"\0abstract"
NETLINK = s("HHII", 16, 0, 5, 3)
SOCKADDRS = [
    INET,
    INET6,
    UNIX,
    ABSTRACT,
    NETLINK,
    s("H", 0),
    s("H14s", 77, b"odd family 1234"),
    s("HH4s8x", 2, 0, b"\0" * 4),
    s("HHiBBB8s", 17, 0x300, 1, 1, 0, 6, b"\1\2\3\4\5\6\0\0"),
    s("HHIII", 40, 0, 5, 2, 0),
]
LENGTHS = [words(128, size=4), words(4, size=4), words(0, size=4), words(-1, size=4)]
POLLFDS = [s("ihh", 3, 1, 0), s("ihhihh", 8, 1, 0, 4, 5, 0), s("ihhihh", -1, 1, 0, 99, 0x3F, 0), s("ihh", 3, 0x7FFF, 0)]
EPOLL = [s("IQ", 1, 3), s("IQ", 0x80000005, 1 << 40 | 7), s("IQ", 0x7FFFFFFF, 0)]
RLIMITS = [
    s("QQ", 1024, 4096),
    s("QQ", (1 << 64) - 1, (1 << 64) - 1),
    s("QQ", 1024 * 1024, 3 << 30),
    s("QQ", 1000, 1500),
]
FLOCK = [
    s("hh4xqqi4x", 1, 0, 10, 20, 0),
    s("hh4xqqi4x", 0, 1, -1, 0, 0),
    s("hh4xqqi4x", 2, 0, 0, 0, 0),
    s("hh4xqqi4x", 9, 9, 0, 0, 5),
]
SIGACTION = [
    s("QQQQ", 0, 0, 0, 0),
    s("QQQQ", 1, 0, 0, 1 << 1),
    s("QQQQ", 0x401000, 0x14000000, 0x402000, (1 << 64) - 1),
    s("QQQQ", 0x401000, 0xDC000007, 0x402000, 1 << 9 | 1 << 13),
    s("QQQQ", 0x401000, 0x10000008, 0, 0),
]
OPEN_HOW = [
    s("QQQ", 0, 0, 0),
    s("QQQ", 0o100, 0o644, 0),
    s("QQQ", 0o2000000, 0, 0x1F),
    s("QQQ", 1 << 40, 1, 0xFFFF),
    s("QQQQ", 0, 0, 0, 0),
    s("QQQQ", 0, 0, 0, 5),
]
CLONE_ARGS = [
    s("8Q", 0, 0, 0, 0, 17, 0, 0, 0),
    s("11Q", 0x1000, UNREADABLE, 0, 0, 17, 0, 0, 0, 0, 0, 0),
    s("8Q", 0x3D0F00, UNREADABLE, 2, 3, 0, 4, 5, 6),
    s("11Q", 0x80000000, 0, 0, 0, 99, 0, 0, 0, 1, 1, 7),
    s("12Q", *([1] * 12)),
]
SIGINFO = [
    s("iii", 10, 0, -1) + bytes(116),
    s("iiii", 10, 0, -1, 0) + s("iiQ", 5, 6, 7) + bytes(96),
    s("iiii", 11, 5, 1, 0) + s("Q", 0x1000) + bytes(104),
    s("iiii", 10, 0, -6, 0) + s("ii", 5, 6) + bytes(104),
]
SIGEVENT = [
    s("Qii48x", 5, 10, 0),
    s("Qii48x", 5, 0, 1),
    s("QiiQQ32x", 0, 0, 2, 0x1000, 0x2000),
    s("Qiii44x", 1, 10, 4, 77),
    s("Qii48x", 5, 99, 9),
]
SCHED_PARAM = [s("i", 0), s("i", 5), s("i", -1)]
SCHED_ATTR = [
    s("IIQiIQQQ", 48, 0, 0, 5, 0, 0, 0, 0),
    s("IIQiIQQQII", 56, 6, 0x7F, 0, 1, 10, 20, 30, 1, 2),
    s("IIQiIQQQ", 0, 1, 1, 0, 5, 0, 0, 0),
]
CPUS = [words(3), words(1 << 63, 1), words(0, 0)]
FDSETS = [words(1 << 3), words(1 << 8 | 1 << 4 | 1 << 99 % 64), words(0), words((1 << 64) - 1)]
BPF_ATTR = [s("IIII", 1, 4, 8, 16) + bytes(112), s("IIQQQ", 3, 0, UNREADABLE, UNREADABLE, 0) + bytes(96), bytes(128)]
PERF_ATTR = [
    s("IIQQQQ", 0, 112, 0, 1000, 0x7, 0) + bytes(72),
    s("IIQQQQQ", 1, 120, 9, 1000, 0x7, 0xF, 0x1FFFFFF) + bytes(64),
    s("II", 4, 3) + bytes(112),
]
CAP_HEADERS = [s("Ii", 0x20080522, 0), s("Ii", 0x19980330, 0), s("Ii", 5, 0)]
CAP_DATA = [s("IIIIII", 0, 0, 0, 0, 0, 0), s("IIIIII", 1, 2, 0xFFFFFFFF, 3, 4, 5)]
SOCK_FPROG = [lambda m: words(1) + words(m.put(s("HBBI", 6, 0, 0, 0x7FFF0000))), s("QQ", 0, 0), s("QQ", 5, UNREADABLE)]
SEMBUF = [s("hhh", 0, 1, 0o4000), s("hhhhhh", 0, -1, 0, 1, 1, 0o14000)]
MSGBUF = [s("q", 1) + b"message", s("q", -1) + b"m\0n"]
IOVECS: list[Content] = [
    vector([(b"hello ", 6), (b"world\n", 6)]),
    vector([(b"x" * 50, 50)]),
    vector([(b"", 0), (b"abc", 3), (b"y", 1)]),
    words(UNREADABLE, 5),
    words(0, 0),
    words(0, 10),
]
AIO = [
    lambda m: words(m.put(words(5, 0) + s("HHIQQqQ", 0, 0, 3, m.put(b"x" * 16), 16, 0, 0) + bytes(16))),
    words(UNREADABLE),
    words(0),
]
FILE_HANDLE = [s("Ii", 0, 0) + bytes(32), s("Ii", 8, 1) + b"12345678", s("Ii", 200, 1)]
STATX = [b""]
KEYRING = b"user\0"
ULOFF = [s("q", 0), s("q", 5), s("q", -1)]
PIPE = [b""]
ITERATE = [bytes(64)]
IOURING = [bytes(120), s("IIIIIII", 0, 0, 3, 1, 1000, 0, 5) + bytes(92)]
LANDLOCK = [words(0xFFFF), words(0), s("Qi", 4, 13)]
MOUNT_ATTR = [s("QQQQ", 1, 0, 0, 0), s("QQQQ", 0x100000, 0x70, 1 << 18, 3), s("QQQQQ", 1, 0, 0, 0, 0)]
FUTEX_WAITV = [s("QQII", 1, UNREADABLE, 0x82, 0), s("QQIIQQII", 1, UNREADABLE, 2, 0, 5, 0, 0xFF, 1)]
RSEQ = [bytes(32)]
TERMIOS = [
    bytes(60),
    s("IIIIB19s", 0x2D02, 5, 0xCBD, 0x8A3B, 0, b"\3\x1c\x7f\x15\4\0\1\0\x11\x13\x1a\0\x12\x0f\x17\x16\0\0\0"),
]
WINSIZE = [s("HHHH", 24, 80, 0, 0)]
TIMEX = [bytes(208), s("I4xqq", 1, 5, 6) + bytes(184)]
USER_REGS = [bytes(216)]


def message(name: bytes, pieces: Content, control: bytes, flags: int = 0, name_bytes: int | None = None) -> Content:
    """A struct msghdr with everything behind it."""

    def build(m: Memory) -> bytes:
        iov = pieces(m) if callable(pieces) else pieces
        return s(
            "QI4xQQQQi4x",
            m.put(name) if name else 0,
            len(name) if name_bytes is None else name_bytes,
            m.put(iov) if iov else 0,
            len(iov) // 16,
            m.put(control) if control else 0,
            len(control),
            flags,
        )

    return build


RIGHTS = s("QiiI4x", 20, 1, 1, 3)
CREDENTIALS = s("QiiIII4x", 28, 1, 2, 1, 0, 0)
PKTINFO = s("QiiI4s4s4x", 28, 0, 8, 1, b"\x7f\0\0\1", b"\x7f\0\0\1")
MESSAGES: list[Content] = [
    message(b"", vector([(b"data", 4)]), b""),
    message(INET, vector([(b"hello ", 6), (b"world" * 20, 100)]), b""),
    message(UNIX, b"", b""),
    message(b"", vector([(b"d", 1)]), RIGHTS),
    message(b"", vector([(b"d", 1)]), CREDENTIALS, 0x40),
    message(b"", vector([(b"d", 1)]), PKTINFO),
    message(b"", vector([(b"d", 1)]), s("Qii", 99, 1, 1)),
    words(UNREADABLE, 16, UNREADABLE, 3, UNREADABLE, 24, 0),
    bytes(56),
]


def messages(*items: Content) -> Content:
    """An array of struct mmsghdr."""
    return lambda m: b"".join((item(m) if callable(item) else item) + s("II", 0, 0) for item in items)


MMESSAGES: list[Content] = [
    messages(MESSAGES[0]),
    messages(MESSAGES[1], MESSAGES[0]),
    messages(*MESSAGES[:5]),
    messages(*MESSAGES[:4] * 4),
    messages(*MESSAGES[:1] * 40),
]

# By syscall and argument number.
BY_ARGUMENT: dict[tuple[str, int], list[Content]] = {
    ("poll", 0): POLLFDS,
    ("ppoll", 0): POLLFDS,
    ("ppoll", 2): TIMESPEC,
    ("ppoll", 3): SIGSET,
    ("select", 1): FDSETS,
    ("select", 2): FDSETS,
    ("select", 3): FDSETS,
    ("select", 4): TIMEVAL,
    ("pselect6", 1): FDSETS,
    ("pselect6", 2): FDSETS,
    ("pselect6", 3): FDSETS,
    ("pselect6", 4): TIMESPEC,
    ("pselect6", 5): [lambda m: words(m.put(words(1 << 2)), 8), words(0, 8), words(UNREADABLE, 8)],
    ("rt_sigaction", 1): SIGACTION,
    ("rt_sigprocmask", 1): SIGSET,
    ("rt_sigsuspend", 0): SIGSET[1:3],
    ("rt_sigtimedwait", 0): SIGSET[:3],
    ("rt_sigtimedwait", 2): TIMESPEC,
    ("signalfd", 1): SIGSET,
    ("signalfd4", 1): SIGSET,
    ("rt_sigqueueinfo", 2): SIGINFO,
    ("rt_tgsigqueueinfo", 3): SIGINFO,
    ("pidfd_send_signal", 2): SIGINFO,
    ("sigaltstack", 0): [
        s("Qi4xQ", UNREADABLE, 0, 8192),
        s("Qi4xQ", 0, 2, 0),
        s("QI4xQ", UNREADABLE, 0x80000001, 100000),
    ],
    ("readv", 1): IOVECS,
    ("writev", 1): IOVECS,
    ("preadv", 1): IOVECS,
    ("pwritev", 1): IOVECS,
    ("preadv2", 1): IOVECS,
    ("pwritev2", 1): IOVECS,
    ("vmsplice", 1): IOVECS,
    ("process_vm_readv", 1): IOVECS,
    ("process_vm_readv", 3): IOVECS,
    ("process_vm_writev", 1): IOVECS,
    ("process_vm_writev", 3): IOVECS,
    ("process_madvise", 1): IOVECS,
    ("nanosleep", 0): TIMESPEC,
    ("clock_nanosleep", 2): TIMESPEC,
    ("clock_settime", 1): TIMESPEC,
    ("gettimeofday", 0): [b""],
    ("settimeofday", 0): TIMEVAL,
    ("settimeofday", 1): [s("ii", 60, 1)],
    ("setitimer", 1): ITIMERVAL,
    ("timer_settime", 2): ITIMERSPEC,
    ("timerfd_settime", 2): ITIMERSPEC,
    ("timer_create", 1): SIGEVENT,
    ("mq_notify", 1): SIGEVENT,
    ("adjtimex", 0): TIMEX,
    ("clock_adjtime", 1): TIMEX,
    ("connect", 1): SOCKADDRS,
    ("bind", 1): SOCKADDRS,
    ("sendto", 4): SOCKADDRS,
    ("sendto", 1): [b"data", b"\0\1\2" + b"z" * 60],
    ("accept", 2): LENGTHS,
    ("accept4", 2): LENGTHS,
    ("getsockname", 2): LENGTHS,
    ("getpeername", 2): LENGTHS,
    ("recvfrom", 5): LENGTHS,
    ("getsockopt", 4): [words(n, size=4) for n in (4, 16, 1, 0, 128, -1)],
    ("sendmsg", 1): MESSAGES,
    ("recvmsg", 1): MESSAGES,
    ("sendmmsg", 1): MMESSAGES,
    ("recvmmsg", 1): MMESSAGES,
    ("recvmmsg", 4): TIMESPEC,
    ("epoll_ctl", 3): EPOLL,
    ("epoll_pwait", 4): SIGSET,
    ("epoll_pwait2", 3): TIMESPEC,
    ("epoll_pwait2", 4): SIGSET,
    ("setrlimit", 1): RLIMITS,
    ("prlimit64", 2): RLIMITS,
    ("futex", 3): TIMESPEC,
    ("futex", 0): [s("I", 7)],
    ("futex_waitv", 0): FUTEX_WAITV,
    ("futex_waitv", 3): TIMESPEC,
    ("openat2", 2): OPEN_HOW,
    ("clone3", 0): CLONE_ARGS,
    ("utimensat", 2): TIMESPECS,
    ("utimes", 1): TIMEVALS,
    ("futimesat", 2): TIMEVALS,
    ("utime", 1): [s("qq", 5, 6)],
    ("sched_setparam", 1): SCHED_PARAM,
    ("sched_setscheduler", 2): SCHED_PARAM,
    ("sched_setattr", 1): SCHED_ATTR,
    ("sched_setaffinity", 2): CPUS,
    ("bpf", 1): BPF_ATTR,
    ("perf_event_open", 0): PERF_ATTR,
    ("capget", 0): CAP_HEADERS,
    ("capset", 0): CAP_HEADERS,
    ("capset", 1): CAP_DATA,
    ("seccomp", 2): SOCK_FPROG,
    ("semop", 1): SEMBUF,
    ("semtimedop", 1): SEMBUF,
    ("semtimedop", 3): TIMESPEC,
    ("msgsnd", 1): MSGBUF,
    ("io_submit", 2): AIO,
    ("io_setup", 1): [words(0), words(5)],
    ("io_getevents", 4): TIMESPEC,
    ("io_pgetevents", 4): TIMESPEC,
    ("name_to_handle_at", 2): FILE_HANDLE,
    ("open_by_handle_at", 1): FILE_HANDLE,
    ("sendfile", 2): ULOFF,
    ("splice", 1): ULOFF,
    ("splice", 3): ULOFF,
    ("copy_file_range", 1): ULOFF,
    ("copy_file_range", 3): ULOFF,
    ("io_uring_setup", 1): IOURING,
    ("landlock_create_ruleset", 0): LANDLOCK,
    ("landlock_add_rule", 2): LANDLOCK,
    ("mount_setattr", 3): MOUNT_ATTR,
    ("rseq", 0): RSEQ,
    ("set_robust_list", 0): [words(UNREADABLE, 0, 0)],
    ("get_robust_list", 0): [b""],
    ("set_mempolicy", 1): CPUS,
    ("mbind", 3): CPUS,
    ("migrate_pages", 2): CPUS,
    ("migrate_pages", 3): CPUS,
    ("move_pages", 2): [words(UNREADABLE, 0)],
    ("move_pages", 3): [s("ii", 0, 1)],
    ("mq_open", 3): [s("qqqq4Q", 0, 10, 100, 0, 0, 0, 0, 0)],
    ("mq_getsetattr", 1): [s("qqqq4Q", 0o4000, 10, 100, 3, 0, 0, 0, 0)],
    ("mq_timedsend", 1): [b"mail"],
    ("mq_timedsend", 4): TIMESPEC,
    ("mq_timedreceive", 4): TIMESPEC,
    ("setgroups", 1): [s("III", 1, 2, 3), s("40I", *range(40))],
    ("ustat", 1): [b""],
    ("mincore", 2): [b""],
    ("add_key", 2): [b"payload"],
    ("setxattr", 2): [b"value", b"a\0b"],
    ("lsetxattr", 2): [b"value"],
    ("fsetxattr", 2): [b"value"],
    ("init_module", 0): [b"\x7fELF"],
    ("kexec_load", 2): [words(UNREADABLE, 10, 0x1000, 4096)],
    ("quotactl", 3): [bytes(72)],
    ("modify_ldt", 1): [s("IIII", 1, 0x1000, 5, 0x51), bytes(16)],
    ("set_thread_area", 0): [s("IIII", 0xFFFFFFFF, 0, 0, 0)],
    ("sysfs", 1): [b"ext4\0"],
    ("_sysctl", 0): [bytes(80)],
    ("syslog", 1): [b""],
    ("write", 1): [b"hello\n", b'\0\xff"\\' + b"q" * 70],
    ("pwrite64", 1): [b"data", b"z" * 40],
    ("read", 1): [b""],
    ("pread64", 1): [b""],
    ("cachestat", 1): [words(0, 4096)],
    ("setdomainname", 0): [b"domain"],
    ("sethostname", 0): [b"host"],
    ("fsconfig", 3): [b"value\0"],
    ("mlock2", 0): [bytes(64)],
    ("epoll_ctl_old", 3): EPOLL,
    ("execve", 1): [
        lambda m: words(m.put(b"a\0"), m.put(b"b c\0"), 0),
        lambda m: words(m.put(b"x" * 40 + b"\0"), UNREADABLE, 0),
    ],
    ("execve", 2): [lambda m: words(m.put(b"A=1\0"), 0), words(0), lambda m: words(m.put(b"A\0"), m.put(b"B\0"), 0)],
    ("execveat", 2): [lambda m: words(m.put(b"a\0"), 0)],
    ("execveat", 3): [lambda m: words(m.put(b"A=1\0"), 0)],
}

_IOCTL: dict[str, list[Content]] = {
    "TCSETS": TERMIOS,
    "TCSETSW": TERMIOS,
    "TCSETSF": TERMIOS,
    "TIOCSWINSZ": WINSIZE,
    "FIONBIO": [s("i", 1)],
    "TIOCSPGRP": [s("i", 5)],
    "TIOCSETD": [s("i", 0)],
    "FIOASYNC": [s("i", 0)],
}
_FCNTL: dict[str, list[Content]] = {
    **dict.fromkeys(["F_GETLK", "F_SETLK", "F_SETLKW", "F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"], FLOCK),
    "F_SETOWN_EX": [s("ii", 0, 5), s("ii", 9, 1)],
    "F_GETOWN_EX": [b""],
    "F_GET_RW_HINT": [b""],
    "F_SET_RW_HINT": [words(2)],
    "F_GET_FILE_RW_HINT": [b""],
    "F_SET_FILE_RW_HINT": [words(2)],
}
_SOCKOPT: dict[str, list[Content]] = {
    "SO_LINGER": [s("ii", 1, 5), s("i", 1)],
    "SO_RCVTIMEO_OLD": TIMEVAL,
    "SO_SNDTIMEO_OLD": TIMEVAL,
    "SO_BINDTODEVICE": [b"lo\0"],
    "SO_ATTACH_FILTER": SOCK_FPROG,
    "SO_PEERCRED": [bytes(12)],
    "IP_ADD_MEMBERSHIP": [s("4s4s", b"\xe0\0\0\1", b"\x7f\0\0\1")],
    "TCP_CONGESTION": [b"cubic\0"],
    "IPV6_ADD_MEMBERSHIP": [s("16sI", bytes(16), 1)],
}


def contents_of(syscall: str, argument: int, selector: str = "") -> list[Content]:
    """Memory for that argument; ``selector`` is the name of the command or option that decides about it."""
    if syscall == "ioctl" and argument == 2:
        return _IOCTL.get(selector, [s("i", 1), bytes(64)])
    if syscall == "fcntl" and argument == 2:
        return _FCNTL.get(selector, [])
    if syscall in ("setsockopt", "getsockopt") and argument == 3:
        return [*_SOCKOPT.get(selector, []), s("i", 1)]
    return BY_ARGUMENT.get((syscall, argument), [])
