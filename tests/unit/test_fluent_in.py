# SPDX-License-Identifier: Apache-2.0
"""Fluent in: what fires, what never does, and clients of every kind. Real sockets; messages are built with msgpack."""

from __future__ import annotations

import contextlib
import gzip
import os
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trustme
from fluent import asyncsender, sender
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.exporters.fluent_forward import Options, create
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.receivers.fluent.judge import Judge, severity_number
from otel_perfbuf.receivers.fluent.options import FluentReceiverOptions
from otel_perfbuf.receivers.fluent.receiver import FluentReceiver

WAIT_S = 20
TIME_NS = 1_700_000_000_123_456_789
EXT = msgpack.ExtType(0, struct.pack(">II", *divmod(TIME_NS, 10**9)))
ERROR = {"log": "it failed", "level": "error"}
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Consumer:
    """Takes requests, as a flight recorder would; gives their records by protobuf's parser."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.requests: list[ExportLogsServiceRequest] = []

    def __call__(self, body: bytes) -> None:
        """One request."""
        with self.changed:
            self.requests.append(ExportLogsServiceRequest.FromString(body))
            self.changed.notify_all()

    def records(self, count: int) -> list[dict[str, Any]]:
        """At least ``count`` records, waited for."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._found()) >= count, WAIT_S), self._found()
            return self._found()

    def _found(self) -> list[dict[str, Any]]:
        return [
            {
                "time": record.time_unix_nano,
                "severity": record.severity_number,
                "body": record.body.string_value,
                "trace_id": record.trace_id.hex(),
                "span_id": record.span_id.hex(),
                **{pair.key: pair.value.int_value for pair in record.attributes},
                **{pair.key: pair.value.int_value or pair.value.string_value for pair in each.resource.attributes},
            }
            for request in self.requests
            for each in request.resource_logs
            for scope in each.scope_logs
            for record in scope.log_records
        ]


@contextmanager
def receiving(**keys: Any) -> Iterator[tuple[FluentReceiver, Consumer, tuple[str, int]]]:
    """A receiver on a free port, what it brings, and where it listens."""
    consumer = Consumer()
    receiver = FluentReceiver(FluentReceiverOptions.model_validate({"endpoint": "127.0.0.1:0", **keys}), consumer)
    receiver.start()
    host, _, port = receiver.endpoints["Fluent forward"].rpartition(":")
    try:
        yield receiver, consumer, (host, int(port) if port.isdigit() else 0)
    finally:
        receiver.stop()
        receiver.stop()


def answer(connection: socket.socket) -> Any:
    """The next message of the receiver, None at the connection's end."""
    unpacker = msgpack.Unpacker()
    connection.settimeout(WAIT_S)
    while True:
        for message in unpacker:
            return message
        data = connection.recv(4096)
        if not data:
            return None
        unpacker.feed(data)


def entries(*pairs: tuple[Any, Any]) -> bytes:
    """Concatenated entries."""
    return b"".join(msgpack.packb(list(pair)) for pair in pairs)


@pytest.mark.parametrize(
    "message",
    [
        ["app", EXT, ERROR, {"chunk": "c"}],
        ["app", [[EXT, {"level": "info"}], [EXT, ERROR]], {"chunk": "c"}],
        ["app", entries((EXT, {"level": "info"}), (EXT, ERROR)), {"chunk": "c"}],
        ["app", gzip.compress(entries((EXT, ERROR))), {"chunk": "c", "compressed": "gzip"}],
    ],
)
def test_an_error_fires_and_the_chunk_is_acknowledged(message: list[Any]) -> None:
    """In every mode the record of level error goes on, with its time; the others do not."""
    with receiving() as (receiver, consumer, address), socket.create_connection(address) as client:
        client.sendall(msgpack.packb(message))
        assert answer(client) == {"ack": "c"}
        (record,) = consumer.records(1)
        assert receiver.received == (2 if "info" in str(message) else 1)
    assert (record["time"], record["severity"], record["body"]) == (TIME_NS, 17, "it failed")
    assert not receiver.refused


