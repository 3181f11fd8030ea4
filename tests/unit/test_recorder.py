# SPDX-License-Identifier: Apache-2.0
"""Which firings make one dump, and what the dump says: the recorder on captures without any records."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from samples import SampleWriter

from otel_perfbuf._core._core import lib
from otel_perfbuf.bpf.syscalls import Stats
from otel_perfbuf.exporters.text import render
from otel_perfbuf.recorder.capture import Capture, Losses
from otel_perfbuf.recorder.dump import Dump, DumpOptions
from otel_perfbuf.recorder.inflight import EntryFrames
from otel_perfbuf.recorder.recorder import FlightRecorder
from otel_perfbuf.records import build_plan
from otel_perfbuf.triggers.firing import Firing, SpanContext

PLAN = build_plan()
NOTHING_LOST = Stats(no_page=0, no_space=0, no_ring=0, other=0, processes=0, ring_records_by_cpu={})


class EmptySource:
    """A history without records; counts the snapshots that were taken of it."""

    plan = PLAN
    started_ns = 1
    captures_max = 8
    names_fds = False

    def __init__(self) -> None:
        self.taken = itertools.count(1)
        self.snapshots = 0

    def capture(self, pids: object = None) -> Capture:
        """The next empty snapshot."""
        self.snapshots += 1
        batch: Any = EntryFrames([])
        batch.rings = []
        return Capture(b"", batch, EntryFrames([]), {}, NOTHING_LOST, 0, next(self.taken), 1)

    def losses(self, captures: object) -> Losses:
        """None."""
        del captures
        return Losses()


def span(trace: int, number: int = 1) -> SpanContext:
    """A span of a trace."""
    return SpanContext(trace.to_bytes(16, "big"), number.to_bytes(8, "big"))


def firing(context: SpanContext | None = None, pid: int | None = 7, kind: Any = "span_error") -> Firing:
    """A firing now."""
    return Firing(kind, "it failed", time.time_ns(), pid=pid, span=context)


def dumps_of(*firings: Firing, options: DumpOptions | None = None, after_s: float = 60) -> list[Dump]:
    """The dumps that these firings make when nothing settles before all have fired."""
    made: list[Dump] = []
    source: Any = EmptySource()
    recorder = FlightRecorder(source, options or DumpOptions(), made.append, after_s=after_s)
    recorder.start()
    for each in firings:
        assert recorder.fire(each) is not None
    assert recorder.stop()
    return made


def test_firings_of_one_trace_are_one_dump() -> None:
    """A child's failure and its parent's are one dump with a link to each."""
    (dump,) = dumps_of(firing(span(1, 1)), firing(span(1, 2)))
    assert [link.span_id for link in dump.header.links] == [span(1, 1).span_id, span(1, 2).span_id]
    assert dump.header.parent == span(1, 1)


def test_firings_of_two_traces_are_two_dumps() -> None:
    """Failures of concurrent requests are kept apart."""
    first, second = dumps_of(firing(span(1)), firing(span(2)))
    assert (first.header.span.trace_id, second.header.span.trace_id) == (span(1).trace_id, span(2).trace_id)


def test_the_span_is_the_trigger_though_the_crash_came_first() -> None:
    """The kernel's alert may overtake the datagram: the dump still goes into the failed span's trace."""
    (dump,) = dumps_of(firing(None, kind="process_exit"), firing(span(3)))
    assert dump.header.trigger == "span_error"
    assert dump.header.span.trace_id == span(3).trace_id


def test_a_process_without_a_trace_joins_itself_only() -> None:
    """Crashes of two processes are two dumps."""
    assert len(dumps_of(firing(pid=1, kind="process_exit"), firing(pid=2, kind="process_exit"))) == 2
    assert len(dumps_of(firing(pid=1, kind="process_exit"), firing(pid=1, kind="process_exit"))) == 1


def test_dumps_by_hand_are_never_joined() -> None:
    """Who asks for a dump gets one of their own."""
    assert len(dumps_of(firing(kind="manual"), firing(kind="manual"))) == 2


def test_under_record_the_commands_end_joins_its_childs_failure() -> None:
    """With a root process everything below it is one story."""
    options = DumpOptions(root_pid=7)
    assert len(dumps_of(firing(span(1), pid=8), firing(None, pid=7, kind="process_exit"), options=options)) == 1


def test_the_gate_suppresses_and_the_next_header_tells() -> None:
    """A firing that is held off makes no dump and is counted in the next one's header."""

    class Gate:
        admitted = 0

        def admit(self, _firing: Firing) -> bool:
            self.admitted += 1
            return self.admitted == 1

        def take_suppressed(self) -> int:
            return self.admitted - 1

    made: list[Dump] = []
    source: Any = EmptySource()
    recorder = FlightRecorder(source, DumpOptions(), made.append, after_s=60, gate=Gate())
    recorder.start()
    assert recorder.fire(firing(span(1))) is not None
    assert recorder.fire(firing(span(2))) is None
    assert recorder.stop()
    assert [dump.header.suppressed for dump in made] == [1]


def test_a_failing_capture_fails_its_dump_and_no_other() -> None:
    """The kernel refuses once: that dump fails with the cause, the next one is made."""
    source: Any = EmptySource()
    right, broken = source.capture, iter([True, False])

    def capture(pids: object = None) -> Capture:
        if next(broken):
            raise OSError(12, "no memory")
        return right()

    source.capture = capture
    made: list[Dump] = []
    recorder = FlightRecorder(source, DumpOptions(), made.append)
    recorder.start()
    first = recorder.fire(firing(span(1)))
    assert first is not None
    with pytest.raises(OSError, match="no memory"):
        first.result(timeout=10)
    second = recorder.fire(firing(span(2)))
    assert second is not None
    assert second.result(timeout=10) is made[0]
    assert recorder.stop()
    assert recorder.status()["dumps"] == {"made": 1, "failed": 1}


