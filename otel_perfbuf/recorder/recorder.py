# SPDX-License-Identifier: Apache-2.0
"""From firings to dumps: which are joined, when the snapshot is taken, who gets the result.

What it is not: it knows no sockets and no wires; conditions are triggers', sending is exporters'. Source: DESIGN
section 6, CONTRACT section 3 (joining).

One thread makes all dumps: a firing that cannot join one in the making takes its snapshot at once and waits
``after_s`` (or until `settle`) for others to join; then, if it waited, a second snapshot is joined to the first.
Dumps that need a snapshot at the same time share one, and only a few snapshots are held at once, since each is as large
as all rings together: a service may fail a thousand times in those seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.triggers.firing import Firing, TriggerKind

from .capture import Capture
from .dump import Dump, DumpOptions, make_dump
from .source import HistorySource

__all__ = ["FlightRecorder", "Gate"]

_log = logging.getLogger(__name__)

_FIRINGS_MAX = 1000  # firings of one dump: each is a link of its span


class Gate(Protocol):
    """Hold-off and budget: whether a firing may make a dump of its own; called under the recorder's lock."""

    def admit(self, firing: Firing) -> bool:
        """False: it is counted as suppressed."""

    def spent(self, kind: TriggerKind) -> bool:
        """Whether no firing of this kind may make a dump now, whatever its key."""

    def suppress(self, kind: TriggerKind, count: int) -> None:
        """Counts occurrences that nobody could have asked for one by one."""

    def take_suppressed(self) -> int:
        """How many were suppressed since this was last called."""


@dataclass(slots=True, eq=False)
class _Making:
    """A dump in the making; ``captures`` is empty until its thread has taken the first snapshot.

    ``closed_unix_ns``: when its last snapshot began, None before that.
    """

    firings: list[Firing]
    deadline_s: float
    captures: list[Capture] = field(default_factory=list)
    closed_unix_ns: int | None = None
    done: Future[Dump] = field(default_factory=Future)


