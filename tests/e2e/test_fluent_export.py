# SPDX-License-Identifier: Apache-2.0
"""The fluent_forward exporter and the Collector's fluent_forward receiver; the same dump by every way."""

from __future__ import annotations

import io
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from collector import Collector, attribute, free_ports, running_collector
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from test_exporters import by_protobuf, filled, made, syscalls

from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.exporters.queue import SendingQueue

WAIT_S = 60
SEVERITIES = {9: "INFO", 13: "WARN", 17: "ERROR", 21: "FATAL"}


def chunk_of(request: ExportLogsServiceRequest) -> Chunk:
    """Its bytes, and how many records it has."""
    count = sum(len(scope.log_records) for each in request.resource_logs for scope in each.scope_logs)
    return Chunk("logs", request.SerializeToString(), count)


@contextmanager
def fluent_collector(directory: Path, *, unix: bool = False) -> Iterator[tuple[Collector, str]]:
    """A Collector with its fluent_forward receiver, and where that listens."""
    endpoint = f"unix://{directory / 'fluent.sock'}" if unix else f"127.0.0.1:{free_ports(1)[0]}"
    extra = {
        "receivers": {"fluent_forward": {"endpoint": endpoint}},
        "service": {"pipelines": {"logs": {"receivers": ["fluent_forward"], "exporters": ["debug", "file"]}}},
    }
    with running_collector(directory, extra) as collector:
        yield collector, endpoint


