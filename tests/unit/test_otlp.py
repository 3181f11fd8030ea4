# SPDX-License-Identifier: Apache-2.0
"""The OTLP encoder: what protobuf's own parser reads of its bytes, and that protobuf would write the same bytes.

Source: opentelemetry-proto; CONTRACT.md sections 3 and 4 for names, types and severities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from plan_rows import NUMBERS, PLAN
from samples import Capture, Engine, SampleWriter, string

from otel_perfbuf._core._core import ffi, lib

OFFSET_NS = 1_700_000_000_000_000_000
SCOPE = InstrumentationScope(name="otel_perfbuf", version="0.1.0").SerializeToString()
TRACE, DUMP_SPAN, SPAN, DUMP_ID = bytes(range(16)), b"dumpspan", b"failspan", "0123456789abcdef" * 2


def resource(name: str) -> bytes:
    """A resource as the recorder makes it."""
    attribute = KeyValue(key="service.name", value=AnyValue(string_value=name))
    return Resource(attributes=[attribute]).SerializeToString()


def chunks(
    engine: Engine, resources: Sequence[bytes], *, trace: bool = True, scope: bytes = SCOPE
) -> Iterator[tuple[bytes, int]]:
    """All chunks of the selected events: bytes and how many records they hold."""
    keep = [ffi.from_buffer("uint8_t[]", data or b"\0") for data in resources]
    table = ffi.new("struct pb_bytes[]", max(len(resources), 1))
    for one, pointer, data in zip(table, keep, resources, strict=False):
        one.data, one.size = pointer, len(data)
    scope_bytes = ffi.new("uint8_t[]", scope or b"\0")
    c = ffi.new("struct pb_encoding *")
    c.plan, c.unix_offset_ns, c.observed_unix_ns, c.resources = PLAN.c, OFFSET_NS, OFFSET_NS + 10**9, table
    c.scope.data, c.scope.size = scope_bytes, len(scope)
    if trace:
        c.has_trace, c.trace_flags = 1, 1
        c.trace_id, c.dump_span_id, c.span_id, c.dump_id = TRACE, DUMP_SPAN, SPAN, DUMP_ID.encode()
    out, scratch = ffi.new("uint8_t[]", lib.PB_CHUNK_BYTES), ffi.new("uint64_t[]", lib.PB_CHUNK_BYTES // 4)
    cursor, size, records = ffi.new("uint64_t *"), ffi.new("uint64_t *"), ffi.new("uint32_t *")
    while True:
        status = lib.pb_otlp_encode_chunk(
            engine.c, c, cursor, ffi.cast("uint8_t *", scratch), 2 * lib.PB_CHUNK_BYTES,
            out, lib.PB_CHUNK_BYTES, size, records,
        )  # fmt: skip
        assert status == lib.PB_OK
        if not size[0]:
            assert cursor[0] == engine.c.event_count
            return
        yield bytes(ffi.buffer(out, size[0])), int(records[0])


def parse(data: bytes) -> ExportLogsServiceRequest:
    """By protobuf; and protobuf would have written the same bytes."""
    request = ExportLogsServiceRequest.FromString(data)
    assert request.SerializeToString(deterministic=True) == data
    return request


def plain(value: AnyValue) -> Any:
    """An AnyValue as a Python value; a list of pairs for a key-value list."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return [(pair.key, plain(pair.value)) for pair in value.kvlist_value.values]
    return getattr(value, kind or "string_value")


def attributes(record: LogRecord) -> dict[str, Any]:
    """The record's attributes; no key twice."""
    pairs = {pair.key: plain(pair.value) for pair in record.attributes}
    assert len(pairs) == len(record.attributes)
    return pairs


def encode_one(writer: SampleWriter, *, trace: bool = True, page: bytes = b"") -> list[LogRecord]:
    """The records of one process."""
    engine = Engine([writer.sample()] if writer.records else [], page).join()
    engine.select()
    ((data, count),) = chunks(engine, [resource("a")], trace=trace)
    (process,) = parse(data).resource_logs
    (scoped,) = process.scope_logs
    assert process.resource.SerializeToString() == resource("a")
    assert scoped.scope.SerializeToString() == SCOPE
    assert len(scoped.log_records) == count
    return list(scoped.log_records)


