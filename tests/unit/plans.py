# SPDX-License-Identifier: Apache-2.0
"""Small decode plans for tests of the C engine, written down like the rows of otel_perfbuf.records.

What it is not: the real tables; those have tests of their own.
Source: otel_perfbuf/_core/plan.h.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otel_perfbuf._core._core import ffi, lib

Rows = Sequence[tuple[int, str]]

RESTARTS = {
    512: ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
    513: ("ERESTARTNOINTR", "To be restarted"),
    514: ("ERESTARTNOHAND", "To be restarted if no handler"),
    516: ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
}


@dataclass(frozen=True)
class Table:
    """Names of flags or values."""

    rows: Rows
    unknown: str | None = None
    mask: int = 0


@dataclass(frozen=True)
class Arg:
    """One argument; ``table`` is a key of the plan's tables (or structs)."""

    name: str
    kind: int
    table: str | None = None
    prefix: str | None = None
    shown_if: tuple[int, int] | None = None  # (argument, mask)


@dataclass(frozen=True)
class Field:
    """A struct's field."""

    name: str
    offset: int
    size: int
    kind: int
    table: str | None = None


@dataclass(frozen=True)
class Struct:
    """A captured struct."""

    fields: Sequence[Field]
    size: int
    array: bool = False
    more: bool = False


@dataclass(frozen=True)
class Variant:
    """Other arguments where (args[argument] & mask) == value."""

    argument: int
    mask: int
    value: int
    args: Sequence[Arg]
    result: int = 0
    result_table: str | None = None


@dataclass(frozen=True)
class Row:
    """One system call."""

    name: str | None
    args: Sequence[Arg] = ()
    result: int = 0
    order: Sequence[int] = ()
    variants: Sequence[Variant] = ()
    result_zero: str | None = None
    result_table: str | None = None


class Plan:
    """Owns all memory of one struct pb_plan, which is ``c``."""

    def __init__(
        self,
        rows: Mapping[int, Row],
        tables: Mapping[str, Table] | None = None,
        structs: Mapping[str, Struct] | None = None,
        codes: Sequence[Rows] = (),
        string_bytes: int = 32,
    ) -> None:
        self.keep: list[Any] = []
        tables, structs = tables or {}, structs or {}
        self.table_index = {name: index for index, name in enumerate(tables)}
        self.struct_index = {name: index for index, name in enumerate(structs)}
        self.c = self.new("struct pb_plan *")
        self.c.tables, self.c.table_count = self.tables(list(tables.values())), len(tables)
        self.c.structs, self.c.struct_count = self.structs(list(structs.values())), len(structs)
        self.c.families_table = self.table_index.get("families", 1 << 20)
        errors = {**{n: (name, os.strerror(n)) for n, name in errno.errorcode.items()}, **RESTARTS}
        self.c.errors = self.rows([(n, errors[n][0]) for n in sorted(errors)])
        texts = [self.text(errors[n][1]) for n in sorted(errors)]
        self.c.error_texts, self.c.error_count = self.new("char *[]", texts), len(errors)
        names = sorted((int(s), s.name) for s in signal.Signals if s < 32)
        self.c.signals, self.c.signal_count = self.rows(names), len(names)
        padded = [*codes, *[()] * (9 - len(codes))]
        self.c.signal_codes = self.tables([Table(rows) for rows in padded])
        self.c.string_bytes = string_bytes
        calls = self.new("struct pb_syscall_plan[]", max(rows, default=0) + 1)
        for number, row in rows.items():
            self.fill(calls[number], row)
        self.c.syscalls, self.c.syscall_count = calls, max(rows, default=-1) + 1

    def new(self, kind: str, *value: Any) -> Any:
        """Memory by cffi that lives as long as this plan."""
        self.keep.append(ffi.new(kind, *value))
        return self.keep[-1]

    def text(self, value: str | None) -> Any:
        """A C string or NULL."""
        return ffi.NULL if value is None else self.new("char[]", value.encode())

    def rows(self, rows: Rows) -> Any:
        """An array of struct pb_name."""
        names = self.new("struct pb_name[]", max(len(rows), 1))
        for row, (value, name) in zip(names, rows, strict=False):
            row.value, row.name = value & (1 << 64) - 1, self.text(name)
        return names

    def tables(self, tables: Sequence[Table]) -> Any:
        """An array of struct pb_table."""
        array = self.new("struct pb_table[]", max(len(tables), 1))
        for c, table in zip(array, tables, strict=False):
            c.rows, c.count, c.mask = self.rows(table.rows), len(table.rows), table.mask
            c.unknown = self.text(table.unknown)
        return array

    def structs(self, structs: Sequence[Struct]) -> Any:
        """An array of struct pb_struct."""
        array = self.new("struct pb_struct[]", max(len(structs), 1))
        for c, layout in zip(array, structs, strict=False):
            fields = self.new("struct pb_field[]", max(len(layout.fields), 1))
            for at, one in zip(fields, layout.fields, strict=False):
                at.name, at.offset, at.bytes, at.kind = self.text(one.name), one.offset, one.size, one.kind
                at.table = self.table_index.get(one.table or "", 0)
            c.fields, c.count, c.bytes = fields, len(layout.fields), layout.size
            c.array, c.more, c.least = layout.array, layout.more, 0 if layout.array else layout.size
        return array

    def argument(self, c: Any, arg: Arg) -> None:
        """Fills one struct pb_argument."""
        index = self.struct_index if arg.kind == lib.PB_ARG_STRUCT else self.table_index
        c.name, c.kind, c.prefix = self.text(arg.name), arg.kind, self.text(arg.prefix)
        c.table = index[arg.table] if arg.table else 0
        if arg.shown_if:
            c.shown_if_argument, c.shown_if_mask = arg.shown_if[0] + 1, arg.shown_if[1]

    def fill(self, c: Any, row: Row) -> None:
        """Fills one struct pb_syscall_plan."""
        c.name, c.arguments, c.result_kind = self.text(row.name), len(row.args), row.result
        c.result_zero, c.result_table = self.text(row.result_zero), self.table_index.get(row.result_table or "", 0)
        for index, arg in enumerate(row.args):
            self.argument(c.args[index], arg)
        for index, argument in enumerate(row.order):
            c.order[index] = argument + 1
        c.variants, c.variant_count = self.new("struct pb_variant[]", len(row.variants) or 1), len(row.variants)
        for one, variant in zip(c.variants[0 : len(row.variants)], row.variants, strict=True):
            one.conditions[0].argument, one.conditions[0].mask = variant.argument, variant.mask
            one.conditions[0].value = variant.value
            one.args = args = self.new("struct pb_argument[]", len(variant.args) or 1)
            for index, arg in enumerate(variant.args):
                self.argument(args[index], arg)
            one.arguments, one.result_kind = len(variant.args), variant.result
            one.result_table = self.table_index.get(variant.result_table or "", 0)
