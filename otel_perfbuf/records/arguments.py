# SPDX-License-Identifier: Apache-2.0
"""How each argument is shown, and what of its memory is captured: the meaning of data/arguments.tsv.

A row of that file overrides, argument by argument, what the general rules here make of the kernel's C type and
name. So a syscall that is newer than this package still gets paths as paths and fds as fds.

What it is not: it knows neither the C plan (plan.py) nor the BPF rules' layout (rules.py); both are made from this.
Source: strace 6.1's output.

    NAME     arguments                                   result
    openat   dirfd path flags_value:open_flags open_mode fd
    <tab>CONDITIONS <tab>arguments <tab>result           a variant of the row above

    argument:  [PREFIX=]KIND[:TABLE][{WHEN[,LENGTH]}][?N&NAME]    `-`: by the rules (in a variant: as the row above)
    WHEN:      enter, exit, both, success (at exit, only when the call succeeded: an output)
    LENGTH:    a number, argN (the value of argument N), ptrN (the word that argument N points to), result, bitsN
               (argument N counts bits), each with *BYTES for so many of that size; left out: the struct's size
    KIND!:     the call changes it: shown as given, then "=>" and as it came back (captured at both sides)
    ?N&NAME:   shown only when argument N has one of the bits NAME (a name of its table, or a number)
    CONDITION: N=VALUE[,VALUE...] or N&MASK=VALUE[,VALUE...]
    result:    KIND[:TABLE] zero=TEXT order=2,1 noreturn exec poll select
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from otel_perfbuf.records.constants import Table
from otel_perfbuf.records.structs import Struct, load_structs
from otel_perfbuf.records.syscalls import Parameter, Syscall, data_lines

__all__ = ["Argument", "Capture", "Condition", "Decoding", "Result", "Variant", "argument_by_rules", "load_decodings"]


@dataclass(frozen=True, slots=True)
class Capture:
    """Memory behind an argument: ``length_from`` is fixed, argument, pointer, result or bits; ``length`` its number."""

    when: str
    length_from: str = "fixed"
    length: int = 0
    scale: int = 1


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: ``kind`` and ``table`` as in plan.h, in lower case; ``shown_if`` is (argument, bits)."""

    name: str
    kind: str
    table: str | None = None
    prefix: str | None = None
    capture: Capture | None = None
    shown_if: tuple[int, int] | None = None
    type: str = ""
    change: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How a result that is no error is shown."""

    kind: str = "long"
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds when ``args[argument] & mask == value``."""

    argument: int
    mask: int
    value: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Other arguments and result while all ``conditions`` (one or two) hold."""

    conditions: tuple[Condition, ...]
    arguments: tuple[Argument, ...]
    result: Result


@dataclass(frozen=True, slots=True)
class Decoding:
    """One syscall, complete. ``order``: argument numbers in the order shown, empty = as they come."""

    syscall: Syscall
    arguments: tuple[Argument, ...]
    result: Result = field(default_factory=Result)
    zero: str | None = None
    order: tuple[int, ...] = ()
    noreturn: bool = False
    exec: bool = False
    remark: str = "none"
    variants: tuple[Variant, ...] = ()


# What each kind captures when its row says nothing; fixed lengths in bytes.
_CAPTURES = {
    "path": Capture("exit"),
    "string": Capture("exit"),
    "comm": Capture("exit"),
    "strings": Capture("enter"),
    "environment": Capture("enter"),
    "length_pointer": Capture("both"),
    "word_pointer": Capture("success"),
    "error_pointer": Capture("success"),
    "wait_status": Capture("success"),
    "fd_pair": Capture("success", "fixed", 8),
    "sigset": Capture("exit", "fixed", 8),
    "entries": Capture("success", "result"),
    "message_send": Capture("exit", "fixed", 56),
    "message_receive": Capture("both", "fixed", 56),
}

# The rules: (type, name) patterns and the kind, first match wins.
_PATHS = r"(file|path|dir|old|new|dev|.*_path)name|path|.*_pathname|new_root|put_old|specialfile|special"
_RULES: tuple[tuple[str, str, str], ...] = (
    (r"(const )?char \*", _PATHS, "path"),
    (r"const char \*", r"buf|u_msg_ptr", "pointer"),
    (r"const char \*", r".*", "string"),
    (r"const char \*const \*", r"argv", "strings"),
    (r"const char \*const \*", r"envp", "environment"),
    (r".*\*.*", r".*", "pointer"),
    (r"umode_t", r".*", "mode"),
    (r"(unsigned )?(int|long)|const int", r"dfd|olddfd|newdfd|from_dfd|to_dfd", "dirfd"),
    (r"(unsigned )?(int|long)|const int|mqd_t", r"fd|fildes|.*fd|.*_fd|fd_.*|fdin|fdout|mqdes", "fd"),
    (r"int", r"sig", "signal"),
    (r"(const )?(size_t|.*u64)", r".*", "ulong"),
    (r"loff_t|off_t", r".*", "offset"),
    (r"unsigned long|aio_context_t", r"addr|start|.*ptr|tls|newsp|brk|arg\d?|.*flags|data|idx\d", "hex"),
    (r"unsigned long", r".*", "ulong"),
    (r"long", r".*", "long"),
    (r"cap_user_\w+|const cap_user_\w+", r".*", "pointer"),
    (r"(unsigned( int)?|(const )?(__)?u32|rwf_t|qid_t)", r".*flags?|mask", "flags"),
    (r"unsigned( int)?|(const )?(__)?u32|rwf_t|qid_t", r".*", "unsigned"),
    (r"int", r".*flags?", "flags"),
)
_COMPILED = tuple((re.compile(type_), re.compile(name), kind) for type_, name, kind in _RULES)

# Not an argument to the kernel, but what it reads from the thread's stack.
_PSEUDO = {"rt_sigreturn": (Parameter("sigset_t *", "mask"),)}

_ARGUMENT = re.compile(
    r"(?:(?P<prefix>\w+)=)?(?P<kind>[a-z_0-9]+)(?::(?P<table>\w+))?(?P<change>!)?(?:\{(?P<capture>[^}]*)\})?(?:\?(?P<shown>\d)&(?P<bits>[\w|]+))?"
)
_LENGTH = re.compile(r"(?:(arg|ptr|bits)(\d)|(result)|(\d+))(?:\*(\d+))?")
# A length that is an int: the register's upper half may hold anything.
_ARGUMENT_LENGTHS = {"int": "int", "unsigned int": "uint", "unsigned": "uint", "u32": "uint", "__u32": "uint"}
_FROM = {"arg": "argument", "ptr": "pointer", "bits": "bits"}


def argument_by_rules(parameter: Parameter) -> Argument:
    """What the rules make of an argument that no row tells about: its kind, and a capture where the kind has one."""
    for type_, name, kind in _COMPILED:
        if type_.fullmatch(parameter.type) and name.fullmatch(parameter.name):
            # a word of bits that nobody has named yet: 32 bits in hex
            table = "bits" if kind == "flags" else None
            return Argument(parameter.name, kind, table, capture=_CAPTURES.get(kind), type=parameter.type)
    return Argument(parameter.name, "signed", type=parameter.type)


def _capture(text: str) -> Capture | None:
    when, _, length = text.partition(",")
    if when == "none":
        return None
    if not length:
        return Capture(when)
    found = _LENGTH.fullmatch(length)
    if found is None:
        raise ValueError(f"arguments.tsv: no length: {text!r}")
    scale = int(found[5] or 1)
    if found[1]:
        return Capture(when, _FROM[found[1]], int(found[2]), scale)
    return Capture(when, "result", 0, scale) if found[3] else Capture(when, "fixed", int(found[4]), scale)


class _Reader:
    """Turns the texts of one row into values; knows the tables, to look names up."""

    def __init__(self, tables: Mapping[str, Table], structs: Mapping[str, Struct]) -> None:
        self._tables = tables
        self._structs = structs

    def bits(self, text: str, arguments: Sequence[Argument], index: int) -> int:
        """A number, or names of the table of argument ``index`` joined by ``|``."""
        total = 0
        for part in text.split("|"):
            if part[:1].isdigit() or part[:1] == "-":
                total |= int(part, 0)
            else:
                table = arguments[index].table
                if table is None:
                    raise ValueError(f"arguments.tsv: {part} needs a table at argument {index}")
                total |= self._tables[table].value_of(part)
        return total

    def arguments(self, text: str, base: Sequence[Argument], *, whole: bool) -> tuple[Argument, ...]:
        """The row's arguments over ``base``; ``whole``: those not told stay, else they are not shown."""
        words = text.split()
        result = list(base)
        for index, word in enumerate(words):
            if index >= len(result):
                raise ValueError(f"arguments.tsv: more arguments than the kernel has: {text!r}")
            if word != "-":
                result[index] = self._argument(word, result, index)
        return tuple(result if whole else result[: len(words)])

    def _argument(self, token: str, arguments: Sequence[Argument], index: int) -> Argument:
        found = _ARGUMENT.fullmatch(token)
        names: Mapping[str, object] = self._structs if found and found["kind"] == "struct" else self._tables
        if found is None or (found["table"] and found["table"] not in names):
            raise ValueError(f"arguments.tsv: no argument or no table: {token!r}")
        kind = found["kind"]
        change = found["change"] is not None
        capture = self._captured(found["capture"], kind, found["table"])
        if capture is not None and capture.length_from == "argument":
            capture = replace(capture, length_from=_ARGUMENT_LENGTHS.get(arguments[capture.length].type, "argument"))
        if change and capture is not None:
            capture = replace(capture, when="both")
        shown_if = None
        if found["shown"]:
            other = int(found["shown"])
            shown_if = (other, self.bits(found["bits"], arguments, other))
        own = arguments[index]
        return Argument(own.name, kind, found["table"], found["prefix"], capture, shown_if, own.type, change)

    def _captured(self, text: str | None, kind: str, table: str | None) -> Capture | None:
        """What the token says, a struct's size where it tells none."""
        capture = _CAPTURES.get(kind) if text is None else _capture(text)
        if kind == "struct" and table and (capture is None or not capture.length) and text != "none":
            capture = capture or Capture("exit")
            if capture.length_from == "fixed":
                capture = replace(capture, length=self._structs[table].bytes)
        return capture

    def conditions(self, text: str, arguments: Sequence[Argument]) -> list[tuple[Condition, ...]]:
        """All combinations of the conditions' values: one variant each."""
        combinations: list[tuple[Condition, ...]] = [()]
        for part in text.split():
            left, _, values = part.partition("=")
            number, _, mask = left.partition("&")
            index = int(number)
            bits = int(mask, 0) if mask else 0xFFFFFFFF
            found = [Condition(index, bits, self.bits(v, arguments, index) & bits) for v in values.split(",")]
            combinations = [(*have, one) for have in combinations for one in found]
        return combinations


