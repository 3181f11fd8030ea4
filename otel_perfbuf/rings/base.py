# SPDX-License-Identifier: Apache-2.0
"""What every reader has: waiting, flush, asyncio, turns, stats, closing. What it is not: it knows no ring.

Facts: a perf ring's wake-up is reported once, unread data is not reported again, and data from before the registration
  never (FACTS 10). Decision: all rings are looked at when the reader is new, at every wake-up and at every timeout.
Source: CONTRACT section 6.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self

from otel_perfbuf.errors import ConfigError, NotOverwritable, ReaderClosed
from otel_perfbuf.rings.aio import readable
from otel_perfbuf.rings.batch import Batch
from otel_perfbuf.rings.gate import Gate

__all__ = ["ReaderBase", "ReaderStats", "Waiting"]


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """What a reader has seen since it was opened.

    ``lost``: as the LOST records say that were read; ``kernel_lost``: as the kernel counts now (None before Linux 6.0,
    and where it does not count).
    """

    batches: int = 0
    samples: int = 0
    lost: int = 0
    kernel_lost: int | None = None
    overwritten_bytes: int = 0
    truncated: int = 0
    malformed: int = 0
    unknown: int = 0


COUNTED = [field.name for field in fields(ReaderStats) if field.name != "kernel_lost"]


class Waiting:
    """The fds that a reader waits for, and the one that wakes it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False
        self._epoll.register(self._event, select.EPOLLIN)

    def add(self, fd: int) -> None:
        """Waits for this fd too; it is borrowed."""
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Waits for it no more; one that is not there is fine."""
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(fd)

    def fileno(self) -> int:
        """Readable when one of them is."""
        return self._epoll.fileno()

    def wake(self) -> None:
        """Ends a wait."""
        # In this order: an event without its mark ends one wait too many, a mark without its event would hide it.
        os.eventfd_write(self._event, 1)
        self._woken = True

    def wait(self, deadline: float | None) -> bool:
        """Returns True when one of them is readable, False at the deadline (time.monotonic's; None: never)."""
        if deadline is None:
            events = self._epoll.poll(maxevents=1)
        else:
            events = self._epoll.poll(max(0.0, deadline - time.monotonic()), maxevents=1)
        for fd, what in events:
            if what & (select.EPOLLHUP | select.EPOLLERR) and not what & select.EPOLLIN:
                # Its CPU has gone, and this would be reported for ever.
                self.remove(fd)
        return bool(events)

    def pause(self, seconds: float) -> None:
        """Waits for the waking only."""
        select.select([self._event], [], [], seconds)

    def clear(self) -> None:
        """Forgets a waking."""
        if self._woken:
            self._woken = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event)

    def close(self) -> None:
        """Gives its fds back; not those that were added."""
        self._epoll.close()
        os.close(self._event)


