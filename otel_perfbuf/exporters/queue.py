# SPDX-License-Identifier: Apache-2.0
"""A bounded queue between dumps and one exporter: order, streams, retry. What it is not: it keeps nothing on disk.

Facts: receivers refuse for seconds (memory_limiter, FACTS 28); one connection does not fill a Collector (FACTS 36); a
dump's header chunk must be there before the rest (CONTRACT section 3).
Decision: a payload's chunks are tasks; its first is sent alone, then the others by any free stream. A stream that waits
to retry waits with its chunk, as a Collector's consumer does, so an outage costs at most ``num_consumers`` requests a
back-off. Everything else stays in memory, bounded by requests and by bytes.
Cost: one chunk that is refused for minutes holds one stream, not the queue.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.backoff import Backoff
from otel_perfbuf.exporters.delivery import Counts, Done, Leftover, Outcome, QueueStats
from otel_perfbuf.exporters.options import QueueOptions, RetryOptions
from otel_perfbuf.exporters.payload import Chunk, Exporter, Payload, Signal

__all__ = ["Clock", "Counts", "Done", "Leftover", "MonotonicClock", "Outcome", "QueueStats", "SendingQueue"]

_log = logging.getLogger(__name__)
_DRAIN_WAIT_S: Final = 0.5  # between attempts while draining, whatever the receiver asks for
_JOIN_S: Final = 0.2  # after the deadline: for threads that return at once when their connection is closed


class Clock(Protocol):
    """Time and waiting, so that tests need neither."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Waits on a held condition for a notification or ``timeout_s``; may return early."""


class MonotonicClock:
    """The host's own."""

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """condition.wait."""
        condition.wait(timeout_s)


@dataclass(slots=True)
class _Item:
    """A payload on its way. Guarded by the queue's condition."""

    payload: Payload
    done: Done | None
    taken: int = 0  # chunks given to a stream so far, in order
    opened: bool = False  # the first chunk is settled: the others may go
    doomed: bool = False  # the receiver was away for too long: the rest is not tried
    finished: bool = False  # its listener was called
    settled: set[int] = field(default_factory=set)
    counts: dict[Signal, Counts] = field(default_factory=lambda: {"logs": Counts(), "traces": Counts()})
    error: str | None = None


