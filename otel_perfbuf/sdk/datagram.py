# SPDX-License-Identifier: Apache-2.0
"""Builds and sends one trigger datagram from inside an application.

What it is not: the agent's side (otel_perfbuf/triggers/datagram.py reads what this writes; a test feeds one to the
other). Source: CONTRACT section 5; unix(7).

Facts: a send on a non-blocking datagram socket either copies the bytes or fails at once; connect() to a Unix datagram
socket does no hand-shake. Meaning: nothing here can wait for the agent. Decision: one connected socket a process,
opened at the first trigger, thrown away at any error, opened again at the next trigger but at most once a second while
the agent is away. Cost: a trigger that meets an agent which has just come back may be dropped for up to a second.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

__all__ = ["DATAGRAM_MAX_BYTES", "DEFAULT_SOCKET", "TriggerSender", "encode_trigger", "trigger_socket_path"]

DEFAULT_SOCKET: Final = "/run/otel-perfbuf/trigger.sock"
DATAGRAM_MAX_BYTES: Final = 4096
_TEXT_MAX_BYTES: Final = {"service_name": 256, "name": 256, "reason": 1024}
_RETRY_AFTER_S: Final = 1.0


def trigger_socket_path() -> str:
    """Where the agent listens: OTEL_PERFBUF_TRIGGER_SOCKET, else the default path."""
    return os.environ.get("OTEL_PERFBUF_TRIGGER_SOCKET") or DEFAULT_SOCKET


def encode_trigger(fields: dict[str, object]) -> bytes:
    """One datagram of at most DATAGRAM_MAX_BYTES; fields that are None or empty are left out, texts are cut.

    Texts are cut on a character's boundary; lone surrogates become "?". Control characters cost 6 bytes each in JSON:
    what is still too long loses its reason, then its names.
    """
    message: dict[str, object] = {"v": 1}
    for key, value in fields.items():
        if value is None or value == "":
            continue
        message[key] = _cut(value, _TEXT_MAX_BYTES.get(key, 256)) if isinstance(value, str) else value
    datagram = b""
    for droppable in (None, "reason", "name", "service_name"):
        if droppable:
            message.pop(droppable, None)
        datagram = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        if len(datagram) <= DATAGRAM_MAX_BYTES:
            break
    return datagram


def _cut(text: str, max_bytes: int) -> str:
    encoded = text[:max_bytes].encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode("utf-8")
    return encoded[: max_bytes - 3].decode("utf-8", "ignore") + "…"


def _after_fork(sender: weakref.ref[TriggerSender]) -> None:
    alive = sender()
    if alive is not None:
        alive.forget_parent()


class TriggerSender:
    """Sends datagrams to the agent, if there is one; never waits, never raises.

    ``sent`` and ``dropped`` count datagrams of this process. Any thread may call; a forked child opens its own socket,
    since the kernel names the sender's pid at each send but the parent may close or replace what both share.
    """

    def __init__(self, path: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._not_before_s = 0.0
        self._closed = False
        self.sent = 0
        self.dropped = 0
        # A fork while another thread holds the lock would leave it locked in the child for ever. The hook cannot be
        # taken back, so it must not keep this object alive.
        if hasattr(os, "register_at_fork"):
            this = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _after_fork(this))

    def send(self, datagram: bytes) -> bool:
        """True when the kernel took the datagram."""
        # Another thread in here is at most one system call away, but a signal handler or a finalizer of the same
        # thread would wait for itself.
        if not self._lock.acquire(timeout=0.01):
            self.dropped += 1
            return False
        try:
            sent = self._send(datagram)
        except Exception:  # noqa: BLE001 - an application's request must not fail because its recorder did
            sent = False
        finally:
            self._lock.release()
        if sent:
            self.sent += 1
        else:
            self.dropped += 1
        return sent

    def _send(self, datagram: bytes) -> bool:
        if self._closed:
            return False
        for _ in range(2):
            had_socket = self._socket is not None
            connected = self._connected()
            if connected is None:
                return False
            try:
                connected.send(datagram)
                return True
            except BlockingIOError:
                return False  # its queue is full: the agent has more firings than it can dump
            except OSError:
                self._drop_socket()
                if not had_socket:
                    return False
                # The agent was restarted since: its new socket may be there already.
        return False

    def _connected(self) -> socket.socket | None:
        if self._socket is not None:
            return self._socket
        now_s = self._clock()
        if now_s < self._not_before_s:
            return None
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            opened.connect(self._path or trigger_socket_path())
        except OSError:
            opened.close()
            self._not_before_s = now_s + _RETRY_AFTER_S
            return None
        self._socket = opened
        self._not_before_s = 0.0
        return opened

    def _drop_socket(self) -> None:
        stale, self._socket = self._socket, None
        if stale is not None:
            stale.close()

    def forget_parent(self) -> None:
        """Called in a forked child: nothing of the parent's socket or lock is used there."""
        self._lock = threading.Lock()
        self._not_before_s = 0.0
        self._drop_socket()

    def close(self) -> None:
        """Closes the socket; later sends are dropped. Twice is fine."""
        with self._lock:
            self._closed = True
            self._drop_socket()
