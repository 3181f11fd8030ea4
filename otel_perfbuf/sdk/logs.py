# SPDX-License-Identifier: Apache-2.0
"""A log record processor that asks the agent for a dump at an error log.

What it is not: an exporter; log records are neither kept nor changed. Source: CONTRACT section 5; OpenTelemetry SDK
specification, log record processor. The Python SDK still calls its logs module private and has renamed both the method
(emit, on_emit) and its argument's class, so nothing but attributes that all versions share is used here.
"""

from __future__ import annotations

import threading
from typing import Any

from opentelemetry.sdk._logs import LogRecordProcessor

from otel_perfbuf.sdk.datagram import TriggerSender, encode_trigger
from otel_perfbuf.sdk.spans import OWN_SCOPE, service_name
from otel_perfbuf.sdk.threads import loop_on_this_thread

__all__ = ["FlightRecorderLogRecordProcessor"]

_ERROR = 17


class FlightRecorderLogRecordProcessor(LogRecordProcessor):
    """Sends one datagram for each log record of severity ERROR or worse, with its trace and span if it has them.

    ``socket_path`` as in FlightRecorderSpanProcessor; no method waits for anything or raises.
    """

    def __init__(self, socket_path: str | None = None) -> None:
        self.sender = TriggerSender(socket_path)

    def on_emit(self, log_record: Any) -> None:
        """Sends the datagram when the record is an error."""
        try:
            self._emit(log_record)
        except Exception:  # noqa: BLE001 - an application's request must not fail because its recorder did
            return

    emit = on_emit  # its name before SDK 1.35

    def _emit(self, data: Any) -> None:
        record = data.log_record
        severity = getattr(record.severity_number, "value", record.severity_number)
        if severity is None or severity < _ERROR:
            return
        if data.instrumentation_scope is not None and data.instrumentation_scope.name == OWN_SCOPE:
            return
        fields: dict[str, object] = {
            "kind": "log_severity",
            "tid": threading.get_native_id(),
            "service_name": service_name(getattr(data, "resource", None) or getattr(record, "resource", None)),
            "interleaved": loop_on_this_thread(),
            "reason": _reason(record),
        }
        if record.trace_id and record.span_id:
            fields["trace_id"] = f"{record.trace_id:032x}"
            fields["span_id"] = f"{record.span_id:016x}"
            fields["trace_flags"] = int(record.trace_flags or 0)
        self.sender.send(encode_trigger(fields))

    def shutdown(self) -> None:
        """Closes the socket; later errors are dropped."""
        self.sender.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the signature is the SDK's
        """True: a datagram is sent or dropped when its record is emitted, so nothing is ever left to flush."""
        return True


def _reason(record: Any) -> str:
    attributes = record.attributes or {}
    if attributes.get("exception.type"):
        return f"{attributes['exception.type']}: {attributes.get('exception.message', '')}"
    return str(record.body) if record.body else "error log"