COMMON = {
    "thread.id": 100,
    "thread.name": "worker",
    "cpu.logical_number": 3,
    "perfbuf.sequence": 1,
    "perfbuf.thread.instance": 1,
    "perfbuf.correlation": "dump",
    "perfbuf.dump.id": DUMP_ID,
}


def test_a_failed_call_has_all_fields_of_the_contract() -> None:
    """Times, severity, body, ids, event name, attributes with their types."""
    args = [0xFFFFFF9C, 0x1000, 0o2000000, 7]
    writer = SampleWriter(cpu=3).syscall(1, 50, NUMBERS["openat"], args, -2, 1234, [string(1, b"a.json")])
    (record,) = encode_one(writer)
    assert record.time_unix_nano == OFFSET_NS + 50
    assert record.observed_time_unix_nano == OFFSET_NS + 10**9
    assert (record.severity_number, record.severity_text) == (13, "WARN")
    assert record.body.string_value == (
        'openat(AT_FDCWD, "a.json", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)'
    )
    assert (record.trace_id, record.span_id, record.flags) == (TRACE, DUMP_SPAN, 1)
    assert record.event_name == "perfbuf.syscall"
    assert attributes(record) == COMMON | {
        "perfbuf.syscall.name": "openat",
        "perfbuf.syscall.number": NUMBERS["openat"],
        "perfbuf.syscall.arguments": [("dfd", "AT_FDCWD"), ("filename", '"a.json"'), ("flags", "O_RDONLY|O_CLOEXEC")],
        "perfbuf.syscall.return_value": -2,
        "perfbuf.syscall.state": "complete",
        "perfbuf.duration_ns": 1234,
        "error.type": "ENOENT",
    }


def test_plain_integers_are_ints_and_wide_ones_keep_their_text() -> None:
    """A descriptor and a count are ints, a count above 2^63 and a buffer's address are text."""
    writer = SampleWriter().syscall(1, 1, NUMBERS["read"], [3, 0x10, 4096], 0)
    writer.syscall(2, 2, NUMBERS["read"], [-1, 0, (1 << 64) - 1], -9)
    first, second = map(attributes, encode_one(writer))
    assert first["perfbuf.syscall.arguments"] == [("fd", 3), ("buf", "0x10"), ("count", 4096)]
    assert second["perfbuf.syscall.arguments"] == [("fd", -1), ("buf", "NULL"), ("count", "18446744073709551615")]


def test_a_call_without_arguments_has_an_empty_list() -> None:
    """gettid: the list is there and empty."""
    (record,) = encode_one(SampleWriter().syscall(1, 1, NUMBERS["gettid"], [], 5))
    assert attributes(record)["perfbuf.syscall.arguments"] == []
    assert record.severity_number == 9


def test_a_call_in_flight_has_its_age_and_no_result() -> None:
    """State in_flight; of a call that began before recording no age is known."""
    call = SampleWriter().syscall(1, 50, NUMBERS["read"], [0, 0x10, 9], 77)
    (record,) = encode_one(SampleWriter(), page=SampleWriter().page(call, seen_ns=950))
    found = attributes(record)
    assert (found["perfbuf.syscall.state"], found["perfbuf.duration_ns"]) == ("in_flight", 900)
    assert "perfbuf.syscall.return_value" not in found
    old = SampleWriter().syscall(1, 50, NUMBERS["read"], [0, 0x10, 9], flags=lib.PB_FLAG_BEGAN_BEFORE)
    (record,) = encode_one(SampleWriter(), page=SampleWriter().page(old, seen_ns=950))
    assert "perfbuf.duration_ns" not in attributes(record)