def plain(value: AnyValue | None) -> Any:
    """A value as JSON has it; bytes as the text that the Collector makes of them."""
    kind = value.WhichOneof("value") if value is not None else None
    if value is None or kind is None:
        return None
    if kind == "array_value":
        return [plain(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return {each.key: plain(each.value) for each in value.kvlist_value.values}
    return getattr(value, kind)


def of_request(request: Message) -> list[dict[str, Any]]:
    """Every record of an OTLP request, read with protobuf alone, in one comparable form."""
    found = []
    for each in request.resource_logs:  # type: ignore[attr-defined]
        resource = {pair.key: plain(pair.value) for pair in each.resource.attributes}
        for scope in each.scope_logs:
            found += [
                {
                    "time": record.time_unix_nano,
                    "observed": record.observed_time_unix_nano,
                    "trace_id": record.trace_id.hex(),
                    "span_id": record.span_id.hex(),
                    "flags": record.flags,
                    "severity": record.severity_number,
                    "severity_text": record.severity_text or SEVERITIES.get(record.severity_number, ""),
                    "event_name": record.event_name,
                    "body": plain(record.body),
                    "attributes": {pair.key: plain(pair.value) for pair in record.attributes},
                    "resource": resource,
                    "scope": scope.scope.name,
                }
                for record in scope.log_records
            ]
    return found


def of_fluent(time: Any, record: dict[str, Any]) -> dict[str, Any]:
    """The same form of what a msgpack parser makes of an entry, or a Collector of it."""
    return {
        "time": time,
        "observed": record.get("observed_time_unix_nano", 0),
        "trace_id": record.get("trace_id", ""),
        "span_id": record.get("span_id", ""),
        "flags": record.get("trace_flags", 0),
        "severity": record.get("severity_number", 0),
        "severity_text": record.get("severity_text", ""),
        "event_name": record.get("event_name", ""),
        "body": record.get("message"),
        "attributes": record.get("attributes", {}),
        "resource": record.get("resource", {}),
        "scope": record.get("scope", {}).get("name", ""),
    }


def of_collector(record: Message) -> dict[str, Any]:
    """The same form of a record that the Collector's fluent_forward receiver made."""
    fields = {pair.key: plain(pair.value) for pair in record.attributes}  # type: ignore[attr-defined]
    fields["message"] = plain(record.body)  # type: ignore[attr-defined]
    return of_fluent(record.time_unix_nano, fields)  # type: ignore[attr-defined]


def by_json(lines: list[dict[str, Any]]) -> list[Message]:
    """The Collector's lines as protobuf messages."""
    return [by_protobuf(line, ExportLogsServiceRequest) for line in lines]


def ordered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By time, then body: several streams promise no order between requests."""
    return sorted(records, key=lambda record: (record["time"], str(record["body"])))


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("unix", [False, True])
def test_the_collector_acknowledges_and_has_every_field(tmp_path: Path, unix: bool, compression: str) -> None:
    """PackedForward with ack: times to the nanosecond, ids, severity, attributes and resource are what OTLP has."""
    request = syscalls(300, every_form=False)
    chunk = chunk_of(request)
    with fluent_collector(tmp_path, unix=unix) as (collector, endpoint):
        queue = SendingQueue(
            made("fluent_forward", endpoint=endpoint, compression=compression, tag="dumps"), name="fluent_forward"
        )
        queue.start()
        assert queue.put(Payload((chunk, chunk), "dump"))
        assert queue.flush(WAIT_S)
        queue.drain(5)
        assert queue.stats().logs.sent == 2 * chunk.records
        collector.wait_for_records(2 * chunk.records)
        collector.stop()
    got = [
        record
        for message in by_json(collector.lines())
        for each in message.resource_logs  # type: ignore[attr-defined]
        for scope in each.scope_logs
        for record in scope.log_records
    ]
    assert ordered([of_collector(record) for record in got]) == ordered(of_request(request) * 2)
    assert {attribute(record, "fluent.tag") for record in collector.log_records()} == {"dumps"}


class FluentServer:
    """A server of the test's own that unpacks with msgpack alone and acknowledges as ``answer`` says."""

    def __init__(self, answer: Callable[[Any], bytes | None]) -> None:
        self.messages: list[Any] = []
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads: list[threading.Thread] = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        unpacker = msgpack.Unpacker(raw=False, max_buffer_size=64 << 20)
        with connection:
            while data := connection.recv(1 << 16):
                unpacker.feed(data)
                for message in unpacker:
                    self.messages.append(message)
                    answer = self._answer(message)
                    if answer is None:
                        return
                    connection.sendall(answer)

    def close(self) -> None:
        """Ends it."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)


@contextmanager
def fluent_server(answer: Callable[[Any], bytes | None]) -> Iterator[FluentServer]:
    """A server that is closed at the end."""
    server = FluentServer(answer)
    try:
        yield server
    finally:
        server.close()


def acknowledge(message: Any) -> bytes:
    """As the protocol says."""
    packed: bytes = msgpack.packb({"ack": message[2]["chunk"]})
    return packed


def entries(message: Any) -> list[tuple[int, dict[str, Any]]]:
    """(unix ns, record) of a PackedForward, by msgpack's and struct's own means."""
    found = []
    for time, record in msgpack.Unpacker(io.BytesIO(message[1]), raw=False):
        assert time.code == 0
        seconds, nanos = struct.unpack(">II", time.data)
        found.append((seconds * 10**9 + nanos, record))
    return found


def test_one_dump_by_four_ways_has_the_same_records(tmp_path: Path, collector: Collector) -> None:
    """OTLP/gRPC, OTLP/HTTP and file, read with protobuf, and Fluent, read with msgpack: field by field the same."""
    request = syscalls(1000)
    chunk = chunk_of(request)
    for way, keys in (
        ("otlp_grpc", {"endpoint": collector.grpc, "tls": {"insecure": True}}),
        ("otlp_http", {"endpoint": collector.http}),
        ("file", {"path": str(tmp_path / "ours.jsonl")}),
    ):
        exporter = made(way, **keys)
        assert exporter.send(chunk, 30) == 0
        exporter.stop()
    with fluent_server(acknowledge) as server:
        exporter = made("fluent_forward", endpoint=server.endpoint)
        assert exporter.send(chunk, 30) == 0
        exporter.stop()
        (message,) = server.messages
    collector.stop()
    by_grpc, by_http = by_json(collector.lines())
    (by_file,) = by_json([json.loads(line) for line in (tmp_path / "ours.jsonl").read_bytes().splitlines()])
    assert by_grpc == by_http == filled(request)
    assert filled(by_file) == by_grpc
    by_fluent = [of_fluent(time, record) for time, record in entries(message)]
    wanted = of_request(by_grpc)
    for record in wanted:  # a record without any time has that of its observation; its own is not there to be sent
        record["time"] = record["time"] or record["observed"]
    assert by_fluent == wanted
    assert message[0] == "perfbuf"
    assert message[2]["size"] == chunk.records


def test_a_server_that_does_not_acknowledge_gets_it_again() -> None:
    """Closed without an answer, another chunk's acknowledgement, garbage: each is retried, the last one counts."""
    answers = [None, msgpack.packb({"ack": "another"}), b"\xc1\xc1\xc1", b"\x93\x01\x02\x03"]

    def answer(message: Any) -> bytes | None:
        return answers.pop(0) if answers else acknowledge(message)

    chunk = chunk_of(syscalls(5))
    with fluent_server(answer) as server:
        retry = {"initial_interval": "10ms", "max_interval": "10ms"}
        exporter = made("fluent_forward", endpoint=server.endpoint)
        queue = SendingQueue(exporter, name="fluent_forward", retry=_retry(retry))
        queue.start()
        queue.put(Payload((chunk,), "dump"))
        assert queue.flush(WAIT_S)
        queue.drain(5)
        assert len(server.messages) == 5
        assert len({message[2]["chunk"] for message in server.messages}) == 5
    assert (queue.stats().logs.sent, queue.stats().logs.failed) == (chunk.records, 0)


def _retry(keys: dict[str, str]) -> Any:
    from otel_perfbuf.exporters.options import RetryOptions

    return RetryOptions.model_validate(keys)
