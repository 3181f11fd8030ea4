# SPDX-License-Identifier: Apache-2.0
"""An OTLP log record as a Fluent record. What it is not: it sends nothing, and spans have no form here.

Every field of the log record has a field of its own, so nothing can be shadowed by an attribute of the same name:

    message                  body                        event_name               EventName
    trace_id, span_id        32 and 16 hex digits        trace_flags              flags
    severity_number          SeverityNumber              severity_text            its text, or its number's short name
    observed_time_unix_nano  ObservedTimestamp           (EventTime)              Timestamp
    attributes               a map by attribute name     resource                 the resource's attributes, as a map
    scope                    {name, version}

What is not set is left out. Source: opentelemetry-proto logs.proto; the short names are the data model's ("INFO2").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

__all__ = ["fluent_events", "severity_name"]

_SEVERITIES: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")


def fluent_events(body: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """(unix ns, record) of each log record of a request, in its order; DecodeError when it is none."""
    request = ExportLogsServiceRequest.FromString(body)
    for resource_logs in request.resource_logs:
        resource = _map(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            named = {"name": scope_logs.scope.name, "version": scope_logs.scope.version}
            scope = {key: value for key, value in named.items() if value}
            for record in scope_logs.log_records:
                yield record.time_unix_nano or record.observed_time_unix_nano, _record(record, resource, scope)


def severity_name(number: int) -> str:
    """The data model's short name: 9 is INFO, 10 INFO2; "" for what is none."""
    if not 1 <= number <= 24:
        return ""
    step = (number - 1) % 4
    return _SEVERITIES[(number - 1) // 4] + (str(step + 1) if step else "")


def _record(record: LogRecord, resource: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    fields = {
        "message": _value(record.body),
        "event_name": record.event_name,
        "severity_number": record.severity_number,
        "severity_text": record.severity_text or severity_name(record.severity_number),
        "trace_id": record.trace_id.hex(),
        "span_id": record.span_id.hex(),
        "trace_flags": record.flags,
        "observed_time_unix_nano": record.observed_time_unix_nano,
        "attributes": _map(record.attributes),
        "resource": resource,
        "scope": scope,
    }
    unset: tuple[Any, ...] = (None, "", 0, {})
    return {key: value for key, value in fields.items() if key == "message" or value not in unset}


def _map(pairs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pair: KeyValue
    for pair in pairs:
        found[pair.key] = _value(pair.value)
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return _map(value.kvlist_value.values)
    return getattr(value, kind)
