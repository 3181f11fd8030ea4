# SPDX-License-Identifier: Apache-2.0
"""OTLP over HTTP/1.1: a chunk's bytes as they are in a POST. What it is not: it never encodes, retries or redirects.

Source: OTLP specification 1.x, "OTLP/HTTP"; CONTRACT section 2. Any 2xx is a success (FACTS 28: Fluent Bit says 201).
"""

from __future__ import annotations

import gzip
import logging
import socket
import time
import urllib.parse
import urllib.request
from typing import Any, Final, Literal

import urllib3
from pydantic import Field, field_validator
from urllib3.connection import HTTPConnection

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.answers import (
    clipped,
    counted,
    is_too_large,
    rejected_in_json,
    rejected_in_protobuf,
    retry_after_s,
    status_message,
)
from otel_perfbuf.exporters.options import Compression, NetworkOptions, TlsOptions, read_pem
from otel_perfbuf.exporters.payload import Chunk, Signal
from otel_perfbuf.units import Duration

__all__ = ["STABILITY", "TYPE", "Options", "OtlpHttpExporter", "create"]

_log = logging.getLogger(__name__)

TYPE: Final = "otlp_http"
STABILITY: Final = "beta"

_PATHS: Final[dict[Signal, str]] = {"logs": "/v1/logs", "traces": "/v1/traces"}
_RETRYABLE: Final = frozenset({429, 502, 503, 504})  # Source: OTLP specification, "Failures"
_PROTOBUF: Final = "application/x-protobuf"
_ANSWER_BYTES: Final = 64 * 1024  # an answer is a few bytes; the rest of a longer one is not read
_GZIP_LEVEL: Final = (
    1  # 641 bytes a record become 13 with it (FACTS 36); higher levels cost the host more than the wire
)
_ZSTD_LEVEL: Final = 1


class Options(NetworkOptions):
    """``endpoint``: ``http://HOST:PORT[/PREFIX]``, ``https://...`` or ``unix:///PATH``; /v1/logs is added to it.

    ``logs_endpoint`` and ``traces_endpoint`` are whole URLs that are used as they are instead.
    """

    endpoint: str = Field(default="http://127.0.0.1:4318", min_length=1)
    logs_endpoint: str | None = None
    traces_endpoint: str | None = None
    timeout: Duration = Field(default=30.0, ge=0)

    @field_validator("endpoint", "logs_endpoint", "traces_endpoint")
    @classmethod
    def _endpoint(cls, value: str | None) -> str | None:
        if value is not None:
            _split(value)
        return value


def create(options: Options) -> OtlpHttpExporter:
    """The exporter for these options; it connects with the first send."""
    return OtlpHttpExporter(options)


class OtlpHttpExporter:
    """Posts chunks. ``send`` may run on several threads at once, each with a connection of its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._urls: dict[Signal, str] = {
            "logs": options.logs_endpoint or _joined(options.endpoint, _PATHS["logs"]),
            "traces": options.traces_endpoint or _joined(options.endpoint, _PATHS["traces"]),
        }
        self._headers = {"user-agent": "otel-perfbuf", **options.plain_headers(), "content-type": _PROTOBUF}
        if options.compression != "none":
            self._headers["content-encoding"] = options.compression
        self._pools: dict[Signal, urllib3.PoolManager | _UnixPool] = {}

    def start(self) -> None:
        """Reads the TLS files (ConfigError when one cannot be read); does not connect."""
        tls = self._options.tls
        for path, key in ((tls.ca_file, "ca_file"), (tls.cert_file, "cert_file"), (tls.key_file, "key_file")):
            read_pem(path, f"tls.{key}", TYPE)
        self._pools = {signal: self._pool(url) for signal, url in self._urls.items()}

    def send(self, chunk: Chunk, timeout_s: float) -> int:
        """Delivers one chunk within ``timeout_s``; gives the records that the peer rejected, or raises ExportError."""
        if (pool := self._pools.get(chunk.signal)) is None:
            raise ExportError(f"sending to {self._urls[chunk.signal]}: the exporter is stopped", retryable=True)
        url = self._urls[chunk.signal]
        limit_s = self._options.limit_s(timeout_s)
        deadline = time.monotonic() + limit_s
        body = _compressed(chunk.body, self._options.compression)
        try:
            answer = pool.request(
                "POST",
                _PATHS[chunk.signal] if isinstance(pool, _UnixPool) else url,
                body=body,
                headers=self._headers,
                timeout=urllib3.Timeout(total=limit_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            try:
                answered = _read(answer, deadline)
            finally:
                # An answer that was not read to its end would be taken for the next one's beginning
                answer.release_conn() if answer.length_remaining == 0 else answer.close()
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise ExportError(
                f"sending {counted(chunk)} by HTTP to {url} failed: {_cause(fault)}", retryable=True
            ) from fault
        return self._judged(chunk, url, answer, answered)

    def stop(self) -> None:
        """Closes idle connections; a send that is under way ends by its own timeout."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close() if isinstance(pool, _UnixPool) else pool.clear()

    def _pool(self, url: str) -> urllib3.PoolManager | _UnixPool:
        scheme, rest = _split(url)
        streams = self._options.sending_queue.num_consumers
        if scheme == "unix":
            return _UnixPool(rest, streams)
        tls = self._options.tls if scheme == "https" else TlsOptions()
        keys: dict[str, Any] = {
            name: str(path)
            for name, path in (("ca_certs", tls.ca_file), ("cert_file", tls.cert_file), ("key_file", tls.key_file))
            if path is not None
        }
        if proxy := _proxy(scheme, urllib.parse.urlsplit(url).hostname or ""):
            return urllib3.ProxyManager(proxy, maxsize=streams, **keys)
        return urllib3.PoolManager(maxsize=streams, **keys)

    def _judged(self, chunk: Chunk, url: str, answer: urllib3.BaseHTTPResponse, body: bytes) -> int:
        content = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if 200 <= answer.status < 300:
            parse = rejected_in_json if content == "application/json" else rejected_in_protobuf
            rejected, why = parse(chunk.signal, body)
            if why:
                _log.warning("%s: the receiver says: %s", url, why)
            return min(rejected, chunk.records)
        cause = status_message(body) if content == _PROTOBUF else clipped(body.decode("utf-8", "replace"))
        if 300 <= answer.status < 400:
            cause = f"it redirects to {clipped(answer.headers.get('location', 'nowhere'))}, which is refused"
        retryable = answer.status in _RETRYABLE
        raise ExportError(
            f"sending {counted(chunk)} by HTTP to {url} failed: HTTP {answer.status}{': ' + cause if cause else ''}",
            retryable=retryable,
            retry_after_s=_asked_s(answer) if retryable else None,
            # 413, and what a Collector says instead: HTTP 400 with the words of its body reader
            too_large=answer.status == 413 or (answer.status == 400 and is_too_large(cause)),
        )


