# SPDX-License-Identifier: Apache-2.0
"""One connection of the HTTP receiver: a socket with deadlines, and HTTP/1.1 on it by h11.

What it is not: it knows no path and no OTLP (http.py). Source: RFC 9112; h11's documentation, "basic usage". Every
wait has an end: a client that sends or reads slowly loses its connection, not the agent its memory.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Final

import h11

__all__ = ["Answer", "Connection", "Head", "Limits", "RequestError"]

_READ_BYTES: Final = 64 << 10
_HEAD_MAX_BYTES: Final = 16 << 10
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 64 << 20


class RequestError(Exception):
    """A request that is answered with ``status`` and ends its connection."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: between requests, for a request's head, for its body, for writing an answer."""

    idle_s: float
    head_s: float
    body_s: float
    write_s: float


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body; header names in lower case, a repeated one joined by commas."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


class Connection:
    """Requests of one client, one after the other. ``OSError`` (time-outs too) ends it anywhere."""

    def __init__(self, connected: socket.socket, limits: Limits) -> None:
        self._socket = connected
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_MAX_BYTES)
        self._deadline_s = 0.0

    def head(self) -> Head | None:
        """The next request's head; None at the connection's end. RequestError when it is none."""
        self._deadline_s = time.monotonic() + self._limits.idle_s
        try:
            if self._http.trailing_data[0] == b"" and not self._receive():
                return None
        except TimeoutError:
            return None  # nothing was asked: nothing is answered
        self._deadline_s = time.monotonic() + self._limits.head_s
        event = self._event()
        if not isinstance(event, h11.Request):
            return None
        headers: dict[str, str] = {}
        for raw_name, raw_value in event.headers:
            name, value = raw_name.decode("ascii", "replace"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        target = event.target.decode("ascii", "replace").partition("?")[0]
        return Head(event.method.decode("ascii", "replace"), target, headers)

    def body_part(self, *, first: bool) -> bytes | None:
        """The next bytes of the body, None at its end; ``first`` starts its time."""
        if first:
            self._deadline_s = time.monotonic() + self._limits.body_s
        while True:
            event = self._event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return None
            raise RequestError(400, "the body ends before its end")

    def answer(self, answer: Answer, *, last: bool) -> bool:
        """Sends an answer; whether another request may follow. ``last``: the connection ends with it."""
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body))), *answer.headers]
        if last:
            headers.append(("Connection", "close"))
        self._deadline_s = time.monotonic() + self._limits.write_s
        body = (h11.Data(data=answer.body),) if answer.body else ()
        self._send(h11.Response(status_code=answer.status, headers=headers), *body, h11.EndOfMessage())
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def can_answer(self) -> bool:
        """Whether an answer can still be sent: none was begun."""
        return self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def linger(self) -> None:
        """Lets the client read the last answer: what it still sends is thrown away for a moment, then it is cut off."""
        with contextlib.suppress(OSError):
            self._deadline_s = time.monotonic() + _LINGER_S
            self._socket.shutdown(socket.SHUT_WR)
            left = _LINGER_BYTES
            while left > 0 and (data := self._read()):
                left -= len(data)

    def _event(self) -> object:
        """The next event; reads as long as one is not whole."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as fault:
                raise RequestError(fault.error_status_hint, f"this is no HTTP/1.1 request: {fault}") from None
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            if not self._receive():
                return h11.ConnectionClosed()

    def _receive(self) -> bool:
        data = self._read()
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError as fault:
            raise RequestError(fault.error_status_hint, f"this is no HTTP/1.1 request: {fault}") from None
        return bool(data)

    def _read(self) -> bytes:
        self._socket.settimeout(max(self._deadline_s - time.monotonic(), 0.001))
        return self._socket.recv(_READ_BYTES)

    def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        if data:
            self._socket.settimeout(max(self._deadline_s - time.monotonic(), 0.001))
            self._socket.sendall(data)