class ReaderBase:
    """A reader without its rings. A subclass fills ``_opened`` with what is to be given back, then calls ``_start``.

    ``what``: the ring or map for messages. Everything below may be called from any thread; reads take turns.
    """

    overwritable: bool

    def __init__(self, *, overwritable: bool) -> None:
        self.overwritable = overwritable
        self._what = "the ring"
        # ReaderStats' fields; counted in place, since a copy of the whole for each batch is felt.
        self._counts = dict.fromkeys(COUNTED, 0)
        self._turn = threading.Lock()
        self._flush = threading.Event()
        self._fresh = True  # data from before the registration is not reported: look before the first wait
        self._opened = contextlib.ExitStack()

    def _start(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._gate = Gate(waiting.wake, self._opened.close)

    # ---- what a subclass gives ----

    def _take(self) -> Batch:
        """A batch of what is there, without waiting; in its turn."""
        raise NotImplementedError

    def _has_more(self) -> bool:
        """Whether something may wait that no wake-up will report."""
        return self._fresh

    def _prepare(self) -> None:
        """Called in turn before and after each wait."""

    def _retry_after_s(self) -> float | None:
        """Not None: data is there but not ready, and no fd says when; look again after so long."""
        return None

    # ---- forward ----

    def read(self, timeout: float | None = None, *, deadline: float | None = None) -> Batch:
        """Waits until there is enough to be woken for, and gives what all rings hold by then.

        At the timeout (seconds; None = none; 0 = do not wait), or the deadline (time.monotonic's seconds), it gives
        what is there, below any watermark: an empty batch when there is nothing. A batch holds at most some 256 KiB of
        each ring; the next call gives the rest at once. Raises ReaderClosed when the reader is closed meanwhile,
        NotOverwritable when it is an overwritable one.
        """
        self._need_forward("read")
        at_once = timeout is not None and timeout <= 0
        if timeout is not None:
            end = time.monotonic() + timeout
            deadline = end if deadline is None else min(end, deadline)
        with self._gate, self._turn:
            while True:
                self._gate.check()
                self._prepare()
                # A wait of no time is left out, unless it has to take what a flush left.
                if self._has_more() or (at_once and not self._flush.is_set()):
                    batch = self._drain()
                    if len(batch):
                        return batch
                timed_out = not self._wait(deadline)
                self._gate.check()
                self._prepare()
                flushed = self._end_flush()
                batch = self._drain()
                if len(batch) or timed_out or flushed:
                    return batch

    def flush(self) -> Batch:
        """Gives what is there, below any watermark, without waiting.

        When another thread waits in ``read``, that one wakes and gets it, and this batch is empty.
        """
        self._need_forward("flush")
        with self._gate:
            self._flush.set()
            self._waiting.wake()
            if not self._turn.acquire(blocking=False):
                return Batch.empty()
            try:
                self._end_flush()
                return self._drain()
            finally:
                self._turn.release()

    def __aiter__(self) -> Self:
        """The reader: ``async for batch in reader``."""
        self._need_forward("async for")
        return self

    async def __anext__(self) -> Batch:
        """The next batch that is not empty; ends when the reader is closed. One task at a time."""
        try:
            # Inside the gate while it waits: close must not take the fd away under the loop.
            with self._gate:
                while True:
                    if not self._has_more():
                        await readable(self._waiting.fileno(), self._retry_after_s())
                    batch = self.read(0)
                    if len(batch):
                        return batch
        except ReaderClosed:
            raise StopAsyncIteration from None

    def _need_forward(self, call: str) -> None:
        if self.overwritable:
            raise NotOverwritable(f"{call} of an overwritable reader of {self._what}: use snapshot()")

    def _wait(self, deadline: float | None) -> bool:
        retry = self._retry_after_s()
        if retry is None:
            return self._waiting.wait(deadline)
        left = retry if deadline is None else deadline - time.monotonic()
        if left > 0:
            self._waiting.pause(min(left, retry))
        return left > 0

    def _end_flush(self) -> bool:
        # First the event, then the flag: a flush between the two joins this one, and no event stays behind unread.
        self._waiting.clear()
        flushed = self._flush.is_set()
        self._flush.clear()
        return flushed

    def _drain(self) -> Batch:
        self._fresh = False
        return self._account(self._take())

    def _account(self, batch: Batch) -> Batch:
        counts, walk = self._counts, batch.walk
        counts["batches"] += 1
        counts["samples"] += walk.frames - walk.lost_frames
        counts["lost"] += walk.lost
        counts["truncated"] += walk.truncated
        counts["malformed"] += walk.malformed
        counts["unknown"] += walk.unknown
        if self.overwritable:
            counts["overwritten_bytes"] += batch.overwritten_bytes
        return batch

    # ---- overwritable ----

    def _snapshot(self, since: str, take: Callable[[bool], Batch]) -> Batch:
        if since not in ("last", "all"):
            raise ConfigError(f"since is {since!r}; give 'last' or 'all'")
        with self._gate, self._turn:
            self._gate.check()
            self._prepare()
            return self._account(take(since == "all"))

    # ---- both ----

    def fileno(self) -> int:
        """An fd that is readable when ``read(0)`` is worth a call: for select, epoll, or asyncio's add_reader."""
        with self._gate:
            return self._waiting.fileno()

    @property
    def stats(self) -> ReaderStats:
        """Counts since the reader was opened; ReaderClosed after close."""
        with self._gate:
            return ReaderStats(**self._counts)

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return self._gate.closed

    def close(self) -> None:
        """Gives everything back; batches stay valid.

        Wakes a blocked ``read``, which raises ReaderClosed, and returns when it has. A second close is fine.
        """
        self._gate.close()

    def __enter__(self) -> Self:
        """The reader, which the with block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    def __del__(self) -> None:
        """Closes what was forgotten, with a ResourceWarning."""
        gate: Any = getattr(self, "_gate", None)
        if gate is not None and not gate.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            with contextlib.suppress(OSError, ReaderClosed):
                gate.close()