@pytest.mark.parametrize(
    ("flags", "state", "has_result", "has_duration"),
    [
        (0, "complete", True, True),
        (lib.PB_FLAG_NO_RETURN, "complete", False, True),
        (lib.PB_FLAG_EXIT_ONLY, "exit_only", True, False),
        (lib.PB_FLAG_BEGAN_BEFORE, "exit_only", True, False),
    ],
)
def test_states_of_calls(flags: int, state: str, has_result: bool, has_duration: bool) -> None:
    """What is not known is not told."""
    (record,) = encode_one(SampleWriter().syscall(1, 1, NUMBERS["exit_group"], [1], 0, flags=flags))
    found = attributes(record)
    assert found["perfbuf.syscall.state"] == state
    assert ("perfbuf.syscall.return_value" in found) == has_result
    assert ("perfbuf.duration_ns" in found) == has_duration


def test_the_other_records_have_their_names_severities_and_attributes() -> None:
    """Signals, process events, OOM kills, lost records."""
    writer = (
        SampleWriter(cpu=3).exec(1, 1, b"/bin/\xff\xc3\xa9").fork(2, 2, 7, 7).signal(3, 3, 15, 0, bytes([9, 0, 0, 0]))
    )
    writer.signal(4, 4, 11, 1, b"\x10").exit(5, 5, 139).oom_kill(6, 6, 42, 5).lost(7, 7, 3, lib.PB_LOST_NO_SPACE)
    records = encode_one(writer)
    own = [{k: v for k, v in attributes(r).items() if k not in COMMON} for r in records]
    assert [(r.event_name, r.severity_text) for r in records] == [
        ("perfbuf.process.exec", "INFO"), ("perfbuf.process.fork", "INFO"), ("perfbuf.signal", "INFO"),
        ("perfbuf.signal", "ERROR"), ("perfbuf.process.exit", "ERROR"), ("perfbuf.oom_kill", "FATAL"),
        ("perfbuf.lost", "INFO"),
    ]  # fmt: skip
    assert own == [
        {"process.executable.path": "/bin/\ufffdé"},
        {"perfbuf.child_pid": 7},
        {"perfbuf.signal.name": "SIGTERM", "perfbuf.signal.number": 15, "perfbuf.signal.code": 0,
         "perfbuf.signal.sender_pid": 9},
        {"perfbuf.signal.name": "SIGSEGV", "perfbuf.signal.number": 11, "perfbuf.signal.code": 1,
         "perfbuf.signal.fault_address": "0x10"},
        {"perfbuf.signal.name": "SIGSEGV"},
        {"perfbuf.victim_pid": 42, "perfbuf.cgroup_id": 5},
        {"perfbuf.lost.count": 3, "perfbuf.lost.reason": "no_space"},
    ]  # fmt: skip
    assert all(attributes(r).keys() >= COMMON.keys() for r in records)


@pytest.mark.parametrize(("status", "severity", "code"), [(0, 9, 0), (1 << 8, 17, 1), (255 << 8, 17, 255)])
def test_an_exit_code_decides_the_severity(status: int, severity: int, code: int) -> None:
    """Zero is fine, the rest is an error."""
    (record,) = encode_one(SampleWriter().exit(1, 1, status))
    assert (record.severity_number, attributes(record)["process.exit.code"]) == (severity, code)


def test_a_kill_is_fatal_whatever_follows() -> None:
    """Nobody survives SIGKILL; a signal that the process handled is not fatal."""
    kill, term = encode_one(SampleWriter().signal(1, 1, 9, has_info=0).signal(2, 2, 15))
    assert (kill.severity_number, term.severity_number) == (17, 9)


def test_the_live_stream_has_no_ids() -> None:
    """Without a dump there is no trace, no span, no dump id, no correlation."""
    (record,) = encode_one(SampleWriter().exit(1, 1, 0), trace=False)
    assert (record.trace_id, record.span_id, record.flags) == (b"", b"", 0)
    assert not attributes(record).keys() & {"perfbuf.correlation", "perfbuf.dump.id"}


