# SPDX-License-Identifier: Apache-2.0
"""The process_exit trigger: drains the kernel's alerts and fires for those that the options name.

What it is not: what a wait status means is triggers/process_exit.py. Source: bpf/records.h, map `alerts` (forward,
wakes at each).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from otel_perfbuf.errors import PerfbufError, ReaderClosed
from otel_perfbuf.triggers.firing import Fire
from otel_perfbuf.triggers.process_exit import ProcessExitOptions, firing_from_alert

__all__ = ["AlertBatch", "AlertReader", "AlertTrigger"]

_log = logging.getLogger(__name__)


class AlertBatch(Protocol):
    """What a read gives."""

    def data(self) -> list[bytes]:
        """The samples' bytes, oldest first."""

    @property
    def lost(self) -> int:
        """Alerts that the ring had no room for."""


class AlertReader(Protocol):
    """A forward reader of `alerts`."""

    def read(self, timeout: float | None = None) -> AlertBatch:
        """Waits for alerts; empty on timeout; ReaderClosed after close."""

    def flush(self) -> AlertBatch:
        """Wakes `read`."""


class AlertTrigger:
    """Fires from a thread of its own. Does not own the reader; ``lost`` and ``malformed`` count alerts."""

    def __init__(self, reader: AlertReader, options: ProcessExitOptions, unix_offset_ns: Callable[[], int]) -> None:
        self._reader = reader
        self._options = options
        self._unix_offset_ns = unix_offset_ns
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = 0
        self.malformed = 0

    def start(self, fire: Fire) -> None:
        """Begins to drain."""
        self._thread = threading.Thread(target=self._run, args=(fire,), name="perfbuf-alerts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when no more firing can come; twice is fine."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            self._reader.flush()
        except ReaderClosed:
            pass  # read() has ended for the same reason
        thread.join()

    def _run(self, fire: Fire) -> None:
        while not self._stopping.is_set():
            try:
                batch = self._reader.read(timeout=1.0)
            except ReaderClosed:
                return
            except (PerfbufError, OSError) as fault:
                _log.error("reading the kernel's alerts of ended processes failed, process_exit is off: %s", fault)
                return
            self.lost += batch.lost
            for alert in batch.data():
                self._take(alert, fire)

    def _take(self, alert: bytes, fire: Fire) -> None:
        try:
            firing = firing_from_alert(alert, self._options, self._unix_offset_ns())
            if firing is not None:
                fire(firing)
        except ValueError:
            self.malformed += 1
        except Exception:  # noqa: BLE001 - one alert must not deafen the agent to the next
            _log.exception("a process's end could not be handled")
