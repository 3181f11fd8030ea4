# SPDX-License-Identifier: Apache-2.0
"""OTLP in over real sockets: the SDK's exporters, urllib3 and grpcio as clients; limits, TLS, Unix sockets, errors."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import ssl
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import urllib3
import zstandard
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from otlp_requests import Arrivals, log_request, trace_request

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.exporters.otlp_json import to_json
from otel_perfbuf.receivers.otlp import http as http_module
from otel_perfbuf.receivers.otlp.options import OtlpReceiverOptions
from otel_perfbuf.receivers.otlp.receiver import OtlpReceiver

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
PROTOBUF = {"Content-Type": "application/x-protobuf"}

pytestmark = pytest.mark.timeout(300)  # real clients and servers on a machine that may be loaded
Started = Callable[..., OtlpReceiver]


@pytest.fixture
def arrivals() -> Arrivals:
    """Where requests arrive."""
    return Arrivals()


@pytest.fixture
def started(arrivals: Arrivals) -> Iterator[Started]:
    """Starts receivers on free ports, with keys of grpc or http; stops them at the end."""
    running: list[OtlpReceiver] = []

    def start(signals: tuple[str, ...] = ("traces", "logs"), **protocols: Any) -> OtlpReceiver:
        given = {name: {"endpoint": "127.0.0.1:0", **keys} for name, keys in protocols.items()}
        options = OtlpReceiverOptions.model_validate({"protocols": given})
        receiver = OtlpReceiver(options, {signal: arrivals.consumers[signal] for signal in signals})  # type: ignore[misc]
        receiver.start()
        running.append(receiver)
        return receiver

    yield start
    for receiver in running:
        receiver.stop()


def post(receiver: OtlpReceiver, path: str, body: bytes, **headers: str) -> urllib3.BaseHTTPResponse:
    """A POST with a client of its own."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with urllib3.PoolManager(retries=False, timeout=20) as client:
        return client.request("POST", f"http://{receiver.endpoints['http']}{path}", body=body, headers=PROTOBUF | named)


def grpc_call(target: str, method: str, body: bytes, **options: Any) -> bytes:
    """One call; RpcError when it fails."""
    with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        answer: bytes = channel.unary_unary(method, None, None)(body, timeout=20, **options)
        return answer


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_sdk_exports_spans_over_http(started: Started, arrivals: Arrivals, compression: Compression) -> None:
    """The SDK's own exporter is content, and its spans arrive as it encoded them."""
    receiver = started(http={})
    exporter = HttpSpanExporter(f"http://{receiver.endpoints['http']}/v1/traces", compression=compression)
    assert_sdk_span(exporter, arrivals)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_sdk_exports_spans_over_grpc(started: Started, arrivals: Arrivals, compression: grpc.Compression) -> None:
    """The same over gRPC."""
    receiver = started(grpc={})
    assert_sdk_span(GrpcSpanExporter(receiver.endpoints["grpc"], insecure=True, compression=compression), arrivals)


def assert_sdk_span(exporter: SpanExporter, arrivals: Arrivals) -> None:
    """A span of the SDK arrives with its name and id."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("app").start_as_current_span("POST /pay") as span:
        pass
    provider.shutdown()
    [(signal, body)] = arrivals.bodies
    [arrived] = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert signal == "traces"
    assert (arrived.name, arrived.span_id) == ("POST /pay", span.get_span_context().span_id.to_bytes(8, "big"))


def test_sdk_exports_log_records_over_http(started: Started, arrivals: Arrivals) -> None:
    """The SDK's log exporter."""
    receiver = started(http={})
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(
        SimpleLogRecordProcessor(OTLPLogExporter(f"http://{receiver.endpoints['http']}/v1/logs"))
    )
    provider.get_logger("app").emit(body="out of cheese", severity_number=None)
    provider.shutdown()
    [(signal, body)] = arrivals.bodies
    [record] = ExportLogsServiceRequest.FromString(body).resource_logs[0].scope_logs[0].log_records
    assert (signal, record.body.string_value) == ("logs", "out of cheese")