def test_messages_may_come_in_any_pieces() -> None:
    """Byte by byte and many at once."""
    message = msgpack.packb(["app", EXT, ERROR, {"chunk": "c"}])
    with receiving() as (_, consumer, address), socket.create_connection(address) as client:
        for byte in message:
            client.sendall(bytes([byte]))
        client.sendall(message * 50)
        assert len(consumer.records(51)) == 51


@pytest.mark.parametrize(
    ("level", "number"),
    [
        ("error", 17), ("ERROR", 17), ("err", 17), (" Error ", 17), ("warn", 13), ("WARNING", 13), ("info", 9),
        ("notice", 9), ("debug", 5), ("trace", 1), ("fatal", 21), ("CRITICAL", 21), ("emerg", 21), ("panic", 21),
        ("severe", 17), (3, 17), ("3", 17), (2, 21), (0, 21), (4, 13), (7, 5), (50, 17), (60, 21), (40, 13), (30, 9),
        (8, 0), (99, 0), ("loud", 0), ("", 0), (True, 0), (None, 0), (1.5, 0), ("²", 0), ([], 0),
    ],
)  # fmt: skip
def test_levels(level: Any, number: int) -> None:
    """Words of the usual loggers, syslog's 0-7, pino's 10-60."""
    assert severity_number(level) == number


def test_severity_numbers_are_the_data_models() -> None:
    """17 is ERROR only where the field says that it is such a number."""
    assert [severity_number(number, field="severity_number") for number in (9, 17, 24, 25, 0)] == [9, 17, 24, 0, 0]


def judged(record: dict[Any, Any], **keys: Any) -> ExportLogsServiceRequest | None:
    """What becomes of one event."""
    judge = Judge(FluentReceiverOptions.model_validate(keys), own_pid=4242)
    request, count, hits = judge.request([(TIME_NS, record)])
    assert (count, hits) == (1, bool(request))
    return ExportLogsServiceRequest.FromString(request) if request else None


@pytest.mark.parametrize(
    "record",
    [
        {"level": "error"},
        {"severity": "ERROR"},
        {"log.level": "error"},
        {"log": {"level": "error"}},
        {"severity_text": "ERROR"},
        {"severity_number": 17},
        {"PRIORITY": "3"},
        {"attributes": {"level": "error"}},
        {"level": "", "severity": "error"},
        {"level": b"x", "levelname": "ERROR"},
    ],
)
def test_fields_of_severity(record: dict[str, Any]) -> None:
    """Each of the documented names, as a key, below attributes, and as a path."""
    assert judged(record) is not None


def test_what_may_fire() -> None:
    """WARN and more goes on to the trigger, which has its own least severity; a match goes on as FATAL."""
    assert judged({"level": "info"}) is None
    assert judged({"level": "warn"}) is not None
    matched = judged({"log": "Out of memory: killed"}, match=[{"pattern": "(?i)out of memory"}])
    assert matched is not None
    assert matched.resource_logs[0].scope_logs[0].log_records[0].severity_number == 21
    assert judged({"log": "fine"}, match=[{"pattern": "(?i)out of memory"}]) is None
    assert judged({"note": "Out of memory"}, match=[{"pattern": "memory", "fields": ["note"]}]) is not None


def test_fields_are_configurable() -> None:
    """Other names instead of the default ones."""
    assert judged({"lvl": "error"}) is None
    assert judged({"lvl": "error"}, fields={"severity": ["lvl"]}) is not None
    assert judged({"level": "error"}, fields={"severity": ["lvl"]}) is None


