# SPDX-License-Identifier: Apache-2.0
"""Dumps as text, from OTLP messages alone: ``show FILE`` and ``record`` share it. What it is not: it reads no ring.

Source: CONTRACT section 1, "Text". A record is ``TID HH:MM:SS.ffffff BODY <seconds>`` in local time, as strace -f
-tt -T prints it; a call in flight ends in ``<unfinished ...> <15.002 s so far>``. Records of no thread (lost ones of a
CPU, a user's own events) are ``#`` lines in their place. Control characters of bodies are escaped: a file may come from
anyone.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import ArrayValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_perfbuf.exporters.answers import counted
from otel_perfbuf.exporters.otlp_json import to_json
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.exporters.repeats import Folded, Line, folded

__all__ = ["DumpText", "dumps_of", "nothing_to_dump", "printable_line", "render", "text_lines"]

DUMP_EVENT: Final = "perfbuf.dump"
LOST_EVENT: Final = "perfbuf.lost"
_WARN: Final = 13
_ERROR: Final = 17
_FAILED_PER_LINES: Final = 4  # with a limit of N lines, at most 4 N failed calls before them
_DIM, _YELLOW, _RED, _PLAIN = "\x1b[2m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(slots=True)
class DumpText:
    """One dump (or, with ``dump_id`` "", live records) to be shown.

    ``streams`` are its records by request and resource, each ascending in time; records keep their process.
    """

    dump_id: str
    header: dict[str, Any] = field(default_factory=dict)
    trace_id: str = ""
    dump_span_id: str = ""
    spans: list[Span] = field(default_factory=list)
    streams: list[list[tuple[int, LogRecord]]] = field(default_factory=list)
    known_spans: list[str] = field(default_factory=list)
    """Spans that records are known to be of (correlation exact or thread_window), in the order of their first."""

    @property
    def failed_span_id(self) -> str:
        """The triggering span when records are known to be of it, else another failed one, else any; "": none."""
        failed = [span.parent_span_id.hex() for span in self.spans if span.parent_span_id]
        failed += [link.span_id.hex() for span in self.spans for link in span.links]
        return next((span_id for span_id in (failed or self.known_spans) if span_id in self.known_spans), "")

    def records(self) -> Iterator[tuple[int, LogRecord]]:
        """(process id, record), oldest first over all requests and resources; ties keep the order of arrival."""
        return heapq.merge(*self.streams, key=lambda item: item[1].time_unix_nano)


def render(chunks: Iterable[Chunk], *, lines: int | None, colour: bool) -> Iterator[str]:
    """The lines of all dumps in these chunks, each in turn; ``lines`` and ``colour`` as text_lines has them.

    Raises ValueError when a chunk's bytes are no OTLP request.
    """
    logs: list[ExportLogsServiceRequest] = []
    traces: list[ExportTraceServiceRequest] = []
    for chunk in chunks:
        try:
            if chunk.signal == "logs":
                logs.append(ExportLogsServiceRequest.FromString(chunk.body))
            else:
                traces.append(ExportTraceServiceRequest.FromString(chunk.body))
        except DecodeError as fault:
            raise ValueError(f"showing {counted(chunk)}: no OTLP request: {fault}") from fault
    for dump in dumps_of(logs, traces):
        yield from text_lines(dump, lines=lines, colour=colour)


def dumps_of(
    logs: Iterable[ExportLogsServiceRequest], traces: Iterable[ExportTraceServiceRequest] = ()
) -> list[DumpText]:
    """The dumps that these messages hold, in the order of their first records."""
    found: dict[str, DumpText] = {}
    for request in logs:
        for resource_logs in request.resource_logs:
            pid = _int(_attribute(resource_logs.resource.attributes, "process.pid"))
            _sort_in(found, pid, (record for scope in resource_logs.scope_logs for record in scope.log_records))
    spans = [
        span
        for request in traces
        for resource_spans in request.resource_spans
        for scope in resource_spans.scope_spans
        for span in scope.spans
    ]
    for span in spans:
        dump_id = _attribute(span.attributes, "perfbuf.dump.id")
        if span.name == DUMP_EVENT and isinstance(dump_id, str):
            dump = found.setdefault(dump_id, DumpText(dump_id))
            dump.spans.append(span)
            dump.header = dump.header or _attributes(span.attributes)
            dump.trace_id, dump.dump_span_id = span.trace_id.hex(), span.span_id.hex()
    return list(found.values())


def text_lines(dump: DumpText, *, lines: int | None = None, colour: bool = False) -> Iterator[str]:
    """The dump's lines without newlines: what it is, its records, the summary.

    ``lines``: only failed calls and the last that many records; at most 4 times as many failed calls, and what is left
    out is counted. Where records are known to be the failed span's, "failed" and "last" mean among those: what a
    program does between its failure and its end is not what made it fail. 0: no records, only what the dump is and the
    summary. None: all.
    """
    dim, plain = (_DIM, _PLAIN) if colour else ("", "")
    for line in _opening_lines(dump):
        yield f"{dim}{line}{plain}"
    clock = _LocalClock()
    tally = _Tally()
    for left_out, record in _limited(tally.counting(dump.records()), lines, dump.failed_span_id):
        if left_out:
            yield f"{dim}# ... {left_out:,} record{'' if left_out == 1 else 's'} left out{plain}"
        if record is None:
            continue
        if isinstance(record, Folded):
            yield f"{dim}{record.text()}{plain}"
            continue
        line = _record_line(record, clock)
        paint = _colour(record, line) if colour else ""
        yield f"{paint}{line}{_PLAIN}" if paint else line
    for line in tally.summary(dump):
        yield f"{dim}{line}{plain}"


def nothing_to_dump(how_it_ended: str) -> str:
    """The summary when there was no dump; ``how_it_ended``: "exited with 0"."""
    return f"# nothing to dump: CMD {how_it_ended} and reported no error"


def _sort_in(found: dict[str, DumpText], pid: int, records: Iterable[LogRecord]) -> None:
    """Files one resource's records under their dumps, a stream for each run that ascends."""
    streams: dict[str, list[tuple[int, LogRecord]]] = {}
    for record in records:
        dump_id = _text(_attribute(record.attributes, "perfbuf.dump.id"))
        dump = found.get(dump_id) or found.setdefault(dump_id, DumpText(dump_id))
        if record.event_name == DUMP_EVENT:
            dump.header = _attributes(record.attributes)
            dump.trace_id, dump.dump_span_id = record.trace_id.hex(), record.span_id.hex()
            continue
        stream = streams.get(dump_id)
        if stream is None or stream[-1][1].time_unix_nano > record.time_unix_nano:
            stream = streams[dump_id] = []
            dump.streams.append(stream)
        stream.append((pid, record))
        if _is_known(record) and (span_id := record.span_id.hex()) not in dump.known_spans:
            dump.known_spans.append(span_id)


