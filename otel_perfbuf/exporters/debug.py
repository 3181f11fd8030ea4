# SPDX-License-Identifier: Apache-2.0
"""Dumps for eyes, on stderr. What it is not: a format that programs read (use file).

Source: the Collector's debug exporter and its README: basic counts, normal gives a line a record, detailed every field.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.answers import counted
from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.exporters.otlp_json import to_json
from otel_perfbuf.exporters.payload import Chunk

__all__ = ["STABILITY", "TYPE", "DebugExporter", "Options", "create"]

TYPE: Final = "debug"
STABILITY: Final = "development"

Verbosity = Literal["basic", "normal", "detailed"]


class Options(StrictModel):
    """``verbosity`` as the Collector's; ``output`` is where it goes."""

    verbosity: Verbosity = "basic"
    output: Literal["stderr", "stdout"] = "stderr"


def create(options: Options) -> DebugExporter:
    """The exporter for these options."""
    return DebugExporter(options)


class DebugExporter:
    """Prints chunks. A reader that went away is a failed chunk, never an end."""

    def __init__(self, options: Options, stream: TextIO | None = None) -> None:
        """``stream``: instead of the one that ``options.output`` names."""
        self._options = options
        self._stream = stream
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing to check."""

    def send(self, chunk: Chunk, timeout_s: float) -> int:
        """Prints one chunk; gives 0. The timeout is unused."""
        del timeout_s  # a terminal has none
        try:
            lines = _lines(chunk, self._options.verbosity)
            text = "".join(f"{_printable(line)}\n" for line in lines)
        except DecodeError as fault:
            raise ExportError(f"printing {counted(chunk)}: no OTLP request: {fault}", retryable=False) from fault
        # Looked up now: who replaces sys.stderr after the start gets what is printed then
        stream = self._stream or (sys.stdout if self._options.output == "stdout" else sys.stderr)
        try:
            with self._lock:
                stream.write(text)
                stream.flush()
        except (OSError, ValueError) as fault:
            raise ExportError(f"printing {counted(chunk)} failed: {fault}", retryable=False) from fault
        return 0

    def stop(self) -> None:
        """Nothing to close: the streams are the process's."""


def _lines(chunk: Chunk, verbosity: Verbosity) -> Iterator[str]:
    if chunk.signal == "logs":
        logs = ExportLogsServiceRequest.FromString(chunk.body)
        yield f'Logs\t{{"resource logs": {len(logs.resource_logs)}, "log records": {chunk.records}}}'
        if verbosity != "basic":
            yield from _logs_detailed(logs) if verbosity == "detailed" else _logs_normal(logs)
        return
    traces = ExportTraceServiceRequest.FromString(chunk.body)
    yield f'Traces\t{{"resource spans": {len(traces.resource_spans)}, "spans": {chunk.records}}}'
    if verbosity != "basic":
        yield from _traces_detailed(traces) if verbosity == "detailed" else _traces_normal(traces)


def _logs_normal(request: ExportLogsServiceRequest) -> Iterator[str]:
    for number, resource_logs in enumerate(request.resource_logs):
        yield _line(f"ResourceLog #{number}", resource_logs.schema_url, _pairs(resource_logs.resource.attributes))
        for index, scope_logs in enumerate(resource_logs.scope_logs):
            scope = scope_logs.scope
            yield _line(f"ScopeLog #{index}", f"{scope.name}@{scope.version}", _pairs(scope.attributes))
            for record in scope_logs.log_records:
                yield _line(_plain(record.body), record.event_name, _pairs(record.attributes))


def _traces_normal(request: ExportTraceServiceRequest) -> Iterator[str]:
    for number, resource_spans in enumerate(request.resource_spans):
        yield _line(f"ResourceTraces #{number}", resource_spans.schema_url, _pairs(resource_spans.resource.attributes))
        for index, scope_spans in enumerate(resource_spans.scope_spans):
            scope = scope_spans.scope
            yield _line(f"ScopeTraces #{index}", f"{scope.name}@{scope.version}", _pairs(scope.attributes))
            for span in scope_spans.spans:
                yield _line(span.name, span.trace_id.hex(), span.span_id.hex(), _pairs(span.attributes))


def _logs_detailed(request: ExportLogsServiceRequest) -> Iterator[str]:
    for number, resource_logs in enumerate(request.resource_logs):
        yield f"ResourceLog #{number}"
        yield from _resource(resource_logs)
        for index, scope_logs in enumerate(resource_logs.scope_logs):
            yield f"ScopeLogs #{index}"
            yield from _scope(scope_logs, "ScopeLogs")
            for position, record in enumerate(scope_logs.log_records):
                yield f"LogRecord #{position}"
                yield from _record(record)


