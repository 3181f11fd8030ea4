# SPDX-License-Identifier: Apache-2.0
"""Telemetry as a trigger: which spans and log records fire, as what, and that nobody waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_requests import TRACE_ID, log_request, trace_request

from otel_perfbuf.triggers import telemetry
from otel_perfbuf.triggers.firing import Evidence, Firing, Match, SpanContext
from otel_perfbuf.triggers.otlp_scan import MalformedRequest
from otel_perfbuf.triggers.telemetry import Consumed, TelemetryRules, TelemetryTrigger

NOW_NS = 2_000_000
ALL = TelemetryRules(errors=True, at_least=17)


class Fired:
    """Collects firings; ``evidence`` is what was asked."""

    def __init__(self, rules: TelemetryRules = ALL, match: Match | None = None) -> None:
        self.firings: list[Firing] = []
        self.evidence: list[Evidence] = []
        self.match = match or Match(((4711, 5),), "process.pid")
        self.now_s = 0.0
        self.trigger = TelemetryTrigger(rules, self._find, clock=lambda: NOW_NS, monotonic=lambda: self.now_s)

    def _find(self, evidence: Evidence) -> Match:
        self.evidence.append(evidence)
        return self.match

    def __enter__(self) -> Fired:
        return self

    def __exit__(self, *_: object) -> None:
        self.trigger.stop()

    def all_of(self, *requests: Any) -> list[Firing]:
        """The firings of these requests."""
        self.trigger.start(self.firings.append)
        for request in requests:
            self.trigger.consume("logs" if "Logs" in type(request).__name__ else "traces", request.SerializeToString())
        self.trigger.stop()
        return self.firings


@pytest.fixture
def fired() -> Iterator[Fired]:
    """Errors and severe logs, all of process 4711."""
    with Fired() as fired:
        yield fired


def test_a_failed_span_fires(fired: Fired) -> None:
    """With its context, its time, its service, its status's message; never with a claim on a thread."""
    request = trace_request("POST /pay", message="gateway timed out", attributes={"service.name": "checkout"})
    [firing] = fired.all_of(request)
    assert firing == Firing(
        kind="span_error",
        reason="gateway timed out",
        unix_ns=2_000,
        pid=4711,
        span=SpanContext(TRACE_ID, (1).to_bytes(8, "big"), 1),
        start_unix_ns=1_000,
        end_unix_ns=2_000,
        service_name="checkout",
        span_name="POST /pay",
        interleaved=True,
        processes=((4711, 5),),
        matched_by="process.pid",
    )
    assert fired.evidence == [Evidence({"service.name": "checkout"}, None, None, 1_000, 2_000)]


def test_an_exception_event_is_the_reason_when_the_status_says_nothing(fired: Fired) -> None:
    """The last exception's type and message; without one, the span's name."""
    request = trace_request("a", "b")
    values = {"exception.type": "OSError", "exception.message": "no such file"}
    pairs = [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in values.items()]
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.events.extend([Span.Event(name="exception"), Span.Event(name="exception", attributes=pairs)])
    assert [firing.reason for firing in fired.all_of(request)] == [
        "OSError: no such file",
        "span b ended with status ERROR",
    ]


def test_a_severe_log_fires(fired: Fired) -> None:
    """Of at least the severity; with its body, and with no span when it has none."""
    [firing] = fired.all_of(log_request("disk full"), log_request("fine", severity=16))
    assert (firing.kind, firing.reason, firing.span, firing.unix_ns) == ("log_severity", "disk full", None, 1_000)
    assert (firing.start_unix_ns, firing.end_unix_ns) == (0, 0)


def test_a_slow_span_fires_by_name() -> None:
    """span_latency: at least that long, and of the names that are given."""
    rules = TelemetryRules(longer_than_ns=1_000, names=("slow",))
    with Fired(rules) as fired:
        [firing] = fired.all_of(trace_request("slow", "other", failed=False))
    assert (firing.kind, firing.span_name) == ("span_latency", "slow")
    assert "took 0.000 s" in firing.reason


def test_what_is_ours_never_fires(fired: Fired) -> None:
    """Our scope, records of a dump that came back under another scope, and the agent's own service."""
    scope = trace_request("perfbuf.dump")
    scope.resource_spans[0].scope_spans[0].scope.name = "otel_perfbuf"
    record = log_request("+++ killed by SIGSEGV +++")
    pair = KeyValue(key="perfbuf.dump.id", value=AnyValue(string_value="ab" * 16))
    record.resource_logs[0].scope_logs[0].log_records[0].attributes.append(pair)
    own = log_request("export failed", attributes={"service.name": "otel-perfbuf"})
    assert fired.all_of(scope, record, own) == []
    assert not fired.trigger.refused


