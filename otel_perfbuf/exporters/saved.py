# SPDX-License-Identifier: Apache-2.0
"""Reads a saved dump, whatever its format. What it is not: a renderer (text.py is).

Formats: OTLP JSON lines and length-framed protobuf as the Collector's file exporter writes them (file.py), one bare
ExportLogsServiceRequest, and text that is shown as it is. Decided by the first bytes: ``{`` is JSON; a frame's length
begins with 0 (frames are below 16 MiB); a bare request with the tag of its first field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.file import TRACES_SUFFIX
from otel_perfbuf.exporters.otlp_json import from_json
from otel_perfbuf.exporters.text import dumps_of, printable_line, text_lines

__all__ = ["Saved", "read_saved", "saved_lines"]

SavedFormat = Literal["otlp_json", "otlp_proto", "request", "text"]

_REQUEST_TAG: Final = 0x0A  # field 1, length-delimited: resource_logs
_FRAME_HEAD_BYTES: Final = 4


@dataclass(slots=True)
class Saved:
    """What a file holds: messages in its order, or ``text`` as it is.

    Lines or frames that could not be read are counted; ``problems`` has a sentence for the first of them.
    """

    format: SavedFormat
    logs: list[ExportLogsServiceRequest] = field(default_factory=list)
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    text: str = ""
    malformed: int = 0
    problems: list[str] = field(default_factory=list)

    def fault(self, problem: str) -> None:
        """Counts something malformed; only the first is told."""
        self.malformed += 1
        if not self.problems:
            self.problems.append(problem)


def read_saved(path: Path) -> Saved:
    """What ``path`` (and its ``.traces`` beside it) holds; one bad line or frame never hides the others.

    Raises OSError when it cannot be read, and PerfbufError when nothing in it is a dump.
    """
    data = path.read_bytes()
    saved = _sniffed(path, data)
    if saved.format == "otlp_proto" and not path.name.endswith(TRACES_SUFFIX):
        beside = path.with_name(path.name + TRACES_SUFFIX)
        if beside.is_file():
            _read_frames(saved, beside.read_bytes(), beside.name, spans=True)
    held = any(each.resource_logs for each in saved.logs) or any(each.resource_spans for each in saved.traces)
    if saved.format != "text" and not held:
        cause = saved.problems[0] if saved.problems else "it holds no log record"
        raise PerfbufError(f"reading the dump {path}: {cause}; give a file that record -o or a file exporter wrote")
    return saved


def saved_lines(saved: Saved, *, colour: bool, lines: int | None = None) -> Iterator[str]:
    """The text of all dumps in it, each in turn, without newlines; text line by line. ``lines``: as text_lines.

    What could steer a terminal is escaped in all of it: a file may come from anyone.
    """
    if saved.format == "text":
        for line in saved.text.removesuffix("\n").split("\n"):
            yield printable_line(line)
        return
    for dump in dumps_of(saved.logs, saved.traces):
        yield from text_lines(dump, lines=lines, colour=colour)


def _sniffed(path: Path, data: bytes) -> Saved:
    if not data.strip():
        raise PerfbufError(f"reading the dump {path}: it is empty; a file is written by the first dump")
    if data.lstrip()[:1] == b"{":
        saved = Saved("otlp_json")
        _read_lines(saved, data)
        return saved
    if data[0] == 0:
        saved = Saved("otlp_proto")
        _read_frames(saved, data, path.name, spans=path.name.endswith(TRACES_SUFFIX))
        return saved
    if data[0] == _REQUEST_TAG:
        try:
            return Saved("request", logs=[ExportLogsServiceRequest.FromString(data)])
        except DecodeError:
            pass  # a text may begin with an empty line
    if b"\0" not in data[:4096]:
        return Saved("text", text=data.decode("utf-8", "replace"))
    raise PerfbufError(f"reading the dump {path}: it is neither OTLP nor text; give a file that record -o wrote")


def _read_lines(saved: Saved, data: bytes) -> None:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if not isinstance(value, dict) or not value.keys() & {"resourceLogs", "resourceSpans"}:
                raise ValueError("it has neither resourceLogs nor resourceSpans")
            if "resourceLogs" in value:
                saved.logs.append(from_json(ExportLogsServiceRequest, value))
            if "resourceSpans" in value:
                saved.traces.append(from_json(ExportTraceServiceRequest, value))
        except (ValueError, RecursionError) as fault:
            saved.fault(f"line {number} is no OTLP JSON: {str(fault)[:200] or type(fault).__name__}")


def _read_frames(saved: Saved, data: bytes, name: str, *, spans: bool) -> None:
    for offset, body in _frames(saved, data, name):
        try:
            if spans:
                saved.traces.append(ExportTraceServiceRequest.FromString(body))
            else:
                saved.logs.append(ExportLogsServiceRequest.FromString(body))
        except DecodeError:
            saved.fault(f"the frame at byte {offset} of {name} is no OTLP request")


def _frames(saved: Saved, data: bytes, name: str) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < len(data):
        start = offset + _FRAME_HEAD_BYTES
        end = start + int.from_bytes(data[offset:start], "big")
        if start > len(data) or end > len(data):
            saved.fault(f"the frame at byte {offset} of {name} is cut: it would end at {end} of {len(data)} bytes")
            return
        yield offset, data[start:end]
        offset = end