def test_what_is_known_of_the_process_goes_along() -> None:
    """pid, service, container and trace context become the resource and the ids that the lookup asks for."""
    record = {
        "level": "error", "message": "no", "pid": "4711", "tid": 4712, "service": {"name": "checkout"},
        "kubernetes": {"docker_id": "ab" * 32}, "trace_id": TRACE_ID.upper(), "span_id": SPAN_ID, "hostname": "node-1",
    }  # fmt: skip
    request = judged(record)
    assert request is not None
    resource_logs = request.resource_logs[0]
    log = resource_logs.scope_logs[0].log_records[0]
    found = {pair.key: pair.value.string_value or pair.value.int_value for pair in resource_logs.resource.attributes}
    assert found == {
        "service.name": "checkout", "container.id": "ab" * 32, "process.pid": 4711, "host.name": "node-1",
    }  # fmt: skip
    assert (log.trace_id.hex(), log.span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert [(pair.key, pair.value.int_value) for pair in log.attributes] == [("thread.id", 4712)]


@pytest.mark.parametrize("value", ["", "0" * 32, "x" * 32, "ab", 7, "٠" * 32, [TRACE_ID]])
def test_ids_that_are_none_are_left_out(value: Any) -> None:
    """Neither zeros nor another length nor another type."""
    request = judged({"level": "error", "trace_id": value})
    assert request is not None
    assert request.resource_logs[0].scope_logs[0].log_records[0].trace_id == b""


@pytest.mark.parametrize(
    "record",
    [
        {"scope": {"name": "otel_perfbuf"}},
        {"event_name": "perfbuf.syscall"},
        {"attributes": {"perfbuf.dump.id": "ab"}},
        {"perfbuf.dump.id": "ab"},
        {"resource": {"service.name": "otel-perfbuf"}},
        {"pid": 4242},
        {"_PID": "4242"},
    ],
)
def test_our_own_records_never_trigger(record: dict[str, Any]) -> None:
    """Dumps that come back through Fluent, and what the agent itself says; also where a pattern matches."""
    assert judged({"level": "fatal", "log": "x", **record}, match=[{"pattern": "x"}]) is None


def test_our_own_dump_sent_back_by_our_exporter_never_triggers() -> None:
    """The exporter's records with severity ERROR, under another tag than the default."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    scope.scope.name = "otel_perfbuf"
    record = scope.log_records.add(severity_number=17, event_name="perfbuf.process.exit")  # type: ignore[arg-type]
    record.attributes.add(key="perfbuf.dump.id").value.string_value = "ab" * 16
    with receiving(match=[{"pattern": ""}]) as (receiver, consumer, (host, port)):
        exporter = create(Options.model_validate({"endpoint": f"{host}:{port}", "tag": "other"}))
        exporter.start()
        assert exporter.send(Chunk("logs", request.SerializeToString(), 1), WAIT_S) == 0
        exporter.stop()
        assert receiver.received == 1
    assert consumer.requests == []


def test_ignored_tags() -> None:
    """perfbuf and what is below it by default; patterns otherwise."""
    with receiving(ignore_tags=["quiet.*"]) as (_, consumer, address), socket.create_connection(address) as client:
        for tag in ("quiet.app", "loud.app"):
            client.sendall(msgpack.packb([tag, EXT, {**ERROR, "log": tag}, {"chunk": tag}]))
            assert answer(client) == {"ack": tag}
    assert [record["body"] for record in consumer.records(1)] == ["loud.app"]
    assert Judge(FluentReceiverOptions()).ignores("perfbuf.dumps")
    assert not Judge(FluentReceiverOptions()).ignores("perfbuffer")


def test_fluent_logger_fires() -> None:
    """PyPI's own client, plain and asynchronous, with whole and broken seconds."""
    with receiving() as (_, consumer, (host, port)):
        for kind in (sender.FluentSender, asyncsender.FluentSender):
            for precise in (False, True):
                logger = kind("app", host=host, port=port, nanosecond_precision=precise)
                assert logger.emit("web", {"level": "info", "message": "fine"})
                assert logger.emit("web", {"level": "error", "message": f"{precise}", "pid": os.getppid()})
                logger.close()
        records = consumer.records(4)
    assert sorted(record["body"] for record in records) == ["False", "False", "True", "True"]
    assert {record["process.pid"] for record in records} == {os.getppid()}
    assert all(abs(record["time"] / 1e9 - time.time()) < 60 for record in records)


def test_unix_socket(tmp_path: Path) -> None:
    """unix:///PATH; the file goes with the receiver."""
    path = tmp_path / "fluent.sock"
    with receiving(endpoint=f"unix://{path}") as (_, consumer, _):
        logger = sender.FluentSender("app", host=f"unix://{path}")
        assert logger.emit("web", ERROR)
        logger.close()
        consumer.records(1)
    assert not path.exists()


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    """Our exporter over TLS with a client's certificate is taken; without one, and plain text, are not."""
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("agent@x")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, issued in (("server", server), ("client", client)):
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))

    def pems(name: str) -> dict[str, str]:
        return {"cert_file": str(tmp_path / f"{name}.pem"), "key_file": str(tmp_path / f"{name}.key")}

    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add(severity_number=17)  # type: ignore[arg-type]
    chunk = Chunk("logs", request.SerializeToString(), 1)
    ca = {"ca_file": str(tmp_path / "ca.pem")}
    with receiving(tls={**pems("server"), "client_ca_file": ca["ca_file"]}) as (_, consumer, (host, port)):
        for keys, good in (({**ca, **pems("client")}, True), (ca, False), ({"insecure": True}, False)):
            exporter = create(Options.model_validate({"endpoint": f"{host}:{port}", "tag": "app", "tls": keys}))
            exporter.start()
            if good:
                assert exporter.send(chunk, WAIT_S) == exporter.send(chunk, WAIT_S) == 0
            else:
                with pytest.raises((PerfbufError, ssl.SSLError)):
                    exporter.send(chunk, 2)
            exporter.stop()
        assert len(consumer.records(2)) == 2