def test_answers_are_in_the_requests_encoding(started: Started, arrivals: Arrivals) -> None:
    """Protobuf gets an empty response message, JSON gets JSON; ids in JSON are hex; both mean the same request."""
    receiver, request = started(http={}), trace_request("a", "b", attributes={"service.name": "s"})
    answer = post(receiver, "/v1/traces", request.SerializeToString())
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-protobuf")
    assert ExportTraceServiceResponse.FromString(answer.data) == ExportTraceServiceResponse()
    text = json.dumps(to_json(request)).encode()
    answer = post(receiver, "/v1/traces", text, Content_Type="application/json; charset=utf-8")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert json.loads(answer.data) == {"partialSuccess": {}}
    parsed = [ExportTraceServiceRequest.FromString(body) for _, body in arrivals.bodies]
    assert parsed == [request, request]


@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress)]
)
def test_codings(started: Started, arrivals: Arrivals, coding: str, compress: Callable[[bytes], bytes]) -> None:
    """Each content coding is taken, also in two frames; what is cut off or none is answered with 400."""
    receiver, body = started(http={}), log_request("x" * 5000).SerializeToString()
    packed = compress(body)
    assert post(receiver, "/v1/logs", packed, Content_Encoding=coding).status == 200
    assert post(receiver, "/v1/logs", packed[:-3], Content_Encoding=coding).status == 400
    assert post(receiver, "/v1/logs", b"no such thing", Content_Encoding=coding).status == 400
    halves = compress(body[:100]) + compress(body[100:])
    if coding != "deflate":
        assert post(receiver, "/v1/logs", halves, Content_Encoding=coding).status == 200
    assert all(got == body for _, got in arrivals.bodies)


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_bombs_are_refused(started: Started, coding: str, compress: Callable[[bytes], bytes]) -> None:
    """A small body that would become 100 MiB is 413, and takes no such memory."""
    receiver = started(http={"max_request_body_size": "4MiB"}, grpc={})
    bomb = compress(bytes(100 << 20))
    before = peak_bytes()
    for _ in range(5):
        answer = post(receiver, "/v1/traces", bomb, Content_Encoding=coding)
        assert answer.status == 413
        assert Status.FromString(answer.data).code == 8
    assert peak_bytes() - before < 64 << 20
    assert receiver.refused["otlp_oversized"] == 5


def peak_bytes() -> int:
    """This process's greatest resident size, which is begun anew."""
    text = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(text.split("VmHWM:")[1].split()[0]) << 10


def test_grpc_bombs_are_refused(started: Started) -> None:
    """Over gRPC a message is bounded before and after decompression."""
    receiver = started(grpc={"max_recv_msg_size_mib": 1})
    for size, compression in ((2 << 20, None), (100 << 20, grpc.Compression.Gzip)):
        with pytest.raises(grpc.RpcError) as fault:
            grpc_call(receiver.endpoints["grpc"], TRACES, bytes(size), compression=compression)
        assert fault.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_is_not_served_is_said(started: Started, arrivals: Arrivals) -> None:
    """Metrics, and a signal that no pipeline takes: 404 and UNIMPLEMENTED, as a Collector answers."""
    receiver = started(signals=("traces",), http={}, grpc={})
    assert post(receiver, "/v1/metrics", b"").status == 404
    assert post(receiver, "/v1/logs", b"").status == 404
    with pytest.raises(grpc.RpcError) as fault:
        grpc_call(receiver.endpoints["grpc"], METRICS, b"")
    assert fault.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not arrivals.bodies


def test_malformed_requests_get_the_protocols_own_error(started: Started, arrivals: Arrivals) -> None:
    """A google.rpc.Status in the request's encoding, or INVALID_ARGUMENT; nothing arrives, all is counted."""
    receiver = started(http={}, grpc={})
    bad = trace_request("a").SerializeToString()[:-1]
    answer = post(receiver, "/v1/traces", bad)
    status = Status.FromString(answer.data)
    assert (answer.status, answer.headers["Content-Type"], status.code) == (400, "application/x-protobuf", 3)
    assert "ExportTraceServiceRequest" in status.message
    answer = post(receiver, "/v1/traces", b'{"resourceSpans": 7}', Content_Type="application/json")
    assert (answer.status, json.loads(answer.data)["code"]) == (400, 3)
    assert post(receiver, "/v1/traces", b"x", Content_Type="text/plain").status == 415
    assert post(receiver, "/v1/traces", b"x", Content_Encoding="br").status == 415
    with pytest.raises(grpc.RpcError) as fault:
        grpc_call(receiver.endpoints["grpc"], TRACES, bad)
    assert fault.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not arrivals.bodies
    assert receiver.refused["otlp_malformed"] == 5


