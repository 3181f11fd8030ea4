# SPDX-License-Identifier: Apache-2.0
"""OTLP over HTTP against Python's own server on loopback: every answer a receiver may give."""

from __future__ import annotations

import email.utils
import gzip
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import zstandard
from export_samples import logs_chunk, traces_chunk
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_perfbuf.errors import ConfigError, ExportError
from otel_perfbuf.exporters.answers import retry_after_s
from otel_perfbuf.exporters.otlp_http import Options, OtlpHttpExporter, create

PROTOBUF = "application/x-protobuf"


@dataclass
class Receiver:
    """What the server answers, and what it got: (path, headers, body)."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    endpoint: str = ""
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    peers: set[Any] = field(default_factory=set)


def handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    """A handler class that answers as the receiver says."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            receiver.got.append((self.path, headers, body))
            receiver.peers.add(self.client_address)
            self.send_response(receiver.status)
            for key, value in receiver.headers.items():
                self.send_header(key, value)
            self.send_header("content-length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on a free loopback port."""
    made = Receiver()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(made))
    made.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(10)


def started(endpoint: str, **keys: object) -> OtlpHttpExporter:
    """An exporter that may send."""
    exporter = create(Options.model_validate({"endpoint": endpoint, **keys}))
    exporter.start()
    return exporter


def failure(exporter: OtlpHttpExporter, timeout_s: float = 10) -> ExportError:
    """What a send raises, one sentence; the exporter is stopped then."""
    with pytest.raises(ExportError) as caught:
        exporter.send(logs_chunk(), timeout_s)
    exporter.stop()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_bytes_arrive_as_they_are(receiver: Receiver, compression: str) -> None:
    """Logs and spans are posted to their paths as protobuf, byte for byte, over one connection."""
    exporter = started(receiver.endpoint, compression=compression, headers={"X-Token": "s3cret"})
    logs, traces = logs_chunk(50), traces_chunk()
    assert exporter.send(logs, 10) == exporter.send(traces, 10) == exporter.send(logs, 10) == 0
    exporter.stop()
    assert [path for path, _, _ in receiver.got] == ["/v1/logs", "/v1/traces", "/v1/logs"]
    for (_, headers, body), chunk in zip(receiver.got, (logs, traces, logs), strict=True):
        assert headers["content-type"] == PROTOBUF
        assert headers["x-token"] == "s3cret"
        assert headers.get("content-encoding") == (None if compression == "none" else compression)
        unpack = {"gzip": gzip.decompress, "zstd": zstandard.decompress, "none": bytes}[compression]
        assert unpack(body) == chunk.body


def test_connections_are_used_again(receiver: Receiver) -> None:
    """Ten chunks of one stream go over one connection."""
    exporter = started(receiver.endpoint)
    for _ in range(10):
        exporter.send(logs_chunk(), 10)
    exporter.stop()
    assert len(receiver.peers) == 1


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_a_success(receiver: Receiver, status: int) -> None:
    """Fluent Bit answers 201: that is a success, as any 2xx."""
    receiver.status = status
    exporter = started(receiver.endpoint)
    assert exporter.send(logs_chunk(), 10) == 0
    exporter.stop()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 429, 500, 501, 502, 503, 504])
def test_only_the_specifications_statuses_are_retryable(receiver: Receiver, status: int) -> None:
    """429, 502, 503 and 504 may be sent again, nothing else; the receiver's own words are in the sentence."""
    receiver.status = status
    receiver.body, receiver.headers = Status(message="no more room").SerializeToString(), {"content-type": PROTOBUF}
    fault = failure(started(receiver.endpoint))
    assert fault.retryable == (status in {429, 502, 503, 504})
    assert f"HTTP {status}: no more room" in str(fault)
    assert receiver.endpoint in str(fault)


