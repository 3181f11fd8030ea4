# SPDX-License-Identifier: Apache-2.0
"""The header record and the span of a dump. Source: CONTRACT section 3; logs.proto and trace.proto of OTLP 1.x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from otel_perfbuf.triggers.firing import SpanContext

from .processes import attribute

__all__ = ["SCOPE", "Header", "header_request", "span_request"]

SCOPE = InstrumentationScope(name="otel_perfbuf", version="0.1.0")

_SEVERITY_INFO = SeverityNumber.SEVERITY_NUMBER_INFO


@dataclass(frozen=True, slots=True)
class Header:
    """What a dump says about itself; times in unix ns, counts in records (CONTRACT section 3)."""

    dump_id: str
    trigger: str
    reason: str
    scope: str
    fired_unix_ns: int
    made_unix_ns: int
    window_start_unix_ns: int
    window_end_unix_ns: int
    complete_since_unix_ns: int
    records: int
    lost: int
    missed_events: int
    dropped: int
    overwritten: int
    scope_overwritten: int
    truncated: int
    malformed: int
    suppressed: int
    snapshot_ns: int
    redactions: int
    torn_pages: int
    span: SpanContext
    parent: SpanContext | None
    links: Sequence[SpanContext]
    matched_by: str | None = None
    candidates: int = 0
    reading: tuple[str, ...] = ()

    def attributes(self) -> list[KeyValue]:
        """The attributes of the header record and of the dump span."""
        found = [
            attribute("perfbuf.dump.id", self.dump_id),
            attribute("perfbuf.dump.trigger", self.trigger),
            attribute("perfbuf.dump.reason", self.reason),
            attribute("perfbuf.dump.scope", self.scope),
            attribute("perfbuf.dump.window_start_unix_nano", self.window_start_unix_ns),
            attribute("perfbuf.dump.window_end_unix_nano", self.window_end_unix_ns),
            attribute("perfbuf.dump.complete_since_unix_nano", self.complete_since_unix_ns),
            attribute("perfbuf.dump.records", self.records),
            attribute("perfbuf.dump.lost", self.lost),
            attribute("perfbuf.dump.dropped", self.dropped),
            attribute("perfbuf.dump.overwritten", self.overwritten),
            attribute("perfbuf.dump.scope_overwritten", self.scope_overwritten),
            attribute("perfbuf.dump.truncated", self.truncated),
            attribute("perfbuf.dump.malformed", self.malformed),
            attribute("perfbuf.dump.suppressed", self.suppressed),
            attribute("perfbuf.dump.snapshot_ns", self.snapshot_ns),
            attribute("perfbuf.dump.redactions", self.redactions),
        ]
        if self.missed_events:
            found.append(attribute("perfbuf.dump.missed_events", self.missed_events))
        if self.torn_pages:
            found.append(attribute("perfbuf.dump.torn_pages", self.torn_pages))
        if self.matched_by is not None:
            # The process was found by what telemetry says of it; several candidates are all in the dump.
            found.append(attribute("perfbuf.dump.matched_by", self.matched_by))
            found.append(attribute("perfbuf.dump.candidates", self.candidates))
        if self.reading:
            values = ArrayValue(values=[AnyValue(string_value=sentence) for sentence in self.reading])
            found.append(KeyValue(key="perfbuf.dump.reading", value=AnyValue(array_value=values)))
        return found

    def body(self) -> str:
        """One line: why the dump was made, and what its records say."""
        return "; ".join((f"{self.trigger}: {self.reason}", *self.reading))


def header_request(header: Header, resource: Resource) -> bytes:
    """One request with the header record alone."""
    record = LogRecord(
        time_unix_nano=header.fired_unix_ns,
        observed_time_unix_nano=header.made_unix_ns,
        severity_number=_SEVERITY_INFO,
        severity_text="INFO",
        event_name="perfbuf.dump",
        body=AnyValue(string_value=header.body()),
        attributes=[*header.attributes(), attribute("perfbuf.correlation", "dump")],
        trace_id=header.span.trace_id,
        span_id=header.span.span_id,
        flags=header.span.flags,
    )
    logs = ResourceLogs(resource=resource, scope_logs=[ScopeLogs(scope=SCOPE, log_records=[record])])
    return ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString()


def span_request(header: Header, resource: Resource) -> bytes:
    """One request with the dump span: a child of the triggering span, or a new root."""
    span = Span(
        trace_id=header.span.trace_id,
        span_id=header.span.span_id,
        parent_span_id=header.parent.span_id if header.parent else b"",
        flags=header.span.flags,
        name="perfbuf.dump",
        kind=Span.SpanKind.SPAN_KIND_INTERNAL,
        start_time_unix_nano=min(header.fired_unix_ns, header.made_unix_ns),
        end_time_unix_nano=header.made_unix_ns,
        attributes=header.attributes(),
        links=[Span.Link(trace_id=link.trace_id, span_id=link.span_id, flags=link.flags) for link in header.links],
        status=Status(code=Status.StatusCode.STATUS_CODE_OK),
    )
    spans = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(scope=SCOPE, spans=[span])])
    return ExportTraceServiceRequest(resource_spans=[spans]).SerializeToString()
