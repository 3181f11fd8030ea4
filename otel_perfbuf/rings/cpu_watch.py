# SPDX-License-Identifier: Apache-2.0
"""Tells a reader that CPUs came or went, on the kernel's uevents. What it is not: it opens no rings.

Facts: a thread of its own, since nobody waits in an overwritable reader, and a CPU that comes back must be recorded
  before anybody asks. The socket belongs to the thread that made it (pyroute2).
Source: Linux drivers/base/core.c (KOBJ_ONLINE, KOBJ_OFFLINE), https://docs.pyroute2.org.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

from otel_perfbuf.errors import PerfbufError

__all__ = ["CpuWatch"]

_log = logging.getLogger(__name__)


class CpuWatch:
    """Calls ``changed(went)`` for each CPU event; ``went`` holds the CPU's number when it went offline, else nothing.

    What ``changed`` raises is logged, and the next event tries again. OSError when the kernel gives no such socket.
    """

    def __init__(self, changed: Callable[[frozenset[int]], object]) -> None:
        self._changed = changed
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop_lock = threading.Lock()
        self._ready = threading.Event()
        self._failed: list[OSError] = []
        self._thread = threading.Thread(target=self._run, name="perfbuf-cpus", daemon=True)
        self._thread.start()
        self._ready.wait()
        for error in self._failed:
            self.close()
            raise error

    def close(self) -> None:
        """Ends the thread and waits for it, unless called from it."""
        with self._stop_lock:
            if self._stop >= 0:
                os.eventfd_write(self._stop, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        # Imported here: who never watches need not load pyroute2.
        from pyroute2 import UeventSocket

        try:
            with contextlib.closing(UeventSocket()) as socket:
                socket.bind()
                self._ready.set()
                self._watch(socket)
        except OSError as error:
            self._failed.append(error)
        finally:
            self._ready.set()
            with self._stop_lock:
                os.close(self._stop)
                self._stop = -1

    def _watch(self, socket: object) -> None:
        uevents = int(socket.fileno())  # type: ignore[attr-defined]
        poll = select.poll()
        poll.register(uevents, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._stop in ready:
                return
            for message in socket.get():  # type: ignore[attr-defined]
                self._take(message.get("SUBSYSTEM"), message.get("ACTION"), message.get("DEVPATH", ""))

    def _take(self, subsystem: object, action: object, path: str) -> None:
        number = path.rsplit("/cpu", 1)[-1]
        if subsystem != "cpu" or action not in ("online", "offline") or not number.isdecimal():
            return
        try:
            self._changed(frozenset({int(number)} if action == "offline" else ()))
        except PerfbufError as error:
            _log.warning("CPU %s went %s: %s", number, action, error)
