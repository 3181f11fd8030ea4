# SPDX-License-Identifier: Apache-2.0
"""Chunks, clocks and exporters that the exporters' tests share. What it is not: it imports no exporter under test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_perfbuf.exporters.payload import Chunk

TRACE_ID = bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736")
SPAN_ID = bytes.fromhex("00f067aa0ba902b7")
DUMP_SPAN_ID = bytes.fromhex("1122334455667788")
DUMP_ID = "0123456789abcdef0123456789abcdef"
BEGIN_NS = 1_700_000_000_000_000_000


def logs_request(
    records: int = 3, *, begin_ns: int = BEGIN_NS, pid: int = 42, header: bool = False, dump_id: str = DUMP_ID
) -> ExportLogsServiceRequest:
    """A chunk of a dump as the recorder makes it: one process, syscalls a millisecond apart, each third one failed."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    resource_logs.resource.attributes.add(key="service.name").value.string_value = "checkout"
    resource_logs.resource.attributes.add(key="process.pid").value.int_value = pid
    scope_logs = resource_logs.scope_logs.add()
    scope_logs.scope.name = "otel_perfbuf"
    if header:
        record = scope_logs.log_records.add(event_name="perfbuf.dump", time_unix_nano=begin_ns + 10**9)
        record.body.string_value = "dump"
        record.trace_id, record.span_id = TRACE_ID, DUMP_SPAN_ID
        for key, value in (("id", dump_id), ("trigger", "span_error"), ("reason", "ConnectionRefusedError: no")):
            record.attributes.add(key=f"perfbuf.dump.{key}").value.string_value = value
        record.attributes.add(key="perfbuf.dump.overwritten").value.int_value = 7
    for number in range(records):
        failed = number % 3 == 2
        record = scope_logs.log_records.add(
            time_unix_nano=begin_ns + number * 1_000_000,
            observed_time_unix_nano=begin_ns + 10**9,
            severity_number=13 if failed else 9,
            event_name="perfbuf.syscall",
            trace_id=TRACE_ID,
            span_id=SPAN_ID,
        )
        result = "-1 ENOENT (No such file or directory)" if failed else "3"
        record.body.string_value = f'openat(AT_FDCWD, "file{number}", O_RDONLY) = {result}'
        if failed:
            record.attributes.add(key="error.type").value.string_value = "ENOENT"
        for key, text in (
            ("perfbuf.dump.id", dump_id),
            ("perfbuf.syscall.name", "openat"),
            ("perfbuf.syscall.state", "complete"),
            ("perfbuf.correlation", "thread_window"),
        ):
            record.attributes.add(key=key).value.string_value = text
        record.attributes.add(key="thread.id").value.int_value = pid
        record.attributes.add(key="perfbuf.duration_ns").value.int_value = 1234
    return request


def logs_chunk(records: int = 3) -> Chunk:
    """The same as bytes."""
    return Chunk("logs", logs_request(records).SerializeToString(), records)


def traces_request() -> ExportTraceServiceRequest:
    """A dump span, child of the failing span, with a link to it."""
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(
            trace_id=TRACE_ID,
            span_id=DUMP_SPAN_ID,
            parent_span_id=SPAN_ID,
            name="perfbuf.dump",
            kind=1,
            start_time_unix_nano=BEGIN_NS,
            end_time_unix_nano=BEGIN_NS + 1000,
        )
    )
    span.status.code = 1
    span.attributes.add(key="perfbuf.dump.id").value.string_value = DUMP_ID
    span.links.add(trace_id=TRACE_ID, span_id=SPAN_ID)
    return request


def traces_chunk() -> Chunk:
    """The same as bytes."""
    return Chunk("traces", traces_request().SerializeToString(), 1)


class SkippingClock:
    """Time that jumps: a wait with a limit is over at once and noted; one without waits for a notification."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        """Seconds of this clock."""
        return self.now

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """As the Clock protocol; 20 real seconds bound what should end by a notification."""
        if timeout_s is None:
            condition.wait(20)
            return
        self.waits.append(timeout_s)
        self.now += timeout_s
        condition.wait(0)


class SteppedClock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._conditions: set[threading.Condition] = set()
        self._waiting = threading.Condition()
        self._limited = 0

    def monotonic(self) -> float:
        """Seconds of this clock."""
        return self.now

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """As the Clock protocol; 20 real seconds bound what should end by a notification."""
        with self._waiting:
            self._conditions.add(condition)
            self._limited += timeout_s is not None
            self._waiting.notify_all()
        condition.wait(20)
        with self._waiting:
            self._limited -= timeout_s is not None

    def until_waiting(self, threads: int = 1) -> None:
        """Returns when that many threads wait with a limit."""
        with self._waiting:
            assert self._waiting.wait_for(lambda: self._limited >= threads, 20)

    def advance(self, seconds: float) -> None:
        """Moves the time and wakes who waits."""
        self.now += seconds
        for condition in list(self._conditions):
            with condition:
                condition.notify_all()


class ScriptedExporter:
    """Answers each send by ``answer(chunk, how many sends there were before)``; notes what was sent."""

    def __init__(self, answer: Callable[[Chunk, int], int] = lambda _chunk, _sends: 0) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self.sent: list[Chunk] = []
        self.timeouts: list[float] = []
        self.stopped = threading.Event()

    def start(self) -> None:
        """Nothing to check."""

    def send(self, chunk: Chunk, timeout_s: float) -> int:
        """Notes the chunk, then answers."""
        with self._lock:
            before = len(self.sent)
            self.sent.append(chunk)
            self.timeouts.append(timeout_s)
        return self._answer(chunk, before)

    def stop(self) -> None:
        """Notes it."""
        self.stopped.set()
