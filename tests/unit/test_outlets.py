# SPDX-License-Identifier: Apache-2.0
"""Dumps through spool and queues to a receiver that comes and goes; an agent's end is played by leaving it behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from played_parts import PlayedDump, PlayedHeader

from otel_perfbuf.exporters.otlp_http import Options
from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.service.graph import Route
from otel_perfbuf.service.model import Component
from otel_perfbuf.service.options import FileStorageOptions
from otel_perfbuf.service.outlets import Kept, Outlets
from otel_perfbuf.service.telemetry import Telemetry

STORAGE = "file_storage"
BOTH = frozenset({"logs", "traces"})
WAIT_S = 30


@dataclass
class Receiver:
    """An OTLP/HTTP receiver: answers ``status``, keeps the bodies that it took."""

    status: int = 200
    port: int = 0
    taken: list[tuple[str, bytes]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    refused: int = 0

    def wait(self, count: int) -> list[tuple[str, bytes]]:
        """At least ``count`` requests."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.taken) >= count, WAIT_S)
            return list(self.taken)

    def wait_refused(self) -> None:
        """One request was refused."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.refused > 0, WAIT_S)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """On a free loopback port."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with made.changed:
                if made.status == 200:
                    made.taken.append((self.path, body))
                else:
                    made.refused += 1
                made.changed.notify_all()
                status = made.status
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


def dump(name: str) -> PlayedDump:
    """Its header, span and three records; ``name`` becomes its id and is in each body."""

    def logs(part: str, records: int) -> Chunk:
        request = ExportLogsServiceRequest()
        scope = request.resource_logs.add().scope_logs.add()
        for number in range(records):
            scope.log_records.add().body.string_value = f"{name} {part} {number}"
        return Chunk("logs", request.SerializeToString(), records)

    chunks = (logs("header", 1), Chunk("traces", b"", 1), logs("history", 3))
    return PlayedDump(PlayedHeader(name * 32, "span_error", records=3), Payload(chunks, name * 32))


