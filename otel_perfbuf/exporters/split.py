# SPDX-License-Identifier: Apache-2.0
"""A chunk that a receiver finds too large, in two halves. What it is not: it decides not when.

Cut between records, so both halves are whole OTLP requests with their resources and scopes; order is kept. Parsed by
protobuf: it happens once a chunk at most, and only with receivers that take less than their specification's limits.
Source: opentelemetry-proto logs.proto, trace.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_perfbuf.exporters.payload import Chunk

__all__ = ["halves"]


def halves(chunk: Chunk) -> tuple[Chunk, Chunk] | None:
    """Two chunks with the first and the second half of its records; None when it cannot be cut any further."""
    if chunk.signal == "logs":
        kind: Any = ExportLogsServiceRequest
        groups, scopes, records = "resource_logs", "scope_logs", "log_records"
    else:
        kind = ExportTraceServiceRequest
        groups, scopes, records = "resource_spans", "scope_spans", "spans"
    try:
        first = kind.FromString(chunk.body)
    except DecodeError:
        return None
    total = sum(len(getattr(scope, records)) for group in getattr(first, groups) for scope in getattr(group, scopes))
    if total < 2:
        return None
    second = kind()
    left = total // 2  # of the first half
    for group in getattr(first, groups):
        moved_group = None
        for scope in getattr(group, scopes):
            items = getattr(scope, records)
            keep = min(left, len(items))
            left -= keep
            if keep == len(items):
                continue
            if moved_group is None:
                moved_group = getattr(second, groups).add(resource=group.resource, schema_url=group.schema_url)
            moved = getattr(moved_group, scopes).add(scope=scope.scope, schema_url=scope.schema_url)
            getattr(moved, records).extend(items[keep:])
            del items[keep:]
    _prune(first, groups, scopes, records)
    return (
        Chunk(chunk.signal, first.SerializeToString(), total // 2),
        Chunk(chunk.signal, second.SerializeToString(), total - total // 2),
    )


def _prune(request: Any, groups: str, scopes: str, records: str) -> None:
    """Takes out what has no record left."""
    found = getattr(request, groups)
    for index in reversed(range(len(found))):
        inner = getattr(found[index], scopes)
        for place in reversed(range(len(inner))):
            if not getattr(inner[place], records):
                del inner[place]
        if not inner:
            del found[index]
