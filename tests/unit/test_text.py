# SPDX-License-Identifier: Apache-2.0
"""Lines of system calls, against what strace 6.1 printed for the same calls (without its padding before `=`).

Source: strace's output on Linux 6.18; the records are written as the BPF programs would write them.
What it is not: the real tables (tests of records) and the real calls (tests/kernel, tests/e2e).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import pytest
from plan_rows import NUMBERS, PLAN
from samples import Capture, Engine, SampleWriter, string, word

from otel_perfbuf._core._core import lib

AT_FDCWD = 0xFFFFFF9C


def line(
    name: str,
    args: Sequence[int],
    result: int,
    exit_captures: Sequence[Capture] = (),
    enter_captures: Sequence[Capture] = (),
    flags: int = 0,
) -> str:
    """The body of one finished call."""
    writer = SampleWriter().syscall(1, 10, NUMBERS[name], args, result, captures=exit_captures, flags=flags)
    if enter_captures:
        writer.entry(1, 10, enter_captures)
    return Engine([writer.sample()]).join().line(PLAN.c)


def buffer(argument: int, data: bytes, extent: int | None = None) -> Capture:
    """Captured bytes of a buffer."""
    return Capture(argument, lib.PB_CAPTURE_BUFFER, data, extent)


def address(argument: int, data: bytes) -> Capture:
    """A captured socket address."""
    return Capture(argument, lib.PB_CAPTURE_SOCKADDR, data)


def memory(argument: int, data: bytes) -> Capture:
    """A captured struct."""
    return Capture(argument, lib.PB_CAPTURE_STRUCT, data)


WRITES = [
    (
        b'a\0001b\x008c\x009\x7f\x80\xff1\a\b\033[0m"\\\n\t\r\v\f\0\0',
        r'"a\0001b\08c\09\177\200\3771\7\10\33[0m\"\\\n\t\r\v\f\0\0"',
    ),
    (b"0123456789012345678901234567890\x001234", r'"0123456789012345678901234567890\0"...'),
    (b"0123456789" * 4, '"01234567890123456789012345678901"...'),
    (b"01234567890123456789012345678901", '"01234567890123456789012345678901"'),
    (b"", '""'),
]


@pytest.mark.parametrize(("data", "text"), WRITES)
def test_buffers_have_straces_escapes(data: bytes, text: str) -> None:
    """Shortest octal, all digits before a digit, short escapes, the mark where more is there."""
    expected = f"write(99, {text}, {len(data)}) = -1 EBADF (Bad file descriptor)"
    assert line("write", [99, 0x1000, len(data)], -9, [buffer(1, data)]) == expected


def test_a_buffer_captured_in_part_is_marked() -> None:
    """The captured bytes fit, but more were there."""
    assert line("read", [3, 0x1000, 4096], 220, [buffer(1, b"127.0.0.1\tlocal", 220)]) == (
        'read(3, "127.0.0.1\\tlocal"..., 4096) = 220'
    )


A = AT_FDCWD
ENOENT = "= -1 ENOENT (No such file or directory)"
CALLS = [
    ("write", [99, 0, 0], -9, [], "write(99, NULL, 0) = -1 EBADF (Bad file descriptor)"),
    ("write", [99, 1, 5], -9, [], "write(99, 0x1, 5) = -1 EBADF (Bad file descriptor)"),
    ("openat", [A, 9, 0, 7], -2, [string(1, b"")], f'openat(AT_FDCWD, "", O_RDONLY) {ENOENT}'),
    ("openat", [A, 1, 0o102, 0o644], -14, [string(1, b"", lib.PB_CAPTURE_FAULT)],
     "openat(AT_FDCWD, 0x1, O_RDWR|O_CREAT, 0644) = -1 EFAULT (Bad address)"),
    ("openat", [A, 9, 0o20200001, 0], -2, [string(1, b"/x\n\xc3\xa9")],
     f'openat(AT_FDCWD, "/x\\n\\303\\251", O_WRONLY|O_TMPFILE, 000) {ENOENT}'),
    ("openat", [A, 9, 3 | 0o4010000 | 0o10000000, 0], -2, [string(1, b"/x")],
     f'openat(AT_FDCWD, "/x", O_ACCMODE|O_SYNC|O_PATH) {ENOENT}'),
    ("openat", [A, 9, 0o10000 | 0x40000000 | 0o200000, 0], -2, [string(1, b"/x")],
     f'openat(AT_FDCWD, "/x", O_RDONLY|O_DSYNC|O_DIRECTORY|0x40000000) {ENOENT}'),
    ("openat", [2147483548, 9, 0o2000000, 0], 3, [string(1, b"y" * 40)],
     f'openat(2147483548, "{"y" * 40}", O_RDONLY|O_CLOEXEC) = 3'),
    ("openat", [0xFFFFFFFF, 9, 0, 0], 3, [string(1, b"ab", lib.PB_CAPTURE_CUT)], 'openat(-1, "ab"..., O_RDONLY) = 3'),
    ("socket", [2, 1 | 0o2000000 | 0x100000, 0], -22, [],
     "socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC|0x100000, IPPROTO_IP) = -1 EINVAL (Invalid argument)"),
    ("socket", [99, 9 | 0o4000, 77], -97, [],
     "socket(0x63 /* AF_??? */, SOCK_NONBLOCK|0x9, 77) = -1 EAFNOSUPPORT (Address family not supported by protocol)"),
    ("socket", [2, 1 | 0o2000000, 6], 3, [], "socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, IPPROTO_TCP) = 3"),
    ("mmap", [0, 4096, 3, 0x22, (1 << 64) - 1, 0], 0x7F4BC9A16000, [],
     "mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f4bc9a16000"),
    ("mmap", [0, 0, 0, 5, 0, 0x2000], -22, [],
     "mmap(NULL, 0, PROT_NONE, 0x5 /* MAP_??? */, 0, 0x2000) = -1 EINVAL (Invalid argument)"),
    ("mmap", [0, 4096, 0x11, 0x22, 0xFFFFFFFF, 0], -12, [],
     "mmap(NULL, 4096, PROT_READ|0x10, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = -1 ENOMEM (Cannot allocate memory)"),
    ("brk", [0], 0x55F910551000, [], "brk(NULL) = 0x55f910551000"),
    ("kill", [0, 0], 0, [], "kill(0, 0) = 0"),
    ("kill", [-2147483647, 32], -3, [], "kill(-2147483647, SIGRTMIN) = -1 ESRCH (No such process)"),
    ("kill", [-2147483647, 34], -3, [], "kill(-2147483647, SIGRT_2) = -1 ESRCH (No such process)"),
    ("kill", [-2147483647, 64], -3, [], "kill(-2147483647, SIGRT_32) = -1 ESRCH (No such process)"),
    ("kill", [-2147483647, 65], -3, [], "kill(-2147483647, 65) = -1 ESRCH (No such process)"),
    ("kill", [-2147483647, -1], -3, [], "kill(-2147483647, -1) = -1 ESRCH (No such process)"),
    ("umask", [0o22], 0o22, [], "umask(022) = 022"),
    ("umask", [0], 0, [], "umask(000) = 000"),
    ("chmod", [9, 0o107777], -2, [string(0, b"/nope")], f'chmod("/nope", 0107777) {ENOENT}'),
    ("mknodat", [A, 9, 0o100644, 0], -2, [string(1, b"/x")], f'mknodat(AT_FDCWD, "/x", S_IFREG|0644) {ENOENT}'),
    ("mknodat", [A, 9, 0o160644, 0], -2, [string(1, b"/x")], f'mknodat(AT_FDCWD, "/x", 0160644) {ENOENT}'),
    ("lseek", [4, -5, 9], -22, [], "lseek(4, -5, 0x9 /* SEEK_??? */) = -1 EINVAL (Invalid argument)"),
    ("lseek", [4, 5, 0], 1 << 40, [], "lseek(4, 5, SEEK_SET) = 1099511627776"),
    ("clone", [0x1200011, 0, 0, 0x7F4BC9829A10, 0], 14303, [],
     "clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, "
     "child_tidptr=0x7f4bc9829a10) = 14303"),
    ("fcntl", [4, 1, 7], 0, [], "fcntl(4, F_GETFD) = 0"),
    ("fcntl", [4, 1, 7], 1, [], "fcntl(4, F_GETFD) = 0x1 (flags FD_CLOEXEC)"),
    ("fcntl", [0, 3, 7], 0o100000, [], "fcntl(0, F_GETFL) = 0x8000 (flags O_RDONLY|O_LARGEFILE)"),
    ("fcntl", [4, 777, 5], -22, [], "fcntl(4, 0x309 /* F_??? */, 0x5) = -1 EINVAL (Invalid argument)"),
    ("wait4", [-1, 16, 0, 0], 14303, [word(1, 3 << 8)],
     "wait4(-1, [{WIFEXITED(s) && WEXITSTATUS(s) == 3}], 0, NULL) = 14303"),
    ("wait4", [-1, 16, 0, 0], 14304, [word(1, 9)],
     "wait4(-1, [{WIFSIGNALED(s) && WTERMSIG(s) == SIGKILL}], 0, NULL) = 14304"),
    ("wait4", [-1, 16, 0, 0], 14304, [word(1, 139)],
     "wait4(-1, [{WIFSIGNALED(s) && WTERMSIG(s) == SIGSEGV && WCOREDUMP(s)}], 0, NULL) = 14304"),
    ("wait4", [-1, 16, 2, 0], 14305, [word(1, 0x137F)],
     "wait4(-1, [{WIFSTOPPED(s) && WSTOPSIG(s) == SIGSTOP}], WSTOPPED, NULL) = 14305"),
    ("wait4", [5, 16, 0, 0], 5, [word(1, 0xFFFF)], "wait4(5, [{WIFCONTINUED(s)}], 0, NULL) = 5"),
    ("wait4", [-1, 16, 1, 0], 0, [word(1, 77)], "wait4(-1, 0x10, WNOHANG, NULL) = 0"),
    ("wait4", [-1, 16, 0x101, 0], -22, [], "wait4(-1, 0x10, WNOHANG|0x100, NULL) = -1 EINVAL (Invalid argument)"),
    ("pipe2", [16, 0o2000000], 0, [memory(0, struct.pack("2i", 5, 6))], "pipe2([5, 6], O_RDONLY|O_CLOEXEC) = 0"),
    ("pipe2", [1, 0], -14, [], "pipe2(0x1, O_RDONLY) = -1 EFAULT (Bad address)"),
    ("rt_sigprocmask", [1, 16, 32, 8], 0,
     [memory(1, struct.pack("Q", 1 << 1 | 1 << 16 | 1 << 33)), memory(2, bytes(8))],
     "rt_sigprocmask(SIG_UNBLOCK, [INT CHLD RT_2], [], 8) = 0"),
    ("rt_sigprocmask", [0, 16, 0, 8], 0, [memory(1, b"\xff" * 8)], "rt_sigprocmask(SIG_BLOCK, ~[], NULL, 8) = 0"),
    ("rt_sigprocmask", [3, 16, 0, 8], -22, [memory(1, struct.pack("Q", (1 << 64) - 1 & ~(1 << 9)))],
     "rt_sigprocmask(0x3 /* SIG_??? */, ~[USR1], NULL, 8) = -1 EINVAL (Invalid argument)"),
    ("rt_sigprocmask", [99, 16, 0, 8], -22, [memory(1, struct.pack("Q", 1 << 31))],
     "rt_sigprocmask(0x63 /* SIG_??? */, [RTMIN], NULL, 8) = -1 EINVAL (Invalid argument)"),
    ("nanosleep", [16, 32], -516, [memory(0, struct.pack("2q", 1, 5)), memory(1, struct.pack("2q", 0, 7))],
     "nanosleep({tv_sec=1, tv_nsec=5}, {tv_sec=0, tv_nsec=7}) = ? ERESTART_RESTARTBLOCK (Interrupted by signal)"),
    ("fstat", [3, 16], 0,
     [memory(1, bytes(24) + struct.pack("I", 0o100644) + bytes(20) + struct.pack("q", 220) + bytes(88))],
     "fstat(3, {st_mode=S_IFREG|0644, st_size=220, ...}) = 0"),
    ("fstat", [3, 16], 0, [memory(1, bytes(100))], "fstat(3, 0x10) = 0"),
    ("poll", [16, 2, 0], 0, [memory(0, struct.pack("iHHiHH", 3, 1, 0, -1, 0, 0))],
     "poll([{fd=3, events=0x1}, {fd=-1, events=0}], 2, 0) = 0 (Timeout)"),
    ("read", [0, 16, 9], -512, [], "read(0, 0x10, 9) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)"),
    ("read", [0, 16, 9], -41, [], "read(0, 0x10, 9) = -1 (errno 41)"),
    ("read", [0, 16, (1 << 64) - 1], -4096, [], "read(0, 0x10, 18446744073709551615) = -4096"),
    ("gettid", [], 14304, [], "gettid() = 14304"),
    ("read", [], 5, [], "<... read resumed>) = 5"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "result", "captures", "expected"), CALLS)
def test_a_finished_call_reads_as_strace_prints_it(
    name: str, args: list[int], result: int, captures: list[Capture], expected: str
) -> None:
    """Name, arguments, result and error of one call."""
    assert line(name, args, result, captures) == expected


NL = struct.pack("=HHII", 16, 0, 12, 0x11)
V6 = struct.pack(">xxHI", 80, 5)
LONG_NAME = b"\0run/none" + bytes(99)
ADDRESSES = [
    (struct.pack("H", 1) + b"/run/none".ljust(108, b"\0"), '{sa_family=AF_UNIX, sun_path="/run/none"}'),
    (struct.pack("H", 1) + b"/run/n", '{sa_family=AF_UNIX, sun_path="/run/n"}'),
    (struct.pack("H", 1) + b"\0run/none", '{sa_family=AF_UNIX, sun_path=@"run/none"}'),
    (struct.pack("H", 1), "{sa_family=AF_UNIX}"),
    (b"\1", "0x10"),
    (struct.pack("H", 1) + b"\0", '{sa_family=AF_UNIX, sun_path=@""}'),
    (struct.pack("H", 1) + LONG_NAME, '{sa_family=AF_UNIX, sun_path=@"run/none' + "\\0" * 99 + '"}'),
    (struct.pack("=H", 2) + struct.pack(">H", 80) + bytes([127, 0, 0, 1]) + bytes(8),
     '{sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("127.0.0.1")}'),
    (struct.pack("=H", 2) + struct.pack(">H", 80) + bytes([127, 0, 0, 1]),
     '{sa_family=AF_INET, sa_data="\\0P\\177\\0\\0\\1"}'),
    (struct.pack("=H", 2), "{sa_family=AF_INET}"),
    (b"\n\0" + V6[2:] + bytes(15) + b"\1" + struct.pack("=I", 3),
     '{sa_family=AF_INET6, sin6_port=htons(80), sin6_flowinfo=htonl(5), inet_pton(AF_INET6, "::1", &sin6_addr), '
     "sin6_scope_id=3}"),
    (b"\n\0" + V6[2:] + bytes(15) + b"\1",
     '{sa_family=AF_INET6, sin6_port=htons(80), sin6_flowinfo=htonl(5), inet_pton(AF_INET6, "::1", &sin6_addr)}'),
    (b"\n\0" + V6[2:] + bytes(15),
     '{sa_family=AF_INET6, sa_data="\\0P\\0\\0\\0\\5' + "\\0" * 15 + '"}'),
    (NL, "{sa_family=AF_NETLINK, nl_pid=12, nl_groups=0x000011}"),
    (NL[:8] + bytes(4), "{sa_family=AF_NETLINK, nl_pid=12, nl_groups=00000000}"),
    (NL[:8], '{sa_family=AF_NETLINK, sa_data="\\0\\0\\f\\0\\0\\0"}'),
    (bytes(16), '{sa_family=AF_UNSPEC, sa_data="' + "\\0" * 14 + '"}'),
    (b"{\0" + bytes(14), '{sa_family=0x7b /* AF_??? */, sa_data="' + "\\0" * 14 + '"}'),
]  # fmt: skip


@pytest.mark.parametrize(("data", "text"), ADDRESSES)
def test_socket_addresses_read_as_strace_prints_them(data: bytes, text: str) -> None:
    """Every family that is decoded, cut lengths, families that are not."""
    expected = f"connect(99, {text}, {len(data)}) = -1 EBADF (Bad file descriptor)"
    assert line("connect", [99, 16, len(data)], -9, enter_captures=[address(1, data)]) == expected


@pytest.mark.parametrize(
    "text",
    ["::", "::1", "::2", "1::", "fe80::1", "2001:db8::8:800:200c:417a", "::ffff:10.0.0.1", "::10.0.0.1", "1:0:0:2::3",
     "1:2:3:4:5:6:7:8", "0:1::", "1:0:2:0:3:0:4:0", "64:ff9b::1", "::1:0:0:0", "::ffff:0:1.2.3.4", "::fffe:1.2.3.4"],
)  # fmt: skip
def test_ipv6_addresses_read_as_inet_ntop_writes_them(text: str) -> None:
    """The C library is the oracle."""
    packed = socket.inet_pton(socket.AF_INET6, text)
    data = b"\n\0" + V6[2:] + packed
    assert f'inet_pton(AF_INET6, "{socket.inet_ntop(socket.AF_INET6, packed)}", &' in line(
        "connect", [3, 16, len(data)], 0, enter_captures=[address(1, data)]
    )


INET = struct.pack("=HHI", 2, 0, 0) + bytes(8)
SHOWN = '{sa_family=AF_INET, sin_port=htons(0), sin_addr=inet_addr("0.0.0.0")}'


@pytest.mark.parametrize(
    ("result", "given", "got", "expected"),
    [
        (0, 16, 16, f"getsockname(4, {SHOWN}, [16]) = 0"),
        (0, 128, 16, f"getsockname(4, {SHOWN}, [128 => 16]) = 0"),
        (0, 4, 16, 'getsockname(4, {sa_family=AF_INET, sa_data="\\0\\0"}, [4 => 16]) = 0'),
        (0, 0, 16, "getsockname(4, 0x10, [0 => 16]) = 0"),
        (0, None, 16, f"getsockname(4, {SHOWN}, [16]) = 0"),
        (-22, -1, None, "getsockname(4, 0x10, [-1]) = -1 EINVAL (Invalid argument)"),
        (-14, None, None, "getsockname(4, 0x10, 0x20) = -1 EFAULT (Bad address)"),
    ],
)
def test_lengths_that_the_kernel_changes_show_both_sides(
    result: int, given: int | None, got: int | None, expected: str
) -> None:
    """What was given at enter and what came back; the address as far as there was room."""
    after = [word(2, got)] if got is not None else []
    before = [word(2, given)] if given is not None else []
    if result == 0:
        after.append(address(1, INET))
    assert line("getsockname", [4, 16, 32], result, after, before) == expected


def strings(argument: int, items: list[bytes], count: int | None = None) -> Capture:
    """An argv's capture."""
    data = b"".join(item + b"\0" for item in items)
    return Capture(argument, lib.PB_CAPTURE_STRINGS, data, len(items) if count is None else count)