def _result(text: str, base: Decoding) -> Decoding:
    for token in text.split():
        key, is_option, value = token.partition("=")
        if key == "noreturn":
            base = replace(base, noreturn=True)
        elif key == "exec":
            base = replace(base, exec=True)
        elif key in ("poll", "select"):
            base = replace(base, remark=key)
        elif is_option and key == "zero":
            base = replace(base, zero=value)
        elif is_option and key == "order":
            base = replace(base, order=tuple(int(number) for number in value.split(",")))
        else:
            kind, _, table = token.partition(":")
            base = replace(base, result=Result(kind, table or None))
    return base


def _rows(machine: str) -> dict[str, list[list[str]]]:
    """Rows by syscall name: the first is its own, the others its variants. NAME@MACHINE wins on that machine."""
    rows: dict[str, list[list[str]]] = {}
    current = ""
    for line in data_lines("arguments.tsv"):
        cells = [cell.strip() for cell in line.split("\t")]
        if cells[0]:
            current = cells[0]
            rows[current] = [[*cells[1:], "", ""][:2]]
        else:
            rows[current].append([*cells[1:], "", ""][:3])
    suffix = f"@{machine}"
    for name in [name for name in rows if name.endswith(suffix)]:
        rows[name.removesuffix(suffix)] = rows[name]
    return rows


def load_decodings(
    syscalls: Mapping[int, Syscall],
    tables: Mapping[str, Table],
    machine: str = "x86_64",
    structs: Mapping[str, Struct] | None = None,
) -> dict[int, Decoding]:
    """A decoding for each syscall, by number. ValueError when data/arguments.tsv contradicts itself."""
    reader = _Reader(tables, load_structs(tables, machine) if structs is None else structs)
    rows = _rows(machine)
    found = {}
    for number, syscall in syscalls.items():
        parameters = _PSEUDO.get(syscall.name, syscall.parameters)
        base = Decoding(syscall, tuple(argument_by_rules(parameter) for parameter in parameters))
        own, *others = rows.get(syscall.name, [["", ""]])
        arguments = reader.arguments(own[0], base.arguments, whole=True)
        base = _result(own[1], replace(base, arguments=arguments))
        variants = []
        for conditions, texts, result in others:
            shown = reader.arguments(texts, arguments, whole=False)
            kind = _result(result, base).result
            variants += [Variant(one, shown, kind) for one in reader.conditions(conditions, arguments)]
        found[number] = replace(base, variants=tuple(variants))
    return found