def test_methods_and_paths(started: Started) -> None:
    """GET is 405 with Allow; configured paths take the place of the usual ones."""
    receiver = started(http={"traces_url_path": "/otlp/t"})
    connection = http.client.HTTPConnection(receiver.endpoints["http"], timeout=20)
    connection.request("GET", "/otlp/t")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Allow")) == (405, "POST")
    assert post(receiver, "/otlp/t?x=1", trace_request("a").SerializeToString()).status == 200
    assert post(receiver, "/v1/traces", b"").status == 404


def test_body_limits(started: Started, arrivals: Arrivals) -> None:
    """A body one byte too large is 413, by its Content-Length before it is sent, by its chunks while it is."""
    receiver = started(http={"max_request_body_size": 100_000})
    largest = log_request("x" * 99_000).SerializeToString()
    exact = largest + log_request("y" * (100_000 - len(largest) - 100)).SerializeToString()
    assert post(receiver, "/v1/logs", exact).status == 200
    assert post(receiver, "/v1/logs", bytes(100_001)).status == 413
    connection = http.client.HTTPConnection(receiver.endpoints["http"], timeout=20)
    connection.request("POST", "/v1/logs", iter([bytes(60_000)] * 2), PROTOBUF, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection = http.client.HTTPConnection(receiver.endpoints["http"], timeout=20)
    parts = [exact[:7], exact[7:50_000], exact[50_000:]]
    connection.request("POST", "/v1/logs", iter(parts), PROTOBUF, encode_chunked=True)
    assert connection.getresponse().status == 200
    assert len(arrivals.bodies) == 2


def test_a_connection_is_used_again(started: Started, arrivals: Arrivals) -> None:
    """Many requests over one connection, pipelined ones too; without keep-alive each has one of its own."""
    receiver, body = started(http={}), trace_request("a").SerializeToString()
    connection = http.client.HTTPConnection(receiver.endpoints["http"], timeout=20)
    for _ in range(20):
        connection.request("POST", "/v1/traces", body, PROTOBUF)
        assert connection.getresponse().read() == b""
    head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: {len(body)}"
    host, port = receiver.endpoints["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall((head.encode() + b"\r\n\r\n" + body) * 3)
        got = b""
        while got.count(b"HTTP/1.1 200") < 3:
            got += raw.recv(65536)
    assert arrivals.records == 23
    closing = started(http={"keep_alives_enabled": False})
    assert post(closing, "/v1/traces", body).headers["Connection"] == "close"


def test_expectation_of_100_continue(started: Started) -> None:
    """A client that asks before it sends its body is told to go on; one with too large a body is not."""
    receiver = started(http={"max_request_body_size": 1000})
    host, port = receiver.endpoints["http"].split(":")
    for length, answer in ((5, b"HTTP/1.1 100"), (1001, b"HTTP/1.1 413")):
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(
                b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
                b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length
            )
            assert raw.recv(65536).startswith(answer)


def test_slow_clients_are_cut_off(started: Started) -> None:
    """A head or a body that does not come in time, and an idle connection, end; others are served meanwhile."""
    limits = {"read_header_timeout": "300ms", "read_timeout": "300ms", "idle_timeout": "300ms"}
    receiver = started(http=limits)
    host, port = receiver.endpoints["http"].split(":")
    head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: 99\r\n\r\n"
    for begun, answer in ((b"", b""), (b"POST /v1", b"HTTP/1.1 408"), (head + b"x", b"HTTP/1.1 408")):
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(begun)
            assert post(receiver, "/v1/traces", b"").status == 200
            assert raw.recv(65536)[:12] == answer
    assert receiver.refused["otlp_slow"] == 2


def test_connections_are_bounded(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection more than there may be is closed at once and counted; when one goes, another is taken."""
    monkeypatch.setattr(http_module, "CONNECTIONS_MAX", 3)
    receiver = started(http={})
    host, port = receiver.endpoints["http"].split(":")
    held = [http.client.HTTPConnection(host, int(port), timeout=20) for _ in range(3)]
    for connection in held:
        connection.request("POST", "/v1/traces", b"", PROTOBUF)
        assert connection.getresponse().read() == b""
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        assert raw.recv(10) == b""
    assert receiver.refused["otlp_connections"] == 1
    held[0].close()
    wait_until(lambda: post_or_none(receiver) == 200)


def post_or_none(receiver: OtlpReceiver) -> int | None:
    """The status, or None when the connection was refused."""
    try:
        return post(receiver, "/v1/traces", b"").status
    except urllib3.exceptions.HTTPError:
        return None


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Another thread's doing has no event to wait for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_bytes_of_all_bodies_are_bounded(arrivals: Arrivals) -> None:
    """When all bodies together have no more room, a request is 503 with Retry-After; then there is room again."""
    from collections import Counter

    from otel_perfbuf.receivers.otlp.options import HttpOptions

    refused: Counter[str] = Counter()
    options = HttpOptions(endpoint="127.0.0.1:0")
    server = http_module.OtlpHttpServer(options, arrivals.consumers, refused, held_max_bytes=1000)  # type: ignore[arg-type]
    server.start()
    try:
        host, port = server.endpoint.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("POST", "/v1/traces", bytes(1001), PROTOBUF)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Retry-After")) == (503, "1")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        for _ in range(3):
            connection.request("POST", "/v1/traces", trace_request("x" * 800).SerializeToString(), PROTOBUF)
            assert connection.getresponse().read() == b""
    finally:
        server.stop()
    assert refused["otlp_busy"] == 1


def test_unix_sockets(started: Started, arrivals: Arrivals, tmp_path: Path) -> None:
    """Both protocols over a socket file that everyone may connect to; a stale one is replaced, a live one refused."""
    paths = {"grpc": tmp_path / "g.sock", "http": tmp_path / "h.sock"}
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(paths["grpc"]))
    stale.close()
    keys = {
        "grpc": {"endpoint": f"unix://{paths['grpc']}"},
        "http": {"endpoint": str(paths["http"]), "transport": "unix"},
    }
    receiver = started(**keys)
    assert receiver.endpoints == {name: f"unix://{path}" for name, path in paths.items()}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o666 for path in paths.values())
    body = trace_request("a").SerializeToString()
    grpc_call(receiver.endpoints["grpc"], TRACES, body)
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(paths["http"]))
    connection.request("POST", "/v1/traces", body, PROTOBUF)
    assert connection.getresponse().status == 200
    assert [got for _, got in arrivals.bodies] == [body, body]
    for name in ("grpc", "http"):
        with pytest.raises(PerfbufError, match="another program listens there"):
            started(**{name: keys[name]})
    receiver.stop()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """An authority, a server's certificate and a client's, as files."""
    authority = trustme.CA()
    files = {"ca": str(tmp_path / "ca.pem")}
    authority.cert_pem.write_to_path(files["ca"])
    for name, issued in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("a@b"))):
        files |= {f"{name}_cert": str(tmp_path / f"{name}.pem"), f"{name}_key": str(tmp_path / f"{name}.key")}
        issued.cert_chain_pems[0].write_to_path(files[f"{name}_cert"])
        issued.private_key_pem.write_to_path(files[f"{name}_key"])
    return files


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(started: Started, arrivals: Arrivals, certificates: dict[str, str], mutual: bool) -> None:
    """TLS, and with client_ca_file only for clients that show a certificate of that authority."""
    tls = {"cert_file": certificates["server_cert"], "key_file": certificates["server_key"]}
    if mutual:
        tls["client_ca_file"] = certificates["ca"]
    receiver = started(http={"tls": tls}, grpc={"tls": tls})
    body = trace_request("a").SerializeToString()
    authority = Path(certificates["ca"]).read_bytes()
    pair = [Path(certificates[f"client_{name}"]) for name in ("key", "cert")]

    def by_http(shown: bool) -> int:
        files = {"cert_file": str(pair[1]), "key_file": str(pair[0])} if shown else {}
        with urllib3.PoolManager(retries=False, timeout=20, ca_certs=certificates["ca"], **files) as client:
            url = f"https://{receiver.endpoints['http']}/v1/traces"
            return client.request("POST", url, body=body, headers=PROTOBUF).status

    def by_grpc(shown: bool) -> bytes:
        key, chain = (path.read_bytes() for path in pair) if shown else (None, None)
        credentials = grpc.ssl_channel_credentials(authority, key, chain)
        with grpc.secure_channel(receiver.endpoints["grpc"], credentials) as channel:
            answer: bytes = channel.unary_unary(TRACES, None, None)(body, timeout=20)
            return answer

    assert by_http(True) == 200
    assert by_grpc(True) == b""
    if mutual:
        with pytest.raises((urllib3.exceptions.HTTPError, ssl.SSLError)):
            by_http(False)
        with pytest.raises(grpc.RpcError):
            by_grpc(False)
    else:
        assert (by_http(False), by_grpc(False)) == (200, b"")
    assert len(arrivals.bodies) == (2 if mutual else 4)


def test_wrong_tls_files(started: Started, certificates: dict[str, str], tmp_path: Path) -> None:
    """A file that is missing, or no certificate, is a sentence before anything listens."""
    tls = {"cert_file": certificates["ca"], "key_file": certificates["server_key"]}
    for protocol in ("grpc", "http"):
        with pytest.raises(ConfigError, match="make no server certificate"):
            started(**{protocol: {"tls": tls}})
        with pytest.raises(ConfigError, match=r"no_such\.pem|No such file"):
            started(**{protocol: {"tls": tls | {"cert_file": str(tmp_path / "no_such.pem")}}})


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_taken_port_is_a_sentence(started: Started, protocol: str) -> None:
    """The second receiver on a port is refused, and nothing of it stays."""
    first = started(**{protocol: {}})
    with pytest.raises(PerfbufError, match="choose another endpoint"):
        started(**{protocol: {"endpoint": first.endpoints[protocol]}})


def test_nothing_is_left_after_stop(started: Started) -> None:
    """No thread and no descriptor of a receiver outlives it, though a client still holds a connection."""
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    receiver = started(http={})
    host, port = receiver.endpoints["http"].split(":")
    client = http.client.HTTPConnection(host, int(port), timeout=20)
    client.request("POST", "/v1/traces", b"", PROTOBUF)
    assert client.getresponse().read() == b""
    receiver.stop()
    receiver.stop()
    client.close()
    wait_until(lambda: set(threading.enumerate()) <= threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"grpc": {"endpoint": "127.0.0.1"}}, "HOST:PORT"),
        ({"grpc": {"endpoint": "relative", "transport": "unix"}}, "no absolute path"),
        ({"http": {"endpoint": "unix:///" + "x" * 200}}, "107 bytes"),
        ({"http": {"traces_url_path": "v1"}}, "no path of a URL"),
        ({"http": {"traces_url_path": "/a", "logs_url_path": "/a"}}, "are the same"),
        ({"http": {"tls": {"cert_file": "x"}}}, "key_file"),
        ({"grpc": {"max_recv_msg_size_mib": 0}}, "greater than or equal to 1"),
        ({}, "name grpc, http or both"),
    ],
)
def test_wrong_options(keys: dict[str, Any], words: str) -> None:
    """What cannot be is told with a way out."""
    with pytest.raises(ValueError, match=words):
        OtlpReceiverOptions.model_validate({"protocols": keys})


def test_protocols_without_values_take_their_defaults() -> None:
    """`grpc:` with nothing behind it is on, as in a Collector; keys that mean nothing here are refused."""
    options = OtlpReceiverOptions.model_validate({"protocols": {"grpc": None}})
    assert options.protocols.grpc is not None
    assert options.protocols.grpc.endpoint == "127.0.0.1:4327"
    assert options.protocols.http is None
    refused = OtlpReceiverOptions.model_validate(
        {
            "protocols": {
                "http": {"cors": {"allowed_origins": ["*"]}, "include_metadata": True},
                "grpc": {"read_buffer_size": 1, "tls": {"cert_file": "a", "key_file": "b", "reload_interval": "1h"}},
            }
        }
    ).unavailable()
    assert [key for key, _ in refused] == [
        "protocols.grpc.read_buffer_size",
        "protocols.grpc.tls.reload_interval",
        "protocols.http.cors",
        "protocols.http.include_metadata",
    ]


def test_log_request_over_grpc(started: Started, arrivals: Arrivals) -> None:
    """The logs service too, with the empty response message."""
    receiver, body = started(grpc={}), log_request("a").SerializeToString()
    method = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
    answer = grpc_call(receiver.endpoints["grpc"], method, body)
    assert ExportLogsServiceResponse.FromString(answer) == ExportLogsServiceResponse()
    assert list(arrivals.bodies) == [("logs", body)]
