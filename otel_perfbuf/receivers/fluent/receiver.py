# SPDX-License-Identifier: Apache-2.0
"""The fluent_forward receiver: connections, the handshake, messages of every mode, acknowledgements at once.

What it is not: it decides not what fires (judge.py), and waits for no dump. Source: Fluentd's "Forward Protocol
Specification v1". A thread a connection, one message at a time unpacked over all of them, and a bound to what all hold:
a client that sends garbage or too much is cut off and counted; its own buffer keeps what was not acknowledged.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from typing import Any, Final

import msgpack

from otel_perfbuf.fluent.handshake import Credentials, check_ping, helo, pong
from otel_perfbuf.fluent.protocol import UNPACK_FAULTS, Limits, ProtocolFault, acknowledgement, parse, unpacker
from otel_perfbuf.receivers.consumer import Consumer
from otel_perfbuf.receivers.fluent.judge import Judge
from otel_perfbuf.receivers.fluent.options import FluentReceiverOptions
from otel_perfbuf.receivers.serving import ConnectionServer, Held, Names

__all__ = ["FluentReceiver"]

_log = logging.getLogger(__name__)

_NAMES: Final = Names("Fluent receiver", "a Fluent connection", "perfbuf-fluent", "fluent_connections")
_READ_BYTES: Final = 64 * 1024
_HANDSHAKE_S: Final = 10.0
_REST_S: Final = 60.0  # for the rest of a message that has begun, and for an acknowledgement to be taken
_HELD_MAX_BYTES: Final = 64 << 20  # of messages that have begun, over all connections


class FluentReceiver:
    """Serves until ``stop``; events that may fire go to ``consume`` as the bytes of an ExportLogsServiceRequest.

    ``refused`` counts messages and connections by cause: fluent_malformed, fluent_slow, fluent_busy,
    fluent_connections, fluent_credentials, failed. ``received`` counts events, ``passed_over`` those of them that
    cannot fire. ``endpoints``: where it listens, once started.
    """

    def __init__(self, options: FluentReceiverOptions, consume: Consumer) -> None:
        self._options = options
        self._consume = consume
        self._judge = Judge(options)
        self._limits = Limits(options.max_message_bytes, options.max_unpacked_bytes)
        self._credentials = _credentials(options)
        self._turn = threading.Lock()  # one message is unpacked at a time: it takes a multiple of its bytes
        self._held = Held(_HELD_MAX_BYTES)
        self.refused: Counter[str] = Counter()
        self.received = self.passed_over = 0
        self._server = ConnectionServer(
            options,
            options.tls,
            _NAMES,
            self._serve,
            connections_max=options.max_connections,
            refused=self.refused,
        )

    @property
    def endpoints(self) -> dict[str, str]:
        """Where it listens, once started, by what is spoken there."""
        return {"Fluent forward": self._server.endpoint}

    def start(self) -> None:
        """Listens and serves; PerfbufError or ConfigError when that cannot be."""
        self._server.start()

    def stop(self) -> None:
        """Accepts no more and cuts off open connections; twice is fine."""
        self._server.stop()

    def _serve(self, stream: socket.socket) -> None:
        if stream.family != socket.AF_UNIX:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _Conversation(self, stream).run()

    def take(self, message: Any) -> str | None:
        """Looks at one message; gives the chunk that is to be acknowledged. ProtocolFault when it is none."""
        events = parse(message, self._limits)
        if self._judge.ignores(events.tag):
            return events.chunk
        request, count, hits = self._judge.request(events.events)
        self.received += count
        self.passed_over += count - hits
        if request:
            self._consume(request)
        return events.chunk

    def hold(self, more: int) -> bool:
        """Whether there is room for so many more bytes of messages that have begun; negative gives back."""
        return self._held.take(more)

    @property
    def credentials(self) -> Credentials | None:
        """What clients must know, None for nothing."""
        return self._credentials

    @property
    def limits(self) -> Limits:
        """Of one message."""
        return self._limits

    @property
    def turn(self) -> threading.Lock:
        """Held while a message is unpacked."""
        return self._turn


class _Conversation:
    """One client, from its handshake to its end."""

    def __init__(self, receiver: FluentReceiver, stream: socket.socket) -> None:
        self._receiver = receiver
        self._stream = stream
        self._unpacker = unpacker(receiver.limits)
        self._held = 0  # bytes of messages that are not whole yet
        self._fed = 0

    def run(self) -> None:
        """Until the client ends it, or is cut off, counted."""
        refused = self._receiver.refused
        try:
            if self._receiver.credentials is not None and not self._shake_hands(self._receiver.credentials):
                refused["fluent_credentials"] += 1
                return
            self._converse()
        except ProtocolFault as fault:
            refused["fluent_malformed"] += 1
            if refused["fluent_malformed"] == 1:
                _log.warning("a Fluent message is refused: %s; more are only counted", fault)
        except TimeoutError:
            refused["fluent_slow"] += 1
        finally:
            self._receiver.hold(-self._held)

    def _shake_hands(self, credentials: Credentials) -> bool:
        greeting, first = helo(with_users=bool(credentials.users))
        self._stream.settimeout(_HANDSHAKE_S)
        self._stream.sendall(first)
        message = self._next(_HANDSHAKE_S)
        if message is None:
            return False
        salt, refusal = check_ping(message[0], credentials, greeting)
        self._stream.sendall(pong(credentials, greeting, salt, refusal))
        return not refusal

    def _converse(self) -> None:
        while (message := self._next(None)) is not None:
            with self._receiver.turn:
                chunk = self._receiver.take(message.pop())
            if chunk is not None:
                self._stream.settimeout(_REST_S)
                self._stream.sendall(acknowledgement(chunk))

    def _next(self, limit_s: float | None) -> list[Any] | None:
        """The next message, alone in a list that is its only holder; None at the connection's end."""
        while True:
            found = self._unpacked()
            if found is not None:
                return found
            # A connection may be idle for ever, a message may not
            self._stream.settimeout(_REST_S if self._held else limit_s)
            data = self._stream.recv(_READ_BYTES)
            if not data:
                return None
            if not self._receiver.hold(len(data)):
                self._receiver.refused["fluent_busy"] += 1
                return None
            self._held += len(data)
            self._fed += len(data)
            try:
                self._unpacker.feed(data)
            except msgpack.BufferFull as fault:
                most = self._receiver.limits.message_bytes
                raise ProtocolFault(f"it has more than {most} bytes") from fault

    def _unpacked(self) -> list[Any] | None:
        with self._receiver.turn:
            try:
                message = self._unpacker.unpack()
            except msgpack.OutOfData:
                return None
            except UNPACK_FAULTS as fault:
                raise ProtocolFault("it is no msgpack") from fault
        left = self._fed - self._unpacker.tell()
        self._receiver.hold(left - self._held)
        self._held = left
        return [message]


def _credentials(options: FluentReceiverOptions) -> Credentials | None:
    if options.shared_key is None:
        return None
    users = {name: password.get_secret_value() for name, password in options.users.items()}
    return Credentials(options.self_hostname or socket.gethostname(), options.shared_key.get_secret_value(), users)