def test_text_answers_are_told_in_one_line(receiver: Receiver) -> None:
    """An answer of a proxy, long and of many lines, becomes one bounded line."""
    receiver.status, receiver.body = 502, b"<html>\n\x1b[31mBad\ngateway</html>" + b"x" * 100_000
    fault = failure(started(receiver.endpoint))
    assert "HTTP 502: <html> [31mBad gateway" in str(fault)
    assert len(str(fault)) < 500


def test_retry_after_is_honoured(receiver: Receiver) -> None:
    """Seconds and HTTP dates of a retryable answer are given on; of others they are not."""
    receiver.status = 503
    receiver.headers = {"retry-after": "17"}
    assert failure(started(receiver.endpoint)).retry_after_s == 17
    receiver.headers = {"retry-after": email.utils.formatdate(time.time() + 3600, usegmt=True)}
    wait_s = failure(started(receiver.endpoint)).retry_after_s
    assert wait_s is not None
    assert 3500 < wait_s <= 3600
    receiver.status = 400
    assert failure(started(receiver.endpoint)).retry_after_s is None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0),
        (" 5 ", 5),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("9" * 30, None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after_header(header: str | None, seconds: float | None) -> None:
    """Unreadable values are as if there were none; a date that has passed is now."""
    assert retry_after_s(header, "Wed, 18 May 2033 03:33:20 GMT") == seconds


@pytest.mark.parametrize("skew_s", [0, 3600, -3600])
def test_retry_after_date_does_not_depend_on_our_clock(skew_s: int) -> None:
    """A receiver whose clock is an hour off asks for 30 s and gets 30 s: its own Date header is the base."""
    now = time.time() + skew_s
    later, date = (email.utils.formatdate(at, usegmt=True) for at in (now + 30, now))
    assert retry_after_s(later, date) == 30
    assert retry_after_s("86400") == 3600


@pytest.mark.parametrize(
    ("status", "body", "too_large"),
    [(413, b"", True), (400, b"http: request body too large", True), (400, b"bad", False), (503, b"too large", False)],
)
def test_answers_about_the_size_are_told_apart(receiver: Receiver, status: int, body: bytes, too_large: bool) -> None:
    """413, and the words with which Go's servers say it, ask for a smaller request; other answers do not."""
    receiver.status, receiver.body = status, body
    fault = failure(started(receiver.endpoint))
    assert fault.too_large == too_large


@pytest.mark.parametrize("content_type", [PROTOBUF, "application/json; charset=utf-8"])
def test_partial_success_is_counted_as_rejected(receiver: Receiver, content_type: str) -> None:
    """Rejected log records and spans are given back, also from a receiver that answers in JSON."""
    logs, traces = ExportLogsServiceResponse(), ExportTraceServiceResponse()
    logs.partial_success.rejected_log_records, traces.partial_success.rejected_spans = 2, 1
    receiver.headers = {"content-type": content_type}
    exporter = started(receiver.endpoint)
    json = content_type != PROTOBUF
    receiver.body = b'{"partialSuccess":{"rejectedLogRecords":"2"}}' if json else logs.SerializeToString()
    assert exporter.send(logs_chunk(3), 10) == 2
    receiver.body = b'{"partialSuccess":{"rejectedSpans":1}}' if json else traces.SerializeToString()
    assert exporter.send(traces_chunk(), 10) == 1
    for garbage in (b"\xff\xff", b"[]", b"{", b'{"partialSuccess":null}'):
        receiver.body = garbage
        assert exporter.send(logs_chunk(3), 10) == 0
    exporter.stop()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_refused(receiver: Receiver, status: int) -> None:
    """No chunk follows a redirect: its headers hold secrets. The sentence says where it would have gone."""
    receiver.status, receiver.headers = status, {"location": receiver.endpoint + "/elsewhere"}
    fault = failure(started(receiver.endpoint))
    assert not fault.retryable
    assert "redirects to" in str(fault)
    assert len(receiver.got) == 1


def test_unreachable_endpoint_is_retryable_and_named() -> None:
    """A port where nobody listens gives one retryable sentence with the system's own words."""
    fault = failure(started("http://127.0.0.1:1"))
    assert fault.retryable
    assert str(fault).endswith("http://127.0.0.1:1/v1/logs failed: Connection refused")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"garbage\r\n\r\n"])
