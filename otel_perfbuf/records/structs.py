# SPDX-License-Identifier: Apache-2.0
"""Layouts of the structs that arguments point to: the meaning of data/structs.tsv.

    NAME    bytes    options    FIELD ...
    FIELD:      [NAME=]KIND[:TABLE]@OFFSET[.BYTES][*COUNT][?[!]OTHER&MASK=VALUE]
    OTHER:      an earlier field, or OFFSET.BYTES
                bitN: shown as 1 when that bit of the byte is set
    options:    array, more (ends in ", ..."), tail (unknown bytes behind it in hex; tail2: as "..."), bare (no braces),
                least=BYTES (fewer are shown as an address), most=ELEMENTS

NAME@MACHINE wins on that machine. KIND as in plan.h, in lower case; BYTES default to what the kind has.
What it is not: it knows no argument (arguments.py). Source: include/uapi of Linux; strace 6.1's output for the form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from otel_perfbuf.records.constants import Table
from otel_perfbuf.records.syscalls import data_lines

__all__ = ["Field", "Shown", "Struct", "load_structs"]

_BYTES = {"signed": 4, "unsigned": 4, "fd": 4, "dirfd": 4, "signal": 4, "uid": 4, "hex32": 4, "priority": 4, "mode": 4}
_FIELD = re.compile(
    r"(?:(?P<name>[\w.]+)=)?(?P<kind>[a-z_0-9]+)(?::(?P<table>\w+))?@(?P<offset>\d+)(?:\.(?P<bytes>\d+))?(?:\*(?P<count>\d+))?"
    r"(?:\?(?P<not>!)?(?P<other>[\w.]+)&(?P<mask>\w+)=(?P<value>\w+))?"
)
_PLACE = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Shown:
    """Shown when (the word of ``bytes`` at ``offset`` & ``mask``) == ``value``; ``negated``: when not."""

    offset: int
    bytes: int
    mask: int
    value: int
    negated: bool


@dataclass(frozen=True, slots=True)
class Field:
    """One field; ``name`` None: its value alone. ``table``: of names, for the kind ``struct`` the struct's name."""

    name: str | None
    kind: str
    offset: int
    bytes: int
    table: str | None = None
    count: int = 1
    shown: Shown | None = None


@dataclass(frozen=True, slots=True)
class Struct:
    """One layout; ``bytes`` of an element where ``array``."""

    name: str
    bytes: int
    fields: tuple[Field, ...]
    array: bool = False
    more: bool = False
    tail: int = 0
    bare: bool = False
    least: int = 0
    most: int = 0


def _field(text: str, before: Mapping[str, Field], tables: Mapping[str, Table]) -> Field:
    found = _FIELD.fullmatch(text)
    if found is None:
        raise ValueError(f"structs.tsv: no field: {text!r}")
    kind, table = found["kind"], found["table"]
    if bit := re.fullmatch(r"bit([0-7])", kind):
        offset, mask = int(found["offset"]), 1 << int(bit[1])
        return Field(found["name"], "one", offset, 1, shown=Shown(offset, 1, mask, mask, negated=False))
    if table and kind != "struct" and table not in tables:
        raise ValueError(f"structs.tsv: no table {table!r}: {text!r}")
    size = int(found["bytes"] or _BYTES.get(kind, 8))
    shown = None
    if found["other"]:
        place = _PLACE.fullmatch(found["other"])
        offset, width = (
            (int(place[1]), int(place[2])) if place else (before[found["other"]].offset, before[found["other"]].bytes)
        )
        shown = Shown(offset, width, int(found["mask"], 0), int(found["value"], 0), found["not"] is not None)
    return Field(found["name"], kind, int(found["offset"]), size, table, int(found["count"] or 1), shown)


def _struct(line: str, tables: Mapping[str, Table]) -> Struct:
    name, size, options, *texts = line.split("\t")
    fields: dict[str, Field] = {}
    for index, text in enumerate(" ".join(texts).split()):
        field = _field(text, fields, tables)
        fields[field.name if field.name and field.name not in fields else f"{index}"] = field
    words = dict(word.partition("=")[::2] for word in options.split())
    return Struct(
        name,
        int(size),
        tuple(fields.values()),
        "array" in words,
        "more" in words,
        1 if "tail" in words else 2 if "tail2" in words else 0,
        "bare" in words or all(field.name is None for field in fields.values()),
        int(words.get("least", 0)),
        int(words.get("most", 0)),
    )


def load_structs(tables: Mapping[str, Table], machine: str = "x86_64") -> dict[str, Struct]:
    """All structs by name, in a fixed order. ValueError when data/structs.tsv contradicts itself."""
    found = {}
    for line in data_lines("structs.tsv"):
        struct = _struct(line, tables)
        name, _, only = struct.name.partition("@")
        if only in ("", machine):
            found[name] = struct
    for struct in found.values():
        for field in struct.fields:
            if field.kind == "struct" and field.table not in found:
                raise ValueError(f"structs.tsv: {struct.name} names no struct: {field.table}")
    return found
