# SPDX-License-Identifier: Apache-2.0
"""Telemetry as a trigger: failed and slow spans and severe logs of OTLP requests become firings.

What it is not: a receiver (receivers/) or a search for processes (it asks ``find``). Source: CONTRACT sections 2, 3, 7.
A request is scanned by who brings it, who never waits; a thread of its own finds the processes and fires. What that
has no room for is dropped and counted: a storm of errors has made its dump long before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_perfbuf._core._core import lib
from otel_perfbuf.triggers.datagram import printable
from otel_perfbuf.triggers.firing import Evidence, Find, Fire, Firing, Match, SpanContext, TriggerKind
from otel_perfbuf.triggers.otlp_scan import Hit, Scanner, ScanRules

__all__ = ["Consumed", "TelemetryRules", "TelemetryTrigger"]

_log = logging.getLogger(__name__)

_HITS_MAX: Final = 4000  # waiting
_TEXT_MAX: Final = 1024
_MATCHES_MAX: Final = 256
_MATCH_S: Final = 1.0
_LATE_NS: Final = 600_000_000_000  # an end of a span that is older than this, or to come, is no time to look back from
_LOG_S: Final = 60.0
_OWN_SERVICE: Final = "otel-perfbuf"


@dataclass(frozen=True, slots=True)
class TelemetryRules:
    """Which telemetry fires; ``names``: of slow spans, empty for all."""

    errors: bool = False
    at_least: int | None = None
    longer_than_ns: int | None = None
    names: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything can fire."""
        return self.errors or self.at_least is not None or self.longer_than_ns is not None


@dataclass(frozen=True, slots=True)
class Consumed:
    """One request's records, and how many of them would have fired but found no room."""

    records: int
    dropped: int


