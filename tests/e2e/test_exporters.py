# SPDX-License-Identifier: Apache-2.0
"""Our exporters into a real Collector: what its file exporter wrote is compared with what was sent, field by field.

Oracles: the Collector's own JSON, read by json and by protobuf's json_format. No recorder, no kernel.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from collector import Collector, running_collector
from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.components import exporter_module
from otel_perfbuf.exporters.options import RetryOptions
from otel_perfbuf.exporters.payload import Chunk, Exporter, Payload
from otel_perfbuf.exporters.queue import SendingQueue
from otel_perfbuf.exporters.saved import read_saved, saved_lines

TRACE_ID = bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736")
SPAN_ID = bytes.fromhex("00f067aa0ba902b7")
BEGIN_NS = 1_700_000_000_000_000_000


def syscalls(records: int, *, every_form: bool = True) -> ExportLogsServiceRequest:
    """A chunk like a dump's: two processes, every kind of value, text of all kinds, empty things."""
    request = ExportLogsServiceRequest()
    for pid in (42, 43):
        resource_logs = request.resource_logs.add()
        resource_logs.resource.attributes.add(key="service.name").value.string_value = 'checkout <&> é\u2028\x01\\"/'
        resource_logs.resource.attributes.add(key="process.pid").value.int_value = pid
        scope_logs = resource_logs.scope_logs.add()
        scope_logs.scope.name, scope_logs.scope.version = "otel_perfbuf", "0.1.0"
        for number in range(records):
            record = scope_logs.log_records.add(
                time_unix_nano=BEGIN_NS + number,
                observed_time_unix_nano=BEGIN_NS + 10**9,
                severity_number=13 if number % 2 else 9,
                event_name="perfbuf.syscall",
                trace_id=TRACE_ID,
                span_id=SPAN_ID,
                flags=1,
            )
            record.body.string_value = f'read(3</etc/hosts>, "127.0.0.1\\tlocal"..., 4096) = {number}'
            record.attributes.add(key="thread.id").value.int_value = pid
            record.attributes.add(key="perfbuf.syscall.return_value").value.int_value = -number
            arguments = record.attributes.add(key="perfbuf.syscall.arguments").value.kvlist_value
            arguments.values.add(key="fd").value.int_value = 3
            arguments.values.add(key="buf").value.string_value = '"127.0.0.1\\tlocal"...'
    if every_form:
        add_every_form(request)
    return request


def add_every_form(request: ExportLogsServiceRequest) -> None:
    """What a user's own BPF program may make of values, and what is empty."""
    record = request.resource_logs[0].scope_logs[0].log_records.add(severity_text="INFO", dropped_attributes_count=3)
    for key, value in (
        ("zero", 0), ("most", 2**63 - 1), ("least", -(2**63)), ("no", False), ("yes", True), ("", ""), ("float", 1.5),
        ("whole", 3.0), ("large", 1e21), ("small", 1e-9), ("inf", float("inf")), ("minus", float("-inf")),
        ("bytes", b"\xff\xfe\xfd\xfc"), ("no bytes", b""),
    ):  # fmt: skip
        field = {bool: "bool_value", int: "int_value", str: "string_value", float: "double_value"}.get(type(value))
        setattr(record.attributes.add(key=key).value, field or "bytes_value", value)
    record.attributes.add(key="nothing").value.SetInParent()
    record.attributes.add(key="empty map").value.kvlist_value.SetInParent()
    record.attributes.add(key="empty list").value.array_value.SetInParent()
    values = record.attributes.add(key="list").value.array_value.values
    values.add().int_value = 1
    values.add().array_value.values.add().string_value = "deep"
    request.resource_logs[0].scope_logs[0].log_records.add()
    request.resource_logs.add().scope_logs.add().log_records.add().body.int_value = 5


