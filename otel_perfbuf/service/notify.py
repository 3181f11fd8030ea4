# SPDX-License-Identifier: Apache-2.0
"""Tells systemd that the agent is ready, reloads, stops, and is alive. Without systemd it does nothing.

Source: sd_notify(3), systemd.service(5) (WatchdogSec); the protocol is one datagram of lines.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

__all__ = ["Notifier"]

_log = logging.getLogger(__name__)


class Notifier:
    """Sends to ``$NOTIFY_SOCKET``; ``watchdog_s`` is how often `alive` is to be called, None: never."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_s: float | None = None
        period_us = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        if self._address and ours and period_us.isdigit() and int(period_us) > 0:
            self.watchdog_s = int(period_us) / 2e6  # half of it, as sd_watchdog_enabled(3) recommends

    def ready(self) -> None:
        """Started, or done with reloading."""
        self._send("READY=1", f"STATUS=recording; pid {os.getpid()}")

    def reloading(self) -> None:
        """Before a reload; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The last thing that is said."""
        self._send("STOPPING=1", "STATUS=flushing")

    def alive(self) -> None:
        """Feeds the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as fault:
            _log.warning("telling systemd %s failed: %s", lines[0], os.strerror(fault.errno or 0))
