# SPDX-License-Identifier: Apache-2.0
"""The C scan of OTLP requests beside protobuf's own parser: the same records, the same hits, and no crash at any bytes.

The scan may take what protobuf refuses (it does not look into what it does not need), never the reverse.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from otel_perfbuf._core._core import lib
from otel_perfbuf.triggers.otlp_scan import HITS_MAX, Found, MalformedRequest, Scanner, ScanRules

pytestmark = pytest.mark.timeout(600)  # hypothesis makes large requests, and the machine may be loaded
RULES = ScanRules(errors=True, longer_than_ns=1000, at_least=17)
DEPTH = 3

u64 = st.integers(0, (1 << 64) - 1)
times = st.one_of(st.just(0), st.integers(1, 3000), u64)
texts = st.text(max_size=20)
ids = st.one_of(st.binary(max_size=20), st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
any_values = st.recursive(
    st.one_of(
        st.builds(AnyValue, string_value=texts),
        st.builds(AnyValue, int_value=st.integers(-(1 << 63), (1 << 63) - 1)),
        st.builds(AnyValue, bool_value=st.booleans()),
        st.builds(AnyValue, double_value=st.floats()),
        st.builds(AnyValue, bytes_value=st.binary(max_size=5)),
        st.just(AnyValue()),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda values: AnyValue(array_value={"values": values})),
    max_leaves=DEPTH,
)
keys = st.one_of(texts, st.sampled_from(["thread.id", "process.pid", "perfbuf.dump.id", "service.name"]))
pairs = st.lists(st.builds(KeyValue, key=keys, value=any_values), max_size=4)
event_keys = st.one_of(st.sampled_from(["exception.type", "exception.message"]), keys)
event_pairs = st.lists(st.builds(KeyValue, key=event_keys, value=any_values), max_size=4)
scopes = st.one_of(
    st.none(), st.builds(InstrumentationScope, name=st.sampled_from(["", "otel_perfbuf", "otel_perfbuf2", "app"]))
)
spans = st.builds(
    Span,
    trace_id=ids,
    span_id=ids,
    name=texts,
    start_time_unix_nano=times,
    end_time_unix_nano=times,
    attributes=pairs,
    events=st.lists(
        st.builds(Span.Event, name=st.one_of(st.just("exception"), texts), attributes=event_pairs), max_size=2
    ),
    status=st.one_of(st.none(), st.builds(Status, message=texts, code=st.integers(-3, 5))),
    flags=st.integers(0, (1 << 32) - 1),
)
records = st.builds(
    LogRecord,
    time_unix_nano=times,
    observed_time_unix_nano=times,
    severity_number=st.one_of(st.integers(0, 24), st.integers(-(1 << 31), (1 << 31) - 1)),
    body=st.one_of(st.none(), any_values),
    attributes=pairs,
    flags=st.integers(0, (1 << 32) - 1),
    trace_id=ids,
    span_id=ids,
    event_name=texts,
)
resources = st.one_of(st.none(), st.builds(Resource, attributes=pairs))
trace_requests = st.builds(
    ExportTraceServiceRequest,
    resource_spans=st.lists(
        st.builds(
            ResourceSpans,
            resource=resources,
            scope_spans=st.lists(st.builds(ScopeSpans, scope=scopes, spans=st.lists(spans, max_size=3)), max_size=2),
            schema_url=texts,
        ),
        max_size=3,
    ),
)
log_requests = st.builds(
    ExportLogsServiceRequest,
    resource_logs=st.lists(
        st.builds(
            ResourceLogs,
            resource=resources,
            scope_logs=st.lists(
                st.builds(ScopeLogs, scope=scopes, log_records=st.lists(records, max_size=3)), max_size=2
            ),
            schema_url=texts,
        ),
        max_size=3,
    ),
)

Expected = dict[str, Any]


def integer(pairs: Any, key: str) -> int | None:
    """The last integer attribute of that key, unless a later one of that key is something else."""
    found = None
    for pair in pairs:
        if pair.key == key and pair.HasField("value"):
            kind = pair.value.WhichOneof("value")
            found = pair.value.int_value if kind == "int_value" else None if kind else found
    return found


def exception_of(span: Span) -> str:
    """What a failed span's last exception event says, "" without one."""
    if span.status.code != Status.STATUS_CODE_ERROR:
        return ""
    for event in reversed(span.events):
        if event.name == "exception":
            said = {pair.key: pair.value.string_value for pair in event.attributes}
            return ": ".join(filter(None, (said.get("exception.type"), said.get("exception.message")))) or "exception"
    return ""


