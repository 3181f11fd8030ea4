# SPDX-License-Identifier: Apache-2.0
"""What the BPF program does at each system call: recorded or not, and which memory is captured when.

What it is not: it decides nothing while recording; the program reads these rows from its rodata ``rules``.
Source: bpf/records.h (struct pb_rules), filled here and nowhere else.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records.arguments import Argument, Capture, Decoding, load_decodings
from otel_perfbuf.records.classes import select_syscalls
from otel_perfbuf.records.constants import load_tables
from otel_perfbuf.records.syscalls import load_syscalls
from otel_perfbuf.records.watched import watched_syscalls

__all__ = ["Buffers", "records_all", "syscall_rules"]

Buffers = Literal["none", "sizes", "content"]

MAX_CAPTURE_BYTES = 4096  # records.h: struct pb_capture_rule.max_bytes
_ARGV_BYTES = 512  # of argv; strace shows 32 strings of 32 bytes at most
_SOCKADDR_BYTES = 128  # sizeof(struct sockaddr_storage)

_SETS_BYTES = 128  # of select's and affinity's bits: 1,024
_ELEMENTS = 32  # of an array; strace shows no more
_MESSAGES = 32  # of an mmsghdr array whose names and buffers are captured, as strace shows
_RESULT = 6  # as a condition's argument
_SIZED_BYTES = 256  # of a struct whose size is an argument

_CAPTURE_KINDS = {
    "path": "STRING",
    "comm": "STRING",
    "string": "STRING",
    "strings": "STRINGS",
    "environment": "COUNT",
    "sockaddr": "SOCKADDR",
    "length_pointer": "WORD",
    "word_pointer": "WORD",
    "error_pointer": "WORD",
    "wait_status": "WORD",
    "fd_pair": "STRUCT",
    "sigset": "STRUCT",
    "struct": "STRUCT",
    "buffer": "BUFFER",
    "buffer_hex": "BUFFER",
    "iovec": "STRUCT",
    "iovec_read": "STRUCT",
    "iovec_write": "STRUCT",
    "message_send": "STRUCT",
    "message_receive": "STRUCT",
    "messages_send": "STRUCT",
    "messages_receive": "STRUCT",
    "sigset_size": "STRUCT",
    "remaining": "STRUCT",
    "option": "BUFFER",
    "option_text": "BUFFER",
    "handle": "STRUCT",
    "msgbuf": "STRUCT",
    "clone_args": "STRUCT",
    "entries": "ENTRIES",
    "fdset": "STRUCT",
    "cpuset": "STRUCT",
    "bits": "STRUCT",
}
# x86-64: the frame's struct ucontext is on top; arm64: behind a siginfo.
_MASK_OFFSETS = {"x86_64": 296, "aarch64": 128 + 40}
_BYTES = frozenset({"WORD", "STRUCT", "BUFFER"})  # memory of some length; a BUFFER is content: patterns may redact it
_WHEN = {"exit": "AT_EXIT", "enter": "AT_ENTER", "both": "AT_BOTH", "success": "AT_SUCCESS"}
# Not content but a name: captured whatever `buffers` says.
_NAMES = frozenset({"readlink", "readlinkat", "sethostname", "setdomainname"})


@dataclass(frozen=True, slots=True)
class _Rule:
    """One struct pb_capture_rule; ``conditions`` are (argument, mask, value); a mask of 0: at least the value.

    ``behind``: not the argument's memory, but that of the pointer at this place in it; else ``offset`` into it.
    """

    kind: str
    argument: int
    when: str
    length_from: str = "fixed"
    length: int = 0
    max_bytes: int = 0
    scale: int = 1
    part: int = 0
    behind: int | None = None
    offset: int = 0
    nodes: bool = False
    conditions: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Limits:
    string_bytes: int
    path_bytes: int
    buffers: Buffers
    mask_offset: int  # of uc_sigmask in what the stack has at rt_sigreturn


def _max_bytes(kind: str, argument: Argument, capture: Capture, limits: _Limits, *, name: bool) -> int:
    if kind == "STRING":
        return limits.path_bytes if argument.kind == "path" else limits.string_bytes
    if argument.kind in ("buffer", "buffer_hex"):
        return limits.path_bytes if name else limits.string_bytes
    if kind in _BYTES and argument.kind not in ("length_pointer", "word_pointer", "error_pointer", "wait_status"):
        if capture.length_from == "fixed":
            return min(capture.length * capture.scale, MAX_CAPTURE_BYTES)
        if argument.kind in ("fdset", "cpuset", "bits"):
            return _SETS_BYTES
        return min(_ELEMENTS * capture.scale, MAX_CAPTURE_BYTES) if capture.scale > 1 else _SIZED_BYTES
    return {"STRINGS": _ARGV_BYTES, "SOCKADDR": _SOCKADDR_BYTES, "WORD": 4, "COUNT": 0, "ENTRIES": 0}[kind]


def _message_rules(index: int, when: str, first: int, at: int, limits: _Limits) -> list[_Rule]:
    """What the pointers of a struct msghdr at offset ``at`` of the argument's memory name (parts: text_message.c)."""
    rules = [
        _Rule("SOCKADDR", index, when, "field4", at + 8, _SOCKADDR_BYTES, 1, first + 1, at),
        _Rule("STRUCT", index, when, "field8", at + 24, 16 * 16, 16, first + 2, at + 16),
        _Rule("STRUCT", index, when, "field8", at + 40, _SIZED_BYTES, 1, first + 4, at + 32),
    ]
    if limits.buffers == "content":
        rules.append(_Rule("VECTOR", index, when, "field8", at + 24, limits.string_bytes, 1, first + 3, at + 16))
    return rules


