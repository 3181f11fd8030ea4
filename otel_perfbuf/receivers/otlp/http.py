# SPDX-License-Identifier: Apache-2.0
"""OTLP over HTTP/1.1: a POST of protobuf or JSON, answered at once in the request's own encoding.

What it is not: an HTTP parser (h11 is) or one of messages. Source: OTLP specification, "OTLP/HTTP"; the Collector's
otlpreceiver (its paths, limits and answers). A thread a connection, and a bound to connections and to the bytes that
all of them hold: who comes too much is told to come again.
"""

from __future__ import annotations

import json
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Final

from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # stubs without py.typed

from otel_perfbuf.exporters.otlp_json import to_json
from otel_perfbuf.exporters.payload import Signal
from otel_perfbuf.receivers.consumer import Consumer, MalformedRequest
from otel_perfbuf.receivers.otlp.body import CODINGS, BodyError, JsonBodies, decompressed
from otel_perfbuf.receivers.otlp.connection import Answer, Connection, Head, Limits, RequestError
from otel_perfbuf.receivers.otlp.options import HttpOptions
from otel_perfbuf.receivers.serving import ConnectionServer, Held, Names

__all__ = ["CONNECTIONS_MAX", "HELD_MAX_BYTES", "OtlpHttpServer"]

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 128
HELD_MAX_BYTES: Final = 128 << 20
"""Of bodies that are being read or decompressed, over all connections."""

_NAMES: Final = Names("OTLP/HTTP receiver", "an OTLP connection", "perfbuf-otlp", "otlp_connections")
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
_USUAL_RATIO: Final = 16  # telemetry compresses to a tenth
_BODY_S: Final = 30.0  # where read_timeout is 0
# Status to the canonical code of google.rpc.Status. Source: google/rpc/code.proto, as the Collector maps them.
_CODES: Final = {400: 3, 404: 5, 405: 12, 408: 4, 413: 8, 415: 3, 431: 3, 500: 13, 503: 14}
_CAUSES: Final = {
    404: "otlp_not_served",
    405: "otlp_not_served",
    408: "otlp_slow",
    413: "otlp_oversized",
    500: "failed",
    503: "otlp_busy",
}


