# SPDX-License-Identifier: Apache-2.0
"""A request's body as protobuf bytes: decompressed within a bound, and from JSON where it is JSON.

What it is not: it reads no socket (http.py). Source: OTLP specification, "OTLP/HTTP Request" and "JSON Protobuf
Encoding"; RFC 9110 section 8.4 (content codings), RFC 9659 (zstd).
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import zstandard
from google.protobuf.message import EncodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_perfbuf.exporters.otlp_json import from_json
from otel_perfbuf.exporters.payload import Signal

__all__ = ["CODINGS", "BodyError", "JsonBodies", "decompressed"]

JSON_MAX_BYTES: Final = 8 << 20
"""Of a JSON body: as Python values it takes some twenty times as much while it is read."""

_ZSTD_WINDOW_BYTES: Final = 8 << 20  # what RFC 9659 lets a sender over HTTP ask for

_REQUESTS: Final[Mapping[Signal, type[Any]]] = MappingProxyType(
    {"logs": ExportLogsServiceRequest, "traces": ExportTraceServiceRequest}
)


class BodyError(Exception):
    """A body that cannot be taken; ``status`` is the HTTP status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _inflated(data: bytes, max_bytes: int, wbits: int) -> bytes:
    """All members of a gzip file, or one zlib stream."""
    found: list[bytes] = []
    size = 0
    while data:
        stream = zlib.decompressobj(wbits)
        try:
            part = stream.decompress(data, max_bytes - size + 1)
        except zlib.error as fault:
            raise BodyError(400, f"the body is not compressed as its Content-Encoding says: {fault}") from None
        size += len(part)
        if size > max_bytes:
            raise BodyError(413, f"the body is larger than {max_bytes} bytes when decompressed")
        if not stream.eof:
            raise BodyError(400, "the compressed body ends before its end")
        found.append(part)
        data = stream.unused_data
    return b"".join(found)


def _gzip(data: bytes, max_bytes: int) -> bytes:
    return _inflated(data, max_bytes, 31)


def _deflate(data: bytes, max_bytes: int) -> bytes:
    return _inflated(data, max_bytes, 15)


def _zstd(data: bytes, max_bytes: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).stream_reader(
            data, read_across_frames=True
        ) as reader:
            body: bytes = reader.read(max_bytes + 1)
        told = zstandard.frame_content_size(data)  # -1: the sender did not tell
    except zstandard.ZstdError as fault:
        raise BodyError(400, f"the body is not compressed as its Content-Encoding says: {fault}") from None
    if len(body) > max_bytes:
        raise BodyError(413, f"the body is larger than {max_bytes} bytes when decompressed")
    if len(body) < told:
        raise BodyError(400, "the compressed body ends before its end")
    return body


CODINGS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = MappingProxyType(
    {"gzip": _gzip, "zstd": _zstd, "deflate": _deflate}
)
"""Content codings that are taken, besides none."""


def decompressed(data: bytes, coding: str, max_bytes: int) -> bytes:
    """The body without its content coding, at most ``max_bytes``; BodyError (400, 413 or 415) otherwise."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return data
    decoder = CODINGS.get(name)
    if decoder is None:
        raise BodyError(415, f"the Content-Encoding is none of {', '.join(CODINGS)}; send one of these, or none")
    return decoder(data, max_bytes)


class JsonBodies:
    """Turns JSON requests into protobuf bytes, one at a time: what is read takes many times the body's memory."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def protobuf(self, signal: Signal, body: bytes) -> bytes:
        """The request's protobuf bytes; BodyError (400 or 413) when the body is no such request."""
        if len(body) > JSON_MAX_BYTES:
            raise BodyError(413, f"a JSON body has at most {JSON_MAX_BYTES} bytes; protobuf may have more")
        with self._turn:
            try:
                message = from_json(_REQUESTS[signal], json.loads(body))
                return bytes(message.SerializeToString())
            except RecursionError:
                raise BodyError(400, "the JSON is nested too deeply") from None
            except (ValueError, EncodeError) as fault:
                raise BodyError(400, f"the body is no OTLP request in JSON: {fault}"[:300]) from None
