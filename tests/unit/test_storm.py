# SPDX-License-Identifier: Apache-2.0
"""A storm of failed spans by OTLP: exactly the allowed dumps, every span counted once, every joined one linked."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from played_parts import PlayedParts
from test_otlp_scan import RULES, log_requests, trace_requests
from test_recorder import EmptySource

from otel_perfbuf._core._core import lib
from otel_perfbuf.recorder.dump import Dump, DumpOptions
from otel_perfbuf.recorder.recorder import FlightRecorder
from otel_perfbuf.service.options import FlightRecorderOptions
from otel_perfbuf.service.recording import Recording
from otel_perfbuf.service.telemetry import Telemetry
from otel_perfbuf.triggers.alike import Alike
from otel_perfbuf.triggers.manners import without_numbers
from otel_perfbuf.triggers.otlp_scan import Found, Hit, Scanner, ScanRules


class _Parts(PlayedParts):
    """The real recorder over a history without records."""

    def recorder(self, history: Any, options: FlightRecorderOptions, emit: Any, gate: Any) -> Any:
        return FlightRecorder(cast(Any, EmptySource()), DumpOptions(), emit, after_s=options.window.after, gate=gate)


class Stormed:
    """A flight recorder that gets requests; ``dumps`` are those that it has made."""

    def __init__(self, **options: Any) -> None:
        triggers = {"span_error": {}}
        self.dumps: list[Dump] = []
        self.telemetry = Telemetry()
        parts = _Parts()
        parsed = FlightRecorderOptions.model_validate({"history": ["h"], "triggers": triggers, **options})
        history: Any = parts.history(cast(Any, None), cast(Any, None))
        self.recording = Recording("r", "h", parsed, history, parts, self.telemetry, cast(Any, self.dumps.append))
        self.recording.start()

    def send(self, request: ExportTraceServiceRequest) -> None:
        """One request, looked at to its end."""
        before = self.counted()
        self.recording.consume("traces", request.SerializeToString())
        hits = sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans)
        end = time.monotonic() + 60
        while self.counted() < before + hits:
            assert time.monotonic() < end, self.recording.status()
            time.sleep(0.001)

    def counted(self) -> int:
        """Firings, and hits that fired nothing."""
        status = self.recording.status()
        return sum(status["fired"].values()) + sum(status["refused"].values())

    def stop(self) -> dict[str, Any]:
        """Its counts at the end."""
        assert self.recording.stop(30)
        return self.recording.status()


def failed(reasons: list[str], traces: list[bytes] | None = None, pid: int = 7) -> ExportTraceServiceRequest:
    """A failed span for each reason, in a trace of its own or in that of the list."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="process.pid").value.int_value = pid
    scope = resource.scope_spans.add()
    for number, reason in enumerate(reasons, 1):
        span = scope.spans.add(name="POST", trace_id=os.urandom(16), span_id=number.to_bytes(8, "big"))
        if traces is not None:
            span.trace_id = traces[number - 1]
        span.status.code, span.status.message = Status.STATUS_CODE_ERROR, reason
    return request


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_a_storm_makes_one_dump_and_every_span_is_counted(size: int) -> None:
    """10,000 spans of one reason but for its numbers, in requests of any size: one dump, 9,999 suppressed."""
    stormed = Stormed()
    for start in range(0, 10_000, size):
        stormed.send(failed([f"timeout after {number} ms" for number in range(start, start + size)]))
    status = stormed.stop()
    assert status["dumps"] == {"made": 1, "failed": 0}
    assert status["fired"] == {"span_error": 10_000}
    assert len(stormed.dumps[0].header.links) == 1
    assert status["suppressed"] == {"span_error": 9_999}
    assert 'perfbuf_dumps{trigger="span_error",outcome="suppressed"} 9999' in stormed.telemetry.render().splitlines()


def test_a_storm_of_many_reasons_makes_as_many_dumps_as_the_budget_has() -> None:
    """Each reason is a key; when five dumps are made the rest is counted, whatever its reason."""
    stormed = Stormed(max_dumps={"per": "1h", "count": 5})
    words = ["".join(chr(ord("g") + int(digit)) for digit in f"{number:03}") for number in range(1000)]
    for start in range(0, 1000, 100):
        stormed.send(failed(words[start : start + 100]))
    status = stormed.stop()
    assert status["dumps"]["made"] == 5
    assert status["fired"]["span_error"] == 1000
    assert status["suppressed"]["span_error"] == 995


def test_every_span_of_the_trace_is_linked_and_no_other() -> None:
    """While a dump waits for its window's end, spans of its trace join it out of the midst of others, spent or not."""
    stormed = Stormed(window={"after": "60s"}, max_dumps={"per": "1h", "count": 1})
    ours, others = b"\1" * 16, [bytes([2, number]) * 8 for number in range(1, 100)]
    stormed.send(failed(["timeout after 0 ms"], [ours]))
    for reason in ("timeout after 7 ms", "another reason"):
        traces = [*others[:50], ours, *others[50:], ours]
        stormed.send(failed([reason] * len(traces), traces))
    status = stormed.stop()
    (dump,) = stormed.dumps
    assert {link.trace_id for link in dump.header.links} == {ours}
    assert [int.from_bytes(link.span_id, "big") for link in dump.header.links] == [1, 51, 101]
    assert dump.header.reason == "timeout after 0 ms"
    assert status["suppressed"] == {"span_error": 2 * 99}
    assert status["fired"] == {"span_error": 1 + 2 * 101}