@pytest.mark.parametrize(
    ("argv", "environment", "text"),
    [
        (strings(1, [b"x", b"a\nb", b"0123456789" * 4]), 3,
         '["x", "a\\nb", "01234567890123456789012345678901"...], 0x20 /* 3 vars */'),
        (strings(1, []), 0, "[], 0x20 /* 0 vars */"),
        (strings(1, [b"z"] * 40, 49), 1, "[" + '"z", ' * 32 + "...], 0x20 /* 1 var */"),
        (strings(1, [b"z"], 2), 2, '["z", ...], 0x20 /* 2 vars */'),
        (Capture(1, lib.PB_CAPTURE_STRINGS, b"ab\0cd", 2), 2, '["ab", "cd"...], 0x20 /* 2 vars */'),
    ],
)  # fmt: skip
def test_argv_and_envp_read_as_strace_prints_them(argv: Capture, environment: int, text: str) -> None:
    """Quoted strings, the mark for more, the environment's count."""
    count = Capture(2, lib.PB_CAPTURE_COUNT, b"", environment)
    assert (
        line("execve", [8, 16, 32], -2, [], [string(0, b"/nope"), argv, count]) == f'execve("/nope", {text}) {ENOENT}'
    )


def test_argv_that_is_null_or_unreadable_is_an_address() -> None:
    """Without a capture the pointers are shown."""
    assert line("execve", [8, 0, 0], -2, [string(0, b"/n")]) == f'execve("/n", NULL, NULL) {ENOENT}'
    assert line("execve", [8, 1, 1], -2, [string(0, b"/n")]) == f'execve("/n", 0x1, 0x1) {ENOENT}'


