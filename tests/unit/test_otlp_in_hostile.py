# SPDX-License-Identifier: Apache-2.0
"""A thousand generated bad requests to each server: an answer for each, no crash, bounded memory, good ones pass."""

from __future__ import annotations

import functools
import gzip
import json
import random
import resource
import socket
import zlib
from collections import Counter
from collections.abc import Callable

import grpc
import pytest
import zstandard
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_requests import Arrivals, log_request, trace_request

from otel_perfbuf.exporters.otlp_json import to_json
from otel_perfbuf.receivers.otlp.options import OtlpReceiverOptions
from otel_perfbuf.receivers.otlp.receiver import OtlpReceiver

REQUESTS = 1000
GOOD = trace_request("POST /pay", message="failed", attributes={"service.name": "checkout"}).SerializeToString()
Chance = random.Random
Headers = dict[str, str]
PATHS = ("/v1/traces", "/v1/traces", "/v1/logs", "/v1/metrics", "/", "/v1/traces/../x")


def truncated(chance: Chance) -> tuple[bytes, Headers]:
    """A good request that ends too early."""
    return GOOD[: chance.randrange(1, len(GOOD))], {}


def damaged(chance: Chance) -> tuple[bytes, Headers]:
    """A good request with bytes changed."""
    data = bytearray(GOOD)
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data), {}


def junk(chance: Chance) -> tuple[bytes, Headers]:
    """Bytes that are nothing."""
    return chance.randbytes(chance.choice((1, 30, 3000))), {}


def huge(chance: Chance) -> tuple[bytes, Headers]:
    """More than a body may have."""
    return bytes((1 << 20) + chance.randint(1, 1000)), {}


def lengths(chance: Chance) -> tuple[bytes, Headers]:
    """Lengths that promise more than there is."""
    return b"\x0a" + chance.choice((b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x01", b"\x80" * 11)) + GOOD, {}


def nested(chance: Chance) -> tuple[bytes, Headers]:
    """An attribute that is a list in a list in a list."""
    value = b"\x0a\x01x"
    for _ in range(chance.choice((10, 99, 300))):
        value = b"\x2a" + varint(len(value) + 1 + len(varint(len(value)))) + b"\x0a" + varint(len(value)) + value
    for field in (b"\x12", b"\x4a", b"\x12", b"\x12", b"\x0a"):  # value, attributes, spans, scope_spans, resource_spans
        value = field + varint(len(value)) + value
    return value, {}


def varint(number: int) -> bytes:
    """Protobuf's."""
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def bomb(chance: Chance) -> tuple[bytes, Headers]:
    """A few bytes that become 30 MiB."""
    coding = chance.choice(("gzip", "zstd", "deflate"))
    return packed_zeros(coding), {"Content-Encoding": coding}


@functools.cache
def packed_zeros(coding: str) -> bytes:
    """30 MiB of nothing in a content coding."""
    pack: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "zstd": zstandard.compress,
        "deflate": zlib.compress,
    }
    return pack[coding](bytes(30 << 20))


def miscoded(chance: Chance) -> tuple[bytes, Headers]:
    """Not compressed as it says, cut off, or in a coding that is not known."""
    coding = chance.choice(("gzip", "zstd", "deflate", "br", "snappy", "x" * 200))
    return chance.choice((GOOD, gzip.compress(GOOD)[:-5], b"")) or b"\0", {"Content-Encoding": coding}


def bad_json(chance: Chance) -> tuple[bytes, Headers]:
    """JSON of wrong types, too deep, cut off, with numbers that are none."""
    text = json.dumps(to_json(ExportTraceServiceRequest.FromString(GOOD)))
    choices: list[str] = [
        text[: chance.randrange(len(text))],
        "[" * 100_000,
        '{"resourceSpans":' * 2000,
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": 1e999}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": "SPAN_KIND_NO"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "\\ud800"}]}]}]}',
        '{"resourceSpans": {"scopeSpans": 5}}',
        f'{{"resourceSpans": [{{"scopeSpans": [{{"spans": [{{"flags": {"9" * 5000}}}]}}]}}]}}',
        f'{{"resourceSpans": [{{"resource": {{"attributes": [{{"value": {deep(chance.choice((90, 400)))}}}]}}}}]}}',
        "null",
        "\x00",
    ]
    return chance.choice(choices).encode(), {"Content-Type": "application/json"}


def deep(depth: int) -> str:
    """An AnyValue in arrays."""
    return '{"arrayValue": {"values": [' * depth + '{"stringValue": "x"}' + "]}}" * depth


def wrong_type(chance: Chance) -> tuple[bytes, Headers]:
    """A content type that is none of ours, or none."""
    return GOOD, {
        "Content-Type": chance.choice(("text/html", "", "application/json", "multipart/form-data; boundary=x"))
    }


KINDS = (truncated, damaged, junk, huge, lengths, nested, bomb, miscoded, bad_json, wrong_type)


