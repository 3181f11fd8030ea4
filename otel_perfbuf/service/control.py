# SPDX-License-Identifier: Apache-2.0
"""The control extension: HTTP over a Unix socket for `dump`, `status` and whoever scrapes /metrics.

What it is not: it makes no dump itself. Source: CONTRACT section 5: mode 0600, POST /v1/dump, GET /v1/status,
GET /metrics, GET /healthz.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.service.http import HttpServer, Request, Response, json_response
from otel_perfbuf.service.options import ControlOptions
from otel_perfbuf.triggers.bound import BoundSocket, bind_unix
from otel_perfbuf.triggers.datagram import printable

__all__ = ["Control", "ControlBackend", "DumpRequest", "DumpSummary", "parse_dump_request"]

_REASON_MAX: Final = 1024
_PATH_MAX: Final = 4096
_PID_MAX: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """What to dump: exactly one of pid and cgroup, or neither for the whole host."""

    reason: str
    pid: int | None = None
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class DumpSummary:
    """A dump that was made: its id, and records by what became of them."""

    id: str
    records: int
    lost: int
    overwritten: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ControlBackend:
    """What the agent can do for a caller. ``dump`` waits for the dump; it may raise PerfbufError."""

    dump: Callable[[DumpRequest], DumpSummary]
    status: Callable[[], Mapping[str, Any]]
    metrics: Callable[[], str]


def parse_dump_request(body: bytes) -> DumpRequest:
    """The checked request; ConfigError (a sentence) for anything that is not of the contract's form."""
    try:
        message = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ConfigError('the body is no JSON object; send for example {"pid": 4711}') from None
    if not isinstance(message, dict):
        raise ConfigError('the body is no JSON object; send for example {"pid": 4711}')
    unknown = sorted(set(message) - {"pid", "cgroup", "all", "reason"})
    if unknown:
        raise ConfigError(f"there is no key {printable(unknown[0][:40])}; known: pid, cgroup, all, reason")
    reason = message.get("reason", "asked for by hand")
    if not isinstance(reason, str) or len(reason) > _REASON_MAX:
        raise ConfigError(f"reason is no text of at most {_REASON_MAX} characters")
    # By identity: a pid of 0 is given, and wrong.
    named = [key for key in ("pid", "cgroup", "all") if message.get(key) is not None and message[key] is not False]
    if len(named) != 1:
        raise ConfigError("exactly one of pid, cgroup and all is needed")
    value = message[named[0]]
    reason = printable(reason) or "asked for by hand"
    if named[0] == "pid":
        if type(value) is not int or not 1 <= value <= _PID_MAX:
            raise ConfigError(f"pid is no integer from 1 to {_PID_MAX}")
        return DumpRequest(reason, pid=value)
    if named[0] == "cgroup":
        if not isinstance(value, str) or not value.startswith("/") or len(value) > _PATH_MAX:
            raise ConfigError("cgroup is no path that begins with /")
        return DumpRequest(reason, cgroup=printable(value))
    if value is not True:
        raise ConfigError("all is neither true nor false")
    return DumpRequest(reason)


class Control:
    """Serves the backend at ``options.path``."""

    def __init__(self, options: ControlOptions, backend: ControlBackend) -> None:
        self._options = options
        self._backend = backend
        self._bound: BoundSocket | None = None
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Binds and serves; PerfbufError when the path cannot be taken."""
        self._bound = bind_unix(self._options.path, socket.SOCK_STREAM, 0o600, "control socket")
        self._server = HttpServer(
            self._bound.socket,
            {
                "/v1/dump": {"POST": self._dump},
                "/v1/status": {"GET": self._status},
                "/metrics": {"GET": self._metrics},
                "/healthz": {"GET": self._health},
            },
            name="perfbuf-control",
        )
        self._server.start()

    def stop(self) -> None:
        """Closes and removes the socket; twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.close()

    def _dump(self, request: Request) -> Response:
        try:
            wanted = parse_dump_request(request.body)
        except ConfigError as fault:
            return json_response(400, {"error": str(fault)})
        try:
            return json_response(200, asdict(self._backend.dump(wanted)))
        except PerfbufError as fault:
            return json_response(503, {"error": str(fault)})

    def _status(self, _: Request) -> Response:
        return json_response(200, self._backend.status())

    def _metrics(self, _: Request) -> Response:
        return Response(200, self._backend.metrics().encode("utf-8"), "text/plain; version=0.0.4; charset=utf-8")

    def _health(self, _: Request) -> Response:
        return json_response(200, {"status": "ok"})