def _further(index: int, argument: Argument, capture: Capture, limits: _Limits) -> list[_Rule]:
    """What the argument's memory points to."""
    kind, content = argument.kind, limits.buffers == "content"
    if kind in ("iovec_read", "iovec_write") and content:
        when = "success" if kind == "iovec_read" else "exit"
        return [_Rule("VECTOR", index, when, capture.length_from, capture.length, limits.string_bytes, 1, 1)]
    if kind == "handle":
        moments = ("exit",) if capture.when == "exit" else ("success",)
        return [_Rule("STRUCT", index, when, "field4", 0, 128, 1, 1, offset=8) for when in moments]
    if kind == "msgbuf" and content:
        return [_Rule("BUFFER", index, "exit", "argument", 2, limits.string_bytes, 1, 1, offset=8)]
    if kind == "clone_args":
        return [
            _Rule("WORD", index, "success", "fixed", 4, 4, 1, 1, 24),
            _Rule("WORD", index, "success", "fixed", 4, 4, 1, 2, 8),
        ]
    if kind == "sigset_size":
        return [_Rule("STRUCT", index, "exit", "fixed", 8, 8, 1, 1, 0)]
    if kind in ("message_send", "message_receive"):
        return _message_rules(index, "exit" if kind == "message_send" else "success", 0, 0, limits)
    if kind in ("messages_send", "messages_receive"):
        # as many as there are: were given, or came back
        count = capture.length if kind == "messages_send" else _RESULT
        return [
            replace(rule, conditions=((count, 0, each + 1),))
            for each in range(_MESSAGES)
            for rule in _message_rules(index, "exit", 4 * each, 64 * each, limits)
        ]
    return []


def _of_argument(index: int, argument: Argument, name: str, limits: _Limits) -> list[_Rule]:
    capture = argument.capture
    kind = _CAPTURE_KINDS.get(argument.kind)
    if capture is None or kind is None:
        return []
    if argument.kind in ("buffer", "buffer_hex") and limits.buffers != "content" and name not in _NAMES:
        return []
    most = _max_bytes(kind, argument, capture, limits, name=name in _NAMES)
    length = capture.length if capture.length_from != "fixed" or kind in _BYTES else most
    if kind == "WORD":
        length = most
    own = _Rule(kind, index, capture.when, capture.length_from, length, most, capture.scale)
    if argument.kind == "bits":
        own = replace(own, nodes=True)
    if name == "rt_sigreturn":
        own = replace(own, offset=limits.mask_offset)
    return [own, *_further(index, argument, capture, limits)]


def _alike(one: _Rule, other: _Rule) -> bool:
    """Whether both give the same bytes."""
    return replace(one, conditions=(), kind="") == replace(other, conditions=(), kind="") and (
        one.kind == other.kind or {one.kind, other.kind} <= _BYTES
    )


def _rules_of(decoding: Decoding, limits: _Limits) -> list[_Rule]:
    """A syscall's rules: those of its variants first, each under its conditions, unless the row's own does as well."""
    name = decoding.syscall.name
    own = [rule for index, one in enumerate(decoding.arguments) for rule in _of_argument(index, one, name, limits)]
    found = []
    for variant in decoding.variants:
        conditions = tuple((one.argument, one.mask, one.value) for one in variant.conditions)
        for index, argument in enumerate(variant.arguments):
            for rule in _of_argument(index, argument, name, limits):
                if not any(_alike(rule, other) for other in own):
                    found.append(replace(rule, conditions=conditions))
    # the program leaves off at the first that is not reached
    return sorted(found + own, key=lambda rule: any(not mask for _, mask, _ in rule.conditions))