def test_records_of_the_spans_thread_and_time_carry_the_spans_id() -> None:
    """thread_window from the span's start to its end, both included; nothing of another thread."""
    writer = SampleWriter(instance=1)
    for sequence, time in enumerate([99, 100, 150, 200, 201], 1):
        writer.syscall(sequence, time, NUMBERS["gettid"])
    other = SampleWriter(instance=2, tid=101).syscall(1, 150, NUMBERS["gettid"])
    engine = Engine([writer.sample(), other.sample()]).join()
    engine.select()
    engine.c.threads[0].span_start_ns, engine.c.threads[0].span_end_ns = 100, 200
    ((data, _),) = chunks(engine, [resource("a")])
    records = parse(data).resource_logs[0].scope_logs[0].log_records
    inside = [(r.time_unix_nano - OFFSET_NS, attributes(r)["thread.id"]) for r in records if r.span_id == SPAN]
    assert inside == [(100, 100), (150, 100), (200, 100)]
    assert all((attributes(r)["perfbuf.correlation"] == "thread_window") == (r.span_id == SPAN) for r in records)
    assert all(r.span_id in (SPAN, DUMP_SPAN) for r in records)


def test_a_stamped_record_carries_its_own_span() -> None:
    """exact in the trigger's trace, other in another's; none without the flag, none from the sample before."""
    writer = SampleWriter(instance=1).span(TRACE, b"spanspan").syscall(1, 1, NUMBERS["gettid"], flags=lib.PB_FLAG_SPAN)
    writer.syscall(2, 2, NUMBERS["gettid"]).span(b"\xfe" * 16, b"\x01otherrr").signal(3, 3, 15)
    writer.syscall(4, 4, NUMBERS["gettid"], flags=lib.PB_FLAG_SPAN)
    later = SampleWriter(instance=1, sent_ns=9).syscall(5, 5, NUMBERS["gettid"], flags=lib.PB_FLAG_SPAN)
    engine = Engine([writer.sample(), later.sample()]).join()
    engine.select()
    engine.c.threads[0].span_start_ns, engine.c.threads[0].span_end_ns = 1, 3
    ((data, _),) = chunks(engine, [resource("a")])
    records = parse(data).resource_logs[0].scope_logs[0].log_records
    assert [(attributes(r)["perfbuf.correlation"], r.span_id) for r in records] == [
        ("exact", b"spanspan"), ("thread_window", SPAN), ("thread_window", SPAN), ("other", DUMP_SPAN),
        ("dump", DUMP_SPAN),
    ]  # fmt: skip
    assert all(r.trace_id == TRACE for r in records)
    assert attributes(records[3])["perfbuf.other.trace_id"] == "fe" * 16
    assert attributes(records[3])["perfbuf.other.span_id"] == b"\x01otherrr".hex()
    assert (engine.c.malformed, engine.c.event_count) == (0, 5)


def test_a_call_in_flight_carries_its_span() -> None:
    """The page's head tells it, without a record of its own."""
    page = bytearray(
        SampleWriter().page(open_call=SampleWriter().syscall(1, 1, NUMBERS["gettid"], flags=lib.PB_FLAG_SPAN))
    )
    at = ffi.offsetof("struct pb_page_head", "open_span")
    page[at : at + 24] = TRACE + b"spanspan"
    engine = Engine(pages=bytes(page)).join()
    engine.select()
    ((data, _),) = chunks(engine, [resource("a")])
    (record,) = parse(data).resource_logs[0].scope_logs[0].log_records
    assert (attributes(record)["perfbuf.correlation"], record.span_id) == ("exact", b"spanspan")


def test_a_comm_of_any_bytes_is_valid_utf8() -> None:
    """What is no UTF-8 becomes U+FFFD."""
    writer = SampleWriter(comm=b"\xff\xe2\x82\xac\xed\xa0\x80\xf0\x9f\x98\x80").exit(1, 1, 0)
    (record,) = encode_one(writer)
    assert attributes(record)["thread.name"] == "\ufffd€\ufffd\ufffd\ufffd😀"


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=16).filter(lambda data: 0 not in data))
def test_any_comm_reads_as_python_replaces_it(comm: bytes) -> None:
    """Never an invalid string field; valid text is untouched."""
    (record,) = encode_one(SampleWriter(comm=comm).exit(1, 1, 0))
    name = attributes(record)["thread.name"]
    assert "\ufffd" in name or name.encode() == comm


