# SPDX-License-Identifier: Apache-2.0
"""The decode plan: everything the C renderer and encoder need to know about records, built once from the tables.

What it is not: it decodes nothing itself; _core/text.c and otlp.c follow the plan.
Source: otel_perfbuf/_core/plan.h (its structs are filled here and nowhere else).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.records.arguments import Argument, Decoding, Result, load_decodings
from otel_perfbuf.records.constants import Table, load_tables
from otel_perfbuf.records.errnos import SIGNAL_CODES, error_rows, signal_rows
from otel_perfbuf.records.fd_rules import fd_rule
from otel_perfbuf.records.redaction import Redaction
from otel_perfbuf.records.structs import Field, Struct, load_structs
from otel_perfbuf.records.syscalls import load_syscalls

__all__ = ["Plan", "build_plan"]

_U64 = (1 << 64) - 1
_ENTRIES = 512  # plan.syscalls[] by number, as the BPF side's PB_SYSCALLS


# Kinds that differ in what is captured only.
_KINDS = {
    "enum_number_hex": "enum_hex",
    "iovec_read": "iovec",
    "iovec_write": "iovec",
    "message_send": "message",
    "message_receive": "message",
    "messages_send": "messages",
    "messages_receive": "messages",
}
_TABLES = {
    "families_table": "families",
    "poll_table": "poll_events",
    "message_table": "msg_flags",
    "levels_table": "socket_levels",
}
_WIDE = re.compile(r"long|u64|size_t|\*|aio_context_t")


class Plan:
    """A ``struct pb_plan`` and all memory behind it; ``pointer`` is valid as long as this object lives.

    ``decodings`` are the syscalls by number, for whoever asks for names (``plan.syscall_name(59)``); ``redaction`` is
    what may not be shown of strings, or None.
    """

    def __init__(
        self,
        decodings: dict[int, Decoding],
        tables: dict[str, Table],
        structs: dict[str, Struct],
        *,
        string_bytes: int,
        redaction: Redaction | None = None,
    ) -> None:
        self.decodings = decodings
        self._keep: list[Any] = []  # cffi memory lives as long as its Python object
        self._texts: dict[str, Any] = {}
        self._numbers = {name: number for number, name in enumerate(tables)}
        self._struct_numbers = {name: number for number, name in enumerate(structs)}
        self._wide = {name for name, table in tables.items() if any(value >> 32 for value, _ in table.rows)}
        self.pointer = self._new("struct pb_plan *")
        self._fill(tables, string_bytes)
        self._fill_structs(structs)
        self.redaction = redaction
        if redaction is not None:
            self.pointer.redaction = redaction.pointer

    def syscall_name(self, number: int) -> str:
        """``openat``; ``syscall_N`` for a number that the tables lack."""
        decoding = self.decodings.get(number)
        return decoding.syscall.name if decoding else f"syscall_{number}"

    def _new(self, declaration: str, *arguments: Any) -> Any:
        memory = ffi.new(declaration, *arguments)
        self._keep.append(memory)
        return memory

    def _text(self, text: str | None) -> Any:
        if text is None:
            return ffi.NULL
        if text not in self._texts:
            self._texts[text] = ffi.new("char[]", text.encode())
        return self._texts[text]

    def _names(self, rows: Iterable[tuple[int, str]]) -> tuple[Any, int]:
        found = [(value & _U64, self._text(name)) for value, name in rows]
        return self._new("struct pb_name[]", found), len(found)

    def _fill(self, tables: dict[str, Table], string_bytes: int) -> None:
        plan = self.pointer
        plan.tables = self._new("struct pb_table[]", len(tables))
        plan.table_count = len(tables)
        for index, table in enumerate(tables.values()):
            self._table(plan.tables[index], table.rows, table.mask, table.unknown)
        plan.syscalls = self._new("struct pb_syscall_plan[]", _ENTRIES)
        plan.syscall_count = _ENTRIES
        for number, decoding in self.decodings.items():
            if number < _ENTRIES:
                self._syscall(plan.syscalls[number], decoding)
        errors = error_rows()
        plan.errors, plan.error_count = self._names((number, name) for number, name, _ in errors)
        plan.error_texts = self._new("const char *[]", [self._text(text) for _, _, text in errors])
        plan.signals, plan.signal_count = self._names(signal_rows())
        plan.signal_codes = self._new("struct pb_table[]", len(SIGNAL_CODES))
        for index, rows in enumerate(SIGNAL_CODES):
            # the kernel's si_code is an int: negative ones compare as 32 bits
            self._table(plan.signal_codes[index], sorted((value & 0xFFFFFFFF, name) for value, name in rows), 0, None)
        plan.string_bytes = string_bytes
        for member, title in _TABLES.items():
            setattr(plan, member, self._numbers[title])

    def _fill_structs(self, structs: dict[str, Struct]) -> None:
        plan = self.pointer
        plan.structs = self._new("struct pb_struct[]", len(structs))
        plan.struct_count = len(structs)
        for name in ("timespec", "timeval", "clone_args"):
            setattr(plan, name, self._struct_numbers[name])
        for row, layout in zip(plan.structs[0 : len(structs)], structs.values(), strict=True):
            row.fields, row.count = self._new("struct pb_field[]", max(1, len(layout.fields))), len(layout.fields)
            row.bytes, row.array, row.more, row.tail = layout.bytes, layout.array, layout.more, layout.tail
            row.bare, row.least, row.most = layout.bare, layout.least, layout.most
            for target, one in zip(row.fields[0 : row.count], layout.fields, strict=True):
                self._field(target, one)

    def _field(self, target: Any, one: Field) -> None:
        target.name, target.kind, target.offset = self._text(one.name), _kind(one.kind), one.offset
        target.bytes, target.count = one.bytes, one.count
        numbers = self._struct_numbers if one.kind == "struct" else self._numbers
        target.table = numbers[one.table] if one.table else 0
        if one.shown:
            target.if_offset, target.if_bytes, target.if_not = one.shown.offset, one.shown.bytes, one.shown.negated
            target.if_mask, target.if_value = one.shown.mask, one.shown.value

    def _table(self, table: Any, rows: Sequence[tuple[int, str]], mask: int, unknown: str | None) -> None:
        table.rows, table.count = self._names(rows)
        table.mask = mask
        table.unknown = self._text(unknown)

    def _syscall(self, row: Any, decoding: Decoding) -> None:
        row.name = self._text(decoding.syscall.name)
        row.arguments = len(decoding.arguments)
        row.result_kind, row.result_table = self._result(decoding.result)
        row.flags = lib.PB_SYSCALL_NO_RETURN if decoding.noreturn else 0
        row.flags |= lib.PB_SYSCALL_EXEC if decoding.exec else 0
        row.remark = getattr(lib, f"PB_REMARK_{decoding.remark.upper()}")
        for index, number in enumerate(decoding.order):
            row.order[index] = number + 1
        for index, argument in enumerate(decoding.arguments):
            self._argument(row.args[index], argument)
        row.result_zero = self._text(decoding.zero)
        self._fds(row.fds, decoding)
        if not decoding.variants:
            return
        row.variants = self._new("struct pb_variant[]", len(decoding.variants))
        row.variant_count = len(decoding.variants)
        shared: dict[tuple[Argument, ...], Any] = {}
        for variant, spec in zip(row.variants[0 : row.variant_count], decoding.variants, strict=True):
            for index, condition in enumerate(spec.conditions):
                target = variant.conditions[index]
                target.argument, target.mask, target.value = condition.argument, condition.mask, condition.value
            if spec.arguments not in shared:
                shared[spec.arguments] = self._new("struct pb_argument[]", max(1, len(spec.arguments)))
                for index, argument in enumerate(spec.arguments):
                    self._argument(shared[spec.arguments][index], argument)
            variant.args = shared[spec.arguments]
            variant.arguments = len(spec.arguments)
            variant.result_kind, variant.result_table = self._result(spec.result)

    def _fds(self, row: Any, decoding: Decoding) -> None:
        rule = fd_rule(decoding.syscall.name, decoding.result.kind)
        if rule is None:
            return
        row.action = getattr(lib, f"PB_FD_{rule.action.upper()}")
        for key in ("fd", "path", "flags"):
            number = getattr(rule, key)
            setattr(row, key, lib.PB_FD_NO_ARGUMENT if number is None else number)
        row.close_on_exec = rule.close_on_exec
        row.text = self._text(rule.text)

    def _result(self, result: Result) -> tuple[int, int]:
        return _kind(result.kind), self._numbers[result.table] if result.table else 0

    def _argument(self, row: Any, argument: Argument) -> None:
        row.name = self._text(argument.name)
        row.kind = _kind(argument.kind)
        numbers = self._struct_numbers if argument.kind == "struct" else self._numbers
        row.table = numbers[argument.table] if argument.table else 0
        row.wide = bool(_WIDE.search(argument.type)) or argument.table in self._wide
        row.change = argument.change or argument.kind == "messages_receive"
        if argument.kind == "hex" and not row.wide and argument.type:
            row.kind = lib.PB_ARG_HEX32
        row.prefix = self._text(argument.prefix + "=" if argument.prefix else None)
        if argument.shown_if:
            row.shown_if_argument, row.shown_if_mask = argument.shown_if[0] + 1, argument.shown_if[1]


def _kind(name: str) -> int:
    value: int = getattr(lib, "PB_ARG_" + _KINDS.get(name, name).upper())
    return value


def build_plan(*, string_bytes: int = 128, machine: str | None = None, redaction: Redaction | None = None) -> Plan:
    """The plan for this machine (or ``x86_64``, ``aarch64``), argument names from the running kernel's tracefs.

    ``string_bytes``: how much of a string or buffer is shown before ``...`` (paths are shown whole).
    ``redaction``: what is shown of strings only in part; the plan is then of one thread at a time. None: all is shown.
    Takes some 30 ms; build it once. Raises ConfigError for a machine without tables.
    """
    name = machine or platform.machine()
    tables = load_tables(name)
    structs = load_structs(tables, name)
    decodings = load_decodings(load_syscalls(machine), tables, name, structs)
    return Plan(decodings, tables, structs, string_bytes=string_bytes, redaction=redaction)
