# SPDX-License-Identifier: Apache-2.0
"""A bounded queue between dumps and one exporter: order, streams, retry, halving. What it is not: it writes no disk.

Facts: receivers refuse for seconds (memory_limiter, FACTS 28); one connection does not fill a Collector (FACTS 36); a
dump's header chunk must be there before the rest (CONTRACT section 3).
Decision: a payload's chunks are tasks; its first is sent alone, then the others by any free stream. A stream that waits
to retry waits with its chunk, as a Collector's consumer does, so an outage costs at most ``num_consumers`` requests a
back-off. What is in memory is bounded by requests and by bytes; what is kept in the spool by the spool, and is read
when its turn comes.
Cost: one chunk that is refused for minutes holds one stream, not the queue.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.answers import clipped
from otel_perfbuf.exporters.backoff import Backoff
from otel_perfbuf.exporters.clock import Clock, MonotonicClock
from otel_perfbuf.exporters.delivery import Counts, Done, Leftover, Outcome, QueueStats
from otel_perfbuf.exporters.item import Item, Kept, KeptFault
from otel_perfbuf.exporters.ledger import Ledger
from otel_perfbuf.exporters.options import QueueOptions, RetryOptions
from otel_perfbuf.exporters.payload import Chunk, Exporter, Payload, Signal
from otel_perfbuf.exporters.split import halves

__all__ = ["Clock", "Counts", "Done", "Leftover", "MonotonicClock", "Outcome", "QueueStats", "SendingQueue"]

_log = logging.getLogger(__name__)
_DRAIN_WAIT_S: Final = 0.5  # between attempts while draining, whatever the receiver asks for
_JOIN_S: Final = 0.2  # after the deadline: for threads that return at once when their connection is closed


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
        # The default bound is for what lies in memory. On disk a dump outlives any outage, until there is no room.
        unbounded = {"max_elapsed_time": 0.0} if "max_elapsed_time" not in self._retry.model_fields_set else {}
        self._kept_retry = self._retry.model_copy(update=unbounded)
        self._options = queue or QueueOptions()
        self._timeout_s = timeout_s
        self._clock = clock or MonotonicClock()
        self._spread = spread
        self._changed = threading.Condition()
        self._ledger = Ledger(self._options)
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
        item = Item.of(payload, done)
        with self._changed:
            full = not self._ledger.has_room(item)
            taken = not self._closed and not full
            if taken and item.chunks:
                self._ledger.append(item)
                self._changed.notify_all()
                return True
            if not taken:
                item.error = f"{self._name}: the sending queue is {'full' if full else 'closed'}"
                for index in range(len(item.chunks)):
                    self._ledger.count(item, index, "dropped")
        self._finish(item)
        return taken

    def put_kept(self, kept: Kept, done: Done | None = None) -> None:
        """Takes a payload that is kept in the spool: whatever its size, and it stays there if the queue ends first.

        ``done`` is called once, with a payload that has only its id, when all of it is settled or the spool drops it.
        """
        item = Item.of_kept(kept, done)
        with self._changed:
            if self._closed:
                return
            if item.chunks:
                self._ledger.append(item)
                self._changed.notify_all()
        if not item.chunks:
            self._finish(item)
            return
        kept.on_drop(lambda: self._dropped(item))

    def stats(self) -> QueueStats:
        """The counts so far and what is queued, as of one moment."""
        with self._changed:
            return self._ledger.stats()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything that was put is settled; False after ``timeout_s``. Back-offs are not cut short."""
        deadline = self._clock.monotonic() + timeout_s
        with self._changed:
            while self._ledger.items:
                left_s = deadline - self._clock.monotonic()
                if left_s <= 0:
                    return False
                self._clock.wait(self._changed, left_s)
        return True

    def drain(self, deadline_s: float) -> Leftover:
        """Takes nothing more, sends what it can within ``deadline_s``, drops the rest, stops threads and exporter.

        What is kept in the spool stays there, told of in the sentence. Waits for a retry are cut short meanwhile. A
        second call gives an empty Leftover.
        """
        with self._changed:
            self._closed = True
            if self._deadline is None:
                self._deadline = self._clock.monotonic() + deadline_s
            self._changed.notify_all()
            while self._ledger.items and (left_s := self._deadline - self._clock.monotonic()) > 0 and self._threads:
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

    def _take(self) -> tuple[Item, int] | None:
        """The oldest chunk that may go now; None when the queue is closed and nothing is left to take."""
        with self._changed:
            while True:
                for item in self._ledger.items:
                    if item.taken < len(item.chunks) and (item.opened or item.taken == 0):
                        item.taken += 1
                        return item, item.taken - 1
                if self._closed and not self._ledger.items:
                    return None
                self._clock.wait(self._changed, None)

    def _deliver(self, item: Item, index: int) -> None:
        """Sends one chunk, in halves where the receiver finds it too large, until it is settled."""
        try:
            pieces = deque([item.load(index)])
        except KeptFault as fault:
            self._settle(item, index, "dropped", str(fault))
            return
        backoff, began = self._fresh(item), self._clock.monotonic()
        while pieces:
            if item.doomed:
                self._settle(item, index, "failed", item.error)
                return
            timeout_s = self._timeout_s
            if self._deadline is not None:
                timeout_s = min(timeout_s, self._deadline - self._clock.monotonic())
            if timeout_s <= 0:
                return  # drain counts it
            piece = pieces.popleft()
            try:
                rejected = self._exporter.send(piece, timeout_s)
            except ExportError as fault:
                if fault.too_large and (cut := halves(piece)) is not None:
                    pieces.extendleft(reversed(cut))
                elif not fault.retryable:
                    self._piece(item, index, piece, "failed", str(fault))
                else:
                    wait_s = backoff.next_wait_s(self._clock.monotonic() - began, fault.retry_after_s)
                    if wait_s is None:
                        item.doomed = index == 0
                        self._settle(item, index, "failed", str(fault))
                        return
                    item.error = str(fault)
                    self._say(item, f"{fault}", wait_s)
                    if not self._pause(item, index, wait_s):
                        return
                    pieces.appendleft(piece)
            else:
                self._piece(item, index, piece, "sent", None, rejected)
                if pieces:  # an acknowledged half shows that the receiver is there
                    backoff, began = self._fresh(item), self._clock.monotonic()
        self._settle(item, index, "sent", None)

    def _fresh(self, item: Item) -> Backoff:
        return Backoff(self._retry if item.kept is None else self._kept_retry, self._spread)

    def _pause(self, item: Item, index: int, wait_s: float) -> bool:
        """Waits before a retry, in a drain only shortly. False: the chunk was settled meanwhile."""
        since = self._clock.monotonic()
        with self._changed:
            while index not in item.settled:
                until = since + (wait_s if self._deadline is None else min(wait_s, _DRAIN_WAIT_S))
                if (left_s := until - self._clock.monotonic()) <= 0:
                    return True
                self._clock.wait(self._changed, left_s)
        return False

    def _piece(self, item: Item, index: int, piece: Chunk, outcome: str, error: str | None, rejected: int = 0) -> None:
        """Counts what became of a chunk or a part of it."""
        with self._changed:
            if index in item.settled:
                return
            rejected = min(max(rejected, 0), piece.records)
            self._ledger.count(item, index, "rejected", rejected)
            self._ledger.count(item, index, outcome, piece.records - rejected)
            item.error = error or item.error
        if error is not None:
            _log.warning("%s; given up", error)
            return
        self._failing = False
        if rejected:
            _log.warning("%s: the receiver rejected %d of %d records", self._name, rejected, piece.records)

    def _settle(self, item: Item, index: int, outcome: str, error: str | None) -> None:
        """Ends a chunk; what of its records is in no count yet gets ``outcome``."""
        with self._changed:
            if index in item.settled:
                return
            left = item.records_left(index)
            self._ledger.count(item, index, outcome)
            item.error = error or item.error
            failed = item.outcome().error is not None
            self._ledger.close(item, index)
            finished = len(item.settled) == len(item.chunks)
            self._changed.notify_all()
        if left and outcome != "sent":
            _log.warning("%s; given up", error)
        if item.kept is not None:
            item.kept.settle(index, delivered=not failed)
        if finished:
            self._finish(item)
            self._remove(item)

    def _remove(self, item: Item) -> None:
        with self._changed:  # only now: who flushes may rely on the listener's having been called
            if item in self._ledger.items:
                self._ledger.items.remove(item)
            self._changed.notify_all()

    def _dropped(self, item: Item) -> bool:
        """The spool gave the payload up: what of it is not settled is dropped. False: it is not here any more."""
        with self._changed:
            if item not in self._ledger.items:
                return False
            item.error = f"{self._name}: the spool was full, and the oldest dump was dropped"
            self._ledger.drop(item)
            self._changed.notify_all()
        self._finish(item)
        self._remove(item)
        return True

    def _drop_rest(self) -> tuple[list[Item], Leftover]:
        """Ends all that is queued: kept payloads stay where they are, the rest is dropped. The condition is held."""
        dropped: dict[Signal, int] = {"logs": 0, "traces": 0}
        cause = None
        items = list(self._ledger.items)
        self._ledger.items.clear()
        memory = [item for item in items if item.kept is None]
        for item in items:
            if item.kept is None:
                for signal, records in self._ledger.drop(item).items():
                    dropped[signal] += records
                cause = item.error or cause
            else:
                self._ledger.leave(item)
        self._changed.notify_all()
        kept = len(items) - len(memory)
        sentences = []
        if any(dropped.values()):
            sentences.append(
                f"{dropped['logs']} log records and {dropped['traces']} spans could not be sent in time and are "
                f"dropped ({clipped(cause or 'the receiver did not answer in time')})"
            )
        if kept:
            sentences.append(f"{kept} dump{' stays' if kept == 1 else 's stay'} in the spool for the next start")
        sentence = f"stopping {self._name}: {'; '.join(sentences)}" if sentences else ""
        return memory, Leftover(dropped["logs"], dropped["traces"], sentence, kept)

    def _finish(self, item: Item) -> None:
        with self._changed:
            if item.finished:
                return
            item.finished = True
        if item.done is None:
            return
        try:
            item.done(item.payload, item.outcome())
        except Exception as fault:  # noqa: BLE001 - nor of what a listener raises
            _log.warning("%s: a delivery's listener failed: %s", self._name, _described(fault))

    def _say(self, item: Item, cause: str, wait_s: float) -> None:
        """One sentence for each outage, not for each attempt."""
        if not self._failing:
            self._failing = True
            where = "memory" if item.kept is None else "the spool"
            _log.warning(
                "%s; it is kept in %s and tried again in %.1f s", cause, where, wait_s, extra={"tried_again": True}
            )


def _described(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