def test_answers_that_end_early_or_never_are_retryable(answer: bytes) -> None:
    """Silence, half an answer and no HTTP at all end within the limit, retryable."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            connection, _ = server.accept()
            held.append(connection)
            connection.recv(65536)
            connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        fault = failure(started(f"http://127.0.0.1:{server.getsockname()[1]}"), timeout_s=0.3)
        thread.join(10)
        held[0].close()
    assert fault.retryable


def test_trickled_answer_is_left_in_time() -> None:
    """A receiver that sends a byte every now and then does not hold the stream beyond its limit."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        began = time.monotonic()
        fault = failure(started(f"http://127.0.0.1:{server.getsockname()[1]}"), timeout_s=0.5)
        assert time.monotonic() - began < 10
        stop.set()
        thread.join(10)
    assert fault.retryable


def test_unix_socket(tmp_path: Path) -> None:
    """unix:///PATH posts to the same paths over a Unix socket; a missing one is named."""
    received = Receiver()

    class Handler(handler_of(received)):  # type: ignore[misc]
        def address_string(self) -> str:
            return "unix"

    path = tmp_path / "otlp.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        exporter = started(f"unix://{path}")
        assert exporter.send(logs_chunk(), 10) == exporter.send(traces_chunk(), 10) == 0
        exporter.stop()
        server.shutdown()
        thread.join(10)
    assert [got[0] for got in received.got] == ["/v1/logs", "/v1/traces"]
    fault = failure(started(f"unix://{tmp_path / 'none.sock'}"))
    assert fault.retryable
    assert "No such file or directory" in str(fault)


def test_whole_urls_of_their_own_are_used_as_they_are(receiver: Receiver) -> None:
    """logs_endpoint is not extended; a prefix of endpoint is kept."""
    exporter = started(receiver.endpoint + "/prefix/", logs_endpoint=receiver.endpoint + "/insert/logs")
    exporter.send(logs_chunk(), 10)
    exporter.send(traces_chunk(), 10)
    exporter.stop()
    assert [got[0] for got in receiver.got] == ["/insert/logs", "/prefix/v1/traces"]


def test_proxy_of_the_environment_is_not_used_for_this_host(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY leads elsewhere, but a loopback endpoint is reached directly."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    exporter = started(receiver.endpoint)
    assert exporter.send(logs_chunk(), 10) == 0
    exporter.stop()
    fault = failure(started("http://collector.invalid:4318"))
    assert "Connection refused" in str(fault) or "proxy" in str(fault)


def test_stop_refuses_more(receiver: Receiver) -> None:
    """After a stop a send raises a retryable sentence; stopping twice is fine."""
    exporter = started(receiver.endpoint)
    exporter.stop()
    exporter.stop()
    assert failure(exporter).retryable


def test_unreadable_tls_file_is_a_configuration_error(tmp_path: Path) -> None:
    """The sentence names key, path and cause."""
    exporter = create(
        Options.model_validate({"endpoint": "https://h:1", "tls": {"ca_file": str(tmp_path / "none.pem")}})
    )
    with pytest.raises(ConfigError, match=r"tls\.ca_file: reading .*none\.pem failed: No such file"):
        exporter.start()


@pytest.mark.parametrize(
    "endpoint", ["", "host:4318", "http://", "ftp://h", "http://h:99999", "http://h/?a=b", "unix:x"]
)
def test_unusable_endpoints_are_refused(endpoint: str) -> None:
    """What can never be reached is an error of the configuration."""
    with pytest.raises(ValueError, match="endpoint"):
        Options.model_validate({"endpoint": endpoint})
