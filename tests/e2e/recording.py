# SPDX-License-Identifier: Apache-2.0
"""Runs `otel-perfbuf record` on small programs and reads what arrived, for the end-to-end tests.

What it is not: it reads nothing with the project's own decoders; JSON lines are read by protobuf's parser.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.message import Message
from machine import SLOWNESS
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

__all__ = ["Arrived", "Record", "attributes", "parse_lines", "record"]

TIMEOUT_S = 120 * SLOWNESS


def _plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    return getattr(value, kind) if kind else None


def attributes(pairs: Sequence[KeyValue]) -> dict[str, object]:
    """OTLP attributes as a dict; a repeated key is an error of the sender."""
    found = {pair.key: _plain(pair.value) for pair in pairs}
    assert len(found) == len(pairs), f"a key stands twice: {[pair.key for pair in pairs]}"
    return found


@dataclass(frozen=True)
class Record:
    """One log record with its resource's attributes."""

    proto: LogRecord
    resource: dict[str, object]

    @property
    def attributes(self) -> dict[str, object]:
        """Its attributes."""
        return attributes(self.proto.attributes)

    @property
    def body(self) -> str:
        """Its body."""
        return self.proto.body.string_value

    @property
    def name(self) -> str:
        """Its EventName."""
        return self.proto.event_name


@dataclass(frozen=True)
class Arrived:
    """What a file of OTLP JSON lines holds, in its order."""

    records: list[Record]
    spans: list[Span]

    @property
    def header(self) -> dict[str, object]:
        """Attributes of the only dump's header, which stands first."""
        headers = [record for record in self.records if record.name == "perfbuf.dump"]
        assert len(headers) == 1, f"{len(headers)} headers instead of one"
        return headers[0].attributes

    @property
    def header_resource(self) -> dict[str, object]:
        """The resource of the header: the target process."""
        return next(record.resource for record in self.records if record.name == "perfbuf.dump")

    @property
    def history(self) -> list[Record]:
        """All records but headers, in the order of their sequence for each thread instance, by time overall."""
        return [record for record in self.records if record.name != "perfbuf.dump"]

    def bodies(self) -> list[str]:
        """Bodies of the history."""
        return [record.body for record in self.history]

    def dump_span(self) -> Span:
        """The only dump span."""
        spans = [span for span in self.spans if span.name == "perfbuf.dump"]
        assert len(spans) == 1, f"{len(spans)} dump spans instead of one"
        return spans[0]


def parse_lines(text: str) -> Arrived:
    """Collector file exporter lines, parsed by protobuf's own JSON parser."""
    records: list[Record] = []
    spans: list[Span] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        if '"resourceLogs"' in line[:40]:
            logs = ExportLogsServiceRequest()
            _parse(line, logs)
            for entry in logs.resource_logs:
                resource = attributes(entry.resource.attributes)
                records += [Record(item, resource) for scope in entry.scope_logs for item in scope.log_records]
        elif '"resourceSpans"' in line[:40]:
            traces = ExportTraceServiceRequest()
            _parse(line, traces)
            spans += [span for entry in traces.resource_spans for scope in entry.scope_spans for span in scope.spans]
    return Arrived(records, spans)


def _ids_as_base64(value: object) -> object:
    """OTLP/JSON writes ids in hex where protobuf's JSON mapping has base64: the one difference between the two."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else _ids_as_base64(item)
            for key, item in value.items()
        }
    return [_ids_as_base64(item) for item in value] if isinstance(value, list) else value


def _parse(line: str, message: Message) -> None:
    json_format.ParseDict(_ids_as_base64(json.loads(line)), message)


def record(
    *arguments: str | Path, command: Sequence[str | Path], env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`otel-perfbuf record ARGUMENTS -- COMMAND`, to its end; text of stdout and stderr."""
    return subprocess.run(
        [sys.executable, "-m", "otel_perfbuf", "record", *arguments, "--", *command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=env,
        cwd=cwd,
        check=False,
    )