def bodies(taken: list[tuple[str, bytes]]) -> list[str]:
    """Of all log records that arrived, in their order."""
    return [
        record.body.string_value
        for path, body in taken
        if path.endswith("logs")
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def expected(name: str) -> list[str]:
    """What a whole dump gives."""
    return [f"{name} header 0", *(f"{name} history {number}" for number in range(3))]


def started(directory: Path, telemetry: Telemetry, *receivers: Receiver, kept: Kept | None = None) -> Outlets:
    """Spool and exporters ``otlp_http``, ``otlp_http/1``, ... with what was left resumed."""
    outlets = Outlets(telemetry, kept)
    options = FileStorageOptions(directory=str(directory))
    outlets.start_spool(Component(STORAGE, STORAGE, options), options)
    for number, receiver in enumerate(receivers):
        keys = {
            "endpoint": f"http://127.0.0.1:{receiver.port}",
            "compression": "none",
            "retry_on_failure": {"initial_interval": "20ms", "max_interval": "20ms"},
            "sending_queue": {"storage": STORAGE, "num_consumers": 2},
        }
        outlets.start_exporter(Component(exporter(number), "otlp_http", Options.model_validate(keys)))
    outlets.resume()
    return outlets


def exporter(number: int) -> str:
    """The id of the exporter for a receiver."""
    return f"otlp_http/{number}"


def routes(count: int = 1) -> list[Route]:
    """All of a dump to each exporter."""
    return [Route(exporter(number), BOTH) for number in range(count)]


def killed(outlets: Outlets) -> None:
    """What SIGKILL leaves: nothing is drained into a count, files stay. The lock is the process's, so it goes."""
    for queue in outlets.queues.values():
        queue.drain(0.0)
    outlets.close_spools(frozenset())


def counted(telemetry: Telemetry, outcome: str) -> float:
    """perfbuf_dumps of this outcome."""
    return telemetry.get("perfbuf_dumps", ("span_error", outcome))


def test_a_dump_outlives_the_agent(tmp_path: Path, receiver: Receiver) -> None:
    """Refused, then the agent is gone: the next one sends all of it, and counts one dump made and one exported."""
    receiver.status = 503
    before, after = Telemetry(), Telemetry()
    outlets = started(tmp_path, before, receiver)
    outlets.emit(dump("a"), routes())
    receiver.wait_refused()
    assert outlets.status()["spools"][STORAGE]["waiting"] == {exporter(0): 1}
    killed(outlets)
    assert (counted(before, "spooled"), counted(before, "exported"), counted(before, "failed")) == (1, 0, 0)
    receiver.status = 200
    outlets = started(tmp_path, after, receiver)
    receiver.wait(3)
    outlets.queues[exporter(0)].flush(WAIT_S)
    assert bodies(receiver.taken) == expected("a")
    assert (counted(after, "exported"), counted(after, "failed")) == (1, 0)
    assert after.get("otelcol_exporter_sent_log_records", (exporter(0),)) == 4
    assert "perfbuf_spool_bytes 0" in after.render()
    assert not list(tmp_path.glob("*.dump"))
    killed(outlets)


def test_each_exporter_gets_what_it_did_not_acknowledge(tmp_path: Path, receiver: Receiver) -> None:
    """One receiver has it all before the agent's end, the other nothing: only that one is sent to afterwards."""
    away = Receiver(status=503, port=1)
    telemetry = Telemetry()
    outlets = started(tmp_path, telemetry, receiver, away)
    outlets.emit(dump("a"), routes(2))
    receiver.wait(3)
    assert outlets.queues[exporter(0)].flush(WAIT_S)
    killed(outlets)
    assert counted(telemetry, "exported") == 0
    away.port = receiver.port
    outlets = started(tmp_path, telemetry, receiver, away)
    receiver.wait(6)
    assert outlets.queues[exporter(1)].flush(WAIT_S)
    assert bodies(receiver.taken) == expected("a") * 2
    assert counted(telemetry, "exported") == 1
    killed(outlets)


def test_a_full_spool_counts_what_it_drops(tmp_path: Path, receiver: Receiver) -> None:
    """Made = exported + failed, records sent + records counted as failed, whatever was dropped to make room."""
    receiver.status = 503
    telemetry = Telemetry()
    outlets = Outlets(telemetry)
    options = FileStorageOptions.model_construct(directory=str(tmp_path), max_bytes=2000)
    outlets.start_spool(Component(STORAGE, STORAGE, options), options)
    outlets = _with_exporter(outlets, receiver)
    for name in "abcdefghij":
        outlets.emit(dump(name), routes())
    stats = outlets.status()["spools"][STORAGE]
    assert stats["dropped"] > 0
    assert stats["bytes"] <= 2000
    receiver.status = 200
    assert outlets.queues[exporter(0)].flush(WAIT_S)
    kept = "abcdefghij"[stats["dropped"] :]
    assert sorted(bodies(receiver.taken)) == sorted(line for name in kept for line in expected(name))
    assert (counted(telemetry, "exported"), counted(telemetry, "failed")) == (len(kept), stats["dropped"])
    sent = telemetry.get("otelcol_exporter_sent_log_records", (exporter(0),))
    failed = telemetry.get("otelcol_exporter_send_failed_log_records", (exporter(0),))
    assert (sent, failed) == (4 * len(kept), 4 * stats["dropped"])
    killed(outlets)


def _with_exporter(outlets: Outlets, receiver: Receiver) -> Outlets:
    keys = {
        "endpoint": f"http://127.0.0.1:{receiver.port}",
        "compression": "none",
        "retry_on_failure": {"initial_interval": "20ms", "max_interval": "20ms"},
        "sending_queue": {"storage": STORAGE},
    }
    outlets.start_exporter(Component(exporter(0), "otlp_http", Options.model_validate(keys)))
    outlets.resume()
    return outlets


def test_a_dump_that_does_not_fit_is_sent_from_memory(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not counted as spooled, but as exported, and a sentence says why."""
    telemetry = Telemetry()
    outlets = Outlets(telemetry)
    options = FileStorageOptions.model_construct(directory=str(tmp_path), max_bytes=100)
    outlets.start_spool(Component(STORAGE, STORAGE, options), options)
    outlets = _with_exporter(outlets, receiver)
    outlets.emit(dump("a"), routes())
    receiver.wait(3)
    assert outlets.queues[exporter(0)].flush(WAIT_S)
    assert (counted(telemetry, "spooled"), counted(telemetry, "exported")) == (0, 1)
    assert "more than max_bytes (100); it is sent from memory" in caplog.text
    assert outlets.status()["spools"][STORAGE]["failed"] == 1
    killed(outlets)


def test_a_reload_neither_loses_nor_doubles(tmp_path: Path, receiver: Receiver) -> None:
    """Queue and spool of unchanged components go on: the dump is not resumed a second time."""
    receiver.status = 503
    telemetry = Telemetry()
    outlets = started(tmp_path, telemetry, receiver)
    outlets.emit(dump("a"), routes())
    receiver.wait_refused()
    again = started(tmp_path, telemetry, receiver, kept=Kept(outlets.queues, outlets.spools))
    receiver.status = 200
    receiver.wait(3)
    assert again.queues[exporter(0)].flush(WAIT_S)
    assert bodies(receiver.taken) == expected("a")
    assert counted(telemetry, "exported") == 1
    killed(again)


def test_dumps_of_an_exporter_that_is_gone_are_kept_and_told(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A renamed exporter is no reason to throw a dump away: one sentence says how many wait for whom."""
    receiver.status = 503
    outlets = started(tmp_path, Telemetry(), receiver, receiver)
    outlets.emit(dump("a"), routes(2))
    killed(outlets)
    outlets = started(tmp_path, Telemetry(), receiver)
    assert "holds 1 dumps for otlp_http/1, which does not use it" in caplog.text
    assert len(list(tmp_path.glob("*.dump"))) == 1
    killed(outlets)