def heads(chance: Chance, body: bytes, headers: Headers) -> bytes:
    """A request's bytes; one in ten has a head that is wrong itself."""
    named = {"Host": "x", "Content-Type": "application/x-protobuf", "Content-Length": str(len(body)), **headers}
    line = f"{chance.choice(('POST',) * 8 + ('GET', 'BREW'))} {chance.choice(PATHS)} HTTP/1.1"
    if chance.random() < 0.1:
        broken = chance.choice(("length", "both", "line", "long", "many", "zero", "version"))
        if broken == "length":
            named["Content-Length"] = chance.choice(("-1", "x", "1e3", str(1 << 70)))
        elif broken == "both":
            named["Transfer-Encoding"] = "chunked"
        elif broken == "line":
            line = chance.choice(("", "POST", "\x00\x01\x02", "POST /v1/traces SPDY/9", "A" * 300))
        elif broken == "long":
            named["X-Long"] = "y" * 100_000
        elif broken == "many":
            named |= {f"X-{number}": "z" for number in range(3000)}
        elif broken == "zero":
            named["X-Zero"] = "a\x00b"
        else:
            line = "POST /v1/traces HTTP/0.9"
    return (
        "".join([f"{line}\r\n", *(f"{name}: {value}\r\n" for name, value in named.items()), "\r\n"]).encode("latin-1")
        + body
    )


def ask(port: int, request: bytes) -> tuple[int | None, bytes, bytes]:
    """(status, content type, body) of the answer, read to the connection's end; None when there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        try:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was answered, or cut off, before it was sent
        data = b""
        try:
            while part := client.recv(65536):
                data += part
        except ConnectionResetError:
            pass
    if not data.startswith(b"HTTP/1.1 "):
        return None, b"", data
    head, _, body = data.partition(b"\r\n\r\n")
    kinds = [
        line.split(b":", 1)[1].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"content-type:")
    ]
    return int(head[9:12]), kinds[0], body


@pytest.fixture
def arrivals() -> Arrivals:
    """Where good requests arrive."""
    return Arrivals()


def receiver_of(arrivals: Arrivals) -> OtlpReceiver:
    """A started receiver of 1 MiB at most."""
    given = {
        "grpc": {"endpoint": "127.0.0.1:0", "max_recv_msg_size_mib": 1},
        "http": {"endpoint": "127.0.0.1:0", "max_request_body_size": "1MiB", "read_timeout": "5s"},
    }
    receiver = OtlpReceiver(OtlpReceiverOptions.model_validate({"protocols": given}), arrivals.consumers)  # type: ignore[arg-type]
    receiver.start()
    return receiver


@pytest.mark.timeout(900)
def test_bad_http_requests(arrivals: Arrivals) -> None:
    """Each is answered with an HTTP status, an error with a message in the request's encoding; good ones pass."""
    chance, receiver = random.Random(20261129), receiver_of(arrivals)
    port = int(receiver.endpoints["http"].rpartition(":")[2])
    answered: Counter[int | None] = Counter()
    good = 0
    try:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(REQUESTS):
            body, headers = chance.choice(KINDS)(chance)
            status, kind, text = ask(port, heads(chance, body, headers))
            answered[status] += 1
            assert status in (200, 400, 404, 405, 413, 414, 415, 431, 501, 505), (number, status, text[:200])
            if status != 200 and kind == b"application/json":
                assert json.loads(text)["message"]
            elif status != 200 and kind == b"application/x-protobuf":
                assert Status.FromString(text).message
            if number % 50 == 0:
                good += 1
                assert ask(port, post_of(GOOD))[0] == 200
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    finally:
        receiver.stop()
    assert answered[400] > 200
    assert answered[413] > 50
    assert receiver.refused["failed"] == 0
    assert sum(body == GOOD for _, body in arrivals.bodies) >= good
    assert grown_kib < 256 << 10  # most of it is this test's own bombs


def post_of(body: bytes) -> bytes:
    """A right request."""
    head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


@pytest.mark.timeout(900)
def test_bad_grpc_requests(arrivals: Arrivals) -> None:
    """Each gets a gRPC status: INVALID_ARGUMENT, RESOURCE_EXHAUSTED or UNIMPLEMENTED; good ones pass between."""
    chance, receiver = random.Random(129), receiver_of(arrivals)
    answered: Counter[str] = Counter()
    options = [("grpc.max_send_message_length", -1)]
    names = ("trace.v1.TraceService", "logs.v1.LogsService", "metrics.v1.MetricsService", "no.such.Service")
    log = log_request("x").SerializeToString()
    try:
        with grpc.insecure_channel(receiver.endpoints["grpc"], options=options) as channel:
            calls = [channel.unary_unary(f"/opentelemetry.proto.collector.{name}/Export", None, None) for name in names]
            for number in range(REQUESTS):
                body, _ = chance.choice((truncated, damaged, junk, huge, lengths, nested))(chance)
                compression = chance.choice((grpc.Compression.Gzip, grpc.Compression.NoCompression))
                try:
                    chance.choice(calls)(body, timeout=30, compression=compression)
                    answered["OK"] += 1
                except grpc.RpcError as fault:
                    answered[fault.code().name] += 1
                if number % 50 == 0:
                    assert calls[0](GOOD, timeout=30) == b""
                    assert calls[1](log, timeout=30) == b""
    finally:
        receiver.stop()
    assert set(answered) <= {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}, answered
    assert answered["INVALID_ARGUMENT"] > 100
    assert answered["RESOURCE_EXHAUSTED"] > 20
    assert receiver.refused["failed"] == 0