def test_ids_of_the_span_itself_are_evidence(fired: Fired) -> None:
    """process.pid and thread.id of the span go with the resource's attributes."""
    request = trace_request("a", attributes={"process.pid": 1, "container.id": "ab"})
    for key, number in (("process.pid", 77), ("thread.id", 78)):
        pair = KeyValue(key=key, value=AnyValue(int_value=number))
        request.resource_spans[0].scope_spans[0].spans[0].attributes.append(pair)
    fired.all_of(request)
    [evidence] = fired.evidence
    assert (evidence.process_id, evidence.thread_id) == (77, 78)
    assert evidence.resource == {"process.pid": 1, "container.id": "ab"}


def test_several_candidates_are_said() -> None:
    """All go into the firing, and the reason names them and the attribute."""
    with Fired(match=Match(((3, 1), (2, 1)), "service.name")) as fired:
        [firing] = fired.all_of(trace_request("a", message="failed"))
    assert firing.processes == ((3, 1), (2, 1))
    assert firing.reason == "failed (one of 2 processes that service.name leads to: 3, 2)"


def test_no_process_is_counted_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """One line says what was missing, the next one how many were like it."""
    with Fired(match=Match(why="it has no process.pid")) as fired, caplog.at_level(logging.WARNING):
        trigger = fired.trigger
        for now_s in (0.0, 30.0, 59.0, 61.0):
            fired.now_s = now_s
            trigger._stopping = False
            assert fired.all_of(trace_request("POST /pay", attributes={"service.name": "checkout"})) == []
    assert trigger.refused["no_process"] == 4
    assert [record.getMessage() for record in caplog.records] == [
        "no dump for span_error POST /pay of service checkout: it has no process.pid",
        "no dump for span_error POST /pay of service checkout: it has no process.pid (2 more since the last such line)",
    ]


def test_the_same_telemetry_is_looked_for_once_a_second() -> None:
    """A storm of failed spans of one process asks for it once."""
    with Fired() as fired:
        assert len(fired.all_of(trace_request(*"abcdefgh"), trace_request(*"ijk"))) == 11
    assert len(fired.evidence) == 1


def test_who_brings_a_request_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process is looked for requests are taken, up to a bound; the rest is counted as dropped."""
    monkeypatch.setattr(telemetry, "_HITS_MAX", 3)
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Evidence) -> Match:
        begun.set()
        assert go_on.wait(30)
        return Match(((4711, 5),), "process.pid")

    with Fired() as fired:
        trigger = fired.trigger
        trigger._find = slow
        trigger.start(fired.firings.append)
        body = trace_request("a").SerializeToString()
        assert trigger.consume("traces", body) == Consumed(1, 0)
        assert begun.wait(30)
        assert [trigger.consume("traces", body).dropped for _ in range(5)] == [0, 0, 0, 1, 1]
        go_on.set()
    assert trigger.refused["telemetry_queue"] == 2


def test_malformed_requests_raise(fired: Fired) -> None:
    """The receiver answers them; a resource that cannot be read is counted, and the rest of its request fires."""
    with pytest.raises(MalformedRequest, match="no ExportTraceServiceRequest"):
        fired.trigger.consume("traces", b"\x0a\xff")
    request = trace_request("a")
    good = request.resource_spans[0].SerializeToString()
    broken = b"\x0a\x02\x0a\x7f" + good  # a Resource whose attribute is longer than it
    body = b"".join(b"\x0a" + bytes([len(part)]) + part for part in (broken, good))
    fired.trigger.start(fired.firings.append)
    fired.trigger.consume("traces", body)
    fired.trigger.stop()
    assert len(fired.firings) >= 1
    assert fired.trigger.refused["failed"] == 0


def test_times_that_are_none_are_replaced(fired: Fired) -> None:
    """A span from tomorrow, or from last week, is looked for from now on back."""
    future, old = trace_request("future"), trace_request("old")
    future.resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano = NOW_NS + 1
    old.resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano = 0
    assert [firing.unix_ns for firing in fired.all_of(future, old)] == [NOW_NS, 0 or NOW_NS]