def _traces_detailed(request: ExportTraceServiceRequest) -> Iterator[str]:
    for number, resource_spans in enumerate(request.resource_spans):
        yield f"ResourceSpans #{number}"
        yield from _resource(resource_spans)
        for index, scope_spans in enumerate(resource_spans.scope_spans):
            yield f"ScopeSpans #{index}"
            yield from _scope(scope_spans, "ScopeSpans")
            for position, span in enumerate(scope_spans.spans):
                yield f"Span #{position}"
                yield from _span(span)


def _resource(entry: Any) -> Iterator[str]:
    yield f"Resource SchemaURL: {entry.schema_url}"
    yield from _attributes("Resource attributes", entry.resource.attributes)


def _scope(entry: Any, noun: str) -> Iterator[str]:
    yield f"{noun} SchemaURL: {entry.schema_url}"
    yield f"InstrumentationScope {entry.scope.name} {entry.scope.version}"
    yield from _attributes("InstrumentationScope attributes", entry.scope.attributes)


def _record(record: LogRecord) -> Iterator[str]:
    yield f"ObservedTimestamp: {_time(record.observed_time_unix_nano)}"
    yield f"Timestamp: {_time(record.time_unix_nano)}"
    yield f"SeverityText: {record.severity_text}"
    yield f"SeverityNumber: {_enum(SeverityNumber, record.severity_number, 'SEVERITY_NUMBER_')}"
    if record.event_name:
        yield f"EventName: {record.event_name}"
    yield f"Body: {_typed(record.body)}"
    yield from _attributes("Attributes", record.attributes)
    yield f"Trace ID: {record.trace_id.hex()}"
    yield f"Span ID: {record.span_id.hex()}"
    yield f"Flags: {record.flags}"


def _span(span: Span) -> Iterator[str]:
    for label, value in (
        ("Trace ID", span.trace_id.hex()),
        ("Parent ID", span.parent_span_id.hex()),
        ("ID", span.span_id.hex()),
        ("Name", span.name),
        ("Kind", _enum(Span.SpanKind, span.kind, "SPAN_KIND_").partition("(")[0]),
        ("Start time", _time(span.start_time_unix_nano)),
        ("End time", _time(span.end_time_unix_nano)),
        ("Status code", _enum(Status.StatusCode, span.status.code, "STATUS_CODE_").partition("(")[0]),
        ("Status message", span.status.message),
    ):
        yield f"    {label:<15}: {value}"
    yield from _attributes("Attributes", span.attributes)
    for number, event in enumerate(span.events):
        yield f"SpanEvent #{number}"
        yield f"     -> Name: {event.name}"
        yield f"     -> Timestamp: {_time(event.time_unix_nano)}"
    for number, link in enumerate(span.links):
        yield f"SpanLink #{number}"
        yield f"     -> Trace ID: {link.trace_id.hex()}"
        yield f"     -> ID: {link.span_id.hex()}"


def _attributes(title: str, attributes: Iterable[Any]) -> Iterator[str]:
    for number, pair in enumerate(attributes):
        if number == 0:
            yield f"{title}:"
        yield f"     -> {pair.key}: {_typed(pair.value)}"


def _pairs(attributes: Iterable[Any]) -> str:
    return " ".join(f"{pair.key}={_plain(pair.value)}" for pair in attributes)


def _line(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _typed(value: Any) -> str:
    kind = value.WhichOneof("value")
    names = {
        "string_value": "Str",
        "int_value": "Int",
        "double_value": "Double",
        "bool_value": "Bool",
        "bytes_value": "Bytes",
        "kvlist_value": "Map",
        "array_value": "Slice",
    }
    return f"{names[kind]}({_plain(value)})" if kind in names else "Empty()"


def _plain(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind is None:
        return ""
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode("ascii")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind in ("kvlist_value", "array_value"):
        return json.dumps(_nested(value), ensure_ascii=False, separators=(",", ":"))
    return str(getattr(value, kind))


def _nested(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {pair.key: _nested(pair.value) for pair in value.kvlist_value.values}
    if kind == "array_value":
        return [_nested(item) for item in value.array_value.values]
    if kind in ("string_value", "bool_value", "int_value"):
        return getattr(value, kind)
    return next(iter(to_json(value).values()), None)


def _time(unix_ns: int) -> str:
    second, rest_ns = divmod(unix_ns, 1_000_000_000)
    try:
        text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # a time that no calendar has
        return f"{unix_ns} ns"
    fraction = f".{rest_ns:09}".rstrip("0") if rest_ns else ""
    return f"{text}{fraction} +0000 UTC"


def _enum(kind: Any, number: int, prefix: str) -> str:
    try:
        name = str(kind.Name(number)).removeprefix(prefix)
    except ValueError:
        return f"{number}({number})"
    return f"{name.capitalize()}({number})"


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in line)