def dump_span() -> ExportTraceServiceRequest:
    """A dump span with its link, and one with nothing set."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    span = spans.add(
        trace_id=TRACE_ID, span_id=bytes(range(8)), parent_span_id=SPAN_ID, name="perfbuf.dump", kind=1,
        start_time_unix_nano=BEGIN_NS, end_time_unix_nano=BEGIN_NS + 1, flags=0x101,
    )  # fmt: skip
    span.status.code = 1
    span.attributes.add(key="perfbuf.dump.records").value.int_value = 7
    span.links.add(trace_id=TRACE_ID, span_id=SPAN_ID, flags=1)
    spans.add(name="bare")
    return request


def made(component_type: str, **keys: Any) -> Exporter:
    """A started exporter."""
    module = exporter_module(component_type)
    exporter = module.create(module.Options.model_validate(keys))
    exporter.start()
    return exporter


def by_protobuf(line: dict[str, Any], kind: type[Message]) -> Message:
    """A line of the Collector read by protobuf's own parser, which takes ids in base64."""

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(item) for item in value]
        if not isinstance(value, dict):
            return value
        ids = {"traceId", "spanId", "parentSpanId"}
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode() if key in ids else convert(item)
            for key, item in value.items()
        }

    return json_format.ParseDict(convert(line), kind())


def filled(message: Message) -> Message:
    """The message with the empty resource, scope, body and status that the Collector writes."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if isinstance(value, Message) else value:
                filled(item)
    for name in ("resource", "scope", "body", "status"):
        if name in message.DESCRIPTOR.fields_by_name and message.DESCRIPTOR.name != "KeyValue":
            getattr(message, name).SetInParent()
    return message


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("way", ["grpc", "http", "grpc_unix", "http_unix"])
def test_collector_gets_every_field(collector: Collector, way: str, compression: str) -> None:
    """Over TCP and Unix sockets, plain and compressed: each field of each record and span arrives as it was sent."""
    keys: dict[str, Any] = {"endpoint": getattr(collector, way), "compression": compression}
    if way.startswith("grpc"):
        keys["tls"] = {"insecure": True}
    exporter = made(f"otlp_{way.partition('_')[0]}", **keys)
    logs, traces = syscalls(100), dump_span()
    assert exporter.send(Chunk("logs", logs.SerializeToString(), 203), 30) == 0
    assert exporter.send(Chunk("traces", traces.SerializeToString(), 2), 30) == 0
    exporter.stop()
    collector.stop()
    lines = collector.lines()
    assert by_protobuf(lines[0], ExportLogsServiceRequest) == filled(logs)
    assert by_protobuf(lines[1], ExportTraceServiceRequest) == filled(traces)
    assert len(lines) == 2


def test_our_file_equals_the_collectors(collector: Collector, tmp_path: Path) -> None:
    """The same messages through our file exporter give the same JSON lines; both are read back and shown alike."""
    ours = tmp_path / "ours.jsonl"
    writer = made("file", path=str(ours))
    sender = made("otlp_grpc", endpoint=collector.grpc, tls={"insecure": True})
    for chunk in (
        Chunk("logs", syscalls(50).SerializeToString(), 103),
        Chunk("traces", dump_span().SerializeToString(), 2),
    ):
        writer.send(chunk, 30)
        sender.send(chunk, 30)
    writer.stop()
    sender.stop()
    collector.stop()
    assert [json.loads(line) for line in ours.read_bytes().splitlines()] == collector.lines()
    own, theirs = read_saved(ours), read_saved(collector.output)
    assert own.logs == theirs.logs == [filled(syscalls(50))]
    assert own.traces == theirs.traces
    assert list(saved_lines(own, colour=False)) == list(saved_lines(theirs, colour=False))


def test_collectors_proto_file_is_read(tmp_path: Path) -> None:
    """What a Collector's file exporter writes with format: proto is what ours writes as otlp_proto, byte for byte."""
    request = syscalls(20)
    chunk = Chunk("logs", request.SerializeToString(), 43)
    pipeline = {"receivers": ["otlp"], "exporters": ["file"]}
    extra = {
        "exporters": {"file": {"format": "proto"}},
        "service": {"pipelines": {"logs": pipeline, "traces": pipeline}},
    }
    with running_collector(tmp_path, extra) as collector:
        sender = made("otlp_grpc", endpoint=collector.grpc, tls={"insecure": True})
        sender.send(chunk, 30)
        sender.stop()
        collector.stop()
    writer = made("file", path=str(tmp_path / "ours"), format="otlp_proto")
    writer.send(chunk, 30)
    writer.stop()
    saved = read_saved(collector.output)
    assert (saved.format, saved.malformed) == ("otlp_proto", 0)
    assert [filled(message) for message in saved.logs] == [filled(request)]
    assert [filled(message) for message in read_saved(tmp_path / "ours").logs] == [filled(request)]