class _UnixConnection(HTTPConnection):
    """An HTTP connection over a Unix stream socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout if isinstance(self.timeout, (int, float)) else None)
            connection.connect(self._path)
        except BaseException:
            connection.close()
            raise
        self.sock = connection


class _UnixPool(urllib3.HTTPConnectionPool):
    def __init__(self, path: str, streams: int) -> None:
        super().__init__("localhost", maxsize=streams)
        self._path = path

    def _new_conn(self) -> _UnixConnection:
        return _UnixConnection(self._path)


def _compressed(body: bytes, compression: Compression) -> bytes:
    if compression == "gzip":
        return gzip.compress(body, _GZIP_LEVEL, mtime=0)
    if compression == "zstd":
        import zstandard  # imported here: only who configures it needs it

        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return body


def _asked_s(answer: urllib3.BaseHTTPResponse) -> float | None:
    return retry_after_s(answer.headers.get("retry-after"), answer.headers.get("date"))


def _read(answer: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """The answer's body, at most _ANSWER_BYTES of it; a peer that trickles it past the deadline has timed out."""
    parts: list[bytes] = []
    left_bytes = _ANSWER_BYTES
    try:
        while left_bytes and (part := answer.read1(left_bytes, decode_content=True)):
            parts.append(part[:left_bytes])
            left_bytes -= len(parts[-1])
            if time.monotonic() > deadline:
                raise TimeoutError("the answer took longer than the timeout")
    except urllib3.exceptions.DecodeError:
        pass  # the status says what became of the request; sending it again for a body's sake would double it
    return b"".join(parts)


def _cause(fault: BaseException) -> str:
    """The innermost cause in the system's words, without urllib3's object names."""
    if isinstance(fault, urllib3.exceptions.TimeoutError) and not isinstance(
        fault, urllib3.exceptions.NewConnectionError
    ):
        return "timed out"
    seen = fault
    while isinstance(seen.__cause__ or seen.__context__, (OSError, urllib3.exceptions.HTTPError)):
        seen = seen.__cause__ or seen.__context__ or seen
    if isinstance(seen, OSError) and seen.strerror:
        return seen.strerror
    return clipped(str(seen)) or type(seen).__name__


def _proxy(scheme: str, host: str) -> str | None:
    """What HTTP_PROXY, HTTPS_PROXY and NO_PROXY say, as for a Collector: never for this host itself."""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return None
    proxies = urllib.request.getproxies_environment()
    if urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]  # typeshed lacks it
        return None
    return proxies.get(scheme)


def _joined(endpoint: str, path: str) -> str:
    return endpoint if endpoint.startswith("unix:") else endpoint.rstrip("/") + path


def _split(endpoint: str) -> tuple[Literal["http", "https", "unix"], str]:
    """(scheme, socket path or the URL itself); ValueError is a sentence."""
    if endpoint.startswith("unix:"):
        path = endpoint.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError(f"{endpoint!r} names no absolute path; write unix:///PATH")
        return "unix", path
    try:
        parts = urllib.parse.urlsplit(endpoint)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if usable and not parts.query and not parts.fragment:
        if parts.scheme == "http":
            return "http", endpoint
        if parts.scheme == "https":
            return "https", endpoint
    raise ValueError(f"{endpoint!r} is not an endpoint; write http://HOST:PORT, https://HOST:PORT or unix:///PATH")
