# SPDX-License-Identifier: Apache-2.0
"""Which spans and log records of an OTLP request call for a dump: the C scan, and what it found as Python values.

What it is not: it parses no message and fires nothing (telemetry.py). Source: otel_perfbuf/_core/otlp_scan.h and
otlp_group.h. A storm is one group: what is alike is made a Python value once, the rest stays bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.triggers.alike import SPAN_BYTES, layout_of

__all__ = ["HITS_MAX", "Found", "Group", "Hit", "MalformedRequest", "Origin", "ScanRules", "Scanner"]

Signal = Literal["logs", "traces"]

HITS_MAX: Final = 8192
"""Hits of one request that are looked at, as many as a request of OTLP usually has at most; more are counted."""

_TEXT_MAX_BYTES: Final = 2048
_RESOURCE_MAX_BYTES: Final = 16 << 10
_HAS_TRACE_ID: Final = lib.PB_HIT_TRACE_ID
_HAS_SPAN_ID: Final = lib.PB_HIT_SPAN_ID
_HAS_THREAD_ID: Final = lib.PB_HIT_THREAD_ID
_HAS_PROCESS_ID: Final = lib.PB_HIT_PROCESS_ID
_HAS_EXCEPTION: Final = lib.PB_HIT_EXCEPTION
_IS_OWN: Final = lib.PB_HIT_OWN
_NEVER_NS: Final = (1 << 64) - 1
_NEVER_SEVERE: Final = (1 << 31) - 1


class MalformedRequest(ValueError):
    """The bytes are no such OTLP request."""


@dataclass(frozen=True, slots=True)
class ScanRules:
    """What is looked for. ``longer_than_ns`` None: no span is slow; ``at_least`` None: no log record is severe."""

    errors: bool = False
    longer_than_ns: int | None = None
    at_least: int | None = None


class Hit(NamedTuple):
    """One span or log record that is looked for; nothing in it refers to the request.

    ``start_unix_ns``/``end_unix_ns``: a span's; of a log record its time and its observed time. ``why``: bits of
    ``enum pb_hit_why``. ``message``: a status's, or a log record's body when that is text; where a status has none,
    what the span's last exception event says ("TYPE: MESSAGE").
    """

    why: int
    trace_id: bytes | None
    span_id: bytes | None
    flags: int
    start_unix_ns: int
    end_unix_ns: int
    thread_id: int | None
    process_id: int | None
    name: str
    message: str
    resource: bytes
    own: bool


class Group(NamedTuple):
    """Hits of one origin whose reasons differ in numbers only: the first, and the spans of all in the request's order.

    ``spans`` is what Alike (firing.py) reads.
    """

    hit: int
    spans: bytes


class Origin(NamedTuple):
    """Hits of one kind, resource, process id and thread id: the first, the spans of all, and which groups they are."""

    hit: int
    spans: bytes
    groups: range


@dataclass(frozen=True, slots=True)
class Found:
    """What a request holds: all its records, how many are looked for, how many are of our own scope; and ``kept``,
    the hits that are looked at, numbered from 0. Valid until the scanner's next scan.
    """

    records: int
    hits: int
    own: int
    kept: int
    _scanner: Scanner = field(repr=False)
    _body: bytes = field(repr=False)

    def hit(self, number: int) -> Hit:
        """One of them."""
        return self._scanner.hit(number, self._body)

    def origins(self, *, alike: bool = True) -> Iterator[Origin]:
        """All of them. ``alike`` False: each is a group of its own, whatever its reason."""
        return self._scanner.origins(self.kept, self._body, alike=alike)

    def groups(self, origin: Origin) -> Iterator[Group]:
        """Those of an origin; ask for `origins` first."""
        return map(self._scanner.group, origin.groups)


class Scanner:
    """Scans requests by one set of rules; one thread at a time (its memory is made once, at the first request)."""

    def __init__(self, rules: ScanRules) -> None:
        self._rules = ffi.new(
            "struct pb_scan_rules *",
            {
                "errors": int(rules.errors),
                "longer_than_ns": _NEVER_NS if rules.longer_than_ns is None else rules.longer_than_ns,
                "at_least": _NEVER_SEVERE if rules.at_least is None else rules.at_least,
            },
        )
        self._memory: _Memory | None = None
        self._result = ffi.new("struct pb_scan *")

    def scan(self, signal: Signal, body: bytes) -> Found:
        """The records of one request; MalformedRequest when the bytes are no such message."""
        memory = self._memory = self._memory or _Memory()
        kind = lib.PB_SCAN_LOGS if signal == "logs" else lib.PB_SCAN_TRACES
        status = lib.pb_otlp_scan(
            ffi.from_buffer(body), len(body), kind, self._rules, memory.hits, HITS_MAX, self._result
        )
        if status != lib.PB_OK:
            message = "ExportLogsServiceRequest" if signal == "logs" else "ExportTraceServiceRequest"
            raise MalformedRequest(f"the body of {len(body)} bytes is no {message}")
        result = self._result
        hits = int(result.hits)
        return Found(int(result.records), hits, int(result.own), min(hits, HITS_MAX), self, body)

    def hit(self, number: int, body: bytes) -> Hit:
        """See Found.hit."""
        assert self._memory is not None
        row = _ROW.unpack_from(self._memory.hit_bytes, number * _ROW.size)
        return _hit(dict(zip(_NAMES, row, strict=True)), body)

    def origins(self, kept: int, body: bytes, *, alike: bool) -> Iterator[Origin]:
        """See Found.origins."""
        memory = self._memory
        assert memory is not None
        groups = memory.groups
        lib.pb_hits_group(ffi.from_buffer(body), memory.hits, kept, alike, groups)
        spans = memory.span_bytes
        for at in range(groups.origins_found):
            hit, first, count, within, inner, _ = _GROUP.unpack_from(memory.origin_bytes, at * _GROUP.size)
            yield Origin(
                hit,
                spans[first * SPAN_BYTES : (first + count) * SPAN_BYTES],
                range(within, within + inner),
            )

    def group(self, number: int) -> Group:
        """See Found.groups."""
        memory = self._memory
        assert memory is not None
        hit, first, count, *_ = _GROUP.unpack_from(memory.group_bytes, number * _GROUP.size)
        return Group(hit, memory.span_bytes[first * SPAN_BYTES : (first + count) * SPAN_BYTES])


class _Memory:
    """What the C side writes into: some 2.5 MB, most of them touched by large requests only."""

    def __init__(self) -> None:
        self.hits = ffi.new("struct pb_hit[]", HITS_MAX)
        self.hit_bytes = ffi.buffer(self.hits)
        kinds = {"origins": "struct pb_hit_group", "groups": "struct pb_hit_group", "scratch": "struct pb_hit_group"}
        kinds |= {"spans": "struct pb_hit_span", "group_of": "uint32_t", "moved": "uint32_t"}
        self._arrays = {name: ffi.new(f"{kind}[]", HITS_MAX) for name, kind in kinds.items()}
        self._arrays["table"] = ffi.new("uint32_t[]", 4 * HITS_MAX)
        self.groups = ffi.new("struct pb_hit_groups *", {**self._arrays, "capacity": HITS_MAX})
        self.origin_bytes = ffi.buffer(self._arrays["origins"])
        self.group_bytes = ffi.buffer(self._arrays["groups"])
        self.span_bytes = ffi.buffer(self._arrays["spans"])


_ROW, _NAMES = layout_of("struct pb_hit")
_GROUP, _ = layout_of("struct pb_hit_group")


def _hit(row: dict[str, Any], body: bytes) -> Hit:
    has = row["has"]
    message = _text(body, row["message"], row["message_bytes"])
    if not message and has & _HAS_EXCEPTION:
        said = (_text(body, row[name], row[f"{name}_bytes"]) for name in ("exception_type", "exception_message"))
        message = ": ".join(filter(None, said)) or "exception"
    start, size = row["resource"], row["resource_bytes"]
    return Hit(
        row["why"],
        row["trace_id"] if has & _HAS_TRACE_ID else None,
        row["span_id"] if has & _HAS_SPAN_ID else None,
        row["flags"] & 0xFF,
        row["start_ns"],
        row["end_ns"],
        row["thread_id"] if has & _HAS_THREAD_ID else None,
        row["process_id"] if has & _HAS_PROCESS_ID else None,
        _text(body, row["name"], row["name_bytes"]),
        message,
        # One that is too large to be one is not asked who it is.
        body[start : start + size] if size <= _RESOURCE_MAX_BYTES else b"",
        bool(has & _IS_OWN),
    )


def _text(body: bytes, start: int, size: int) -> str:
    return body[start : start + min(size, _TEXT_MAX_BYTES)].decode("utf-8", "replace") if size else ""
