# SPDX-License-Identifier: Apache-2.0
"""A real Collector with small limits, with zstd, with TLS that asks for a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificates
from collector import Collector, running_collector
from test_exporters import dump_span, made, syscalls

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.exporters.queue import SendingQueue

WAIT_S = 120


def delivered(component_type: str, payload: Payload, **keys: Any) -> SendingQueue:
    """A queue that has sent the payload, stopped."""
    queue = SendingQueue(made(component_type, **keys), name=component_type)
    queue.start()
    assert queue.put(payload)
    assert queue.flush(WAIT_S)
    queue.drain(5)
    return queue


def sequences(collector: Collector) -> list[int]:
    """perfbuf.sequence-like numbers of what arrived: here the records' times."""
    return [int(record["timeUnixNano"]) for record in collector.log_records()]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("way", ["grpc", "http"])
def test_a_collector_with_a_small_limit_gets_all_in_parts(tmp_path: Path, way: str, compression: str) -> None:
    """Limits far below a chunk's size (a gRPC server's 1 MiB is the least it can be told): every record, once."""
    limits = {
        "grpc": {"max_recv_msg_size_mib": 1},
        "http": {"max_request_body_size": 100_000},
    }
    extra = {"receivers": {"otlp": {"protocols": limits}}}
    request = syscalls(4000, every_form=False)
    expected = [
        record.time_unix_nano
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    chunk = Chunk("logs", request.SerializeToString(), len(expected))
    assert len(chunk.body) > 2 << 20
    with running_collector(tmp_path, extra) as collector:
        keys: dict[str, Any] = {"endpoint": getattr(collector, way), "compression": compression}
        if way == "grpc":
            keys["tls"] = {"insecure": True}
        queue = delivered(f"otlp_{way}", Payload((chunk,), "dump"), **keys)
        collector.stop()
    assert (queue.stats().logs.sent, queue.stats().logs.failed) == (len(expected), 0)
    assert sequences(collector) == expected
    assert len(collector.lines()) > 1


def test_a_collector_takes_zstd(collector: Collector) -> None:
    """OTLP/HTTP with zstd: the Collector reads what we compress."""
    request = syscalls(500)
    count = sum(len(scope.log_records) for each in request.resource_logs for scope in each.scope_logs)
    payload = Payload(
        (Chunk("logs", request.SerializeToString(), count), Chunk("traces", dump_span().SerializeToString(), 2))
    )
    delivered("otlp_http", payload, endpoint=collector.http, compression="zstd")
    collector.stop()
    assert len(collector.log_records()) == count
    assert len(collector.spans()) == 2


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_mutual_tls(tmp_path: Path, way: str) -> None:
    """With our certificate the Collector takes a dump; without it, or without its authority, a sentence says why."""
    pems = make_certificates(tmp_path)
    tls = {"cert_file": pems.server_cert, "key_file": pems.server_key, "client_ca_file": pems.ca}
    extra = {"receivers": {"otlp": {"protocols": {"grpc": {"tls": tls}, "http": {"tls": tls}}}}}
    request = syscalls(10)
    chunk = Chunk("logs", request.SerializeToString(), 1)
    own = {"ca_file": pems.ca, "cert_file": pems.client_cert, "key_file": pems.client_key}
    with running_collector(tmp_path, extra) as collector:
        endpoint = collector.grpc if way == "grpc" else collector.http.replace("http:", "https:")
        for keys in ({"ca_file": pems.ca}, {key: value for key, value in own.items() if key != "ca_file"}):
            exporter = made(f"otlp_{way}", endpoint=endpoint, tls=keys)
            with pytest.raises(ExportError) as caught:
                exporter.send(chunk, 20)
            exporter.stop()
            assert caught.value.retryable
            assert endpoint.split("://")[-1] in str(caught.value)
        exporter = made(f"otlp_{way}", endpoint=endpoint, tls=own)
        assert exporter.send(chunk, 20) == 0
        exporter.stop()
        collector.stop()
    assert len(collector.lines()) == 1
