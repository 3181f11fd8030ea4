# SPDX-License-Identifier: Apache-2.0
"""Occurrences that are alike: of a thousand failed spans of one reason, what is kept of all but the first.

What it is not: a firing each, until one may make or join a dump. Source: otel_perfbuf/_core/otlp_group.h; CONTRACT
section 3 (each span of a dump's firings is linked).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.triggers.firing import Firing, SpanContext
from otel_perfbuf.triggers.manners import without_numbers

__all__ = ["SPAN_BYTES", "Alike", "Row", "fired_at", "layout_of"]

_LATE_NS: Final = 600_000_000_000  # an end of a span that is older than this, or to come, is no time to look back from
_FORMATS: Final = {"uint64_t": "Q", "int64_t": "q", "uint32_t": "I", "int32_t": "i"}


def layout_of(name: str) -> tuple[struct.Struct, tuple[str, ...]]:
    """A C struct for the struct module, from the header's own declaration: cffi takes 100 ns for a field.

    A range is two numbers, its bytes under the name with `_bytes` behind.
    """
    formats, names = ["="], list[str]()
    for field_name, member in ffi.typeof(name).fields:
        kind = member.type.cname
        if kind == "struct pb_range":
            names += [field_name, f"{field_name}_bytes"]
            formats.append("QQ")
        else:
            names.append(field_name)
            formats.append(_FORMATS.get(kind) or f"{member.type.length}s")
    row = struct.Struct("".join(formats))
    assert row.size == ffi.sizeof(name), f"padding in {name}"
    return row, tuple(names)


class Row(NamedTuple):
    """struct pb_hit_span."""

    start_ns: int
    end_ns: int
    trace_id: bytes
    span_id: bytes
    flags: int
    has: int

    @property
    def trace(self) -> bytes | None:
        """The trace's id; None without a span."""
        return self.trace_id if self.has & _HAS_SPAN == _HAS_SPAN else None


_ROW, _NAMES = layout_of("struct pb_hit_span")
assert Row._fields == _NAMES
SPAN_BYTES: Final = _ROW.size
_HAS_SPAN: Final = lib.PB_HIT_TRACE_ID | lib.PB_HIT_SPAN_ID


def fired_at(then_unix_ns: int, now_unix_ns: int) -> int:
    """When something fired that says it ended then: now, if that is no time."""
    return then_unix_ns if max(now_unix_ns - _LATE_NS, 0) < then_unix_ns <= now_unix_ns else now_unix_ns


@dataclass(frozen=True, slots=True)
class Alike:
    """``spans``: array of struct pb_hit_span, in the order of their telemetry, which came at ``now_unix_ns``."""

    spans: bytes
    now_unix_ns: int
    is_log: bool

    def __len__(self) -> int:
        return len(self.spans) // SPAN_BYTES

    def __iter__(self) -> Iterator[Row]:
        return map(Row._make, _ROW.iter_unpack(self.spans))

    def after(self, count: int) -> Alike:
        """Those behind the first ``count``."""
        return Alike(self.spans[count * SPAN_BYTES :], self.now_unix_ns, self.is_log)

    def firing(self, first: Firing, row: Row) -> Firing:
        """The firing of one of them, where ``first`` is that of the first: the numbers of its reason are not known."""
        then = (row.start_ns or row.end_ns) if self.is_log else row.end_ns
        span = None if row.trace is None else SpanContext(row.trace, row.span_id, row.flags & 0xFF)
        return replace(
            first,
            reason=without_numbers(first.reason),
            unix_ns=fired_at(then, self.now_unix_ns),
            span=span,
            start_unix_ns=0 if self.is_log else row.start_ns,
            end_unix_ns=0 if self.is_log else row.end_ns,
            span_name=None,
            alike=None,
        )
