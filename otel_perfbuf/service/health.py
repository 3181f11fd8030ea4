# SPDX-License-Identifier: Apache-2.0
"""The health_check extension: every GET answers 200 while the agent runs.

What it is not: a statement about the backend. Source: the Collector's healthcheckextension.
"""

from __future__ import annotations

import socket

from otel_perfbuf.service.http import HttpServer, Request, Response, json_response, listen_tcp
from otel_perfbuf.service.options import HealthCheckOptions
from otel_perfbuf.triggers.bound import BoundSocket, bind_unix

__all__ = ["HealthCheck"]


class HealthCheck:
    """Serves at ``options.endpoint``: HOST:PORT, or unix:///PATH."""

    def __init__(self, options: HealthCheckOptions) -> None:
        self._options = options
        self._listening: socket.socket | BoundSocket | None = None
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Binds and serves; PerfbufError when the endpoint cannot be taken."""
        endpoint = self._options.endpoint
        if endpoint.startswith("unix://"):
            bound = bind_unix(endpoint.removeprefix("unix://"), socket.SOCK_STREAM, 0o666, "health check's socket")
            self._listening, listening = bound, bound.socket
        else:
            host, _, port = endpoint.rpartition(":")
            self._listening = listening = listen_tcp(host, int(port), "the health check")
        routes = {"*": {"GET": _healthy, "HEAD": _healthy}}
        self._server = HttpServer(listening, routes, name="perfbuf-health")
        self._server.start()

    @property
    def address(self) -> object:
        """What it is bound to, for port 0 in tests."""
        assert isinstance(self._listening, socket.socket)
        return self._listening.getsockname()

    def stop(self) -> None:
        """Closes it; twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()


def _healthy(_: Request) -> Response:
    return json_response(200, {"status": "Server available"})
