# SPDX-License-Identifier: Apache-2.0
"""The life of `otel-perfbuf run`: start, signals, reload, stop.

What it is not: what is started is running.py's. SIGINT and SIGTERM end it, flushing for at most 5 seconds; SIGHUP loads
the configuration again and, if it is good and another one, restarts what has changed: rings with their history, flight
recorders with their manners and sockets, queues and spools that are the same go on. A bad one changes nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Any, Final

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.service import log
from otel_perfbuf.service.graph import build_graph
from otel_perfbuf.service.kept import Kept
from otel_perfbuf.service.model import Configuration
from otel_perfbuf.service.notify import Notifier
from otel_perfbuf.service.parts import Parts
from otel_perfbuf.service.running import Running
from otel_perfbuf.service.telemetry import Telemetry

__all__ = ["Agent"]

_log = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Agent:
    """Runs one configuration after the other, until it is told to end.

    ``load`` gives the configuration, at the start and at each reload; it may raise ConfigError. ``restrict`` is called
    with the first one before anything is opened or any thread started: it gives up privileges, and tells what is kept.
    """

    def __init__(
        self,
        load: Callable[[], Configuration],
        parts: Parts,
        restrict: Callable[[Configuration], Iterable[str]] = lambda _: (),
        notifier: Notifier | None = None,
    ) -> None:
        self._load = load
        self._parts = parts
        self._restrict = restrict
        self._notifier = notifier or Notifier()
        self._telemetry = Telemetry()
        self._started_unix_s = time.time()
        self._reloads = 0

    def run(self) -> int:
        """Runs in the foreground; 0 after SIGINT or SIGTERM. Raises what made the start impossible."""
        # Signals are blocked in all threads and taken from here by sigwait: no handler ever runs inside other code.
        with _blocked_signals():
            configuration = self._load()
            log.set_up(configuration.service.telemetry.logs.level)
            kept = self._restrict(configuration)
            running = self._start(configuration)
            for sentence in kept:
                _log.info("%s", sentence)
            _log.info("recording; pid %d", os.getpid())
            self._notifier.ready()
            try:
                while (number := self._next_signal(running)) == signal.SIGHUP:
                    self._notifier.reloading()
                    configuration, running = self._reload(configuration, running)
                    self._notifier.ready()
                self._notifier.stopping()
                _log.info("%s: stopping", signal.Signals(number).name)
            finally:
                for sentence in running.stop():
                    _log.warning("%s", sentence)
        _log.info("stopped")
        return 0

    def _next_signal(self, running: Running) -> int:
        """Waits for one, feeding systemd's watchdog meanwhile: as long as every part answers."""
        if self._notifier.watchdog_s is None:
            return signal.sigwait(_SIGNALS)
        while (found := signal.sigtimedwait(_SIGNALS, self._notifier.watchdog_s)) is None:
            try:
                running.status()
            except Exception as fault:  # noqa: BLE001 - whatever it is: systemd is to know, the agent goes on until then
                _log.error("a part of the agent does not answer, so systemd's watchdog is not fed: %s", fault)
            else:
                self._notifier.alive()
        return found.si_signo

    def _start(self, configuration: Configuration, kept: Kept | None = None) -> Running:
        running = Running(configuration, self._parts, self._telemetry, self._status, kept)
        running.start()
        return running

    def _restart(self, configuration: Configuration, kept: Kept) -> Running:
        try:
            return self._start(configuration, kept)
        except BaseException:
            for part in kept.parts.values():
                part.abandon()
            for queue in kept.queues.values():
                queue.drain(1.0)
            raise

    def _reload(self, configuration: Configuration, running: Running) -> tuple[Configuration, Running]:
        try:
            changed = self._load()
        except ConfigError as fault:
            for path, sentence in fault.problems or (("", str(fault)),):
                _log.error("reload: %s%s", f"{path}: " if path else "", sentence)
            _log.error("reload: the configuration is wrong; the old one goes on")
            return configuration, running
        if changed == configuration:
            _log.info("reload: nothing has changed")
            return configuration, running
        kept = replace(
            _unchanged(running.running_parts(), configuration, changed), parts=running.unchanged_parts(changed)
        )
        for sentence in running.stop(keep=kept):
            _log.warning("%s", sentence)
        try:
            started = self._start(changed, kept)
        except (PerfbufError, OSError) as fault:
            _log.error("reload: the new configuration cannot start, the old one is started again: %s", fault)
            restarted = self._restart(configuration, kept)
            _log.info("reload: the old configuration runs again")
            return configuration, restarted
        self._reloads += 1
        log.set_up(changed.service.telemetry.logs.level)
        left = ", ".join(sorted(kept.parts)) or "nothing"
        _log.info("reload: the new configuration runs; left running: %s", left)
        return changed, started

    def _status(self) -> dict[str, Any]:
        return {
            "version": _version(),
            "pid": os.getpid(),
            "uptime_seconds": round(time.time() - self._started_unix_s, 3),
            "reloads": self._reloads,
        }


def _unchanged(running: Kept, before: Configuration, after: Configuration) -> Kept:
    """What is queued for an unchanged exporter is still sent, and its file is not begun anew; so with its spool."""
    used = build_graph(after).exporters
    spools = {
        name: spool
        for name, spool in running.spools.items()
        if after.extensions.get(name) == before.extensions[name] and name in after.service.extensions
    }
    queues = {}
    for name, queue in running.queues.items():
        storage = getattr(getattr(before.exporters[name].options, "sending_queue", None), "storage", None)
        if after.exporters.get(name) == before.exporters[name] and name in used and storage in (None, *spools):
            queues[name] = queue
    return Kept(queues, spools)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # A shell's background job starts with SIGINT ignored, and an ignored signal is never pending: without a handler
    # sigwait would not see it.
    handlers = {number: signal.signal(number, _nothing) for number in _SIGNALS}
    try:
        yield
    finally:
        while signal.sigtimedwait(_SIGNALS, 0) is not None:
            pass  # impatient repetitions while stopping
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Never called: the signal is blocked."""


def _version() -> str:
    try:
        return version("otel-perfbuf")
    except PackageNotFoundError:
        return "unknown"
