# SPDX-License-Identifier: Apache-2.0
"""Tells a reader that CPUs came or went, on the kernel's uevents. What it is not: it opens no rings.

Facts: a thread of its own, since nobody waits in an overwritable reader, and a CPU that comes back must be recorded
  before anybody asks. A CPU that goes sends several uevents at once (its caches, its drivers' devices, itself).
Decision: a plain netlink socket. pyroute2's UeventSocket reads ahead into a queue of its own that poll does not see:
  of such a burst all but the first waited there for the next uevent.
Source: Linux drivers/base/core.c (KOBJ_ONLINE, KOBJ_OFFLINE), lib/kobject_uevent.c (the text), netlink(7).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
from collections.abc import Callable

from otel_perfbuf.errors import PerfbufError

__all__ = ["CpuWatch"]

_log = logging.getLogger(__name__)

# include/uapi/linux/netlink.h; lib/kobject_uevent.c (UEVENT_BUFFER_SIZE is 2048, and the head "ACTION@DEVPATH").
NETLINK_KOBJECT_UEVENT = 15
KERNEL_GROUP = 1
LARGEST_BYTES = 8192


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
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT) as uevents:
                uevents.bind((0, KERNEL_GROUP))
                self._ready.set()
                self._watch(uevents)
        except OSError as error:
            self._failed.append(error)
        finally:
            self._ready.set()
            with self._stop_lock:
                os.close(self._stop)
                self._stop = -1

    def _watch(self, uevents: socket.socket) -> None:
        poll = select.poll()
        poll.register(uevents, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._stop in ready:
                return
            try:
                text = uevents.recv(LARGEST_BYTES)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._call(frozenset(), "uevents came faster than they were read")
                continue
            fields = dict(field.split("=", 1) for field in text.decode(errors="replace").split("\0") if "=" in field)
            self._take(fields.get("SUBSYSTEM"), fields.get("ACTION"), fields.get("DEVPATH", ""))

    def _take(self, subsystem: str | None, action: str | None, path: str) -> None:
        number = path.rsplit("/cpu", 1)[-1]
        if subsystem != "cpu" or action not in ("online", "offline") or not number.isdecimal():
            return
        self._call(frozenset({int(number)} if action == "offline" else ()), f"CPU {number} went {action}")

    def _call(self, went: frozenset[int], cause: str) -> None:
        try:
            self._changed(went)
        except PerfbufError as error:
            _log.warning("%s: %s", cause, error)
