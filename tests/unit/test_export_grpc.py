# SPDX-License-Identifier: Apache-2.0
"""OTLP over gRPC against gRPC's own server on loopback: every answer a receiver may give."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from export_samples import logs_chunk, traces_chunk
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_perfbuf.errors import ConfigError, ExportError
from otel_perfbuf.exporters.options import RetryOptions
from otel_perfbuf.exporters.otlp_grpc import Options, OtlpGrpcExporter, create
from otel_perfbuf.exporters.payload import Payload
from otel_perfbuf.exporters.queue import SendingQueue

RETRYABLE = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
WAIT_S = 20
Answer = Callable[[bytes, grpc.ServicerContext], bytes]


class Receiver(grpc.GenericRpcHandler):
    """A server for any method that takes and gives bytes; ``answer`` may be replaced."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _body, _context: b""
        self.calls: list[tuple[str, bytes, dict[str, str], str]] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The handler of any method."""

        def handle(body: bytes, context: grpc.ServicerContext) -> bytes:
            metadata = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}
            self.calls.append((details.method, body, metadata, context.peer()))
            return self.answer(body, context)

        return grpc.unary_unary_rpc_method_handler(handle)


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str, str]]:
    """(the receiver, its TCP endpoint, its Unix endpoint)."""
    handler = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}", ""
    server.stop(None).wait()


def started(**keys: object) -> OtlpGrpcExporter:
    """An exporter that may send, in plain text unless told otherwise."""
    exporter = create(Options.model_validate({"tls": {"insecure": True}, **keys}))
    exporter.start()
    return exporter


def failure(exporter: OtlpGrpcExporter, timeout_s: float = 10) -> ExportError:
    """What a send raises; the exporter is stopped then."""
    with pytest.raises(ExportError) as caught:
        exporter.send(logs_chunk(), timeout_s)
    exporter.stop()
    return caught.value


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_bytes_arrive_as_they_are(receiver: tuple[Receiver, str, str], compression: str) -> None:
    """Logs and spans reach their service's method byte for byte, with the headers, compressed or not."""
    handler, endpoint, _ = receiver
    exporter = started(endpoint=endpoint, compression=compression, headers={"X-Token": "s3cret"})
    logs, traces = logs_chunk(50), traces_chunk()
    assert exporter.send(logs, 10) == exporter.send(traces, 10) == 0
    exporter.stop()
    assert [call[:2] for call in handler.calls] == [
        ("/opentelemetry.proto.collector.logs.v1.LogsService/Export", logs.body),
        ("/opentelemetry.proto.collector.trace.v1.TraceService/Export", traces.body),
    ]
    assert all(call[2]["x-token"] == "s3cret" for call in handler.calls)
    assert all(call[2]["user-agent"].startswith("otel-perfbuf ") for call in handler.calls)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_only_the_specifications_codes_are_retryable(
    receiver: tuple[Receiver, str, str], code: grpc.StatusCode
) -> None:
    """Each status code is retryable just when the OTLP specification says so; its name and text are in the sentence."""
    handler, endpoint, _ = receiver
    handler.answer = lambda _body, context: context.abort(code, "no\nmore room")
    fault = failure(started(endpoint=endpoint))
    assert fault.retryable == (code.name in RETRYABLE)
    assert f"{code.name}: no more room" in str(fault)
    assert endpoint in str(fault)


def test_resource_exhausted_is_retryable_only_with_retry_info(receiver: tuple[Receiver, str, str]) -> None:
    """A RetryInfo makes it retryable and gives the wait; details that are garbage do not."""
    handler, endpoint, _ = receiver
    info = Any()
    info.Pack(RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000)))
    whole = Status(code=8, message="full", details=[info]).SerializeToString()
    waits = []
    for details in (whole, Status(code=8).SerializeToString(), b"\xff\xff"):

        def answer(_body: bytes, context: grpc.ServicerContext, details: bytes = details) -> bytes:
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
            return context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")

        handler.answer = answer
        fault = failure(started(endpoint=endpoint))
        waits.append((fault.retryable, fault.retry_after_s))
    assert waits == [(True, 7.5), (False, None), (False, None)]