def test_dump_of_many_chunks_over_several_streams(collector: Collector) -> None:
    """40,000 records of ten chunks go through the queue; the first chunk is the first that arrives, none is missing."""
    bodies = []
    for number in range(10):
        request = syscalls(2000, every_form=False)
        for resource_logs in request.resource_logs:
            resource_logs.resource.attributes.add(key="chunk").value.int_value = number
        bodies.append(Chunk("logs", request.SerializeToString(), 4000))
    exporter = made("otlp_grpc", endpoint=collector.grpc, tls={"insecure": True})
    queue = SendingQueue(exporter, name="otlp_grpc")
    queue.start()
    assert queue.put(Payload(tuple(bodies), "dump"))
    left = queue.drain(60)
    assert left.sentence == ""
    assert queue.stats().logs.sent == 40_000
    collector.stop()
    chunks = [int(entry["resource"]["attributes"][-1]["value"]["intValue"]) for entry in collector.resource_logs()]
    assert chunks[0] == 0
    assert sorted(chunks) == sorted([*range(10), *range(10)])
    assert len(collector.log_records()) == 40_000


def test_collector_that_is_not_there_yet_gets_the_dump(tmp_path: Path) -> None:
    """A dump that is made before its Collector runs is kept in memory, retried and delivered."""
    delivered, failed = threading.Event(), threading.Event()
    with socket.socket() as held:  # a port that was free a moment ago: refused until the receiver below listens there
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]

    class Watched:
        """The exporter, telling when its first send failed."""

        def __init__(self, exporter: Exporter) -> None:
            self._exporter = exporter

        def start(self) -> None:
            """Is started."""

        def send(self, chunk: Chunk, timeout_s: float) -> int:
            """As the exporter's."""
            try:
                return self._exporter.send(chunk, timeout_s)
            except ExportError:
                failed.set()
                raise

        def stop(self) -> None:
            """As the exporter's."""
            self._exporter.stop()

    exporter = Watched(made("otlp_http", endpoint=f"http://127.0.0.1:{port}"))
    queue = SendingQueue(exporter, name="otlp_http", retry=RetryOptions.model_validate({"initial_interval": "100ms"}))
    queue.start()
    queue.put(
        Payload((Chunk("logs", syscalls(5).SerializeToString(), 13),)),
        lambda _payload, outcome: delivered.set() if outcome.delivered else None,
    )
    assert failed.wait(30)
    extra = {"receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}}}
    with running_collector(tmp_path, extra) as collector:
        assert delivered.wait(60)
        queue.drain(5)
        collector.stop()
    assert len(collector.log_records()) == 13


def test_collectors_refusals_are_told(collector: Collector) -> None:
    """What the Collector cannot parse is not retryable, and its own words are in the sentence."""
    for component_type, keys in (
        ("otlp_grpc", {"endpoint": collector.grpc, "tls": {"insecure": True}}),
        ("otlp_http", {"endpoint": collector.http}),
    ):
        exporter = made(component_type, **keys)
        with pytest.raises(ExportError) as caught:
            exporter.send(Chunk("logs", b"\xff\xff\xff", 1), 30)
        exporter.stop()
        assert not caught.value.retryable
        assert "sending 1 log record by " in str(caught.value)
        assert len(str(caught.value).partition(" failed: ")[2]) > 10
