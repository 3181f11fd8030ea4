# SPDX-License-Identifier: Apache-2.0
"""OTLP requests for the receiver's tests, made with protobuf; and where they arrived."""

from __future__ import annotations

import threading
from collections import deque

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from otel_perfbuf.triggers.otlp_scan import Scanner, ScanRules

__all__ = ["TRACE_ID", "Arrivals", "log_request", "trace_request"]

TRACE_ID = bytes(range(16, 32))


def trace_request(
    *names: str, failed: bool = True, message: str = "", attributes: dict[str, str | int] | None = None
) -> ExportTraceServiceRequest:
    """A request with a span for each name, of one resource."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    _fill(resource_spans.resource.attributes, attributes or {})
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "app"
    for number, name in enumerate(names, 1):
        span = scope_spans.spans.add(
            name=name,
            trace_id=TRACE_ID,
            span_id=number.to_bytes(8, "big"),
            start_time_unix_nano=1_000,
            end_time_unix_nano=2_000,
            flags=0x101,
        )
        if failed:
            span.status.code = Status.STATUS_CODE_ERROR
            span.status.message = message
    return request


def log_request(
    *bodies: str, severity: int = 17, attributes: dict[str, str | int] | None = None
) -> ExportLogsServiceRequest:
    """A request with a log record for each body."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    _fill(resource_logs.resource.attributes, attributes or {})
    scope_logs = resource_logs.scope_logs.add()
    for body in bodies:
        record = scope_logs.log_records.add(time_unix_nano=1_000, severity_number=severity)
        record.body.string_value = body
    return request


def _fill(target: object, attributes: dict[str, str | int]) -> None:
    for key, value in attributes.items():
        pair = target.add(key=key)  # type: ignore[attr-defined]  # a repeated field
        if isinstance(value, int):
            pair.value.int_value = value
        else:
            pair.value.string_value = value


class Arrivals:
    """A consumer for both signals that scans, as the agent's does, and keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: deque[tuple[str, bytes]] = deque(maxlen=100)
        self.records = 0
        self._scanner = Scanner(ScanRules(errors=True, at_least=17))
        self._lock = threading.Lock()
        self.consumers = {"traces": self._traces, "logs": self._logs}

    def _traces(self, body: bytes) -> None:
        self._take("traces", body)

    def _logs(self, body: bytes) -> None:
        self._take("logs", body)

    def _take(self, signal: str, body: bytes) -> None:
        with self._lock:
            self.records += self._scanner.scan(signal, body).records  # type: ignore[arg-type]  # one of both
            self.bodies.append((signal, body))