def _opening_lines(dump: DumpText) -> Iterator[str]:
    if not dump.dump_id:
        yield "# live records, of no dump"
        return
    trigger = _clean(_text(dump.header.get("perfbuf.dump.trigger"))) or "unknown trigger"
    reason = _clean(_text(dump.header.get("perfbuf.dump.reason")))
    yield f"# dump {_clean(dump.dump_id)}: {trigger}{': ' + reason if reason else ''}"
    contexts = [(link.trace_id.hex(), link.span_id.hex()) for span in dump.spans for link in span.links]
    parents = [(span.trace_id.hex(), span.parent_span_id.hex()) for span in dump.spans if span.parent_span_id]
    failing = list(dict.fromkeys(parents + contexts))
    if not failing and dump.failed_span_id:
        failing = [(dump.trace_id, dump.failed_span_id)]
    if failing:
        for trace_id, span_id in failing:
            yield f"# trace {trace_id} span {span_id}"
    elif dump.trace_id:
        yield f"# trace {dump.trace_id} span {dump.dump_span_id} (the dump's own: no span was reported)"


def _is_known(record: LogRecord) -> bool:
    """Whether we know which span it is of, not whether it might be."""
    return _attribute(record.attributes, "perfbuf.correlation") in ("exact", "thread_window")


def _limited(
    records: Iterator[tuple[int, LogRecord]], lines: int | None, span_id: str
) -> Iterator[tuple[int, LogRecord | Folded | None]]:
    """(how many were left out just before it, record); the last record may be None. ``span_id`` "": of any span."""
    if lines is None:
        for _, record in records:
            yield 0, record
        return
    newest: deque[Line] = deque()
    failed: deque[Line] = deque(maxlen=max(_FAILED_PER_LINES * lines, 1) if lines else 0)
    counter, wanted = _Counter(records), bytes.fromhex(span_id)
    shown_of = (item for item in counter if not span_id or (item[1].span_id == wanted and _is_known(item[1])))
    for line in folded(shown_of):
        newest.append(line)
        if len(newest) > lines:
            older = newest.popleft()
            if isinstance(older.item, LogRecord) and older.item.severity_number >= _WARN:
                failed.append(older)
    shown = 0
    for line in itertools.chain(failed, newest):
        yield line.first - shown - 1, line.item
        shown = line.last
    if counter.count > shown and lines:
        yield counter.count - shown, None


class _Counter:
    """Numbers records from 1, and knows how many there were."""

    def __init__(self, records: Iterator[tuple[int, LogRecord]]) -> None:
        self._records = records
        self.count = 0

    def __iter__(self) -> Iterator[tuple[int, LogRecord]]:
        for _, record in self._records:
            self.count += 1
            yield self.count, record