def test_header_and_span_are_one_story_on_the_wire() -> None:
    """Header record and dump span carry the same attributes; the span is a child of the failed one and links to it."""
    (dump,) = dumps_of(firing(span(5, 9)))
    header_chunk, span_chunk = dump.payload.chunks
    logs = ExportLogsServiceRequest.FromString(header_chunk.body)
    (record,) = logs.resource_logs[0].scope_logs[0].log_records
    traces = ExportTraceServiceRequest.FromString(span_chunk.body)
    (made,) = traces.resource_spans[0].scope_spans[0].spans
    assert (header_chunk.signal, span_chunk.signal) == ("logs", "traces")
    assert record.event_name == made.name == "perfbuf.dump"
    assert record.span_id == made.span_id
    assert record.trace_id == made.trace_id == span(5).trace_id
    assert made.parent_span_id == span(5, 9).span_id
    assert [link.span_id for link in made.links] == [span(5, 9).span_id]
    assert [item for item in record.attributes if item.key != "perfbuf.correlation"] == list(made.attributes)
    assert len(dump.header.dump_id) == 32
    assert logs.resource_logs[0].resource == traces.resource_spans[0].resource


def test_thread_pages_that_could_not_be_read_whole_are_counted() -> None:
    """Two of three pages changed during every try: the header and the text say so; without any neither does."""
    source: Any = EmptySource()
    torn, whole = SampleWriter(instance=1), SampleWriter(instance=2)
    capture = source.capture
    pages = torn.page(flags=lib.PB_PAGE_TORN) * 2 + whole.syscall(1, 1000).page()
    source.capture = lambda pids=None: replace(capture(), pages=pages)
    made: list[Dump] = []
    recorder = FlightRecorder(source, DumpOptions(scope="host"), made.append)
    recorder.start()
    assert recorder.fire(firing(pid=None)) is not None
    assert recorder.stop()
    (plain,) = dumps_of(firing())
    for dump, expected in ((made[0], [2]), (plain, [])):
        attributes = {pair.key: pair.value for pair in dump.header.attributes()}
        assert [attributes[key].int_value for key in attributes if key == "perfbuf.dump.torn_pages"] == expected
    assert "# not here: 2 torn pages" in list(render(made[0].payload.chunks, lines=None, colour=False))


def test_without_a_span_the_dump_is_a_trace_of_its_own() -> None:
    """A crash without any trace: a new root span, not linked to anything."""
    (dump,) = dumps_of(firing(None, kind="process_exit"))
    assert dump.header.parent is None
    assert not dump.header.links
    assert any(dump.header.span.trace_id)


class HeldSource(EmptySource):
    """A history whose snapshots wait for leave, and that counts how many are held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def capture(self, pids: object = None) -> Capture:
        """The next snapshot, when it may be taken."""
        self.begun.release()
        assert self.go.acquire(timeout=10)
        return super().capture()


def test_what_fires_during_the_last_snapshot_makes_a_dump_of_its_own() -> None:
    """A dump cannot hold what came after its snapshot began: a failure of the same trace is not swallowed by it."""
    source: Any = HeldSource()
    made: list[Dump] = []
    recorder = FlightRecorder(source, DumpOptions(), made.append)
    recorder.start()
    early = firing(span(1, 1))
    first = recorder.fire(firing(span(1, 2)))
    assert source.begun.acquire(timeout=10)
    second = recorder.fire(firing(span(1, 3)))
    assert recorder.fire(early) is first  # it is told late, and fired before
    source.go.release(2)
    assert recorder.stop()
    assert first is not second
    assert [len(dump.header.links) for dump in made] == [2, 1]


def test_dumps_that_wait_for_a_snapshot_share_it() -> None:
    """A hundred failed traces at once cost the copies of a few, not a hundred times all rings."""
    source: Any = HeldSource()
    made: list[Dump] = []
    recorder = FlightRecorder(source, DumpOptions(), made.append)
    recorder.start()
    for trace in range(1, 101):
        assert recorder.fire(firing(span(trace))) is not None
    source.go.release(100)
    assert recorder.stop()
    assert len(made) == 100
    assert source.snapshots <= 2  # the first's, if it had begun before the others fired, and one for all others


def test_few_snapshots_are_held_while_dumps_wait_to_be_joined() -> None:
    """Each is as large as all rings; failures that come one after the other share the newest when there are many."""
    source: Any = EmptySource()
    made: list[Dump] = []
    recorder = FlightRecorder(source, DumpOptions(), made.append, after_s=60)
    recorder.start()
    for trace in range(1, 101):
        assert recorder.fire(firing(span(trace))) is not None
        while recorder.status()["without_snapshot"]:
            time.sleep(0)
    before_the_end = source.snapshots
    assert recorder.stop()
    assert len(made) == 100
    assert before_the_end <= 8
    assert source.snapshots == before_the_end + 1


def test_a_dump_has_a_bounded_number_of_links() -> None:
    """A storm of one trace's failures neither fills the memory nor makes a span that no receiver takes."""
    (dump,) = dumps_of(*(firing(span(1, number)) for number in range(1, 2001)))
    assert len(dump.header.links) == 1000
