# SPDX-License-Identifier: Apache-2.0
"""A plan with some real system calls, for tests of the renderer and the encoder. Numbers are indexes, not the kernel's.

Source: strace 6.1's names and order. What it is not: the real tables (otel_perfbuf.records).
"""

from __future__ import annotations

from plans import Arg, Field, Plan, Row, Struct, Table, Variant

from otel_perfbuf._core._core import lib

K = lib
TABLES = {
    "families": Table(
        [(0, "AF_UNSPEC"), (1, "AF_UNIX"), (2, "AF_INET"), (10, "AF_INET6"), (16, "AF_NETLINK")], "AF_???"
    ),
    "open": Table(
        [
            (0, "O_RDONLY"),
            (1, "O_WRONLY"),
            (2, "O_RDWR"),
            (3, "O_ACCMODE"),
            (0o100, "O_CREAT"),
            (0o200, "O_EXCL"),
            (0o2000, "O_APPEND"),
            (0o4010000, "O_SYNC"),
            (0o10000, "O_DSYNC"),
            (0o100000, "O_LARGEFILE"),
            (0o2000000, "O_CLOEXEC"),
            (0o10000000, "O_PATH"),
            (0o20200000, "O_TMPFILE"),
            (0o200000, "O_DIRECTORY"),
        ],
        "O_???",
        mask=3,
    ),
    "type": Table([(1, "SOCK_STREAM"), (0o2000000, "SOCK_CLOEXEC"), (0o4000, "SOCK_NONBLOCK")], "SOCK_???", mask=15),
    "protocol": Table([(0, "IPPROTO_IP"), (6, "IPPROTO_TCP")], "IPPROTO_???"),
    "prot": Table([(0, "PROT_NONE"), (1, "PROT_READ"), (2, "PROT_WRITE"), (4, "PROT_EXEC")], "PROT_???"),
    "map": Table([(1, "MAP_SHARED"), (2, "MAP_PRIVATE"), (0x20, "MAP_ANONYMOUS")], "MAP_???", mask=15),
    "whence": Table([(0, "SEEK_SET"), (1, "SEEK_CUR")], "SEEK_???"),
    "clone": Table(
        [(0x100, "CLONE_VM"), (0x200000, "CLONE_CHILD_CLEARTID"), (0x1000000, "CLONE_CHILD_SETTID")], "CLONE_???"
    ),
    "fcntl": Table([(1, "F_GETFD"), (2, "F_SETFD"), (3, "F_GETFL")], "F_???"),
    "fd": Table([(1, "FD_CLOEXEC")], "FD_???"),
    "wait": Table([(1, "WNOHANG"), (2, "WSTOPPED")], "W???"),
    "how": Table([(0, "SIG_BLOCK"), (1, "SIG_UNBLOCK"), (2, "SIG_SETMASK")], "SIG_???"),
}
STRUCTS = {
    "timespec": Struct([Field("tv_sec", 0, 8, K.PB_ARG_LONG), Field("tv_nsec", 8, 8, K.PB_ARG_LONG)], 16),
    "stat": Struct(
        [Field("st_mode", 24, 4, K.PB_ARG_FILE_MODE), Field("st_size", 48, 8, K.PB_ARG_LONG)], 144, more=True
    ),
    "pollfd": Struct([Field("fd", 0, 4, K.PB_ARG_SIGNED), Field("events", 4, 2, K.PB_ARG_HEX)], 8, array=True),
}
ADDRESS = [Arg("fd", K.PB_ARG_FD), Arg("uservaddr", K.PB_ARG_SOCKADDR), Arg("addrlen", K.PB_ARG_SIGNED)]
NAME = [Arg("fd", K.PB_ARG_FD), Arg("usockaddr", K.PB_ARG_SOCKADDR), Arg("usockaddr_len", K.PB_ARG_LENGTH_POINTER)]
DATA = [Arg("fd", K.PB_ARG_FD), Arg("buf", K.PB_ARG_BUFFER), Arg("count", K.PB_ARG_ULONG)]
ROWS = {
    "read": Row("read", DATA),
    "write": Row("write", DATA),
    "openat": Row(
        "openat",
        [
            Arg("dfd", K.PB_ARG_DIRFD),
            Arg("filename", K.PB_ARG_PATH),
            Arg("flags", K.PB_ARG_FLAGS_VALUE, "open"),
            Arg("mode", K.PB_ARG_OPEN_MODE),
        ],
    ),
    "mmap": Row(
        "mmap",
        [
            Arg("addr", K.PB_ARG_POINTER),
            Arg("len", K.PB_ARG_ULONG),
            Arg("prot", K.PB_ARG_FLAGS, "prot"),
            Arg("flags", K.PB_ARG_FLAGS_VALUE, "map"),
            Arg("fd", K.PB_ARG_FD),
            Arg("off", K.PB_ARG_HEX),
        ],
        K.PB_ARG_POINTER,
    ),
    "brk": Row("brk", [Arg("brk", K.PB_ARG_POINTER)], K.PB_ARG_POINTER),
    "socket": Row(
        "socket",
        [
            Arg("family", K.PB_ARG_ENUM, "families"),
            Arg("type", K.PB_ARG_FLAGS_VALUE, "type"),
            Arg("protocol", K.PB_ARG_SIGNED),
        ],
        variants=[
            Variant(
                0,
                0xFFFFFFFF,
                2,
                [
                    Arg("family", K.PB_ARG_ENUM, "families"),
                    Arg("type", K.PB_ARG_FLAGS_VALUE, "type"),
                    Arg("protocol", K.PB_ARG_ENUM, "protocol"),
                ],
            ),
        ],
    ),
    "connect": Row("connect", ADDRESS),
    "getsockname": Row("getsockname", NAME),
    "lseek": Row(
        "lseek", [Arg("fd", K.PB_ARG_FD), Arg("offset", K.PB_ARG_OFFSET), Arg("whence", K.PB_ARG_ENUM, "whence")]
    ),
    "kill": Row("kill", [Arg("pid", K.PB_ARG_SIGNED), Arg("sig", K.PB_ARG_SIGNAL)]),
    "chmod": Row("chmod", [Arg("filename", K.PB_ARG_PATH), Arg("mode", K.PB_ARG_MODE)]),
    "umask": Row("umask", [Arg("mask", K.PB_ARG_MODE)], K.PB_ARG_MODE),
    "mknodat": Row(
        "mknodat",
        [
            Arg("dfd", K.PB_ARG_DIRFD),
            Arg("filename", K.PB_ARG_PATH),
            Arg("mode", K.PB_ARG_FILE_MODE),
            Arg("dev", K.PB_ARG_HIDDEN),
        ],
    ),
    "clone": Row(
        "clone",
        [
            Arg("clone_flags", K.PB_ARG_CLONE_FLAGS, "clone", "flags="),
            Arg("newsp", K.PB_ARG_POINTER, None, "child_stack="),
            Arg("parent_tidptr", K.PB_ARG_POINTER, None, "parent_tid=", (0, 0x100000)),
            Arg("child_tidptr", K.PB_ARG_POINTER, None, "child_tidptr=", (0, 0x1200000)),
            Arg("tls", K.PB_ARG_POINTER, None, "tls=", (0, 0x80000)),
        ],
        order=[1, 0, 2, 4, 3],
    ),
    "fcntl": Row(
        "fcntl",
        [Arg("fd", K.PB_ARG_FD), Arg("cmd", K.PB_ARG_ENUM, "fcntl"), Arg("arg", K.PB_ARG_HEX)],
        variants=[
            Variant(
                1, 0xFFFFFFFF, 1, [Arg("fd", K.PB_ARG_FD), Arg("cmd", K.PB_ARG_ENUM, "fcntl")], K.PB_ARG_FLAGS, "fd"
            ),
            Variant(
                1,
                0xFFFFFFFF,
                3,
                [Arg("fd", K.PB_ARG_FD), Arg("cmd", K.PB_ARG_ENUM, "fcntl")],
                K.PB_ARG_FLAGS_VALUE,
                "open",
            ),
        ],
    ),
    "execve": Row(
        "execve",
        [
            Arg("filename", K.PB_ARG_PATH),
            Arg("argv", K.PB_ARG_STRINGS),
            Arg("envp", K.PB_ARG_ENVIRONMENT),
        ],
    ),
    "wait4": Row(
        "wait4",
        [
            Arg("upid", K.PB_ARG_SIGNED),
            Arg("stat_addr", K.PB_ARG_WAIT_STATUS),
            Arg("options", K.PB_ARG_FLAGS, "wait"),
            Arg("ru", K.PB_ARG_POINTER),
        ],
    ),
    "pipe2": Row("pipe2", [Arg("fildes", K.PB_ARG_FD_PAIR), Arg("flags", K.PB_ARG_FLAGS_VALUE, "open")]),
    "rt_sigprocmask": Row(
        "rt_sigprocmask",
        [
            Arg("how", K.PB_ARG_ENUM, "how"),
            Arg("nset", K.PB_ARG_SIGSET),
            Arg("oset", K.PB_ARG_SIGSET),
            Arg("sigsetsize", K.PB_ARG_ULONG),
        ],
    ),
    "exit_group": Row("exit_group", [Arg("error_code", K.PB_ARG_SIGNED)]),
    "nanosleep": Row("nanosleep", [Arg("rqtp", K.PB_ARG_STRUCT, "timespec"), Arg("rmtp", K.PB_ARG_STRUCT, "timespec")]),
    "fstat": Row("fstat", [Arg("fd", K.PB_ARG_FD), Arg("statbuf", K.PB_ARG_STRUCT, "stat")]),
    "poll": Row(
        "poll",
        [Arg("ufds", K.PB_ARG_STRUCT, "pollfd"), Arg("nfds", K.PB_ARG_UNSIGNED), Arg("timeout", K.PB_ARG_SIGNED)],
        result_zero="Timeout",
    ),
    "gettid": Row("gettid"),
}
NUMBERS = {name: number for number, name in enumerate(ROWS)}
PLAN = Plan({NUMBERS[name]: row for name, row in ROWS.items()}, TABLES, STRUCTS)
