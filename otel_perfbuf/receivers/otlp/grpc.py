# SPDX-License-Identifier: Apache-2.0
"""OTLP over gRPC: a generic handler that gets a request's bytes as they are, answered at once.

What it is not: a parser. Source: OTLP specification, "OTLP/gRPC"; the Collector's otlpreceiver and configgrpc (keys and
limits). grpcio bounds a message before and after decompression (gzip, deflate; zstd and snappy it has not), and
answers itself what is not served: UNIMPLEMENTED, as a Collector without a pipeline of that signal does.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.payload import Signal
from otel_perfbuf.receivers.consumer import Consumer, MalformedRequest
from otel_perfbuf.receivers.listen import UNIX_MODE, read_pems
from otel_perfbuf.receivers.otlp.options import GrpcOptions
from otel_perfbuf.triggers.bound import prepare_unix

__all__ = ["OtlpGrpcServer"]

_log = logging.getLogger(__name__)

_SERVICES: Final[Mapping[Signal, str]] = {
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
_THREADS: Final = 4
_CALLS_MAX: Final = 64  # at a time; each may hold a message
_HANDSHAKE_MS: Final = 10_000
_WHAT: Final = "OTLP/gRPC receiver"


class _Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Gives each served method its consumer; None, which is UNIMPLEMENTED, to all others."""

    def __init__(self, consumers: Mapping[Signal, Consumer], refused: Counter[str]) -> None:
        self._refused = refused
        self._methods = {
            _SERVICES[signal]: grpc.unary_unary_rpc_method_handler(self._export(consumer))
            for signal, consumer in consumers.items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._methods.get(handler_call_details.method)

    def _export(self, consumer: Consumer) -> Any:
        def export(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                consumer(request)
            except MalformedRequest as fault:
                self._refused["otlp_malformed"] += 1
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
            except Exception:  # noqa: BLE001 - the client gets its answer
                self._refused["failed"] += 1
                _log.exception("taking an OTLP request failed")
                context.abort(grpc.StatusCode.INTERNAL, "taking the request failed; the agent's log says why")
            return b""  # an Export*ServiceResponse without partial_success

        return export


class OtlpGrpcServer:
    """Serves until ``stop``. ``refused`` counts requests by cause; ``endpoint`` is where it listens, once started."""

    def __init__(self, options: GrpcOptions, consumers: Mapping[Signal, Consumer], refused: Counter[str]) -> None:
        self._options = options
        self._handler = _Handler(consumers, refused)
        self._server: grpc.Server | None = None
        self._unix: tuple[str, int] | None = None
        self.endpoint = options.endpoint

    def start(self) -> None:
        """Listens and serves; PerfbufError or ConfigError when that cannot be."""
        credentials = self._credentials()
        server = grpc.server(
            ThreadPoolExecutor(_THREADS, "perfbuf-otlp-grpc"),
            handlers=[self._handler],
            options=_channel_options(self._options),
            maximum_concurrent_rpcs=_CALLS_MAX,
        )
        path = self._options.unix_path
        if path is not None:
            prepare_unix(path, socket.SOCK_STREAM, _WHAT)
        target = self._options.endpoint if path is None else f"unix:{path}"
        try:
            if credentials is None:
                port = server.add_insecure_port(target)
            else:
                port = server.add_secure_port(target, credentials)
        except RuntimeError as fault:
            server.stop(None)
            raise PerfbufError(
                f"cannot open the {_WHAT} at {self._options.endpoint}: it is not free, or not an address of this host; "
                "choose another endpoint"
            ) from fault
        if path is None:
            self.endpoint = f"{self._options.endpoint.rpartition(':')[0]}:{port}"
        else:
            os.chmod(path, UNIX_MODE)
            self.endpoint = f"unix://{path}"
            self._unix = path, os.lstat(path).st_ino
        server.start()
        self._server = server

    def stop(self) -> None:
        """Ends what is being answered and closes; twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(0.2).wait(2.0)
        unix, self._unix = self._unix, None
        if unix is not None:
            try:
                if os.lstat(unix[0]).st_ino == unix[1]:
                    os.unlink(unix[0])
            except OSError:
                pass  # gRPC removed it, or someone else

    def _credentials(self) -> grpc.ServerCredentials | None:
        tls = self._options.tls
        if tls is None:
            return None
        pems = read_pems(tls, _WHAT)
        return grpc.ssl_server_credentials(
            [(pems.key, pems.certificate)], pems.client_authority, tls.client_ca_file is not None
        )


def _channel_options(options: GrpcOptions) -> list[tuple[str, int]]:
    server, enforced = options.keepalive.server_parameters, options.keepalive.enforcement_policy
    given = {
        "grpc.max_connection_idle_ms": server.max_connection_idle,
        "grpc.max_connection_age_ms": server.max_connection_age,
        "grpc.max_connection_age_grace_ms": server.max_connection_age_grace,
        "grpc.keepalive_time_ms": server.time,
        "grpc.keepalive_timeout_ms": server.timeout,
        "grpc.http2.min_ping_interval_without_data_ms": enforced.min_time,
    }
    return [
        ("grpc.so_reuseport", 0),  # two agents on one port would share the telemetry between them
        ("grpc.max_receive_message_length", options.max_recv_msg_size_mib << 20),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.keepalive_permit_without_calls", int(enforced.permit_without_stream)),
        *((name, max(int(seconds * 1000), 1)) for name, seconds in given.items() if seconds),
    ]