class FlightRecorder:
    """Makes the dumps of one history.

    ``emit`` gets every dump, in the recorder's own thread. ``gate`` None admits every firing. Owns neither the source
    nor what ``emit`` sends to.
    """

    def __init__(
        self,
        source: HistorySource,
        options: DumpOptions,
        emit: Callable[[Dump], object],
        *,
        after_s: float = 0.0,
        gate: Gate | None = None,
    ) -> None:
        self._source = source
        self._options = options
        self._emit = emit
        self._after_s = after_s
        self._gate = gate
        self._condition = threading.Condition()
        self._making: list[_Making] = []
        self._settled = self._stopping = False
        self._dumps = {"made": 0, "failed": 0}
        self._thread = threading.Thread(target=self._run, name="perfbuf-recorder", daemon=True)

    def start(self) -> None:
        """Begins to take firings."""
        self._thread.start()

    def fire(self, firing: Firing) -> Future[Dump] | None:
        """Takes a firing from any thread and returns at once: the dump it will be part of, or None (suppressed)."""
        with self._condition:
            if self._stopping:
                return None
            if firing.repeats and self._gate is not None:
                self._gate.suppress(firing.kind, firing.repeats)
            for making in self._making:
                if self._joins(firing, making):
                    if len(making.firings) < _FIRINGS_MAX:
                        making.firings.append(firing)
                    return making.done
            if self._gate is not None and not self._gate.admit(firing):
                return None
            making = _Making([firing], time.monotonic() + self._after_s)
            self._making.append(making)
            self._condition.notify_all()
            return making.done

    def suppress(self, kind: TriggerKind, count: int) -> None:
        """Counts occurrences that were not told one by one; see Gate.suppress."""
        with self._condition:
            if self._gate is not None:
                self._gate.suppress(kind, count)

    def sift(self, firing: Firing) -> tuple[list[Firing], int]:
        """Of a suppressed firing's alike those that may join a dump in the making, to be fired; the others, which are
        suppressed as it was: how many they are.
        """
        with self._condition:
            joining = self._may_join(firing)
            rest = (0 if firing.alike is None else len(firing.alike)) - len(joining)
            if self._gate is not None:
                self._gate.suppress(firing.kind, rest)
            return joining, rest

    def pass_over(self, firing: Firing) -> bool:
        """Suppresses all of the firing's alike, whatever their reasons: True if no firing of its kind can make a dump
        now and none of these join one. The firing itself is not looked at but for its kind and process.
        """
        with self._condition:
            if self._gate is None or firing.alike is None or not self._gate.spent(firing.kind):
                return False
            if self._may_join(firing):
                return False
            self._gate.suppress(firing.kind, len(firing.alike))
            return True

    def _may_join(self, firing: Firing) -> list[Firing]:
        """The firings of those of its alike that may join one of the dumps in the making; see `_joins`."""
        alike = firing.alike
        makings = [making.firings[0] for making in self._making if making.firings[0].kind != "manual"]
        if alike is None or not makings:
            return []
        traces = {first.span.trace_id for first in makings if first.span is not None}
        here = [first for first in makings if first.pid == firing.pid or self._options.root_pid is not None]
        of_process, without_span = bool(here), any(first.span is None for first in here)
        return [
            alike.firing(firing, row)
            for row in alike
            if without_span or (of_process if row.trace is None else row.trace in traces)
        ]

    def _joins(self, firing: Firing, making: _Making) -> bool:
        """It fired before the last snapshot, in the same trace, or, where one of both has no trace, in the same process
        (in ``record``: anything of CMD).
        """
        if making.closed_unix_ns is not None and firing.unix_ns > making.closed_unix_ns:
            return False
        first = making.firings[0]
        if firing.kind == "manual" or first.kind == "manual":
            return False
        if firing.span is not None and first.span is not None:
            return firing.span.trace_id == first.span.trace_id
        if firing.pid is None:
            return False
        return firing.pid == first.pid or self._options.root_pid is not None

    def settle(self) -> None:
        """Nothing more is to be waited for: dumps in the making are finished now, later ones do not wait."""
        with self._condition:
            self._settled = True
            self._condition.notify_all()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Finishes what is in the making and takes no more; False when that was not done within ``timeout_s``."""
        with self._condition:
            self._settled = self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> dict[str, Any]:
        """Counts for `otel-perfbuf status`."""
        with self._condition:
            without = sum(1 for making in self._making if not making.captures)
            return {
                "dumps": dict(self._dumps),
                "in_the_making": len(self._making),
                "without_snapshot": without,
            }

    def _run(self) -> None:
        while (step := self._next()) is not None:
            act, makings = step
            try:
                act(makings)
            except Exception as error:  # noqa: BLE001  the recorder outlives any one dump
                self._fail(makings, error)

    def _next(self) -> tuple[Callable[[list[_Making]], None], list[_Making]] | None:
        """A snapshot for all that need one, or the end of one that has its last; None when nothing more can come."""
        with self._condition:
            while True:
                now = time.monotonic()
                closed = [making for making in self._making if making.closed_unix_ns is not None]
                waiting = [
                    making
                    for making in self._making
                    if making.closed_unix_ns is None and (not making.captures or self._is_due(making, now))
                ]
                if waiting and not (closed and len(self._held()) >= self._source.captures_max):
                    return self._snapshot, waiting
                if closed:
                    return self._finish, closed[:1]
                if self._stopping:
                    return None
                wait = min((making.deadline_s for making in self._making), default=now + 3600) - now
                self._condition.wait(wait)

    def _is_due(self, making: _Making, now_s: float) -> bool:
        return self._settled or making.deadline_s <= now_s

    def _held(self) -> dict[int, Capture]:
        return {capture.taken_ns: capture for making in self._making for capture in making.captures}

    def _snapshot(self, makings: list[_Making]) -> None:
        """One snapshot for all of ``makings``; the last one of those that are due."""
        with self._condition:
            now, unix_ns, held = time.monotonic(), time.time_ns(), self._held()
            due = [making for making in makings if self._is_due(making, now)]
            if len(held) >= self._source.captures_max:
                # Their last snapshot will be their own; what is lost is only what the rings overwrite until then.
                for making in makings:
                    if making not in due:
                        making.captures.append(held[max(held)])
                makings = due
            for making in due:
                making.closed_unix_ns = unix_ns
        if makings:
            capture = self._source.capture(_pids_of(makings))
            with self._condition:
                for making in makings:
                    making.captures.append(capture)

    def _fail(self, makings: list[_Making], error: Exception) -> None:
        with self._condition:
            self._dumps["failed"] += len(makings)
            self._making = [making for making in self._making if making not in makings]
        for making in makings:
            making.done.set_exception(error)
        level = logging.ERROR if isinstance(error, PerfbufError | OSError) else logging.CRITICAL
        _log.log(level, "making the dump of %s: %s", makings[0].firings[0].kind, error, exc_info=level > 40)

    def _finish(self, makings: list[_Making]) -> None:
        making = makings[0]
        with self._condition:
            # From here on nothing joins it.
            self._making.remove(making)
            suppressed = self._gate.take_suppressed() if self._gate is not None else 0
        firings = sorted(making.firings, key=lambda firing: firing.span is None)
        losses = self._source.losses(making.captures)
        dump = make_dump(
            making.captures,
            firings,
            self._options,
            plan=self._source.plan,
            started_ns=self._source.started_ns,
            losses=replace(losses, suppressed=suppressed),
            fd_names=self._source.names_fds,
        )
        with self._condition:
            self._dumps["made"] += 1
        self._emit(dump)
        making.done.set_result(dump)


def _pids_of(makings: Iterable[_Making]) -> set[int] | None:
    """Whose fds a snapshot looks at; None: of all, since a firing names no process."""
    pids = {firing.pid for making in makings for firing in making.firings}
    return None if None in pids else {pid for pid in pids if pid is not None}
