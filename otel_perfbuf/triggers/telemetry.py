# SPDX-License-Identifier: Apache-2.0
"""Telemetry as a trigger: failed and slow spans and severe logs of OTLP requests become firings.

What it is not: a receiver (receivers/) or a search for processes (it asks ``find``). Source: CONTRACT sections 2, 3, 7.
A request is scanned by who brings it, who never waits: telemetry whose process was found lately fires at once, the rest
goes to a thread that looks for the processes. What that has no room for is dropped and counted: a storm of errors has
made its dump long before. What is alike in a request goes through as one, and where no firing of the kind can make a
dump it is only counted (decision 0025).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_perfbuf._core._core import lib
from otel_perfbuf.triggers.alike import Alike, fired_at
from otel_perfbuf.triggers.datagram import printable
from otel_perfbuf.triggers.firing import Evidence, Find, Fire, Firing, Match, SpanContext, TriggerKind
from otel_perfbuf.triggers.otlp_scan import Found, Hit, Scanner, ScanRules

__all__ = ["Consumed", "TelemetryRules", "TelemetryTrigger"]

_log = logging.getLogger(__name__)

_HITS_MAX: Final = 4000  # waiting, and of those that are alike
_SPANS_MAX: Final = 20_000  # of all together; the last group may be more
_TEXT_MAX: Final = 1024
_MATCHES_MAX: Final = 256
_MATCH_S: Final = 1.0
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


@dataclass(frozen=True, slots=True)
class _Known:
    match: Match
    service: str
    found_s: float


class _Waiting(NamedTuple):
    hit: Hit
    hits: int
    alike: Alike | None  # the others of ``hits``


def _never(_: Firing) -> bool:
    return False


class TelemetryTrigger:
    """Fires for hits of the requests that ``consume`` gets, once it is started.

    ``pass_over`` is asked for all hits of one kind and process in a request, as the alike of a firing: True when it has
    counted them, since none can make or join a dump. ``alike``: hits whose reasons differ in numbers only are one
    firing, with the others as its alike. ``refused`` counts hits that fired nothing, by cause: no_process,
    telemetry_queue, malformed, failed.
    """

    def __init__(
        self,
        rules: TelemetryRules,
        find: Find,
        pass_over: Callable[[Firing], bool] = _never,
        *,
        alike: bool = True,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._find = find
        self._pass_over = pass_over
        self._alike = alike
        self._clock = clock
        self._monotonic = monotonic
        self._scanner = Scanner(ScanRules(rules.errors, rules.longer_than_ns, rules.at_least))
        self._scanning = threading.Lock()
        self._condition = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._spans_waiting = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._resources: OrderedDict[bytes, dict[str, str | int] | None] = OrderedDict()
        self._known: OrderedDict[tuple[bytes, int | None, int | None], _Known] = OrderedDict()
        self._fire: Fire | None = None
        self._logged_s: float | None = None
        self._unlogged = 0
        self.refused: Counter[str] = Counter()

    def start(self, fire: Fire) -> None:
        """Begins to fire."""
        self._fire = fire
        self._thread = threading.Thread(target=self._run, args=(fire,), name="perfbuf-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Fires what is waiting, then no more; twice is fine."""
        with self._scanning:
            self._fire = None  # who is firing has ended
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
            sifted = list(self._sifted(found, signal == "logs")) if found.kept else []
        dropped = found.hits - found.kept
        if sifted or dropped:
            with self._condition:
                for waiting in sifted:
                    if self._stopping or len(self._waiting) >= _HITS_MAX or self._spans_waiting >= _SPANS_MAX:
                        dropped += waiting.hits
                        continue
                    self._waiting.append(waiting)
                    self._spans_waiting += waiting.hits
                if dropped:
                    self.refused["telemetry_queue"] += dropped
                self._condition.notify()
        return Consumed(found.records, dropped)

    def _sifted(self, found: Found, is_log: bool) -> Iterator[_Waiting]:
        """Fires what is known; what is left has to be looked for."""
        now = self._clock()
        for origin in found.origins(alike=self._alike):
            hit = found.hit(origin.hit)
            known, fire = self._known.get((hit.resource, hit.process_id, hit.thread_id)), self._fire
            if fire is None or hit.own or known is None or self._monotonic() - known.found_s >= _MATCH_S:
                known = None
            elif len(origin.groups) > 1 and self._passed_over(hit, known, Alike(origin.spans, now, is_log)):
                continue
            for group in found.groups(origin):
                alike = Alike(group.spans, now, is_log)
                waiting = _Waiting(
                    hit if group.hit == origin.hit else found.hit(group.hit),
                    len(alike),
                    alike.after(1) if len(alike) > 1 else None,
                )
                if known is None or fire is None:
                    yield waiting
                elif (kind := self._kind(waiting.hit)) is not None:
                    self._guarded(waiting, partial(self._fire_known, kind, waiting, known, fire))

    def _passed_over(self, hit: Hit, known: _Known, alike: Alike) -> bool:
        """Whether all hits of an origin are counted as suppressed now."""
        kind = self._kind(hit)
        if kind is None or not known.match.processes:
            return False
        if kind == "span_latency" and self._rules.names:
            return False  # others of this origin may have no such name
        return self._pass_over(Firing(kind, "", alike.now_unix_ns, known.match.processes[0][0], alike=alike))

    def _run(self, fire: Fire) -> None:
        while (hits := self._next()) is not None:
            for waiting in hits:
                self._guarded(waiting, partial(self._take, waiting, fire))

    def _guarded(self, waiting: _Waiting, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # noqa: BLE001 - one span must not deafen the agent to the next
            self._refuse("failed", waiting.hits)
            _log.exception("a span or log record could not be handled")

    def _refuse(self, cause: str, count: int) -> None:
        with self._condition:
            self.refused[cause] += count

    def _next(self) -> list[_Waiting] | None:
        with self._condition:
            while not self._waiting and not self._stopping:
                self._condition.wait()
            if not self._waiting:
                return None
            hits = list(self._waiting)
            self._waiting.clear()
            self._spans_waiting = 0
            return hits

    def _take(self, waiting: _Waiting, fire: Fire) -> None:
        hit = waiting.hit
        kind = self._kind(hit)
        if kind is None or hit.own:
            return
        resource = self._resource(hit.resource)
        if resource is None:
            self._refuse("malformed", waiting.hits)
            return
        service = str(resource.get("service.name", ""))
        if service == _OWN_SERVICE:
            return
        self._fire_known(kind, waiting, self._look_for(hit, resource, service), fire)

    def _fire_known(self, kind: TriggerKind, waiting: _Waiting, known: _Known, fire: Fire) -> None:
        if known.match.processes:
            fire(self._firing(kind, waiting, known.service, known.match))
            return
        self._refuse("no_process", waiting.hits)
        self._tell(kind, waiting, known.service, known.match.why)

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

    def _look_for(self, hit: Hit, resource: dict[str, str | int], service: str) -> _Known:
        """Asked once a second for the same telemetry: a storm is of few processes."""
        key, now = (hit.resource, hit.process_id, hit.thread_id), self._monotonic()
        known = self._known.get(key)
        if known is not None and now - known.found_s < _MATCH_S:
            return known
        start, end = (0, hit.start_unix_ns or hit.end_unix_ns) if self._is_log(hit) else _times(hit)
        match = self._find(Evidence(resource, hit.process_id, hit.thread_id, start, end))
        known = self._known[key] = _Known(match, service, now)
        self._known.move_to_end(key)
        if len(self._known) > _MATCHES_MAX:
            self._known.popitem(last=False)
        return known

    @staticmethod
    def _is_log(hit: Hit) -> bool:
        return bool(hit.why & lib.PB_HIT_SEVERE)

    def _firing(self, kind: TriggerKind, waiting: _Waiting, service: str, match: Match) -> Firing:
        hit = waiting.hit
        is_log = self._is_log(hit)
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
            unix_ns=fired_at(then, self._clock()),
            pid=match.processes[0][0],
            span=span,
            start_unix_ns=0 if is_log else hit.start_unix_ns,
            end_unix_ns=0 if is_log else hit.end_unix_ns,
            service_name=None if service.startswith("unknown_service") else printable(service[:_TEXT_MAX]) or None,
            span_name=None if is_log else printable(hit.name) or None,
            interleaved=True,  # OTLP names no kernel thread, and does not tell whether an event loop ran
            processes=match.processes,
            matched_by=match.by,
            alike=waiting.alike,
        )

    def _reason(self, kind: TriggerKind, hit: Hit) -> str:
        if kind == "log_severity":
            return hit.message or (f"log record {hit.name}" if hit.name else "error log")
        if kind == "span_latency":
            took_s = (hit.end_unix_ns - hit.start_unix_ns) / 1e9
            return f"span {hit.name} took {took_s:.3f} s, at least {(self._rules.longer_than_ns or 0) / 1e9:g} s"
        return hit.message or f"span {hit.name} ended with status ERROR"

    def _tell(self, kind: TriggerKind, waiting: _Waiting, service: str, why: str) -> None:
        """One line a minute at most, with the number of those in between."""
        now, hit = self._monotonic(), waiting.hit
        with self._condition:
            if self._logged_s is not None and now - self._logged_s < _LOG_S:
                self._unlogged += waiting.hits
                return
            between = f" ({self._unlogged} more since the last such line)" if self._unlogged else ""
            self._logged_s, self._unlogged = now, waiting.hits - 1
        what = f"{kind} {hit.name or hit.message}"[:120]
        of = f" of service {service[:80]}" if service else ""
        _log.warning("no dump for %s%s: %s%s", printable(what), printable(of), printable(why), between)


def _times(hit: Hit) -> tuple[int, int]:
    """A span that never ended, or ended before it began, has no time to compare with."""
    return (hit.start_unix_ns, hit.end_unix_ns) if hit.end_unix_ns >= hit.start_unix_ns else (0, 0)
