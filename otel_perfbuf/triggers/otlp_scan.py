# SPDX-License-Identifier: Apache-2.0
"""Which spans and log records of an OTLP request call for a dump: the C scan, and what it found as Python values.

What it is not: it parses no message and fires nothing (telemetry.py). Source: otel_perfbuf/_core/otlp_scan.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from otel_perfbuf._core._core import ffi, lib

__all__ = ["HITS_MAX", "Found", "Hit", "MalformedRequest", "ScanRules", "Scanner"]

Signal = Literal["logs", "traces"]

HITS_MAX: Final = 1000
"""Hits of one request that are looked at; more are counted."""

_TEXT_MAX_BYTES: Final = 2048
_RESOURCE_MAX_BYTES: Final = 16 << 10
_RECORD_MAX_BYTES: Final = 8 << 10
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


@dataclass(frozen=True, slots=True)
class Hit:
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
        first = [_hit(self._hits[index], body, resources) for index in range(count)]
        return Found(int(result.records), int(result.hits), int(result.own), first)


def _hit(hit: Any, body: bytes, resources: dict[int, bytes]) -> Hit:
    """``resources``: what was copied already, by offset; many hits are of one resource."""
    has = hit.has
    message = _text(body, hit.message)
    resource = resources.get(hit.resource.offset)
    if resource is None:
        where = hit.resource
        # One that is too large to be one is not asked who it is.
        whole = where.bytes <= _RESOURCE_MAX_BYTES
        resource = body[where.offset : where.offset + where.bytes] if whole else b""
        resources[where.offset] = resource
    needs_record = not message and hit.record.bytes <= _RECORD_MAX_BYTES
    return Hit(
        why=hit.why,
        trace_id=bytes(ffi.buffer(hit.trace_id)) if has & lib.PB_HIT_TRACE_ID else None,
        span_id=bytes(ffi.buffer(hit.span_id)) if has & lib.PB_HIT_SPAN_ID else None,
        flags=hit.flags & 0xFF,
        start_unix_ns=hit.start_ns,
        end_unix_ns=hit.end_ns,
        thread_id=hit.thread_id if has & lib.PB_HIT_THREAD_ID else None,
        process_id=hit.process_id if has & lib.PB_HIT_PROCESS_ID else None,
        name=_text(body, hit.name),
        message=message,
        resource=resource,
        record=body[hit.record.offset : hit.record.offset + hit.record.bytes] if needs_record else b"",
        own=bool(has & lib.PB_HIT_OWN),
    )


def _text(body: bytes, where: Any) -> str:
    size = min(where.bytes, _TEXT_MAX_BYTES)
    return body[where.offset : where.offset + size].decode("utf-8", "replace") if size else ""