def test_without_a_hold_off_each_has_a_dump_with_its_own_reason() -> None:
    """hold_off: 0s: nothing is taken together."""
    stormed = Stormed(hold_off="0s")
    reasons = [f"timeout after {number} ms" for number in range(20)]
    stormed.send(failed(reasons))
    stormed.stop()
    assert sorted(dump.header.reason for dump in stormed.dumps) == sorted(reasons)


def test_a_span_without_a_process_is_refused_each_time() -> None:
    """Alike ones are counted one by one there too."""
    stormed = Stormed()
    for _ in range(3):
        stormed.send(failed(["x"] * 40, pid=0))
    status = stormed.stop()
    assert status["refused"] == {"no_process": 120}
    assert status["fired"] == {}


def _kind(hit: Hit) -> int:
    return lib.PB_HIT_ERROR if hit.why & lib.PB_HIT_ERROR else hit.why


def _origin(hit: Hit) -> tuple[object, ...]:
    return _kind(hit), hit.own, hit.resource, hit.process_id, hit.thread_id


def _texts(hit: Hit) -> str:
    return hit.name if hit.why == lib.PB_HIT_SLOW else hit.message or f" {hit.name}"


def _spans(hits: list[Hit]) -> list[tuple[object, ...]]:
    return [(hit.start_unix_ns, hit.end_unix_ns, hit.trace_id, hit.span_id, hit.flags) for hit in hits]


def _rows(spans: bytes) -> list[tuple[object, ...]]:
    return [
        (
            row.start_ns,
            row.end_ns,
            row.trace_id if row.has & lib.PB_HIT_TRACE_ID else None,
            row.span_id if row.has & lib.PB_HIT_SPAN_ID else None,
            row.flags & 0xFF,
        )
        for row in Alike(spans, 0, False)
    ]


def assert_grouped(found: Found) -> None:
    """Origins and groups are those that Python makes of the hits; no hit is in two, none in no group."""
    hits = [found.hit(number) for number in range(found.kept)]
    expected: dict[tuple[object, ...], list[Hit]] = {}
    for hit in hits:
        expected.setdefault(_origin(hit), []).append(hit)
    origins = list(found.origins())
    assert [_origin(hits[origin.hit]) for origin in origins] == list(expected)
    for origin in origins:
        of_origin = expected[_origin(hits[origin.hit])]
        assert Counter(_rows(origin.spans)) == Counter(_spans(of_origin))
        by_reason: dict[str, list[Hit]] = {}
        for hit in of_origin:
            by_reason.setdefault(without_numbers(_texts(hit)), []).append(hit)
        groups = list(found.groups(origin))
        rows = [_rows(group.spans) for group in groups]
        assert [row for each in rows for row in each] == _rows(origin.spans)
        for group, row in zip(groups, rows, strict=True):
            assert row == _spans(by_reason.pop(without_numbers(_texts(hits[group.hit]))))
        assert not by_reason


@given(st.one_of(trace_requests, log_requests))
def test_groups_are_those_that_python_makes(request: Any) -> None:
    """Whatever a request holds."""
    signal: Any = "traces" if isinstance(request, ExportTraceServiceRequest) else "logs"
    assert_grouped(Scanner(RULES).scan(signal, request.SerializeToString()))


def _alike_texts() -> st.SearchStrategy[str]:
    parts = st.sampled_from(
        ["0x", "0X", "0", "7", "a", "f", "F", "g", "_", " ", "é", "١", "-", "x", "12", "beef", "\n"]
    )
    return st.lists(parts, max_size=8).map("".join)


@given(st.lists(_alike_texts(), min_size=1, max_size=40))
def test_reasons_are_alike_as_in_a_hold_offs_key(reasons: list[str]) -> None:
    """Digits and hex, at the ends of words and within them: C and Python's pattern agree on what a number is."""
    request = failed(reasons)
    found = Scanner(ScanRules(errors=True)).scan("traces", request.SerializeToString())
    (origin,) = found.origins()
    expected = {without_numbers(reason) if reason else None for reason in reasons}
    assert len(list(found.groups(origin))) == len(expected)
    assert_grouped(found)


def _colliding(count: int) -> Iterator[str]:
    """Texts of which C's hash is the same are hard to come by; as many different ones fill its table all the same."""
    for number in range(count):
        yield "".join(chr(ord("g") + int(digit)) for digit in str(number))


def test_as_many_reasons_as_hits() -> None:
    """8,192 hits of 8,192 reasons are 8,192 groups of one."""
    request = failed(list(_colliding(8192)))
    found = Scanner(ScanRules(errors=True)).scan("traces", request.SerializeToString())
    (origin,) = found.origins()
    assert [len(group.spans) for group in found.groups(origin)] == [48] * 8192
    assert [found.hit(group.hit).message for group in found.groups(origin)] == list(_colliding(8192))


def test_the_span_is_what_protobuf_says() -> None:
    """Ids and times of an alike firing, from a span."""
    request = failed(["a 1", "a 2"])
    spans: list[Span] = list(request.resource_spans[0].scope_spans[0].spans)
    found = Scanner(ScanRules(errors=True)).scan("traces", request.SerializeToString())
    (origin,) = found.origins()
    assert [row.trace for row in Alike(origin.spans, 0, False)] == [span.trace_id for span in spans]