def test_a_call_that_never_returns_has_no_result() -> None:
    """exit_group is complete."""
    assert line("exit_group", [257], 0, flags=lib.PB_FLAG_NO_RETURN) == "exit_group(257) = ?"


def test_unknown_calls_show_their_registers() -> None:
    """A number without a row is named as strace names it, a 32-bit call never by this table's name."""
    unknown = SampleWriter().syscall(1, 1, 0x258, [1, 2, 3, 0, 5, 6], -38)
    assert Engine([unknown.sample()]).join().line(PLAN.c) == (
        "syscall_0x258(0x1, 0x2, 0x3, 0, 0x5, 0x6) = -1 ENOSYS (Function not implemented)"
    )
    compat = SampleWriter().syscall(1, 1, 20, [1], 4711, flags=lib.PB_FLAG_COMPAT)
    assert Engine([compat.sample()]).join().line(PLAN.c) == "syscall_20(0x1) = 4711"


def test_a_call_in_flight_shows_all_arguments_and_no_result() -> None:
    """Output buffers are addresses, what was captured at enter is shown, nothing stale of the page is."""
    open_call = SampleWriter().syscall(2, 50, NUMBERS["read"], [0, 0x1000, 4096], 77)
    engine = Engine(pages=SampleWriter().page(open_call)).join()
    assert engine.line(PLAN.c) == "read(0, 0x1000, 4096 <unfinished ...>"
    blocked = SampleWriter().syscall(2, 50, NUMBERS["connect"], [3, 16, 16])
    page = SampleWriter().entry(2, 50, [address(1, INET)]).page(blocked)
    assert Engine(pages=page).join().line(PLAN.c) == f"connect(3, {SHOWN}, 16 <unfinished ...>"


def test_a_long_line_is_cut_but_ends_in_its_result() -> None:
    """A path that fills the line leaves room for the result."""
    text = line("openat", [A, 9, 0, 0], -2, [string(1, b"\xff" * 7000)])
    assert len(text) <= lib.PB_LINE_BYTES
    assert text.endswith(ENOENT)