def valid(data: bytes, size: int) -> bytes | None:
    """An id, or None for what is none."""
    return data if len(data) == size and any(data) else None


def why_of(record: Any) -> int:
    """What RULES say of a parsed span or log record."""
    if isinstance(record, LogRecord):
        return lib.PB_HIT_SEVERE if record.severity_number >= 17 else 0
    start, end = record.start_time_unix_nano, record.end_time_unix_nano
    why = lib.PB_HIT_ERROR if record.status.code == Status.STATUS_CODE_ERROR else 0
    return why | (lib.PB_HIT_SLOW if start and end - start >= 1000 else 0)


def parsed(request: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(resource, scope, record) of a parsed request."""
    for resource in getattr(request, "resource_spans", None) or getattr(request, "resource_logs", ()):
        for scope in getattr(resource, "scope_spans", None) or getattr(resource, "scope_logs", ()):
            for record in getattr(scope, "spans", None) or getattr(scope, "log_records", ()):
                yield resource.resource, scope.scope, record


def assert_same(found: Found, request: Any) -> None:
    """The scan found what the parsed request holds."""
    everything = list(parsed(request))
    mine = [item for item in everything if item[1].name == "otel_perfbuf"]
    expected = [item for item in everything if item[1].name != "otel_perfbuf" and why_of(item[2])]
    assert (found.records, found.own, found.hits) == (len(everything), len(mine), len(expected))
    assert found.kept == min(len(expected), HITS_MAX)
    for number, (resource, _, record) in enumerate(expected[:HITS_MAX]):
        hit = found.hit(number)
        is_log = isinstance(record, LogRecord)
        assert hit.why == why_of(record)
        assert hit.trace_id == valid(record.trace_id, 16)
        assert hit.span_id == valid(record.span_id, 8)
        assert hit.flags == record.flags & 0xFF
        start = record.time_unix_nano if is_log else record.start_time_unix_nano
        end = record.observed_time_unix_nano if is_log else record.end_time_unix_nano
        assert (hit.start_unix_ns, hit.end_unix_ns) == (start, end)
        assert hit.thread_id == integer(record.attributes, "thread.id")
        assert hit.process_id == integer(record.attributes, "process.pid")
        assert hit.own == any(pair.key == "perfbuf.dump.id" for pair in record.attributes)
        assert hit.name == (record.event_name if is_log else record.name)
        assert hit.message == (record.body.string_value if is_log else record.status.message or exception_of(record))
        assert Resource.FromString(hit.resource).SerializeToString(deterministic=True) == resource.SerializeToString(
            deterministic=True
        )


@given(trace_requests)
def test_spans_are_those_that_protobuf_finds(request: ExportTraceServiceRequest) -> None:
    """Counts, ids, times, texts and resources of every hit are what protobuf's parser gives."""
    assert_same(Scanner(RULES).scan("traces", request.SerializeToString()), request)


@given(log_requests)
def test_log_records_are_those_that_protobuf_finds(request: ExportLogsServiceRequest) -> None:
    """The same for log records."""
    assert_same(Scanner(RULES).scan("logs", request.SerializeToString()), request)


@settings(max_examples=300)
@given(st.one_of(trace_requests, log_requests), st.randoms(use_true_random=False))
def test_damaged_requests_are_judged_as_protobuf_does(request: Any, chance: random.Random) -> None:
    """Whatever protobuf still parses after damage, the scan parses to the same hits; the rest raises or is scanned."""
    data = bytearray(request.SerializeToString())
    for _ in range(chance.randint(1, 4)):
        if data:
            place = chance.randrange(len(data))
            if chance.random() < 0.3:
                del data[place:]
            elif chance.random() < 0.5:
                data[place] = chance.randrange(256)
            else:
                data[place:place] = chance.randbytes(chance.randint(1, 4))
    signal: Any = "logs" if isinstance(request, ExportLogsServiceRequest) else "traces"
    try:
        again = type(request).FromString(bytes(data))
    except DecodeError:
        again = None
    try:
        found = Scanner(RULES).scan(signal, bytes(data))
    except MalformedRequest:
        assert again is None
        return
    if again is not None and single(bytes(data), again):
        assert_same(found, again)


def single(data: bytes, message: Any) -> bool:
    """Whether nothing was merged or unknown: the scan says what it does with a resource that comes in parts."""
    return len(message.SerializeToString()) == len(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_scanned_or_refused(data: bytes) -> None:
    """Bytes that are nothing: an exception of its own or a result, never anything else."""
    for signal in ("logs", "traces"):
        try:
            Scanner(RULES).scan(signal, data)  # type: ignore[arg-type]  # mypy widens the tuple
        except MalformedRequest:
            kind = ExportLogsServiceRequest if signal == "logs" else ExportTraceServiceRequest
            with pytest.raises(DecodeError):
                kind.FromString(data)


def test_scope_and_resource_behind_their_records() -> None:
    """Fields may come in any order: hits get their resource, and our own scope is known when it comes last."""
    span = Span(trace_id=b"t" * 16, span_id=b"s" * 8, name="late", status=Status(code=Status.STATUS_CODE_ERROR))
    spans_first = ScopeSpans(spans=[span]).SerializeToString()
    resource = ResourceSpans(resource=Resource(attributes=[KeyValue(key="k")])).SerializeToString()

    def request(scope: str) -> bytes:
        body = spans_first + ScopeSpans(scope=InstrumentationScope(name=scope)).SerializeToString()
        inner = b"\x12" + bytes([len(body)]) + body + resource
        return b"\x0a" + bytes([len(inner)]) + inner

    found = Scanner(RULES).scan("traces", request("app"))
    assert_same(found, ExportTraceServiceRequest.FromString(request("app")))
    assert found.kept == 1
    assert found.hit(0).name == "late"
    assert found.hit(0).resource
    own = Scanner(RULES).scan("traces", request("otel_perfbuf"))
    assert (own.records, own.own, own.hits) == (1, 1, 0)


def test_more_hits_than_are_looked_at_are_counted() -> None:
    """A request of more failed spans than HITS_MAX: all are counted, so many are given."""
    span = Span(status=Status(code=Status.STATUS_CODE_ERROR))
    request = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[span] * (HITS_MAX + 9))])]
    )
    found = Scanner(RULES).scan("traces", request.SerializeToString())
    assert (found.records, found.hits, found.kept) == (HITS_MAX + 9, HITS_MAX + 9, HITS_MAX)


def test_groups_and_unknown_fields_are_passed_over() -> None:
    """Groups (nested, as deep as protobuf takes them) and fields of other numbers are no fault; an open one is."""
    nested = bytes([0xA3, 0x06]) * 50 + bytes([0xA4, 0x06]) * 50
    assert ExportTraceServiceRequest.FromString(nested)
    assert Scanner(RULES).scan("traces", nested).records == 0
    for bad in (bytes([0xA3, 0x06]), bytes([0xA4, 0x06]), bytes([0xA3, 0x06]) * 101 + bytes([0xA4, 0x06]) * 101):
        with pytest.raises(MalformedRequest):
            Scanner(RULES).scan("traces", bad)
        with pytest.raises(DecodeError):
            ExportTraceServiceRequest.FromString(bad)


def test_rules_that_are_off_find_nothing() -> None:
    """Without rules a request is only counted."""
    span = Span(start_time_unix_nano=1, end_time_unix_nano=1 << 62, status=Status(code=Status.STATUS_CODE_ERROR))
    request = ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[span])])])
    found = Scanner(ScanRules()).scan("traces", request.SerializeToString())
    assert (found.records, found.hits) == (1, 0)
