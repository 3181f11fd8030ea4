# SPDX-License-Identifier: Apache-2.0
"""Fluent peers that nobody here wrote: IBM's fluent-forward-go, client and server, with the shared key handshake."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector import go_binary
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from test_exporters import made, syscalls

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.receivers.fluent.options import FluentReceiverOptions
from otel_perfbuf.receivers.fluent.receiver import FluentReceiver

PEER = Path(__file__).parent / "fluent_peer"
WAIT_S = 60


@pytest.fixture(scope="module")
def peer() -> Path:
    """Its program."""
    return go_binary(PEER, "fluent_peer")


@pytest.fixture
def server(peer: Path) -> Iterator[subprocess.Popen[str]]:
    """A server that knows the key "secret"; its first line is its address."""
    process = subprocess.Popen(
        [peer, "server", "secret"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )
    yield process
    process.terminate()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


def test_their_client_fires_in_every_mode(peer: Path) -> None:
    """Message, EventTime, Forward, PackedForward and compressed: handshake, five errors, five acknowledgements."""
    requests: list[ExportLogsServiceRequest] = []
    options = FluentReceiverOptions.model_validate({"endpoint": "127.0.0.1:0", "shared_key": "secret"})
    receiver = FluentReceiver(options, lambda body: requests.append(ExportLogsServiceRequest.FromString(body)))
    receiver.start()
    try:
        address = receiver.endpoints["Fluent forward"]
        done = subprocess.run([peer, "client", address, "secret"], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        wrong = subprocess.run([peer, "client", address, "wrong"], capture_output=True, text=True, timeout=WAIT_S)
        assert wrong.returncode != 0
    finally:
        receiver.stop()
    said = [request.resource_logs[0].scope_logs[0].log_records[0].body.string_value for request in requests]
    assert said == ["message", "message with EventTime", "forward", "packed", "compressed"]
    assert receiver.refused == {"fluent_credentials": 1}


def test_their_server_takes_a_dump(server: subprocess.Popen[str]) -> None:
    """With the right key each record arrives once, with its time; with a wrong one a sentence says who refuses."""
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    request = syscalls(50, every_form=False)
    records = [record for each in request.resource_logs for scope in each.scope_logs for record in scope.log_records]
    chunk = Chunk("logs", request.SerializeToString(), len(records))
    wrong = made("fluent_forward", endpoint=endpoint, shared_key="wrong")
    with pytest.raises(ExportError, match="it refuses us: 'no match'"):
        wrong.send(chunk, WAIT_S)
    wrong.stop()
    exporter = made("fluent_forward", endpoint=endpoint, shared_key="secret", tag="dumps")
    lines: list[str] = []
    reading = threading.Thread(
        target=lambda: lines.extend(server.stdout.readline() for _ in range(2 * len(records)))  # type: ignore[union-attr]
    )
    reading.start()
    assert exporter.send(chunk, WAIT_S) == exporter.send(chunk, WAIT_S) == 0
    reading.join(WAIT_S)
    exporter.stop()
    got = [json.loads(line) for line in lines]
    assert [each["unix_ns"] for each in got] == [record.time_unix_nano for record in records] * 2
    assert [each["record"]["message"] for each in got] == [record.body.string_value for record in records] * 2
    assert {each["tag"] for each in got} == {"dumps"}
