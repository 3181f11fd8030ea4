# SPDX-License-Identifier: Apache-2.0
"""The kernel's conditions as a trigger: drains the alerts, looks at calls in flight, fires.

What it is not: what an alert means is triggers/alerts.py, what is one bpf/condition.bpf.h. Source: bpf/records.h, map
`alerts` (forward, wakes at each).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from otel_perfbuf.errors import PerfbufError, ReaderClosed
from otel_perfbuf.triggers.firing import Fire, Firing

__all__ = ["AlertBatch", "AlertReader", "AlertTrigger", "Judge"]

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


class Judge(Protocol):
    """What alerts mean: triggers.alerts.AlertJudge."""

    def firing(self, alert: bytes, unix_offset_ns: int, /) -> Firing | None:
        """Of one alert; None: a quiet one."""

    def split(self, alerts: bytes, /) -> list[bytes]:
        """Alerts that stand one behind the other, each alone."""


class AlertTrigger:
    """Fires from a thread of its own. Does not own the reader; ``lost`` and ``malformed`` count alerts.

    ``slow_calls`` gives the alerts of calls in flight; it is asked every ``look_s`` seconds, or never when it is None.
    """

    def __init__(
        self,
        reader: AlertReader,
        judge: Judge,
        unix_offset_ns: Callable[[], int],
        slow_calls: Callable[[], bytes] | None = None,
        look_s: float = 1.0,
    ) -> None:
        self._reader = reader
        self._judge = judge
        self._unix_offset_ns = unix_offset_ns
        self._slow_calls = slow_calls
        self._look_s = look_s
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
                batch = self._reader.read(timeout=self._look_s)
                slow = self._slow_calls() if self._slow_calls is not None and not self._stopping.is_set() else b""
            except ReaderClosed:
                return
            except (PerfbufError, OSError) as fault:
                _log.error("reading the kernel's alerts failed, its triggers are off: %s", fault)
                return
            self.lost += batch.lost
            for alert in [*batch.data(), *self._judge.split(slow)]:
                self._take(alert, fire)

    def _take(self, alert: bytes, fire: Fire) -> None:
        try:
            firing = self._judge.firing(alert, self._unix_offset_ns())
            if firing is not None:
                fire(firing)
        except ValueError:
            self.malformed += 1
        except Exception:  # noqa: BLE001 - one alert must not deafen the agent to the next
            _log.exception("an alert of the kernel could not be handled")