def _record_line(record: LogRecord, clock: _LocalClock) -> str:
    body = _clean(_body(record))
    tid = duration_ns = state = None
    for pair in record.attributes:
        if pair.key == "thread.id":
            tid = pair.value.int_value
        elif pair.key == "perfbuf.duration_ns":
            duration_ns = pair.value.int_value
        elif pair.key == "perfbuf.syscall.state":
            state = pair.value.string_value
    at = clock.text(record.time_unix_nano)
    if tid is None or record.event_name == LOST_EVENT:
        return f"# {at} {body}"
    if duration_ns is None:
        return f"{tid} {at} {body}"
    if state == "in_flight":
        return f"{tid} {at} {body} <{duration_ns / 1e9:.3f} s so far>"
    return f"{tid} {at} {body} <{duration_ns / 1e9:.6f}>"


class _LocalClock:
    """Wall time as text; the broken-down second is kept, since records come by the thousand a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def text(self, unix_ns: int) -> str:
        """HH:MM:SS.ffffff in local time."""
        second, rest_ns = divmod(unix_ns, 1_000_000_000)
        if second != self._second:
            self._second, self._text = second, _second_text(second)
        return f"{self._text}.{rest_ns // 1000:06}"


def _second_text(second: int) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(second))
    except (OverflowError, ValueError, OSError):  # a time that no calendar has
        return "??:??:??"


class _Tally:
    """What the summary says, gathered while the records pass."""

    def __init__(self) -> None:
        self.records = 0
        self.processes: set[int] = set()
        self.first_ns = self.last_ns = 0
        self.failed: Counter[str] = Counter()
        self.in_flight = 0

    def counting(self, records: Iterable[tuple[int, LogRecord]]) -> Iterator[tuple[int, LogRecord]]:
        """The same records, counted."""
        for pid, record in records:
            self._count(pid, record)
            yield pid, record

    def _count(self, pid: int, record: LogRecord) -> None:
        self.records += record.event_name != LOST_EVENT  # as the header counts
        if pid:
            self.processes.add(pid)
        self.last_ns = record.time_unix_nano
        self.first_ns = self.first_ns or record.time_unix_nano
        if record.severity_number >= _ERROR:
            self.failed[_clean(_body(record))[:80]] += 1
        elif record.severity_number >= _WARN:
            found = _attributes_of(record, ("perfbuf.syscall.name", "error.type"))
            self.failed[_clean(" ".join(_text(part) for part in found if part)) or "unnamed"] += 1

    def summary(self, dump: DumpText) -> Iterator[str]:
        """What there was, what failed, what is missing and from when on nothing is: a line each."""
        depth_s = (self.last_ns - self.first_ns) / 1e9
        yield (
            f"# {self.records:,} record{'' if self.records == 1 else 's'} of {len(self.processes):,} "
            f"process{'' if len(self.processes) == 1 else 'es'} over {depth_s:.3f} s"
        )
        if self.failed:
            most = self.failed.most_common(8)
            rest = sum(self.failed.values()) - sum(count for _, count in most)
            told = ", ".join(f"{what}{f' ({count:,} times)' if count > 1 else ''}" for what, count in most)
            yield f"# failed: {told}{f', and {rest:,} more' if rest else ''}"
        for sentence in _strings(dump.header.get("perfbuf.dump.reading")):
            yield f"# {_clean(sentence)}"
        missing = [
            f"{count:,} {word.replace('_', ' ')}"
            for word in ("lost", "missed_events", "dropped", "overwritten", "truncated", "malformed", "torn_pages")
            if (count := _int(dump.header.get(f"perfbuf.dump.{word}")))
        ]
        if missing:
            yield f"# not here: {', '.join(missing)}"
        since_ns = _int(dump.header.get("perfbuf.dump.complete_since_unix_nano"))
        if since_ns and missing:
            yield f"# whole from {_LocalClock().text(since_ns)} on; before that some CPU's history may have gaps"


def _colour(record: LogRecord, line: str) -> str:
    if line.startswith("#"):
        return _DIM
    if record.severity_number >= _ERROR:
        return _RED
    return _YELLOW if record.severity_number >= _WARN else ""


def _body(record: LogRecord) -> str:
    if record.body.WhichOneof("value") in ("string_value", None):
        return record.body.string_value or record.event_name
    return json.dumps(to_json(record.body), ensure_ascii=False)


def printable_line(text: str) -> str:
    """A line of text from anyone, with what could steer a terminal escaped; tabs stay."""
    return "\t".join(_clean(part) for part in text.split("\t"))


def _clean(text: str) -> str:
    """The text with what could steer a terminal or break the line escaped."""
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _attribute(attributes: Iterable[Any], key: str) -> Any:
    for pair in attributes:
        if pair.key == key:
            return _value(pair.value)
    return None


def _attributes_of(record: LogRecord, keys: tuple[str, ...]) -> list[Any]:
    return [_attribute(record.attributes, key) for key in keys]


def _attributes(attributes: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _strings(value: Any) -> list[str]:
    return [item.string_value for item in value.values] if isinstance(value, ArrayValue) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
