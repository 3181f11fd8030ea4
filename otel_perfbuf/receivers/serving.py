# SPDX-License-Identifier: Apache-2.0
"""Connections of a receiver: accepted, counted, secured, each served by a thread of its own, cut off at the end.

What it is not: it knows no protocol (otlp/http.py, fluent/receiver.py and the service's http.py say what is done with a
connection), and it opens no listening socket (listen.py). Source: accept(2), poll(2); decision 0006 (threads).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from otel_perfbuf.receivers.listen import Address, Listener, listen, tls_context
from otel_perfbuf.receivers.options import ServerTlsOptions

__all__ = ["ConnectionServer", "Held", "Names"]

_log = logging.getLogger(__name__)

_HANDSHAKE_S: Final = 10.0
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Names:
    """``receiver`` stands in errors ("Fluent receiver"), ``connection`` in the log ("a Fluent connection"), ``thread``
    names the threads, ``refused`` is the cause that connections beyond the bound are counted under.
    """

    receiver: str
    connection: str
    thread: str
    refused: str


class Held:
    """A bound on bytes that several threads hold."""

    def __init__(self, max_bytes: int) -> None:
        self._lock = threading.Lock()
        self._left = max_bytes

    def take(self, count: int) -> bool:
        """Whether there was room for so many more; negative gives back, and always has room."""
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
            return True


class ConnectionServer:
    """Serves until ``stop``: ``converse`` gets each connection (TLS is done), in a thread of its own, and may end by
    OSError: the client went away, was slow, or showed no certificate.

    ``where`` that listens already is the server's from its start on. ``refused`` counts connections beyond
    ``connections_max``, and as "failed" what ``converse`` raised else. ``endpoint`` is where it listens, once started.
    """

    def __init__(
        self,
        where: Address | Listener,
        tls: ServerTlsOptions | None,
        names: Names,
        converse: Callable[[socket.socket], object],
        *,
        connections_max: int,
        refused: Counter[str],
        protocols: tuple[str, ...] = (),
    ) -> None:
        self._where = where
        self._tls_options = tls
        self._names = names
        self._converse = converse
        self._connections_max = connections_max
        self._refused = refused
        self._protocols = protocols
        self._lock = threading.Lock()
        self._active: set[socket.socket] = set()
        self._listener: Listener | None = None
        self._tls: ssl.SSLContext | None = None
        self._wake = -1
        self._thread: threading.Thread | None = None
        self.endpoint = where.endpoint

    def start(self) -> None:
        """Listens and serves; PerfbufError or ConfigError when that cannot be."""
        if self._tls_options is not None:
            self._tls = tls_context(self._tls_options, self._names.receiver, self._protocols)
        where = self._where
        self._listener = where if isinstance(where, Listener) else listen(where, self._names.receiver)
        self.endpoint = self._listener.endpoint
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, args=(self._listener,), name=self._names.thread, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Accepts no more and cuts off open connections; twice is fine."""
        thread, self._thread = self._thread, None
        if thread is not None:
            os.eventfd_write(self._wake, 1)
            thread.join()
            os.close(self._wake)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        with self._lock:
            active = list(self._active)
        for connected in active:
            with contextlib.suppress(OSError):  # closed already
                connected.shutdown(socket.SHUT_RDWR)

    def _run(self, listener: Listener) -> None:
        poller = select.poll()
        poller.register(listener.socket, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not any(descriptor == self._wake for descriptor, _ in poller.poll()):
            try:
                connected, _ = listener.socket.accept()
            except OSError as fault:
                if not isinstance(fault, BlockingIOError | ConnectionAbortedError):
                    _log.warning("accepting %s failed: %s", self._names.connection, fault)
                    # Out of descriptors: the socket stays readable, and asking again at once would burn a core.
                    threading.Event().wait(_PAUSE_S)
                continue
            with self._lock:
                taken = len(self._active) < self._connections_max
                if taken:
                    self._active.add(connected)
                else:
                    self._refused[self._names.refused] += 1
            if not taken:
                connected.close()
                continue
            threading.Thread(target=self._serve, args=(connected,), name=self._names.thread, daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        stream = connected
        try:
            if self._tls is not None:
                connected.settimeout(_HANDSHAKE_S)
                # Takes the plain one's place: detach() has left that one without a descriptor to cut.
                stream = self._tls.wrap_socket(connected, server_side=True)
                with self._lock:
                    self._active.discard(connected)
                    self._active.add(stream)
            self._converse(stream)
        except OSError as fault:
            _log.debug("%s ended: %s", self._names.connection, fault)
        except Exception:  # noqa: BLE001 - one client must not end the agent's thread with a traceback
            self._refused["failed"] += 1
            _log.exception("serving %s failed", self._names.connection)
        finally:
            with self._lock:
                self._active.discard(connected)
                self._active.discard(stream)
            stream.close()
