# SPDX-License-Identifier: Apache-2.0
"""What the BPF program does at each system call: recorded or not, and which memory is captured when.

What it is not: it decides nothing while recording; the program reads these rows from its rodata ``syscalls``.
Source: bpf/records.h (struct pb_syscall_rule), filled here and nowhere else.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records.arguments import Argument, Decoding, load_decodings
from otel_perfbuf.records.classes import select_syscalls
from otel_perfbuf.records.constants import load_tables
from otel_perfbuf.records.syscalls import load_syscalls

__all__ = ["Buffers", "records_all", "syscall_rules"]

Buffers = Literal["none", "sizes", "content"]

MAX_CAPTURE_BYTES = 4096  # records.h: struct pb_capture_rule.max_bytes
_ARGV_BYTES = 512  # of argv; strace shows 32 strings of 32 bytes at most
_SOCKADDR_BYTES = 128  # sizeof(struct sockaddr_storage)

_CAPTURE_KINDS = {
    "path": "STRING", "string": "STRING", "strings": "STRINGS", "environment": "COUNT", "sockaddr": "SOCKADDR",
    "length_pointer": "WORD", "word_pointer": "WORD", "error_pointer": "WORD",
    "wait_status": "WORD", "fd_pair": "STRUCT", "sigset": "STRUCT",
    "struct": "STRUCT", "buffer": "BUFFER",
}  # fmt: skip
_WHEN = {"exit": "AT_EXIT", "enter": "AT_ENTER", "both": "AT_BOTH", "success": "AT_SUCCESS"}
# Not content but a name: captured whatever `buffers` says.
_NAMES = frozenset({"readlink", "readlinkat", "sethostname", "setdomainname"})


def _captures(decoding: Decoding) -> list[tuple[int, Argument]]:
    """The arguments with something to capture; a variant may capture what its row does not."""
    found: dict[int, Argument] = {}
    for arguments in (decoding.arguments, *(variant.arguments for variant in decoding.variants)):
        for index, argument in enumerate(arguments):
            if argument.capture is not None and argument.kind in _CAPTURE_KINDS:
                found.setdefault(index, argument)
    return sorted(found.items())


def _max_bytes(kind: str, argument: Argument, string_bytes: int, path_bytes: int, *, name: bool) -> int:
    if kind == "STRING":
        return path_bytes if argument.kind == "path" else string_bytes
    if kind == "BUFFER":
        return path_bytes if name else string_bytes
    if kind == "STRUCT":
        return argument.capture.length if argument.capture else 0
    return {"STRINGS": _ARGV_BYTES, "SOCKADDR": _SOCKADDR_BYTES, "WORD": 4, "COUNT": 0}[kind]


def _fill(rule: Any, decoding: Decoding, string_bytes: int, path_bytes: int, buffers: Buffers) -> None:
    name = decoding.syscall.name
    rule.arguments = len(decoding.arguments)
    if decoding.noreturn:
        rule.flags |= lib.PB_SYSCALL_NO_RETURN
    if decoding.exec:
        rule.flags |= lib.PB_SYSCALL_EXEC
    used = 0
    for index, argument in _captures(decoding):
        kind = _CAPTURE_KINDS[argument.kind]
        if kind == "BUFFER" and buffers != "content" and name not in _NAMES:
            continue
        if used == lib.PB_CAPTURES:
            break  # no room: the argument is shown as its address
        capture, row = argument.capture, rule.captures[used]
        assert capture is not None
        used += 1
        row.kind = getattr(lib, f"PB_CAPTURE_{kind}")
        row.argument = index
        row.when = getattr(lib, f"PB_{_WHEN[capture.when]}")
        row.length_from = getattr(lib, f"PB_LENGTH_{capture.length_from.upper()}")
        row.max_bytes = _max_bytes(kind, argument, string_bytes, path_bytes, name=name in _NAMES)
        row.length = capture.length if capture.length_from != "fixed" else row.max_bytes
        rule.enter_rules += capture.when in ("enter", "both")
        rule.exit_rules += capture.when in ("exit", "success", "both")


def syscall_rules(
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    max_string_bytes: int = 128,
    max_path_bytes: int = 512,
    buffers: Buffers = "none",
    machine: str | None = None,
) -> bytes:
    """``struct pb_syscall_rule[PB_SYSCALLS]`` as bytes, for the rodata ``syscalls``, by number.

    ``include`` and ``exclude`` take names and strace's classes (``%file``; ``!`` excludes; none included = all).
    ``max_string_bytes`` and ``max_path_bytes``: captured at most, 1 to 4096. ``buffers``: contents are captured only
    with "content". Raises ConfigError: unknown names (with close matches), sizes out of bounds.
    """
    for key, value in (("max_bytes", max_string_bytes), ("max_path_bytes", max_path_bytes)):
        if not 1 <= value <= MAX_CAPTURE_BYTES:
            sentence = f"captured strings have 1 to {MAX_CAPTURE_BYTES} bytes, not {value}"
            raise ConfigError(f"making the capture rules: {sentence}; choose a value between", ((key, sentence),))
    name = machine or platform.machine()
    decodings = load_decodings(load_syscalls(machine), load_tables(name), name)
    by_name = {decoding.syscall.name for decoding in decodings.values()}
    recorded = select_syscalls(by_name, include=include, exclude=exclude)
    rules = ffi.new("struct pb_syscall_rule[]", lib.PB_SYSCALLS)
    for number in range(lib.PB_SYSCALLS):
        decoding = decodings.get(number)
        if decoding is None:
            # a syscall newer than the tables: recorded with all six arguments unless names were chosen
            rules[number].arguments = 6
            rules[number].flags = 0 if include else lib.PB_SYSCALL_RECORDED
            continue
        _fill(rules[number], decoding, max_string_bytes, max_path_bytes, buffers)
        if decoding.syscall.name in recorded:
            rules[number].flags |= lib.PB_SYSCALL_RECORDED
    return bytes(ffi.buffer(rules))


def records_all(rules: bytes, names: Iterable[str], machine: str | None = None) -> bool:
    """Whether ``rules`` (of `syscall_rules`) record every one of the syscalls that this machine has of ``names``."""
    wanted = frozenset(names)
    rows = ffi.from_buffer("struct pb_syscall_rule[]", rules)
    return all(
        rows[number].flags & lib.PB_SYSCALL_RECORDED
        for number, syscall in load_syscalls(machine).items()
        if syscall.name in wanted and number < lib.PB_SYSCALLS
    )
