# SPDX-License-Identifier: Apache-2.0
"""Asks a running agent over its control socket. What it is not: the agent. Source: CONTRACT section 5."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from typing import Any, Final

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.service.options import ControlOptions

__all__ = ["ControlClient", "control_path"]

_TIMEOUT_S: Final = 120.0
_ANSWER_MAX_BYTES: Final = 16 << 20


def control_path(given: str | None) -> str:
    """``given``, else OTEL_PERFBUF_CONTROL_SOCKET, else the default path."""
    return given or os.environ.get("OTEL_PERFBUF_CONTROL_SOCKET") or ControlOptions().path


class ControlClient:
    """One agent, by the path of its control socket. All methods raise PerfbufError, one sentence."""

    def __init__(self, path: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def dump(self, request: dict[str, object]) -> dict[str, Any]:
        """POST /v1/dump: the dump's id and counts."""
        return self._json("POST", "/v1/dump", json.dumps(request).encode())

    def status(self) -> dict[str, Any]:
        """GET /v1/status."""
        return self._json("GET", "/v1/status")

    def _json(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        doing = f"asking the agent at {self._path}"
        try:
            status, data = self._ask(method, path, body)
        except TimeoutError:
            raise PerfbufError(f"{doing}: it did not answer within {self._timeout_s:g} s") from None
        except OSError as fault:
            raise PerfbufError(f"{doing}: {_cause(fault)}") from fault
        except http.client.HTTPException as fault:
            raise PerfbufError(f"{doing}: its answer is no HTTP; is it the control socket?") from fault
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise PerfbufError(f"{doing}: its answer is no JSON object (HTTP status {status})")
        if status != http.client.OK:
            sentence = f"{doing}: {answer.get('error', f'HTTP status {status}')}"
            # 400: what was asked for is wrong, as a wrong option is.
            raise ConfigError(sentence) if status == http.client.BAD_REQUEST else PerfbufError(sentence)
        return answer

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path, self._timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read(_ANSWER_MAX_BYTES)
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _cause(fault: OSError) -> str:
    if fault.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return "no agent listens there; start one with `otel-perfbuf run`, or name its socket with --control"
    if fault.errno in (errno.EAGAIN, errno.ECONNRESET, errno.EPIPE):
        return "it has too many callers at the moment; try again"
    if fault.errno in (errno.EACCES, errno.EPERM):
        return "permission denied; only the user that runs the agent (root) may ask it"
    return os.strerror(fault.errno) if fault.errno else str(fault)
