# SPDX-License-Identifier: Apache-2.0
"""One connection to a Fluent server: TCP, TLS or a Unix socket, the handshake, a message and its acknowledgement.

What it is not: it knows no OTLP and never retries. Each step is bounded by one deadline. Source: Fluentd's "Forward
Protocol Specification v1".
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from otel_perfbuf.fluent.handshake import Credentials, check_pong, parse_helo, ping
from otel_perfbuf.fluent.protocol import UNPACK_FAULTS, Limits, ProtocolFault, unpacker

__all__ = ["FluentConnection", "Peer"]

_READ_BYTES: Final = 16 * 1024
_ANSWERS: Final = Limits(message_bytes=64 * 1024)


@dataclass(frozen=True, slots=True)
class Peer:
    """Where to connect: a host and port, or the path of a Unix socket; with TLS when there is a context."""

    host: str
    port: int
    path: str | None = None
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None


class FluentConnection:
    """A connection of one stream. Everything raises OSError (a timeout is one) or ProtocolFault, and is closed then."""

    def __init__(self, peer: Peer, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._deadline = now() + limit_s
        self._unpacker = unpacker(_ANSWERS)
        self._socket = self._connected(peer)
        try:
            if peer.credentials is not None:
                self._shake_hands(peer.credentials)
        except BaseException:
            self.close()
            raise

    def usable(self) -> bool:
        """Whether the peer has not closed it: what it says unasked, or its end, makes it useless."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)  # over TLS this also takes the session tickets that came with the handshake
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def send(self, message: bytes, chunk: str | None, limit_s: float) -> None:
        """Sends a message; with a chunk it waits for its acknowledgement."""
        self._deadline = self._now() + limit_s
        try:
            self._write(message)
            if chunk is not None:
                answer = self._read()
                acknowledged = answer.get("ack") if isinstance(answer, dict) else None
                if acknowledged != chunk:
                    raise ProtocolFault("it acknowledges another chunk than was sent")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes it; twice is fine, and from another thread it ends what is being sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _connected(self, peer: Peer) -> socket.socket:
        if peer.path is not None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                connection.settimeout(self._left_s())
                connection.connect(peer.path)
            except BaseException:
                connection.close()
                raise
            return connection
        plain = socket.create_connection((peer.host, peer.port), self._left_s())
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if peer.tls is None:
                return plain
            plain.settimeout(self._left_s())
            return peer.tls.wrap_socket(plain, server_hostname=peer.host)
        except BaseException:
            plain.close()
            raise

    def _shake_hands(self, credentials: Credentials) -> None:
        greeting = parse_helo(self._read())
        message, salt = ping(credentials, greeting)
        self._write(message)
        check_pong(self._read(), credentials, greeting, salt)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(self._left_s())
            view = view[self._socket.send(view[: 1 << 18]) :]

    def _read(self) -> Any:
        while True:
            try:
                return self._unpacker.unpack()
            except msgpack.OutOfData:
                pass
            except UNPACK_FAULTS as fault:
                raise ProtocolFault("its answer is no msgpack") from fault
            self._socket.settimeout(self._left_s())
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection without an answer")
            try:
                self._unpacker.feed(data)
            except msgpack.BufferFull as fault:
                raise ProtocolFault("its answer does not end") from fault

    def _left_s(self) -> float:
        left_s = self._deadline - self._now()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s
