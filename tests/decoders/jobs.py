# SPDX-License-Identifier: Apache-2.0
"""One job for each system call, made out of the project's own tables: ordinary arguments, then each argument in turn
odd and bad: NULL, unreadable and unterminated memory, unknown bits and values, zero and huge lengths.

What it is not: it expects nothing. Source: otel_perfbuf/records (which arguments there are), contents.py (memory).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contents import NOBODY, contents_of
from memory import ADDRESS, UNREADABLE, Content, Memory

from otel_perfbuf.records.arguments import Argument, Decoding, Variant, load_decodings
from otel_perfbuf.records.constants import Table, load_tables
from otel_perfbuf.records.syscalls import load_syscalls

__all__ = ["Job", "all_jobs"]

WORD = (1 << 64) - 1
CWD = -100
EDGES = (1, 4, 8, 12, 16, 24)
NUMBERS = (0, 1, 64, -1, 0x7FFFFFFF, 1 << 31, 1 << 63)
# What ends the caller or the next calls' memory, or never comes back.
SKIPPED = {"rt_sigreturn", "sync", "syncfs", "restart_syscall", "vhangup", "set_thread_area", "uretprobe"}
ONCE = {"exit", "exit_group", "pause", "fork", "vfork"}
# Calls that change what is mapped: no memory of the job's.
MAPPING = {
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "remap_file_pages",
    "pkey_mprotect",
    "shmat",
    "mseal",
    "brk",
    "madvise",
    "shmdt",
    "map_shadow_stack",
}
KILLS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2, "ptrace": 2}
FDS = {
    **dict.fromkeys(
        [
            "connect",
            "bind",
            "sendto",
            "recvfrom",
            "sendmsg",
            "recvmsg",
            "sendmmsg",
            "recvmmsg",
            "shutdown",
            "getpeername",
        ],
        4,
    ),
    **dict.fromkeys(["listen", "accept", "accept4", "getsockname", "setsockopt", "getsockopt"], 6),
    **dict.fromkeys(["epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl"], 7),
    **dict.fromkeys(["timerfd_settime", "timerfd_gettime"], 9),
    **dict.fromkeys(["vmsplice", "splice", "tee"], 11),
    **dict.fromkeys(["getdents", "getdents64"], 13),
    "ioctl": 14,
}
# An array's or address's length: (syscall, argument) to (argument of the count, bytes of one).
COUNTS = {
    ("poll", 0): (1, 8),
    ("ppoll", 0): (1, 8),
    ("connect", 1): (2, 1),
    ("bind", 1): (2, 1),
    ("sendto", 4): (5, 1),
    ("sendto", 1): (2, 1),
    ("write", 1): (2, 1),
    ("pwrite64", 1): (2, 1),
    ("sendmmsg", 1): (2, 64),
    ("recvmmsg", 1): (2, 64),
    ("clone3", 0): (1, 1),
    ("openat2", 2): (3, 1),
    ("setgroups", 1): (0, 4),
    ("semop", 1): (2, 6),
    ("semtimedop", 1): (2, 6),
    ("sched_setaffinity", 2): (1, 1),
    ("futex_waitv", 0): (1, 24),
    ("process_vm_readv", 3): (4, 16),
    ("process_vm_writev", 3): (4, 16),
    ("setxattr", 2): (3, 1),
    ("lsetxattr", 2): (3, 1),
    ("fsetxattr", 2): (3, 1),
    ("mq_timedsend", 1): (2, 1),
    ("msgsnd", 1): (2, 1),
    ("setdomainname", 0): (1, 1),
    ("sethostname", 0): (1, 1),
    ("add_key", 2): (3, 1),
    ("setsockopt", 3): (4, 1),
    ("mount_setattr", 3): (4, 1),
    ("landlock_create_ruleset", 0): (1, 1),
    **{
        (name, 1): (2, 16)
        for name in [
            "readv",
            "writev",
            "preadv",
            "pwritev",
            "preadv2",
            "pwritev2",
            "vmsplice",
            "process_vm_readv",
            "process_vm_writev",
            "process_madvise",
        ]
    },
}
# Arguments of an ordinary call where the rules would make a poor one; None: by the rules.
BASE: dict[str, tuple[int | bytes | None, ...]] = {
    "mmap": (0, 8192, 3, 0x22, -1, 0),
    "munmap": (0x7E0000000000, 4096),
    "mprotect": (0x7E0000000000, 4096),
    "poll": (None, 1, 0),
    "ppoll": (None, 1, None, None, 8),
    "select": (9, None, None, None, None),
    "pselect6": (9, None, None, None, None, None),
    "rt_sigaction": (10, None, None, 8),
    "rt_sigprocmask": (0, None, None, 8),
    "rt_sigpending": (None, 8),
    "rt_sigsuspend": (None, 8),
    "rt_sigtimedwait": (None, None, None, 8),
    "signalfd": (-1, None, 8),
    "signalfd4": (-1, None, 8),
    "lseek": (3, 5, 0),
    "getcwd": (bytes(200), 200),
    "futex": (None, 129, 1, 0, 0, 0),
    "nanosleep": (None, None),
    "clock_nanosleep": (1, 0, None, None),
    "epoll_wait": (7, None, 5, 0),
    "epoll_pwait": (7, None, 5, 0, None, 8),
    "epoll_pwait2": (7, None, 5, None, None, 8),
    "epoll_ctl": (7, 1, 4, None),
    "socket": (2, 1, 0),
    "socketpair": (1, 1, 0),
    "connect": (4,),
    "wait4": (-1, None, 1, None),
    "waitid": (0, 0, None, 5, None),
    "prlimit64": (0, 7),
    "clone3": (None, 64),
    "openat2": (CWD, b"data\0", None, 24),
    "clone": (17, 0, None, None, 0),
    "getdents64": (13, bytes(4096), 4096),
    "getdents": (13, bytes(4096), 4096),
    "sched_getaffinity": (0, 128, bytes(128)),
    "statx": (CWD, b"data\0", 0, 0x7FF, bytes(256)),
    "io_getevents": (0x7000, 1, 1, None, None),
    "mq_open": (b"q\0", 0, 0o600, 0),
    "recvfrom": (12, None, 64, 0x40, None, None),
    "recvmsg": (12, None, 0x40),
    "recvmmsg": (12, None, 1, 0x40, None),
    "setpriority": (0, 0, 5),
    "ioprio_set": (1, 0, 0),
    "getitimer": (1,),
    "setitimer": (1,),
    "alarm": (100,),
    "personality": (0xFFFFFFFF,),
    "sysfs": (3,),
    "getsockopt": (6, 1, 4, None, None),
    "setsockopt": (6, 1, 2, None, 4),
    "rseq": (None, 32, 0, 0x53053053),
    "perf_event_open": (None, 0, -1, -1, 0),
    "bpf": (0, None, 128),
    "seccomp": (2, 0, None),
    "arch_prctl": (0x1003,),
    "semctl": (NOBODY, 0, 2, None),
    "msgsnd": (NOBODY, None, 7, 0x800),
    "msgrcv": (NOBODY, None, 64, 0, 0x800),
    "msgctl": (NOBODY, 2),
    "shmctl": (NOBODY, 2),
    "shmat": (NOBODY, 0, 0),
    "semop": (NOBODY, None, 1),
    "semtimedop": (NOBODY, None, 1, None),
    "sendfile": (4, 3, None, 16),
    "splice": (10, 0, 11, 0, 5, 0),
    "kcmp": (NOBODY, NOBODY, 0, 0, 0),
    "getrandom": (None, 16, 0),
    "mremap": (0x7E0000000000, 4096, 8192, 0, 0),
    "process_vm_readv": (NOBODY, None, 1, None, 1, 0),
    "listen": (6, 5),
    "process_vm_writev": (NOBODY, None, 1, None, 1, 0),
    "timer_create": (1,),
    "prctl": (3, 0, 0, 0, 0),
    "getresuid": (),
    "ioctl": (14,),
    "sched_setattr": (0, None, 0),
    "sched_getattr": (0, bytes(64), 56, 0),
    "setgroups": (3,),
    "getgroups": (10,),
    "truncate": (b"data\0", 5),
    "execve": (b"data\0",),
    "execveat": (CWD, b"data\0"),
    "readlink": (b"/proc/self/exe\0", bytes(100), 100),
    "readlinkat": (CWD, b"/proc/self/exe\0", bytes(100), 100),
    "sendmmsg": (12, None, 1, 0),
    "sendto": (12, None, 4, 0, None, 16),
    "readv": (3, None, 1),
    "writev": (3, None, 1),
    "preadv": (3, None, 1, 0, 0),
    "pwritev": (3, None, 1, 0, 0),
    "preadv2": (3, None, 1, 0, 0, 0),
    "pwritev2": (3, None, 1, 0, 0, 0),
    "vmsplice": (11, None, 1, 0),
    "capget": (None, bytes(24)),
    "syslog": (3, bytes(64), 64),
    "name_to_handle_at": (CWD, b"data\0", None, None, 0),
    "pidfd_open": (NOBODY, 0),
    "newfstatat": (CWD, b"data\0"),
    "futex_waitv": (None, 1, 0, None, 1),
    "mincore": (0x7E0000000000, 4096, bytes(64)),
    "migrate_pages": (0, 64, None, None),
    "mbind": (0x7E0000000000, 4096, 1, None, 64, 0),
}
ADDRESSES = (0, 0x7E0000000000, UNREADABLE, 1 << 63)


@dataclass
class Job:
    """The calls of one process and their memory. Arguments below 0 in ``calls`` are as given; edges are resolved."""

    name: str
    calls: list[tuple[int, tuple[int, ...]]]
    memory: bytes

    def encode(self) -> bytes:
        """The file that caller.c reads."""
        head = struct.pack("=QQQ", ADDRESS, len(self.memory), len(self.calls))
        calls = b"".join(struct.pack("=7Q", number, *args) for number, args in self.calls)
        return head + self.memory + calls


class _Maker:
    def __init__(self, decoding: Decoding, tables: dict[str, Table]) -> None:
        self.decoding = decoding
        self.name = decoding.syscall.name
        self.number = decoding.syscall.number
        self.tables = tables
        self.memory = Memory()
        self.calls: list[tuple[int, list[int]]] = []

    def content(self, content: Content) -> int:
        data = content(self.memory) if callable(content) else content
        return self.memory.put(data, 256)

    def pointers(self, index: int, selector: str) -> Iterator[tuple[int, int | None]]:
        """(address, bytes of the content)."""
        for content in contents_of(self.name, index, selector):
            data = content(self.memory) if callable(content) else content
            yield self.memory.put(data, 256), len(data)
            if len(data) > 4:
                yield self.memory.at_edge(4), len(data)
        for address in (0, UNREADABLE, self.memory.put(bytes(256)), self.memory.put(b"\xff" * 256 + b"\0")):
            yield address, None
        for size in EDGES:
            yield self.memory.at_edge(size), None

    def texts(self) -> Iterator[tuple[int, int | None]]:
        samples = (
            b"data",
            b"/etc/hostname",
            b"",
            b"/no/such/file",
            b"x" * 300,
            b'a\x01\xff"\\\t7\x077',
            b"y" * 32,
            b"y" * 33,
        )
        for text in samples:
            yield self.memory.put(text + b"\0"), None
        for address in (0, UNREADABLE, self.memory.at_edge(8), self.memory.at_edge(40)):
            yield address, None

    def values(self, index: int, argument: Argument, selector: str) -> Iterator[tuple[int, int | None]]:
        kind = argument.kind
        if self.name in MAPPING and kind in ("pointer", "hex"):
            found: Sequence[int] = ADDRESSES
        elif kind in ("path", "string"):
            yield from self.texts()
            return
        elif kind == "signal":
            found = (0, 9, 17, 31, 32, 34, 64, 65, -1)
        elif kind == "fd":
            found = (3, 4, 99, -1, CWD)
        elif kind == "dirfd":
            found = (CWD, 13, 99, -1)
        elif kind in ("mode", "open_mode", "file_mode"):
            found = (0, 0o644, 0o4755, 0o100644, 0o60600, 0o177777, -1)
        elif argument.table and kind in ("flags", "flags_value", "enum", "clone_flags"):
            rows = [value for value, _ in self.tables[argument.table].rows]
            found = [*rows, 0, 0x40000000, -1, 1 << 32]
            if kind != "enum":
                either = 0
                for row in rows:
                    either |= row
                found = [*found, either, either & 0x5555, either & ~0x5555, *(1 << bit for bit in range(0, 32, 3))]
        elif kind in ("signed", "unsigned", "long", "ulong", "offset", "fd") or (
            kind == "hex" and not contents_of(self.name, index, selector)
        ):
            found = NUMBERS
        else:
            yield from self.pointers(index, selector)
            return
        yield from ((value, None) for value in dict.fromkeys(found))

    def base(self, arguments: Sequence[Argument], selectors: dict[int, int]) -> list[int]:
        own = BASE.get(self.name, ())
        words: list[int] = []
        for index, argument in enumerate(arguments):
            given = own[index] if index < len(own) else None
            if index in selectors:
                words.append(selectors[index])
            elif isinstance(given, bytes):
                words.append(self.memory.put(given, 64))
            elif given is not None:
                words.append(given)
            else:
                words.append(self.ordinary(index, argument, arguments, words))
        for index in range(len(words)):  # lengths that follow from the contents
            count = COUNTS.get((self.name, index))
            found = contents_of(self.name, index)
            if count and found and count[0] < len(words):
                data = found[0](Memory()) if callable(found[0]) else found[0]
                words[count[0]] = len(data) // count[1]
        return words

    def ordinary(self, index: int, argument: Argument, arguments: Sequence[Argument], before: Sequence[int]) -> int:
        kind = argument.kind
        if index < KILLS.get(self.name, 0) and kind != "enum":
            return NOBODY
        if kind == "fd":
            return FDS.get(self.name, 3)
        if kind == "dirfd":
            return CWD
        if kind in ("path", "string"):
            return self.memory.put(b"data\0")
        if kind in ("mode", "open_mode", "file_mode"):
            return 0o644
        if kind == "signal":
            return 10
        if kind == "enum" and argument.table:
            return self.tables[argument.table].rows[0][0]
        if kind in ("ulong", "unsigned") and "len" in argument.name + "size" + "count":
            return 64
        if kind in ("flags", "flags_value", "signed", "unsigned", "long", "ulong", "offset", "enum", "clone_flags"):
            return 0
        if kind == "hex" and not contents_of(self.name, index, self.selector(arguments, before)):
            return 0
        found = contents_of(self.name, index, self.selector(arguments, before))
        return self.content(found[0]) if found else self.memory.put(bytes(256))

    def selector(self, arguments: Sequence[Argument], words: Sequence[int]) -> str:
        at = {"ioctl": 1, "fcntl": 1, "setsockopt": 2, "getsockopt": 2}.get(self.name)
        if at is None or at >= len(words) or not arguments[at].table:
            return ""
        rows = dict(self.tables[str(arguments[at].table)].rows)
        return rows.get(words[at] & 0xFFFFFFFF, "")

    def row(self, arguments: Sequence[Argument], selectors: dict[int, int], *, short: bool) -> None:
        base = self.base(arguments, selectors)
        self.add(base)
        if self.name in ONCE:
            return
        for index, argument in enumerate(arguments):
            if index in selectors or (index < KILLS.get(self.name, 0) and argument.kind != "enum"):
                continue
            if short and argument.kind in ("fd", "enum", "dirfd", "path"):
                continue
            selector = self.selector(arguments, base)
            for value, size in self.values(index, argument, selector):
                words = list(base)
                words[index] = value
                count = COUNTS.get((self.name, index))
                if count and size is not None and count[0] < len(words):
                    words[count[0]] = size // count[1]
                if not self.forbidden(words):
                    self.add(words)

    def forbidden(self, words: Sequence[int]) -> bool:
        """Calls after which the caller cannot go on."""
        if self.name == "arch_prctl":
            return words[0] in (0x1002, 0x3003, 0x5001, 0x5002)
        if self.name == "prctl":
            return words[0] in (22, 59, 26) and words[1] != 0
        if self.name == "seccomp":
            return words[0] == 0
        if self.name == "mmap":
            return bool(words[3] & 0x100010) and words[0] != 0x7E0000000000
        return False

    def add(self, words: Sequence[int]) -> None:
        self.calls.append((self.number, list(words)))

    def job(self) -> Job:
        self.row(self.decoding.arguments, {}, short=False)
        seen = set()
        for variant in self.decoding.variants:
            arguments = (*variant.arguments, *self.decoding.arguments[len(variant.arguments) :])
            selectors = self.selectors(variant)
            key = tuple(selectors.items())
            if key not in seen:
                self.row(arguments, selectors, short=True)
            seen.add(key)
        for words in extra_calls(self.name):
            self.calls.append(
                (
                    self.number if words[0] == "" else _NUMBERS[str(words[0])],
                    [self.memory.put(w, 256) if isinstance(w, bytes) else int(w) for w in words[1:]],
                )
            )
        data, end = self.memory.finish()
        calls = []
        for number, words in self.calls:
            args = [end + (word + 0x7000_0000) if -0x7000_0100 <= word <= -0x7000_0000 else word for word in words]
            args += [0] * (6 - len(args))
            calls.append((number, tuple(word & WORD for word in args)))
        return Job(self.name, calls, data)

    def selectors(self, variant: Variant) -> dict[int, int]:
        return {condition.argument: condition.value for condition in variant.conditions}


_NUMBERS: dict[str, int] = {}


def extra_calls(name: str) -> list[tuple[str | int | bytes, ...]]:
    """Calls that need another before them: ("" or a syscall's name, arguments ...)."""
    if name == "wait4":
        return [("fork",), ("", -1, b"", 0, b""), ("fork",), ("", -1, b"", 0, 0), ("", -1, b"", 0, b"")]
    if name == "waitid":
        return [("fork",), ("", 0, 0, b"", 4, b""), ("fork",), ("", 0, 0, 0, 4, 0)]
    if name in ("recvfrom", "recvmsg"):
        send: tuple[str | int | bytes, ...] = ("sendto", 4, b"hello", 5, 0x4000, 0, 0)
        length = (128).to_bytes(4, "little")
        if name == "recvfrom":
            return [send, ("", 5, b"", 64, 0, 0, 0), send, ("", 5, b"", 64, 0, b"", length)]
    if name == "read":
        return [("sendto", 4, b"hello\n", 6, 0x4000, 0, 0), ("", 5, b"", 64), ("", 8, b"", 8)]
    return []


def all_jobs() -> Iterator[Job]:
    """A job for each syscall of this machine, by number."""
    tables = load_tables()
    decodings = load_decodings(load_syscalls(), tables)
    _NUMBERS.update({decoding.syscall.name: number for number, decoding in decodings.items()})
    for _, decoding in sorted(decodings.items()):
        if decoding.syscall.name not in SKIPPED:
            yield _Maker(decoding, tables).job()