@pytest.mark.parametrize(
    ("server", "client", "good"),
    [
        ({"shared_key": "k"}, {"shared_key": "k"}, True),
        ({"shared_key": "k"}, {"shared_key": "other"}, False),
        ({"shared_key": "k"}, {}, False),
        ({"shared_key": "k", "users": {"u": "p"}}, {"shared_key": "k", "username": "u", "password": "p"}, True),
        ({"shared_key": "k", "users": {"u": "p"}}, {"shared_key": "k", "username": "u", "password": "no"}, False),
        ({"shared_key": "k", "users": {"u": "p"}}, {"shared_key": "k"}, False),
    ],
)
def test_shared_key(server: dict[str, Any], client: dict[str, Any], good: bool) -> None:
    """Who knows the key (and is a user) is taken; who does not gets nothing in, counted."""
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add(severity_number=17)  # type: ignore[arg-type]
    with receiving(self_hostname="server", **server) as (receiver, consumer, (host, port)):
        keys = {"endpoint": f"{host}:{port}", "tag": "app", "self_hostname": "client", **client}
        exporter = create(Options.model_validate(keys))
        exporter.start()
        chunk = Chunk("logs", request.SerializeToString(), 1)
        if good:
            assert exporter.send(chunk, WAIT_S) == 0
            consumer.records(1)
        else:
            with pytest.raises(PerfbufError):
                exporter.send(chunk, 2)
            deadline = time.monotonic() + WAIT_S
            while not receiver.refused and time.monotonic() < deadline:
                time.sleep(0.01)  # the client may be gone before the server has counted it
        exporter.stop()
    assert len(consumer.requests) == good
    assert bool(receiver.refused) != good


def test_connections_are_bounded() -> None:
    """One more than there may be is closed at once and counted; when one ends there is room again."""
    with receiving(max_connections=2) as (receiver, consumer, address):
        held = [socket.create_connection(address) for _ in range(2)]
        for client in held:
            client.sendall(msgpack.packb(["app", EXT, ERROR, {"chunk": "c"}]))
            assert answer(client) == {"ack": "c"}
        with socket.create_connection(address) as third:
            assert answer(third) is None
        assert receiver.refused["fluent_connections"] == 1
        for client in held:
            client.close()
        deadline = time.monotonic() + WAIT_S
        while len(consumer.requests) < 3 and time.monotonic() < deadline:
            # Refused while the receiver has not seen the end of the others
            with contextlib.suppress(OSError), socket.create_connection(address) as client:
                client.sendall(msgpack.packb(["app", EXT, ERROR, {"chunk": "c"}]))
                answer(client)
        assert len(consumer.requests) == 3


