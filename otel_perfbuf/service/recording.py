# SPDX-License-Identifier: Apache-2.0
"""A configured flight recorder: its triggers, its manners, its recorder, and what is counted of them.

What it is not: it makes no dump and sends none. Source: CONTRACT section 2 (connectors), section 7 (perfbuf_dumps).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from otel_perfbuf.exporters.payload import Signal
from otel_perfbuf.service.control import DumpRequest
from otel_perfbuf.service.options import FlightRecorderOptions
from otel_perfbuf.service.parts import History, MadeDump, Parts
from otel_perfbuf.service.telemetry import Telemetry
from otel_perfbuf.triggers.firing import Firing, Trigger, TriggerKind
from otel_perfbuf.triggers.manners import Manners, WarmUp
from otel_perfbuf.triggers.socket import SocketTrigger
from otel_perfbuf.triggers.spans import SpanRegistry
from otel_perfbuf.triggers.telemetry import Consumed, TelemetryRules, TelemetryTrigger

__all__ = ["Recording"]

_SEVERITIES: Final = {"WARN": 13, "ERROR": 17, "FATAL": 21}  # source: opentelemetry-proto, SeverityNumber

_log = logging.getLogger(__name__)


class _CountedManners(Manners):
    """Manners that also count into the agent's telemetry."""

    telemetry: Telemetry

    def suppress(self, kind: TriggerKind, count: int) -> None:
        super().suppress(kind, count)
        self.telemetry.add("perfbuf_dumps", (kind, "suppressed"), count)


class Recording:
    """One `flight_recorder`. ``history_s`` is the history's depth as of the last dump, None before it."""

    def __init__(
        self,
        component_id: str,
        receiver: str,
        options: FlightRecorderOptions,
        history: History,
        parts: Parts,
        telemetry: Telemetry,
        emit: Callable[[MadeDump], object],
    ) -> None:
        self.id = component_id
        self.receiver = receiver
        self.after_s = options.window.after
        self.history_s: float | None = None
        self._telemetry = telemetry
        self._emit = emit
        self._fired: Counter[str] = Counter()
        self._warm_up = WarmUp(options.warm_up, history.started_s)
        self._manners = _CountedManners(options.hold_off, options.max_dumps, warm_up=self._warm_up)
        self._manners.telemetry = telemetry
        self._recorder = parts.recorder(history, options, self._made, self._manners)
        self._socket: SocketTrigger | None = None
        self._spans: SpanRegistry | None = None
        self._triggers: list[Trigger] = []
        if options.triggers.socket is not None:
            self._spans = history.spans(options.triggers.told_to_applications())
            self._socket = SocketTrigger(
                options.triggers.socket,
                register=self._spans.register if self._spans is not None else None,
                suppress=self._skipped,
            )
            self._triggers.append(self._socket)
        alerts = history.alerts(options.triggers)
        if alerts is not None:
            self._triggers.append(alerts)
        # Without a hold-off each occurrence makes a dump of its own, with its own reason.
        self._from_telemetry = TelemetryTrigger(
            _telemetry_rules(options), history.find, self._pass_over, alike=options.hold_off > 0
        )
        self._triggers.append(self._from_telemetry)
        self._undo = contextlib.ExitStack()

    def start(self) -> None:
        """Starts the recorder, then arms the triggers."""
        if left_s := self._warm_up.left_s:
            _log.info("%s: warm-up: firings of the next %.1f s are counted and make no dump", self.id, left_s)
        self._recorder.start()
        if self._spans is not None:
            self._spans.start()
            self._undo.callback(self._spans.stop)
        for trigger in self._triggers:
            trigger.start(self._fire)
            self._undo.callback(trigger.stop)

    def stop(self, timeout_s: float) -> bool:
        """Disarms, then finishes what is in the making; False when that was not done in time."""
        self._undo.close()
        return self._recorder.stop(timeout_s)

    def ask(self, request: DumpRequest) -> Future[Any] | None:
        """A firing by hand: nothing holds it off."""
        firing = Firing("manual", request.reason, time.time_ns(), pid=request.pid, cgroup=request.cgroup)
        self._manners.exempt(firing)
        return self._fire(firing)

    def consume(self, signal: Signal, body: bytes) -> Consumed:
        """Takes one OTLP request as a source of firings; MalformedRequest when it is none. Never waits for a dump."""
        return self._from_telemetry.consume(signal, body)

    def status(self) -> dict[str, Any]:
        """Counts since the start."""
        return {
            **self._recorder.status(),
            "fired": dict(self._fired),
            "suppressed": dict(self._manners.suppressed),
            "warm_up_left_s": round(self._warm_up.left_s, 3),
            "refused": dict(self.refused()),
            "exact_processes": self._spans.registered if self._spans is not None else 0,
        }

    def refused(self) -> Counter[str]:
        """Datagrams and telemetry that were not taken, by cause."""
        refused = Counter(self._socket.refused) if self._socket is not None else Counter[str]()
        spans = self._spans.refused if self._spans is not None else Counter[str]()
        return refused + spans + self._from_telemetry.refused

    def _skipped(self, kind: TriggerKind, count: int) -> None:
        self._fired[kind] += count
        self._recorder.suppress(kind, count)

    def _pass_over(self, firing: Firing) -> bool:
        passed = self._recorder.pass_over(firing)
        if passed and firing.alike is not None:
            self._fired[firing.kind] += len(firing.alike)
        return passed

    def _fire(self, firing: Firing) -> Future[Any] | None:
        """Fires it, then its alike one by one, until one is suppressed, which then goes for most that follow."""
        future = latest = self._fire_one(firing)
        alike, number = firing.alike, 0
        for row in alike or ():
            if latest is None:
                break
            assert alike is not None
            latest, number = self._fire_one(alike.firing(firing, row)), number + 1
        if alike is not None and latest is None:
            rest = replace(firing, alike=alike.after(number)) if number else firing
            joining, suppressed = self._recorder.sift(rest)
            self._fired[firing.kind] += suppressed
            for other in joining:
                self._fire_one(other)
        return future

    def _fire_one(self, firing: Firing) -> Future[Any] | None:
        self._fired[firing.kind] += 1 + firing.repeats
        _log.debug("trigger %s fired: %s", firing.kind, firing.reason)
        future = self._recorder.fire(firing)
        if future is not None and not hasattr(future, "perfbuf_counted"):
            future.perfbuf_counted = True  # type: ignore[attr-defined]  # joined firings share one future
            future.add_done_callback(lambda done: self._count_failure(firing, done))
        return future

    def _count_failure(self, firing: Firing, done: Future[Any]) -> None:
        if not done.cancelled() and done.exception() is not None:
            self._telemetry.add("perfbuf_dumps", (firing.kind, "failed"))

    def _made(self, dump: MadeDump) -> None:
        header = dump.header
        self.history_s = max(header.window_end_unix_ns - header.complete_since_unix_ns, 0) / 1e9
        self._telemetry.add("perfbuf_snapshot_duration_seconds", (self.receiver,), header.snapshot_ns / 1e9)
        self._telemetry.add("otelcol_receiver_accepted_log_records", (self.receiver,), header.records)
        self._emit(dump)


def _telemetry_rules(options: FlightRecorderOptions) -> TelemetryRules:
    triggers = options.triggers
    severity, latency = triggers.log_severity, triggers.span_latency
    return TelemetryRules(
        errors=triggers.span_error is not None,
        at_least=_SEVERITIES[severity.at_least] if severity is not None else None,
        longer_than_ns=int(latency.longer_than * 1e9) if latency is not None and latency.longer_than else None,
        names=latency.names if latency is not None else (),
    )