def test_partial_success_is_counted_as_rejected(receiver: tuple[Receiver, str, str]) -> None:
    """Rejected log records and spans are given back; a receiver cannot reject more than it got, nor fewer than none."""
    handler, endpoint, _ = receiver
    exporter = started(endpoint=endpoint)
    got = []
    for rejected in (2, 0, 99, -5):
        answer = ExportLogsServiceResponse()
        answer.partial_success.rejected_log_records = rejected
        handler.answer = lambda _body, _context, answer=answer: answer.SerializeToString()  # type: ignore[misc]
        got.append(exporter.send(logs_chunk(3), 10))
    spans = ExportTraceServiceResponse()
    spans.partial_success.rejected_spans = 1
    handler.answer = lambda _body, _context: spans.SerializeToString()
    got.append(exporter.send(traces_chunk(), 10))
    handler.answer = lambda _body, _context: b"\xff\xff\xff"
    got.append(exporter.send(logs_chunk(3), 10))
    exporter.stop()
    assert got == [2, 0, 3, 0, 1, 0]


def test_unreachable_endpoint_is_retryable_and_named() -> None:
    """A port where nobody listens gives one retryable sentence that names it."""
    fault = failure(started(endpoint="127.0.0.1:1"))
    assert fault.retryable
    assert "127.0.0.1:1 failed: UNAVAILABLE" in str(fault)
    assert "\n" not in str(fault)


def test_receiver_that_never_answers_is_left_in_time(receiver: tuple[Receiver, str, str]) -> None:
    """The shorter of the caller's limit and ``timeout`` ends the wait, retryable."""
    handler, endpoint, _ = receiver
    released = threading.Event()
    handler.answer = lambda _body, _context: b"" * released.wait(20)
    fault = failure(started(endpoint=endpoint, timeout="60s"), timeout_s=0.2)
    assert fault.retryable
    assert "DEADLINE_EXCEEDED" in str(fault)
    fault = failure(started(endpoint=endpoint, timeout="200ms"), timeout_s=60)
    assert "DEADLINE_EXCEEDED" in str(fault)
    released.set()


def test_receiver_that_comes_back_is_reached() -> None:
    """A receiver that starts after the first failure gets the chunk, without waiting for gRPC's own minutes."""
    with socket.socket() as held:  # bound, not listening: connections are refused, and nobody else gets the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        exporter = started(endpoint=endpoint)
        with pytest.raises(ExportError):
            exporter.send(logs_chunk(), 5)
        handler = Receiver()
        server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(handler,))
        server.add_insecure_port(endpoint)
        server.start()
    queue = SendingQueue(exporter, name="otlp_grpc", retry=RetryOptions.model_validate({"initial_interval": "50ms"}))
    queue.start()
    delivered = threading.Event()
    queue.put(Payload((logs_chunk(),)), lambda _payload, outcome: delivered.set() if outcome.delivered else None)
    assert delivered.wait(30)
    queue.drain(5)
    assert len(handler.calls) == 1
    server.stop(None).wait()


def test_unix_socket(tmp_path: Path) -> None:
    """unix:///PATH reaches a receiver on a Unix socket."""
    handler = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(handler,))
    server.add_insecure_port(f"unix:{tmp_path / 'otlp.sock'}")
    server.start()
    exporter = started(endpoint=f"unix://{tmp_path / 'otlp.sock'}", tls={})
    assert exporter.send(logs_chunk(), 10) == 0
    exporter.stop()
    server.stop(None).wait()
    assert len(handler.calls) == 1


def test_each_stream_has_a_connection_of_its_own(receiver: tuple[Receiver, str, str]) -> None:
    """Two threads come from two ports."""
    handler, endpoint, _ = receiver
    exporter = started(endpoint=endpoint)
    both = threading.Barrier(2)

    def send() -> None:
        both.wait(10)
        exporter.send(logs_chunk(), 10)
        both.wait(10)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    exporter.stop()
    assert len({call[3] for call in handler.calls}) == 2


