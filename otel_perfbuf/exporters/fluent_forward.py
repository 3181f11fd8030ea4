# SPDX-License-Identifier: Apache-2.0
"""Log records to Fluentd, Fluent Bit or a Collector's fluent_forward receiver: PackedForward with acknowledgement.

What it is not: it sends no spans (the header record has all that the dump's span has), encodes no OTLP and never
retries. Fields: fluent_records.py. Source: CONTRACT section 2; Fluentd's "Forward Protocol Specification v1" and the
names of its out_forward.
"""

from __future__ import annotations

import base64
import gzip
import secrets
import socket
import ssl
import threading
from typing import Final, Literal

from google.protobuf.message import DecodeError
from pydantic import Field, SecretStr, field_validator, model_validator

from otel_perfbuf.errors import ConfigError, ExportError
from otel_perfbuf.exporters.answers import clipped, counted
from otel_perfbuf.exporters.fluent_connection import FluentConnection, Peer
from otel_perfbuf.exporters.fluent_records import fluent_events
from otel_perfbuf.exporters.options import DeliveryOptions, TlsOptions, read_pem
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.fluent.handshake import Credentials
from otel_perfbuf.fluent.protocol import ProtocolFault, packed_entries, packed_forward
from otel_perfbuf.units import Duration

__all__ = ["STABILITY", "TYPE", "FluentForwardExporter", "Options", "create"]

TYPE: Final = "fluent_forward"
STABILITY: Final = "beta"

_GZIP_LEVEL: Final = 1


class Options(DeliveryOptions):
    """``endpoint``: ``HOST:PORT`` or ``unix:///PATH``; ``tls`` left out is plain text, as Fluent's own default is.

    ``require_ack``: a chunk counts as sent when the server says so. Without, it counts when the system has taken it,
    and what a server's end takes with it is lost. ``shared_key`` (with ``username`` and ``password`` where the server
    asks for them) needs a server that greets; a Collector's does not.
    """

    endpoint: str = Field(default="127.0.0.1:24224", min_length=1)
    tag: str = Field(default="perfbuf", min_length=1, max_length=255)
    require_ack: bool = True
    compression: Literal["gzip", "none"] = "none"
    timeout: Duration = Field(default=30.0, ge=0)
    tls: TlsOptions | None = None
    shared_key: SecretStr | None = None
    self_hostname: str | None = Field(default=None, min_length=1, max_length=255)
    username: str | None = Field(default=None, max_length=255)
    password: SecretStr | None = None

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        _split(value)
        return value

    @model_validator(mode="after")
    def _secrets(self) -> Options:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together: give both or neither")
        if self.username is not None and self.shared_key is None:
            raise ValueError("username needs shared_key: Fluent's handshake has no password alone")
        return self


def create(options: Options) -> FluentForwardExporter:
    """The exporter for these options; it connects with the first send."""
    return FluentForwardExporter(options)


class FluentForwardExporter:
    """Sends log records. ``send`` may run on several threads at once, each with a connection of its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._connections: dict[int, FluentConnection] = {}
        self._peer: Peer | None = None

    def start(self) -> None:
        """Reads the TLS files (ConfigError when one cannot be used); does not connect."""
        host, port, path = _split(self._options.endpoint)
        self._peer = Peer(host, port, path, _context(self._options.tls), self._credentials())

    def send(self, chunk: Chunk, timeout_s: float) -> int:
        """Delivers one chunk within ``timeout_s``; gives 0, since no Fluent server says what it rejected."""
        if chunk.signal != "logs":
            raise ExportError(
                f"sending {counted(chunk)} to {self._options.endpoint}: Fluent has no spans", retryable=False
            )
        try:
            entries, count = packed_entries(fluent_events(chunk.body))
        except DecodeError as fault:
            raise ExportError(f"sending {counted(chunk)}: it is no OTLP request: {fault}", retryable=False) from fault
        compressed = None
        if self._options.compression == "gzip":
            entries, compressed = gzip.compress(entries, _GZIP_LEVEL, mtime=0), "gzip"
        ack = base64.b64encode(secrets.token_bytes(16)).decode() if self._options.require_ack else None
        message = packed_forward(self._options.tag, entries, count, ack, compressed)
        limit_s = self._options.limit_s(timeout_s)
        try:
            self._connection(limit_s).send(message, ack, limit_s)
        except (OSError, ProtocolFault) as fault:
            self._forget()
            raise ExportError(
                f"sending {counted(chunk)} by Fluent forward to {self._options.endpoint} failed: {_cause(fault)}",
                retryable=True,
            ) from fault
        return 0

    def stop(self) -> None:
        """Closes the connections; what is being sent ends with a retryable ExportError."""
        with self._lock:
            self._peer = None
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    def _connection(self, limit_s: float) -> FluentConnection:
        """This stream's connection, a new one where its peer has closed it."""
        stream = threading.get_ident()
        with self._lock:
            peer, connection = self._peer, self._connections.get(stream)
        if peer is None:
            raise ConnectionAbortedError("the exporter is stopped")
        if connection is not None:
            if connection.usable():
                return connection
            self._forget()
        connection = FluentConnection(peer, limit_s)
        with self._lock:
            if self._peer is not None:
                self._connections[stream] = connection
                return connection
        connection.close()
        raise ConnectionAbortedError("the exporter is stopped")

    def _forget(self) -> None:
        with self._lock:
            connection = self._connections.pop(threading.get_ident(), None)
        if connection is not None:
            connection.close()

    def _credentials(self) -> Credentials | None:
        options = self._options
        if options.shared_key is None:
            return None
        users = {}
        if options.username is not None and options.password is not None:
            users[options.username] = options.password.get_secret_value()
        return Credentials(options.self_hostname or socket.gethostname(), options.shared_key.get_secret_value(), users)


def _context(tls: TlsOptions | None) -> ssl.SSLContext | None:
    if tls is None or tls.insecure:
        return None
    for path, key in ((tls.ca_file, "ca_file"), (tls.cert_file, "cert_file"), (tls.key_file, "key_file")):
        read_pem(path, f"tls.{key}", TYPE)
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except ssl.SSLError as fault:
        sentence = f"the PEM files cannot be used: {fault.reason or fault}"
        raise ConfigError(f"starting {TYPE}: tls: {sentence}", (("tls", sentence),)) from fault
    return context


def _split(endpoint: str) -> tuple[str, int, str | None]:
    """(host, port, None) or ("", 0, path); ValueError is a sentence."""
    if endpoint.startswith("unix:"):
        path = endpoint.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError(f"{endpoint!r} names no absolute path; write unix:///PATH")
        return "", 0, path
    host, colon, port = endpoint.rpartition(":")
    if not host or not colon or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{endpoint!r} is not an endpoint; write HOST:PORT or unix:///PATH")
    return host.removeprefix("[").removesuffix("]"), int(port), None


def _cause(fault: BaseException) -> str:
    if isinstance(fault, TimeoutError):
        return "timed out"
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {fault.verify_message}"
    if isinstance(fault, OSError) and fault.strerror:
        return clipped(fault.strerror)
    return clipped(str(fault)) or type(fault).__name__