def many(count: int, processes: int, data: bytes = b"", numbers: str = "gettid") -> Engine:
    """`count` calls, one after the other of `processes` processes."""
    writers = []
    for process in range(processes):
        for begin in range(process, count, processes * 8):
            writer = SampleWriter(tid=process, tgid=process, instance=process + 1)
            for time in range(begin, min(count, begin + processes * 8), processes):
                captures = [Capture(1, lib.PB_CAPTURE_BUFFER, data)] if data else []
                args = [1, 2, len(data)] if data else []
                writer.syscall(time // processes + 1, time, NUMBERS[numbers], args, captures=captures)
            writers.append(writer)
    engine = Engine([writer.sample() for writer in writers]).join()
    engine.select()
    return engine


def times(request: ExportLogsServiceRequest) -> list[list[int]]:
    """Each process's times."""
    return [
        [record.time_unix_nano - OFFSET_NS for record in scoped.log_records]
        for process in request.resource_logs
        for scoped in process.scope_logs
    ]


def test_a_chunk_is_a_time_slice_grouped_by_process() -> None:
    """At most 8,192 records each; times ascend inside a process, slices follow each other, nothing is missing."""
    engine = many(20_000, 3)
    parts = [(parse(data), count) for data, count in chunks(engine, [resource(n) for n in "abc"], trace=False)]
    assert [count for _, count in parts] == [8192, 8192, 3616]
    last, seen = -1, 0
    for request, count in parts:
        groups = times(request)
        assert len(groups) == 3
        assert all(group == sorted(group) for group in groups)
        flat = sorted(time for group in groups for time in group)
        assert flat == list(range(last + 1, last + 1 + count))
        last, seen = flat[-1], seen + count
    assert seen == 20_000


def test_processes_come_in_the_order_of_their_first_record() -> None:
    """The oldest record's process is first, though its number is the highest."""
    late = SampleWriter(tgid=1, instance=1).exit(1, 100, 0)
    early = SampleWriter(tgid=9, instance=2).exit(1, 50, 0)
    engine = Engine([late.sample(), early.sample()]).join()
    engine.select()
    ((data, _),) = chunks(engine, [resource("late"), resource("early")])
    names = [plain(p.resource.attributes[0].value) for p in parse(data).resource_logs]
    assert names == ["early", "late"]


def test_a_chunk_never_exceeds_its_bytes() -> None:
    """Large resources and records: every request is below 3.5 MiB, and nothing is missing."""
    engine = many(3000, 40, bytes(600), "write")
    big = Resource(attributes=[KeyValue(key="k", value=AnyValue(string_value="x" * 150_000))]).SerializeToString()
    parts = list(chunks(engine, [big] * 40))
    assert all(len(data) <= lib.PB_CHUNK_BYTES for data, _ in parts)
    assert sum(count for _, count in parts) == 3000
    assert sorted(t for data, _ in parts for group in times(parse(data)) for t in group) == list(range(3000))
    assert len(parts) > 2


def test_nothing_selected_gives_no_chunk() -> None:
    """An empty history, and one out of the window."""
    assert list(chunks(Engine().join(), [])) == []
    engine = many(5, 1)
    engine.select(1000, 2000)
    assert list(chunks(engine, [b""])) == []


def test_an_empty_resource_and_scope_are_valid() -> None:
    """Zero bytes are a message without fields."""
    engine = many(5, 1)
    ((data, _),) = chunks(engine, [b""], scope=b"")
    assert len(parse(data).resource_logs[0].scope_logs[0].log_records) == 5


def test_a_resource_that_would_fill_the_request_is_refused() -> None:
    """PB_INVALID, before anything is written."""
    engine = many(1, 1)
    with pytest.raises(AssertionError):
        list(chunks(engine, [bytes(lib.PB_CHUNK_BYTES)]))
