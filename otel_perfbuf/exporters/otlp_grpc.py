# SPDX-License-Identifier: Apache-2.0
"""OTLP over gRPC: a chunk's bytes as they are through a generic method. What it is not: it never encodes or retries.

Source: OTLP specification 1.x, "OTLP/gRPC"; CONTRACT section 2. Each stream (thread) has a connection of its own: over
one connection a Collector takes two thirds of what it takes over two (FACTS 36).
"""

from __future__ import annotations

import logging
import threading
from typing import Final, Literal, cast

import grpc
from pydantic import Field, field_validator

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.answers import clipped, counted, is_too_large, rejected_in_protobuf, retry_delay_s
from otel_perfbuf.exporters.options import NetworkOptions, read_pem
from otel_perfbuf.exporters.payload import Chunk, Signal

__all__ = ["STABILITY", "TYPE", "Options", "OtlpGrpcExporter", "create"]

_log = logging.getLogger(__name__)

TYPE: Final = "otlp_grpc"
STABILITY: Final = "beta"

_METHODS: Final[dict[Signal, str]] = {
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
# Source: OTLP specification, "Failures". RESOURCE_EXHAUSTED counts only with a RetryInfo.
_RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # channels to one target share a connection otherwise
    ("grpc.enable_retries", 0),  # the sending queue retries, and counts
    # gRPC's own wait between connection attempts grows to two minutes, in which each retry fails unsent
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.primary_user_agent", "otel-perfbuf"),
)


class Options(NetworkOptions):
    """``endpoint``: ``HOST:PORT``, ``http://`` (plain text) or ``https://HOST:PORT``, or ``unix:///PATH``."""

    endpoint: str = Field(default="127.0.0.1:4317", min_length=1)
    compression: Literal["gzip", "none"] = "gzip"  # gRPC's own library compresses, and it knows no other way

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        _target(value)
        return value


def create(options: Options) -> OtlpGrpcExporter:
    """The exporter for these options; it connects with the first send."""
    return OtlpGrpcExporter(options)


class OtlpGrpcExporter:
    """Sends chunks to ``options.endpoint``. ``send`` may run on several threads at once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scheme, self._target = _target(options.endpoint)
        self._metadata = tuple(options.plain_headers().items())
        self._compression = grpc.Compression.Gzip if options.compression == "gzip" else grpc.Compression.NoCompression
        self._credentials: grpc.ChannelCredentials | None = None
        self._lock = threading.Lock()
        self._channels: dict[int, grpc.Channel] = {}
        self._open = False

    def start(self) -> None:
        """Reads the TLS files (ConfigError when one cannot be read); does not connect."""
        tls = self._options.tls
        if not self._plain():
            self._credentials = grpc.ssl_channel_credentials(
                read_pem(tls.ca_file, "tls.ca_file", TYPE),
                read_pem(tls.key_file, "tls.key_file", TYPE),
                read_pem(tls.cert_file, "tls.cert_file", TYPE),
            )
        with self._lock:
            self._open = True

    def send(self, chunk: Chunk, timeout_s: float) -> int:
        """Delivers one chunk within ``timeout_s``; gives the records that the peer rejected, or raises ExportError."""
        method = self._channel().unary_unary(_METHODS[chunk.signal], None, None)  # bytes in, bytes out
        try:
            answer: bytes = method(
                chunk.body,
                timeout=self._options.limit_s(timeout_s),
                metadata=self._metadata,
                compression=self._compression,
            )
        except grpc.RpcError as fault:
            error = self._error(chunk, fault)
            if cast(grpc.Call, fault).code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._disconnect()
            raise error from fault
        except ValueError as fault:  # grpc's word for a channel that stop() closed meanwhile
            raise self._stopped() from fault
        rejected, why = rejected_in_protobuf(chunk.signal, answer)
        if why:
            _log.warning("%s: the receiver says: %s", self._options.endpoint, why)
        return min(rejected, chunk.records)

    def stop(self) -> None:
        """Closes the connections; what is being sent ends with a retryable ExportError."""
        with self._lock:
            self._open = False
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()

    def _channel(self) -> grpc.Channel:
        with self._lock:
            if not self._open:
                raise self._stopped()
            stream = threading.get_ident()
            channel = self._channels.get(stream)
            if channel is None:
                channel = self._channels[stream] = self._connect()
            return channel

    def _connect(self) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
        return grpc.secure_channel(self._target, self._credentials, options=_CHANNEL_OPTIONS)

    def _disconnect(self) -> None:
        """Closes this stream's connection: behind one that is half open every attempt would time out in its turn."""
        with self._lock:
            channel = self._channels.pop(threading.get_ident(), None)
        if channel is not None:
            channel.close()

    def _plain(self) -> bool:
        tls = self._options.tls
        if self._scheme == "unix":  # a socket in the file system is not encrypted unless a certificate is given
            return tls.insecure or tls.ca_file is None
        return self._scheme == "http" or (self._scheme == "" and tls.insecure)

    def _stopped(self) -> ExportError:
        return ExportError(f"sending to {self._options.endpoint} by gRPC: the exporter is stopped", retryable=True)

    def _error(self, chunk: Chunk, fault: grpc.RpcError) -> ExportError:
        call = cast(grpc.Call, fault)  # what a failed unary call raises is both (grpc's own documentation)
        code = call.code()
        details = dict(call.trailing_metadata() or ()).get("grpc-status-details-bin")
        delay_s = retry_delay_s(details if isinstance(details, bytes) else None)
        exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        too_large = exhausted and is_too_large(call.details() or "")
        retryable = code in _RETRYABLE or (exhausted and delay_s is not None and not too_large)
        return ExportError(
            f"sending {counted(chunk)} by gRPC to {self._options.endpoint} failed: "
            f"{code.name if code else 'UNKNOWN'}: {clipped(call.details() or 'no details')}",
            retryable=retryable,
            retry_after_s=delay_s if retryable else None,
            too_large=too_large,
        )


def _target(endpoint: str) -> tuple[Literal["", "http", "https", "unix"], str]:
    """("http" | "https" | "unix" | "" when it does not say, what gRPC is to connect to); ValueError is a sentence."""
    if endpoint.startswith("unix:"):
        path = endpoint.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError(f"{endpoint!r} names no absolute path; write unix:///PATH")
        return "unix", f"unix://{path}"
    scheme, found, rest = endpoint.rpartition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if not host or not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise ValueError(f"{endpoint!r} is not an endpoint; write HOST:PORT or unix:///PATH")
    target = f"{host}:{port}"
    if not found:
        return "", target
    if scheme == "http":
        return "http", target
    if scheme == "https":
        return "https", target
    raise ValueError(
        f"{endpoint!r} has the scheme {scheme}; for gRPC write HOST:PORT, http://, https:// or unix:///PATH"
    )