def test_stop_ends_what_is_under_way_and_refuses_more(receiver: tuple[Receiver, str, str]) -> None:
    """After a stop a send raises a retryable sentence; stopping twice is fine."""
    _, endpoint, _ = receiver
    exporter = started(endpoint=endpoint)
    exporter.stop()
    exporter.stop()
    assert failure(exporter).retryable


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of localhost and its key, from openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            cert,
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return cert, key


def test_tls_with_client_certificate(certificate: tuple[Path, Path]) -> None:
    """A server that wants a client's certificate takes ours; without it, and without the CA, nothing is sent."""
    cert, key = certificate
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())], cert.read_bytes(), True)
    handler = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(handler,))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    endpoint = f"localhost:{port}"
    exporter = started(endpoint=endpoint, tls={"ca_file": str(cert), "cert_file": str(cert), "key_file": str(key)})
    assert exporter.send(logs_chunk(), 10) == 0
    exporter.stop()
    assert failure(started(endpoint=endpoint, tls={}), 3).retryable
    assert failure(started(endpoint=endpoint, tls={"ca_file": str(cert)}), 3).retryable
    server.stop(None).wait()
    assert len(handler.calls) == 1


def test_unreadable_tls_file_is_a_configuration_error(tmp_path: Path) -> None:
    """The sentence names key, path and cause."""
    exporter = create(Options.model_validate({"tls": {"ca_file": str(tmp_path / "none.pem")}}))
    with pytest.raises(ConfigError, match=r"tls\.ca_file: reading .*none\.pem failed: No such file"):
        exporter.start()


@pytest.mark.parametrize(
    "endpoint", ["", "host", "host:", "host:0", "host:70000", ":4317", "ftp://host:1", "unix:relative", "http://h/x:1"]
)
def test_unusable_endpoints_are_refused(endpoint: str) -> None:
    """What can never be reached is an error of the configuration."""
    with pytest.raises(ValueError, match="endpoint"):
        Options.model_validate({"endpoint": endpoint})


def test_schemes_decide_about_tls() -> None:
    """http:// is plain and https:// is not, whatever ``insecure`` says; without a scheme ``insecure`` decides."""

    def plain(endpoint: str, insecure: bool) -> bool:
        return create(Options.model_validate({"endpoint": endpoint, "tls": {"insecure": insecure}}))._plain()

    assert plain("http://h:1", False)
    assert not plain("https://h:1", True)
    assert plain("h:1", True)
    assert not plain("h:1", False)
    assert plain("unix:///s", False)


def test_a_request_above_the_servers_limit_asks_for_a_smaller_one() -> None:
    """gRPC's own server with a limit of 1,000 bytes: its RESOURCE_EXHAUSTED is about the size, and is not retried."""
    handler = Receiver()
    options = (("grpc.max_receive_message_length", 1000),)
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(handler,), options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    exporter = started(endpoint=f"127.0.0.1:{port}", compression="none")
    with pytest.raises(ExportError) as caught:
        exporter.send(logs_chunk(50), 10)
    exporter.stop()
    server.stop(None).wait()
    assert caught.value.too_large
    assert not caught.value.retryable
    assert handler.calls == []


def test_a_connection_that_answers_nothing_is_left(receiver: tuple[Receiver, str, str]) -> None:
    """After a timeout the next attempt connects anew: a half-open connection does not time out for a quarter hour."""
    handler, endpoint, _ = receiver
    silent = threading.Event()

    def answer(_body: bytes, _context: grpc.ServicerContext) -> bytes:
        if len(handler.calls) == 1:
            silent.wait(WAIT_S)
        return b""

    handler.answer = answer
    exporter = started(endpoint=endpoint)
    with pytest.raises(ExportError) as caught:
        exporter.send(logs_chunk(), 0.5)
    assert caught.value.retryable
    assert "DEADLINE_EXCEEDED" in str(caught.value)
    assert exporter.send(logs_chunk(), WAIT_S) == 0
    silent.set()
    exporter.stop()
    assert len({peer for _, _, _, peer in handler.calls}) == 2


def test_zstd_is_refused_where_it_is_configured() -> None:
    """gRPC's library has no zstd: an error of the configuration, not a fault at the first dump."""
    with pytest.raises(ValueError, match="compression"):
        Options.model_validate({"compression": "zstd"})
