# SPDX-License-Identifier: Apache-2.0
"""Which spans and log records of an OTLP request call for a dump: the C scan, and what it found as Python values.

What it is not: it parses no message and fires nothing (telemetry.py). Source: otel_perfbuf/_core/otlp_scan.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from otel_perfbuf._core._core import ffi, lib

__all__ = ["HITS_MAX", "Found", "Hit", "MalformedRequest", "ScanRules", "Scanner"]

Signal = Literal["logs", "traces"]

HITS_MAX: Final = 1000
"""Hits of one request that are looked at; more are counted."""

_TEXT_MAX_BYTES: Final = 2048
_RESOURCE_MAX_BYTES: Final = 16 << 10
_RECORD_MAX_BYTES: Final = 8 << 10
_HAS_TRACE_ID: Final = lib.PB_HIT_TRACE_ID
_HAS_SPAN_ID: Final = lib.PB_HIT_SPAN_ID
_HAS_THREAD_ID: Final = lib.PB_HIT_THREAD_ID
_HAS_PROCESS_ID: Final = lib.PB_HIT_PROCESS_ID
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
    ``enum pb_hit_why``. ``message``: a status's, or a log record's body when that is text. ``record`` is the whole
    message where it has to be asked for more, else empty.
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
    record: bytes
    own: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What a request holds: all its records, how many are looked for, how many are of our own scope; and the hits."""

    records: int
    hits: int
    own: int
    first: list[Hit]


class Scanner:
    """Scans requests by one set of rules; one thread at a time (its memory is made once)."""

    def __init__(self, rules: ScanRules) -> None:
        self._rules = ffi.new(
            "struct pb_scan_rules *",
            {
                "errors": int(rules.errors),
                "longer_than_ns": _NEVER_NS if rules.longer_than_ns is None else rules.longer_than_ns,
                "at_least": _NEVER_SEVERE if rules.at_least is None else rules.at_least,
            },
        )
        self._hits = ffi.new("struct pb_hit[]", HITS_MAX)
        self._result = ffi.new("struct pb_scan *")

    def scan(self, signal: Signal, body: bytes) -> Found:
        """The records of one request; MalformedRequest when the bytes are no such message."""
        kind = lib.PB_SCAN_LOGS if signal == "logs" else lib.PB_SCAN_TRACES
        status = lib.pb_otlp_scan(
            ffi.from_buffer(body), len(body), kind, self._rules, self._hits, HITS_MAX, self._result
        )
        if status != lib.PB_OK:
            message = "ExportLogsServiceRequest" if signal == "logs" else "ExportTraceServiceRequest"
            raise MalformedRequest(f"the body of {len(body)} bytes is no {message}")
        result = self._result
        count = min(int(result.hits), HITS_MAX)
        resources: dict[int, bytes] = {}
        rows = _ROW.iter_unpack(ffi.buffer(self._hits, count * _ROW.size))
        first = [_hit(dict(zip(_NAMES, row, strict=True)), body, resources) for row in rows]
        return Found(int(result.records), int(result.hits), int(result.own), first)


def _layout() -> tuple[struct.Struct, tuple[str, ...]]:
    """struct pb_hit for the struct module, from the header's own declaration: cffi takes 100 ns for a field."""
    formats, names = ["="], list[str]()
    for name, field in ffi.typeof("struct pb_hit").fields:
        kind = field.type.cname
        if kind == "struct pb_range":
            names += [name, f"{name}_bytes"]
            formats.append("QQ")
        else:
            names.append(name)
            formats.append(_FORMATS.get(kind) or f"{field.type.length}s")
    row = struct.Struct("".join(formats))
    assert row.size == ffi.sizeof("struct pb_hit"), "padding in struct pb_hit"
    return row, tuple(names)


_FORMATS: Final = {"uint64_t": "Q", "int64_t": "q", "uint32_t": "I", "int32_t": "i"}
_ROW, _NAMES = _layout()


def _hit(row: dict[str, Any], body: bytes, resources: dict[int, bytes]) -> Hit:
    """``resources``: what was copied already, by offset; many hits are of one resource."""
    has = row["has"]
    message = _text(body, row["message"], row["message_bytes"])
    resource = resources.get(row["resource"])
    if resource is None:
        start, size = row["resource"], row["resource_bytes"]
        # One that is too large to be one is not asked who it is.
        resource = resources[start] = body[start : start + size] if size <= _RESOURCE_MAX_BYTES else b""
    record = b""
    if not message and row["record_bytes"] <= _RECORD_MAX_BYTES:
        record = body[row["record"] : row["record"] + row["record_bytes"]]
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
        resource,
        record,
        bool(has & _IS_OWN),
    )


def _text(body: bytes, start: int, size: int) -> str:
    return body[start : start + min(size, _TEXT_MAX_BYTES)].decode("utf-8", "replace") if size else ""