class TelemetryTrigger:
    """Fires for hits of the requests that ``consume`` gets, once it is started.

    ``refused`` counts hits that fired nothing, by cause: no_process, telemetry_queue, malformed, failed.
    """

    def __init__(
        self,
        rules: TelemetryRules,
        find: Find,
        *,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._find = find
        self._clock = clock
        self._monotonic = monotonic
        self._scanner = Scanner(ScanRules(rules.errors, rules.longer_than_ns, rules.at_least))
        self._scanning = threading.Lock()
        self._condition = threading.Condition()
        self._waiting: deque[Hit] = deque()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._resources: OrderedDict[bytes, dict[str, str | int] | None] = OrderedDict()
        self._matches: OrderedDict[tuple[bytes, int | None, int | None], tuple[float, Match]] = OrderedDict()
        self._logged_s: float | None = None
        self._unlogged = 0
        self.refused: Counter[str] = Counter()

    def start(self, fire: Fire) -> None:
        """Begins to fire."""
        self._thread = threading.Thread(target=self._run, args=(fire,), name="perfbuf-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Fires what is waiting, then no more; twice is fine."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def consume(self, signal: Literal["logs", "traces"], body: bytes) -> Consumed:
        """Scans one request, from any thread; MalformedRequest when it is none. What it finds fires later."""
        with self._scanning:
            found = self._scanner.scan(signal, body)
        dropped = 0
        if found.hits:
            with self._condition:
                room = 0 if self._stopping else _HITS_MAX - len(self._waiting)
                taken = found.first[:room]
                self._waiting.extend(taken)
                dropped = found.hits - len(taken)
                if dropped:
                    self.refused["telemetry_queue"] += dropped
                self._condition.notify()
        return Consumed(found.records, dropped)

    def _run(self, fire: Fire) -> None:
        while (hits := self._next()) is not None:
            for hit in hits:
                try:
                    self._take(hit, fire)
                except Exception:  # noqa: BLE001 - one span must not deafen the agent to the next
                    self.refused["failed"] += 1
                    _log.exception("a span or log record could not be handled")

    def _next(self) -> list[Hit] | None:
        with self._condition:
            while not self._waiting and not self._stopping:
                self._condition.wait()
            if not self._waiting:
                return None
            hits = list(self._waiting)
            self._waiting.clear()
            return hits

    def _take(self, hit: Hit, fire: Fire) -> None:
        kind = self._kind(hit)
        if kind is None or hit.own:
            return
        resource = self._resource(hit.resource)
        if resource is None:
            self.refused["malformed"] += 1
            return
        service = str(resource.get("service.name", ""))
        if service == _OWN_SERVICE:
            return
        match = self._match(hit, resource)
        if not match.processes:
            self.refused["no_process"] += 1
            self._tell(kind, hit, service, match.why)
            return
        fire(self._firing(kind, hit, service, match))

    def _kind(self, hit: Hit) -> TriggerKind | None:
        if hit.why & lib.PB_HIT_SEVERE:
            return "log_severity"
        if hit.why & lib.PB_HIT_ERROR:
            return "span_error"
        return "span_latency" if not self._rules.names or hit.name in self._rules.names else None

    def _resource(self, data: bytes) -> dict[str, str | int] | None:
        """Attributes that are texts or integers; None when the bytes are no resource."""
        if data in self._resources:
            self._resources.move_to_end(data)
            return self._resources[data]
        found: dict[str, str | int] | None = {}
        try:
            for pair in Resource.FromString(data).attributes:
                kind = pair.value.WhichOneof("value")
                if found is not None and kind in ("string_value", "int_value"):
                    found[pair.key] = getattr(pair.value, kind)
        except DecodeError:
            found = None
        self._resources[data] = found
        if len(self._resources) > _MATCHES_MAX:
            self._resources.popitem(last=False)
        return found

    def _match(self, hit: Hit, resource: dict[str, str | int]) -> Match:
        """Asked once a second for the same telemetry: a storm is of few processes."""
        key, now = (hit.resource, hit.process_id, hit.thread_id), self._monotonic()
        known = self._matches.get(key)
        if known is not None and now - known[0] < _MATCH_S:
            return known[1]
        start, end = (0, hit.start_unix_ns or hit.end_unix_ns) if self._is_log(hit) else _times(hit)
        match = self._find(Evidence(resource, hit.process_id, hit.thread_id, start, end))
        self._matches[key] = now, match
        self._matches.move_to_end(key)
        if len(self._matches) > _MATCHES_MAX:
            self._matches.popitem(last=False)
        return match

    @staticmethod
    def _is_log(hit: Hit) -> bool:
        return bool(hit.why & lib.PB_HIT_SEVERE)

    def _firing(self, kind: TriggerKind, hit: Hit, service: str, match: Match) -> Firing:
        now, is_log = self._clock(), self._is_log(hit)
        then = (hit.start_unix_ns or hit.end_unix_ns) if is_log else hit.end_unix_ns
        span = None
        if hit.trace_id is not None and hit.span_id is not None:
            span = SpanContext(hit.trace_id, hit.span_id, hit.flags)
        reason = printable(self._reason(kind, hit))[:_TEXT_MAX]
        if len(match.processes) > 1:
            pids = ", ".join(str(pid) for pid, _ in match.processes[:8])
            more = ", ..." if len(match.processes) > 8 else ""
            reason += f" (one of {len(match.processes)} processes that {match.by} leads to: {pids}{more})"
        return Firing(
            kind=kind,
            reason=reason,
            unix_ns=then if max(now - _LATE_NS, 0) < then <= now else now,
            pid=match.processes[0][0],
            span=span,
            start_unix_ns=0 if is_log else hit.start_unix_ns,
            end_unix_ns=0 if is_log else hit.end_unix_ns,
            service_name=None if service.startswith("unknown_service") else printable(service[:_TEXT_MAX]) or None,
            span_name=None if is_log else printable(hit.name) or None,
            interleaved=True,  # OTLP names no kernel thread, and does not tell whether an event loop ran
            processes=match.processes,
            matched_by=match.by,
        )

    def _reason(self, kind: TriggerKind, hit: Hit) -> str:
        if kind == "log_severity":
            return hit.message or (f"log record {hit.name}" if hit.name else "error log")
        if kind == "span_latency":
            took_s = (hit.end_unix_ns - hit.start_unix_ns) / 1e9
            return f"span {hit.name} took {took_s:.3f} s, at least {(self._rules.longer_than_ns or 0) / 1e9:g} s"
        return hit.message or _exception_of(hit.record) or f"span {hit.name} ended with status ERROR"

    def _tell(self, kind: TriggerKind, hit: Hit, service: str, why: str) -> None:
        """One line a minute at most, with the number of those in between."""
        now = self._monotonic()
        if self._logged_s is not None and now - self._logged_s < _LOG_S:
            self._unlogged += 1
            return
        between = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
        self._logged_s, self._unlogged = now, 0
        what = f"{kind} {hit.name or hit.message}"[:120]
        of = f" of service {service[:80]}" if service else ""
        _log.warning("no dump for %s%s: %s%s", printable(what), printable(of), printable(why), between)


def _times(hit: Hit) -> tuple[int, int]:
    """A span that never ended, or ended before it began, has no time to compare with."""
    return (hit.start_unix_ns, hit.end_unix_ns) if hit.end_unix_ns >= hit.start_unix_ns else (0, 0)


def _exception_of(record: bytes) -> str:
    """What the span's last exception event says, "" without one."""
    try:
        events = Span.FromString(record).events
    except DecodeError:
        return ""
    for event in reversed(events):
        if event.name == "exception":
            said = {pair.key: pair.value.string_value for pair in event.attributes}
            return ": ".join(filter(None, (said.get("exception.type"), said.get("exception.message")))) or "exception"
    return ""