def _fill(row: Any, rule: _Rule) -> None:
    row.kind = getattr(lib, f"PB_CAPTURE_{rule.kind}")
    row.argument = rule.argument
    row.when = getattr(lib, f"PB_{_WHEN[rule.when]}")
    row.length_from = getattr(lib, f"PB_LENGTH_{rule.length_from.upper()}")
    row.length, row.max_bytes, row.part = rule.length, rule.max_bytes, rule.part
    # of memory nodes one less is counted than the argument says
    row.scale = rule.scale if rule.scale > 1 or (rule.length_from == "bits" and rule.nodes) else 0
    row.behind, row.offset = (0, rule.offset) if rule.behind is None else (1, rule.behind)
    for index, (argument, mask, value) in enumerate(rule.conditions):
        row.if_argument[index], row.if_mask[index], row.if_value[index] = argument, mask, value


def _fill_all(rules: Any, decodings: dict[int, Decoding], limits: _Limits) -> None:
    used = 0
    for number, decoding in decodings.items():
        found = _rules_of(decoding, limits)
        if len(found) > lib.PB_SYSCALL_CAPTURES or used + len(found) > lib.PB_RULES:
            raise ValueError(f"arguments.tsv: {decoding.syscall.name}: no room for {len(found)} capture rules")
        row = rules.syscalls[number]
        row.arguments = len(decoding.arguments)
        row.flags |= lib.PB_SYSCALL_NO_RETURN if decoding.noreturn else 0
        row.flags |= lib.PB_SYSCALL_EXEC if decoding.exec else 0
        row.flags |= lib.PB_SYSCALL_STACK if decoding.syscall.name == "rt_sigreturn" else 0
        row.first, row.count = used, len(found)
        for rule in found:
            _fill(rules.captures[used], rule)
            used += 1
        row.enter_rules = sum(rule.when in ("enter", "both") for rule in found)
        row.exit_rules = sum(rule.when in ("exit", "success", "both") for rule in found)


def syscall_rules(
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    max_string_bytes: int = 128,
    max_path_bytes: int = 512,
    buffers: Buffers = "none",
    error_syscalls: Sequence[str] = (),
    slow_syscalls: Sequence[str] | None = None,
    machine: str | None = None,
) -> bytes:
    """``struct pb_rules`` as bytes, for the rodata ``rules``.

    ``include`` and ``exclude`` take names and strace's classes (``%file``; ``!`` excludes; none included = all).
    ``max_string_bytes`` and ``max_path_bytes``: captured at most, 1 to 4096. ``buffers``: contents are captured only
    with "content". ``error_syscalls`` are watched for errnos, ``slow_syscalls`` for how long they take (None: none;
    empty: all but `watched.WAITING`). Raises ConfigError: unknown names (with close matches), sizes out of bounds, a
    call that is watched by its name and not recorded.
    """
    for key, value in (("max_bytes", max_string_bytes), ("max_path_bytes", max_path_bytes)):
        if not 1 <= value <= MAX_CAPTURE_BYTES:
            sentence = f"captured strings have 1 to {MAX_CAPTURE_BYTES} bytes, not {value}"
            raise ConfigError(f"making the capture rules: {sentence}; choose a value between", ((key, sentence),))
    name = machine or platform.machine()
    decodings = load_decodings(load_syscalls(machine), load_tables(name), name)
    by_name = {decoding.syscall.name for decoding in decodings.values()}
    recorded = select_syscalls(by_name, include=include, exclude=exclude)
    watched = watched_syscalls(by_name, recorded, error_syscalls, slow_syscalls)
    rules = ffi.new("struct pb_rules *")
    known = {number: decoding for number, decoding in decodings.items() if number < lib.PB_SYSCALLS}
    _fill_all(rules, known, _Limits(max_string_bytes, max_path_bytes, buffers, _MASK_OFFSETS[name]))
    for number in range(lib.PB_SYSCALLS):
        row, decoding = rules.syscalls[number], known.get(number)
        if decoding is None:
            # a syscall newer than the tables: recorded with all six arguments unless names were chosen
            row.arguments = 6
            row.flags = 0 if include else lib.PB_SYSCALL_RECORDED
        elif decoding.syscall.name in recorded:
            row.flags |= lib.PB_SYSCALL_RECORDED | watched.get(decoding.syscall.name, 0)
    return bytes(ffi.buffer(rules))


def records_all(rules: bytes, names: Iterable[str], machine: str | None = None) -> bool:
    """Whether ``rules`` (of `syscall_rules`) record every one of the syscalls that this machine has of ``names``."""
    wanted = frozenset(names)
    rows = ffi.from_buffer("struct pb_rules *", rules).syscalls
    return all(
        rows[number].flags & lib.PB_SYSCALL_RECORDED
        for number, syscall in load_syscalls(machine).items()
        if syscall.name in wanted and number < lib.PB_SYSCALLS
    )