class SendingQueue:
    """Sends payloads through ``exporter`` from threads of its own. Nothing here raises what the exporter raises.

    ``name`` is the exporter's id in sentences. ``timeout_s`` bounds one attempt. ``put``, ``flush``, ``stats`` may be
    used from any thread.
    """

    def __init__(
        self,
        exporter: Exporter,
        *,
        name: str,
        retry: RetryOptions | None = None,
        queue: QueueOptions | None = None,
        timeout_s: float = 60.0,
        clock: Clock | None = None,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._exporter = exporter
        self._name = name
        self._retry = retry or RetryOptions()
        self._options = queue or QueueOptions()
        self._timeout_s = timeout_s
        self._clock = clock or MonotonicClock()
        self._spread = spread
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._totals: dict[Signal, Counts] = {"logs": Counts(), "traces": Counts()}
        self._chunks = 0
        self._bytes = 0
        self._threads: list[threading.Thread] = []
        self._deadline: float | None = None  # set by drain: no attempt goes beyond it
        self._closed = False
        self._failing = False

    def start(self) -> None:
        """Starts the exporter (what it raises comes through), then the streams."""
        self._exporter.start()
        for number in range(self._options.num_consumers):
            thread = threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def put(self, payload: Payload, done: Done | None = None) -> bool:
        """Takes a payload and never blocks; False: no room (or draining), and its records are counted as dropped.

        A payload that alone is larger than the queue is taken when the queue is empty. ``done`` is called once, also
        for one that is not taken.
        """
        size_bytes = sum(len(chunk.body) for chunk in payload.chunks)
        item = _Item(payload, done)
        with self._changed:
            full = self._items and (
                self._chunks + len(payload.chunks) > self._options.queue_size
                or self._bytes + size_bytes > self._options.max_bytes
            )
            taken = not self._closed and not full
            if taken and payload.chunks:
                self._items.append(item)
                self._chunks += len(payload.chunks)
                self._bytes += size_bytes
                self._changed.notify_all()
                return True
            if not taken:
                item.error = f"{self._name}: the sending queue is {'full' if full else 'closed'}"
                for chunk in payload.chunks:
                    self._count(item, chunk.signal, "dropped", chunk.records)
        self._finish(item)
        return taken

    def stats(self) -> QueueStats:
        """The counts so far and what is queued, as of one moment."""
        with self._changed:
            logs, traces = (_copied(self._totals[signal]) for signal in ("logs", "traces"))
            return QueueStats(logs, traces, self._chunks, self._options.queue_size, self._bytes)

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything that was put is settled; False after ``timeout_s``. Back-offs are not cut short."""
        deadline = self._clock.monotonic() + timeout_s
        with self._changed:
            while self._items:
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    return False
                self._clock.wait(self._changed, left_s)
        return True

    def drain(self, deadline_s: float) -> Leftover:
        """Takes nothing more, sends what it can within ``deadline_s``, drops the rest, stops threads and exporter.

        Waits for a retry are cut short meanwhile. A second call gives an empty Leftover.
        """
        with self._changed:
            self._closed = True
            if self._deadline is None:
                self._deadline = self._clock.monotonic() + deadline_s
            self._changed.notify_all()
            while self._items and (left_s := self._deadline - self._clock.monotonic()) > 0 and self._threads:
                self._clock.wait(self._changed, left_s)
            items, left = self._drop_rest()
        for item in items:
            self._finish(item)
        try:
            self._exporter.stop()
        except Exception as fault:  # noqa: BLE001 - a plug-in's stop() must not hide what was dropped
            _log.warning("stopping %s failed: %s", self._name, _described(fault))
        for thread in self._threads:
            thread.join(_JOIN_S)
        return left

    # Below here: the streams.

    def _run(self) -> None:
        while (task := self._take()) is not None:
            item, index = task
            try:
                self._deliver(item, index)
            except BaseException as fault:  # noqa: BLE001 - a stream never dies of what an exporter raises
                self._settle(item, index, "failed", f"{self._name}: {_described(fault)}")

    def _take(self) -> tuple[_Item, int] | None:
        """The oldest chunk that may go now; None when the queue is closed and nothing is left to take."""
        with self._changed:
            while True:
                for item in self._items:
                    if item.taken < len(item.payload.chunks) and (item.opened or item.taken == 0):
                        item.taken += 1
                        return item, item.taken - 1
                if self._closed and not self._items:
                    return None
                self._clock.wait(self._changed, None)

    def _deliver(self, item: _Item, index: int) -> None:
        """Sends one chunk until it is settled."""
        chunk = item.payload.chunks[index]
        backoff = Backoff(self._retry, self._spread)
        began = self._clock.monotonic()
        while not item.doomed:
            timeout_s = self._timeout_s
            if self._deadline is not None:
                timeout_s = min(timeout_s, self._deadline - self._clock.monotonic())
            if timeout_s <= 0:
                return  # drain counts it
            try:
                rejected = self._exporter.send(chunk, timeout_s)
            except ExportError as fault:
                wait_s = None
                if fault.retryable:
                    wait_s = backoff.next_wait_s(self._clock.monotonic() - began, fault.retry_after_s)
                if wait_s is None:
                    item.doomed = fault.retryable and index == 0
                    self._settle(item, index, "failed", str(fault))
                    return
                item.error = str(fault)
                self._say(f"{fault}; it is kept in memory and tried again in {wait_s:.1f} s")
                if not self._pause(item, index, wait_s):
                    return
            else:
                self._settle(item, index, "sent", None, rejected)
                return
        self._settle(item, index, "failed", item.error)

    def _pause(self, item: _Item, index: int, wait_s: float) -> bool:
        """Waits before a retry, in a drain only shortly. False: the chunk was settled meanwhile."""
        since = self._clock.monotonic()
        with self._changed:
            while index not in item.settled:
                until = since + (wait_s if self._deadline is None else min(wait_s, _DRAIN_WAIT_S))
                if (left_s := until - self._clock.monotonic()) <= 0:
                    return True
                self._clock.wait(self._changed, left_s)
        return False

    def _settle(self, item: _Item, index: int, outcome: str, error: str | None, rejected: int = 0) -> None:
        chunk = item.payload.chunks[index]
        with self._changed:
            if index in item.settled:
                return
            rejected = min(max(rejected, 0), chunk.records) if outcome == "sent" else 0
            self._count(item, chunk.signal, outcome, chunk.records - rejected)
            self._count(item, chunk.signal, "rejected", rejected)
            item.error = error or item.error
            self._close_chunk(item, index, chunk)
            finished = len(item.settled) == len(item.payload.chunks)
            self._changed.notify_all()
        if outcome == "sent":
            self._failing = False
            if rejected:
                _log.warning("%s: the receiver rejected %d of %d records", self._name, rejected, chunk.records)
        else:
            _log.warning("%s; given up", error)
        if finished:
            self._finish(item)
            with self._changed:  # only now: who flushes may rely on the listener's having been called
                if item in self._items:
                    self._items.remove(item)
                self._changed.notify_all()

    def _close_chunk(self, item: _Item, index: int, chunk: Chunk) -> None:
        item.settled.add(index)
        item.opened = True
        self._chunks -= 1
        self._bytes -= len(chunk.body)

    def _count(self, item: _Item, signal: Signal, outcome: str, records: int) -> None:
        for counts in (item.counts[signal], self._totals[signal]):
            setattr(counts, outcome, getattr(counts, outcome) + records)

    def _drop_rest(self) -> tuple[list[_Item], Leftover]:
        """Counts all that is not settled as dropped. The condition is held."""
        dropped: dict[Signal, int] = {"logs": 0, "traces": 0}
        cause = None
        items, self._items = list(self._items), deque()
        for item in items:
            for index, chunk in enumerate(item.payload.chunks):
                if index not in item.settled:
                    self._count(item, chunk.signal, "dropped", chunk.records)
                    dropped[chunk.signal] += chunk.records
                    self._close_chunk(item, index, chunk)
            cause = item.error or cause
        self._changed.notify_all()
        if not any(dropped.values()):
            return items, Leftover(0, 0, "")
        sentence = (
            f"stopping {self._name}: {dropped['logs']} log records and {dropped['traces']} spans could not be sent in "
            f"time and are dropped ({cause or 'the receiver did not answer in time'})"
        )
        return items, Leftover(dropped["logs"], dropped["traces"], sentence)

    def _finish(self, item: _Item) -> None:
        with self._changed:
            if item.finished:
                return
            item.finished = True
        if item.done is None:
            return
        outcome = Outcome(_copied(item.counts["logs"]), _copied(item.counts["traces"]), item.error)
        try:
            item.done(item.payload, outcome)
        except Exception as fault:  # noqa: BLE001 - nor of what a listener raises
            _log.warning("%s: a delivery's listener failed: %s", self._name, _described(fault))

    def _say(self, sentence: str) -> None:
        """One sentence for each outage, not for each attempt."""
        if not self._failing:
            self._failing = True
            _log.warning("%s", sentence)


def _copied(counts: Counts) -> Counts:
    return Counts(counts.sent, counts.failed, counts.rejected, counts.dropped)


def _described(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
