# SPDX-License-Identifier: Apache-2.0
"""What OTLP receivers answer: partial success, error details. What it is not: it opens no connection.

Source: opentelemetry-proto collector/*/v1/*_service.proto; OTLP specification, "Failures" and "Throttling";
google/rpc/status.proto and error_details.proto.
"""

from __future__ import annotations

import email.utils
import json
import re
import time

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]  # stubs without py.typed
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # as above
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_perfbuf.exporters.payload import Chunk, Signal

__all__ = [
    "clipped",
    "counted",
    "is_too_large",
    "rejected_in_json",
    "rejected_in_protobuf",
    "retry_after_s",
    "retry_delay_s",
    "status_message",
]

_MESSAGE_CHARS = 300
_ASKED_MAX_S = 3600.0  # a receiver that asks for more is asked again after an hour

# What gRPC's libraries and Go's HTTP say of a request that is above a limit: "received message larger than max (5 vs.
# 4)" (Go, C), "gRPC message exceeds maximum size" (Java), "request body too large" (Go's MaxBytesReader)
_TOO_LARGE = re.compile(r"larger than max|exceeds maximum size|body too large", re.IGNORECASE)


def rejected_in_protobuf(signal: Signal, body: bytes) -> tuple[int, str]:
    """How many records a response says it rejected, and why; (0, "") for a body that is no such message."""
    try:
        if signal == "logs":
            logs = ExportLogsServiceResponse.FromString(body).partial_success
            return max(0, logs.rejected_log_records), clipped(logs.error_message)
        traces = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        return 0, ""
    return max(0, traces.rejected_spans), clipped(traces.error_message)


def rejected_in_json(signal: Signal, body: bytes) -> tuple[int, str]:
    """The same for a receiver that answers in JSON though it was asked in protobuf."""
    key = "rejectedLogRecords" if signal == "logs" else "rejectedSpans"
    try:
        partial = json.loads(body)["partialSuccess"]
        return max(0, int(partial.get(key, 0))), clipped(str(partial.get("errorMessage", "")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return 0, ""


def status_message(body: bytes) -> str:
    """The message of a google.rpc.Status, "" when the body is none."""
    try:
        return clipped(Status.FromString(body).message)
    except DecodeError:
        return ""


def retry_delay_s(status: bytes | None) -> float | None:
    """The delay of the RetryInfo inside an encoded google.rpc.Status, 0 to an hour; None without one."""
    if status is None:
        return None
    try:
        for detail in Status.FromString(status).details:
            info = RetryInfo()
            if detail.Unpack(info):
                asked_s = float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
                return min(max(0.0, asked_s), _ASKED_MAX_S)
    except DecodeError:
        return None
    return None


def retry_after_s(header: str | None, date: str | None = None) -> float | None:
    """Seconds of a Retry-After header, 0 to an hour; None when absent or unreadable.

    An HTTP date is taken against ``date``, the answer's own Date header: the clocks of both hosts may be hours apart.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return min(float(text), _ASKED_MAX_S)
    at = _unix_s(text)
    if at is None:
        return None
    now_unix_s = _unix_s(date) if date is not None else None
    return min(max(0.0, at - (time.time() if now_unix_s is None else now_unix_s)), _ASKED_MAX_S)


def _unix_s(http_date: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(http_date).timestamp()
    except (ValueError, OverflowError):
        return None


def is_too_large(message: str) -> bool:
    """Whether a receiver's words are about the size of the request."""
    return _TOO_LARGE.search(message) is not None


def counted(chunk: Chunk) -> str:
    """How many of what, for sentences: 512 log records, 1 span."""
    noun = "log record" if chunk.signal == "logs" else "span"
    return f"{chunk.records} {noun}{'' if chunk.records == 1 else 's'}"


def clipped(text: str) -> str:
    """A peer's text in one bounded printable line."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * _MESSAGE_CHARS]).split())
    return line if len(line) <= _MESSAGE_CHARS else line[: _MESSAGE_CHARS - 3] + "..."
