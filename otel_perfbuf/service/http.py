# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 server over a listening socket: bounded bodies, time-outs, JSON errors, one request a connection.

What it is not: it knows no path (control.py, health.py). Source: RFC 9112; http.server reads the request's head, with
its own limits (64 KiB a line, 100 headers).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.receivers.listen import Listener
from otel_perfbuf.receivers.serving import ConnectionServer, Names

__all__ = ["HttpServer", "Request", "Response", "Route", "json_response", "listen_tcp"]

_log = logging.getLogger(__name__)
_BODY_MAX_BYTES: Final = 64 << 10
_CONNECTIONS_MAX: Final = 16
_REQUEST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """What a route gets; the body is whole."""

    method: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """What a route gives."""

    status: int
    body: bytes
    content_type: str = "application/json"


Route = Callable[[Request], Response]
Routes = Mapping[str, Mapping[str, Route]]
"""Path to method to route; path "*" takes every other path."""


def json_response(status: int, value: object) -> Response:
    """A value as JSON."""
    return Response(status, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


class HttpServer:
    """Serves ``routes`` on a bound, listening socket until ``stop``, which closes it.

    At most 16 connections at a time; others are closed at once. A request must have arrived within ``request_s``.
    """

    def __init__(self, listening: socket.socket, routes: Routes, *, name: str, request_s: float = _REQUEST_S) -> None:
        self.routes = routes
        self.request_s = request_s
        self._server = ConnectionServer(
            Listener(listening, name),
            None,
            Names(name, "a connection", name, "connections"),
            # It only stores its address and its server.
            lambda connection: _Handler(connection, ("", 0), self),  # type: ignore[arg-type]
            connections_max=_CONNECTIONS_MAX,
            refused=Counter(),
        )

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()

    def stop(self) -> None:
        """Accepts no more and ends open connections; twice is fine."""
        self._server.stop()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed already


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection; ``server`` is the HttpServer."""

    protocol_version = "HTTP/1.1"
    server_version = "otel-perfbuf"
    sys_version = ""
    server: Any

    def setup(self) -> None:
        self.request.settimeout(self.server.request_s)
        # The time-out above is for each read; this one is for the whole request.
        self._deadline = threading.Timer(self.server.request_s, _shut, (self.request,))
        self._deadline.daemon = True
        self._deadline.start()
        super().setup()

    def finish(self) -> None:
        self._deadline.cancel()
        super().finish()

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        methods = self.server.routes.get(path) or self.server.routes.get("*")
        if methods is None:
            return self._send(json_response(404, {"error": f"there is no {path[:100]} here"}))
        route = methods.get(self.command)
        if route is None:
            return self._send(json_response(405, {"error": f"{path} takes {', '.join(methods)} only"}))
        body = self._body()
        if body is None:
            return None
        self._deadline.cancel()
        try:
            response = route(Request(self.command, path, body))
        except Exception as fault:  # noqa: BLE001 - the caller gets its answer
            _log.exception("%s %s failed", self.command, path)
            response = json_response(500, {"error": f"{type(fault).__name__}: {fault}"})
        return self._send(response)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _answer  # noqa: N815 - http.server's names

    def _body(self) -> bytes | None:
        """The whole body; None when an error was answered instead."""
        if self.headers.get("Transfer-Encoding"):
            self._send(json_response(411, {"error": "send the body with a Content-Length"}))
            return None
        text = self.headers.get("Content-Length", "0" if self.command != "POST" else "")
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            self._send(json_response(411 if not text else 400, {"error": "Content-Length must be a number of bytes"}))
            return None
        if int(text) > _BODY_MAX_BYTES:
            self._send(json_response(413, {"error": f"a body has at most {_BODY_MAX_BYTES} bytes"}))
            return None
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            self._send(json_response(400, {"error": "the body is shorter than its Content-Length"}))
            return None
        return body

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """http.server's own errors (a bad request line, too many headers), as JSON too."""
        self.close_connection = True
        if not hasattr(self, "headers") and self.request_version == "HTTP/0.9":
            self.request_version = "HTTP/1.0"  # or no status line would be sent
        self._send(json_response(code, {"error": message or explain or "bad request"}))

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)


def listen_tcp(host: str, port: int, what: str) -> socket.socket:
    """A listening socket that does not block; PerfbufError says of what it is and why there is none."""
    try:
        listening = socket.create_server(
            (host.strip("[]"), port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as fault:
        cause = os.strerror(fault.errno) if fault.errno else str(fault)
        raise PerfbufError(f"cannot open {what} at {host}:{port}: {cause}; choose another endpoint") from fault
    listening.setblocking(False)
    return listening