class OtlpHttpServer:
    """Serves until ``stop``. ``refused`` counts requests by cause; ``endpoint`` is where it listens, once started."""

    def __init__(
        self,
        options: HttpOptions,
        consumers: Mapping[Signal, Consumer],
        refused: Counter[str],
        held_max_bytes: int = HELD_MAX_BYTES,
    ) -> None:
        self._options = options
        paths: dict[Signal, str] = {"logs": options.logs_url_path, "traces": options.traces_url_path}
        self._routes = {paths[signal]: (signal, consumer) for signal, consumer in consumers.items()}
        self._refused = refused
        self._held = Held(held_max_bytes)
        self._json = JsonBodies()
        self._limits = Limits(
            options.idle_timeout, options.read_header_timeout, options.read_timeout or _BODY_S, options.write_timeout
        )
        self._server = ConnectionServer(
            options,
            options.tls,
            _NAMES,
            self._serve,
            connections_max=CONNECTIONS_MAX,
            refused=refused,
            protocols=("http/1.1",),
        )

    @property
    def endpoint(self) -> str:
        """Where it listens, once started."""
        return self._server.endpoint

    def start(self) -> None:
        """Listens and serves; PerfbufError or ConfigError when that cannot be."""
        self._server.start()

    def stop(self) -> None:
        """Accepts no more and cuts off open connections; twice is fine."""
        self._server.stop()

    def _serve(self, stream: socket.socket) -> None:
        self._converse(Connection(stream, self._limits))

    def _converse(self, connection: Connection) -> None:
        while True:
            kind = _PROTOBUF
            try:
                head = connection.head()
                if head is None:
                    return
                kind = _content_type(head)
                answer = self._answer(head, connection)
            except TimeoutError:
                self._fail(connection, kind, RequestError(408, "the request did not come in time"))
                return
            except (RequestError, BodyError) as fault:
                self._fail(connection, kind, fault)
                return
            if not connection.answer(answer, last=not self._options.keep_alives_enabled):
                return

    def _answer(self, head: Head, connection: Connection) -> Answer:
        """The answer to a request that was read to its end; RequestError or BodyError for one that was not."""
        route = self._routes.get(head.path)
        if route is None:
            raise RequestError(404, f"there is no {head.path[:100]} here; served: {', '.join(sorted(self._routes))}")
        if head.method != "POST":
            raise RequestError(405, f"{head.method[:20]} is not taken, POST is")
        kind = _content_type(head)
        if kind not in (_PROTOBUF, _JSON):
            raise RequestError(415, f"the Content-Type is neither {_PROTOBUF} nor {_JSON}")
        signal, consumer = route
        held = 0
        try:
            parts: list[bytes] = []
            self._check_length(head)
            while (part := connection.body_part(first=not parts)) is not None:
                if held + len(part) > self._options.max_request_body_size:
                    raise self._too_large()
                self._take(len(part))
                held += len(part)
                parts.append(part)
            body = b"".join(parts)
            parts.clear()
            coding = head.headers.get("content-encoding", "")
            if coding:
                for room in self._rooms(len(body)):
                    self._take(room)
                    held += room
                    try:
                        body = decompressed(body, coding, room)
                        break
                    except BodyError as fault:
                        if fault.status != 413 or room == self._options.max_request_body_size:
                            raise
            self._consume(signal, consumer, kind, body)
        finally:
            self._held.take(-held)
        return _json_answer(200, {"partialSuccess": {}}) if kind == _JSON else Answer(200, b"", _PROTOBUF)

    def _consume(self, signal: Signal, consumer: Consumer, kind: str, body: bytes) -> None:
        try:
            consumer(self._json.protobuf(signal, body) if kind == _JSON else body)
        except MalformedRequest as fault:
            raise RequestError(400, str(fault)) from None
        except (BodyError, RequestError):
            raise
        except Exception as fault:
            _log.exception("taking an OTLP request failed")
            raise RequestError(500, "taking the request failed; the agent's log says why") from fault

    def _rooms(self, compressed: int) -> list[int]:
        """How much room to try to decompress into: what telemetry needs, then all that a body may have."""
        most = self._options.max_request_body_size
        usual = _USUAL_RATIO * compressed + (64 << 10)
        return [usual, most] if usual < most else [most]

    def _check_length(self, head: Head) -> None:
        length = head.headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > self._options.max_request_body_size:
            raise self._too_large()

    def _too_large(self) -> RequestError:
        return RequestError(413, f"a body has at most {self._options.max_request_body_size} bytes")

    def _take(self, count: int) -> None:
        if not self._held.take(count):
            raise RequestError(503, "too many requests are being read; send it again in a second")

    def _fail(self, connection: Connection, kind: str, fault: RequestError | BodyError) -> None:
        """Answers with a google.rpc.Status in the request's encoding, and ends the connection."""
        self._refused[_CAUSES.get(fault.status, "otlp_malformed")] += 1
        if not connection.can_answer():
            return
        headers: list[tuple[str, str]] = []
        if fault.status == 405:
            headers.append(("Allow", "POST"))
        elif fault.status == 415:
            headers.append(("Accept-Encoding", ", ".join(CODINGS)))
        elif fault.status == 503:
            headers.append(("Retry-After", "1"))
        status = Status(code=_CODES.get(fault.status, 2), message=str(fault))
        if kind == _JSON:
            answer = _json_answer(fault.status, to_json(status), tuple(headers))
        elif kind == _PROTOBUF:
            answer = Answer(fault.status, status.SerializeToString(), _PROTOBUF, tuple(headers))
        else:
            answer = Answer(fault.status, f"{fault}\n".encode(), headers=tuple(headers))
        connection.answer(answer, last=True)
        connection.linger()


def _content_type(head: Head) -> str:
    return head.headers.get("content-type", "").partition(";")[0].strip().lower()


def _json_answer(status: int, value: object, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    return Answer(status, json.dumps(value).encode(), _JSON, headers)