def test_messages_are_bounded() -> None:
    """Above max_message_bytes the client is cut off, counted, and nothing of it fires; bombs end at their limit."""
    with receiving(max_message_bytes=10_000, max_unpacked_bytes=100_000) as (receiver, consumer, address):
        for message in (
            ["app", EXT, {"level": "error", "x": "x" * 20_000}],
            ["app", gzip.compress(entries((EXT, ERROR)) * 10_000), {"compressed": "gzip"}],
        ):
            with socket.create_connection(address) as client:
                client.sendall(msgpack.packb(message))
                assert answer(client) is None
    assert receiver.refused == {"fluent_malformed": 2}
    assert consumer.requests == []


def test_deep_and_wide_messages_take_no_lasting_memory() -> None:
    """8 MiB of nested and of empty arrays, many times over: an end or an answer each, memory within a bound."""
    with receiving() as (receiver, _, address):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for hostile in (
            b"\x91" * 3_000_000,
            b"\xdc\xff\xff" * 1000,
            b"\x93\xa1a" + b"\xdd\x00\x1f\xff\xff" + b"\x90" * 0x1FFFFF,
        ):
            for _ in range(3):
                with socket.create_connection(address) as client:
                    try:
                        client.sendall(hostile)
                        client.shutdown(socket.SHUT_WR)
                        answer(client)
                    except OSError:
                        pass
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 700 << 10
    assert receiver.refused["failed"] == 0


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.booleans())
def test_garbage_ends_or_is_taken(hostile: FluentReceiver, parts: list[bytes], framed: bool) -> None:
    """Whatever a client sends, and where it stops: the receiver goes on, and counts no failure of its own."""
    host, _, port = hostile.endpoints["Fluent forward"].rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        try:
            for part in parts:
                client.sendall(msgpack.packb(["app", part, {"compressed": "gzip"}]) if framed else part)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(WAIT_S)
            while client.recv(4096):
                pass
        except OSError:
            pass
    assert hostile.refused["failed"] == 0


@pytest.fixture(scope="module")
def hostile() -> Iterator[FluentReceiver]:
    """One receiver for all garbage."""
    with receiving() as (receiver, consumer, address):
        yield receiver
        with socket.create_connection(address) as client:
            client.sendall(msgpack.packb(["app", EXT, ERROR, {"chunk": "after"}]))
            assert answer(client) == {"ack": "after"}
        consumer.records(1)


def test_a_port_that_is_taken_is_a_sentence() -> None:
    """And TLS files that are none."""
    with receiving() as (_, _, (host, port)), pytest.raises(PerfbufError, match="choose another endpoint"):
        FluentReceiver(FluentReceiverOptions(endpoint=f"{host}:{port}"), lambda _: None).start()
    keys = {"tls": {"cert_file": "/none.pem", "key_file": "/none.key"}}
    with pytest.raises(ConfigError, match="certificate"):
        FluentReceiver(FluentReceiverOptions.model_validate(keys), lambda _: None).start()


@pytest.mark.parametrize(
    "keys",
    [
        {"endpoint": "host"},
        {"endpoint": "unix:relative"},
        {"match": [{"pattern": "("}]},
        {"users": {"a": "b"}},
        {"fields": {"severity": [""]}},
        {"max_message_bytes": "1B"},
        {"unknown": 1},
    ],
)
def test_options_that_cannot_work_are_refused(keys: dict[str, Any]) -> None:
    """Each is an error of the configuration."""
    with pytest.raises(ValueError, match=r"endpoint|pattern|users|names|max_message_bytes|unknown"):
        FluentReceiverOptions.model_validate(keys)
