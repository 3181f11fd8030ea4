# SPDX-License-Identifier: Apache-2.0
"""Closing a reader from anywhere while others are inside. What it is not: it knows no rings.

Facts: ``close`` may come from another thread, or from a signal handler that runs in the very thread that waits.
Meaning: mappings and fds must stay until nobody uses them, and close may not wait for its own thread.
Decision: who is inside is counted by thread; the last one out releases; close waits for that unless itself inside.
  Going in and out takes no lock: a thread writes its own count and then looks whether the gate is closed; close closes
  and then looks at the counts. One of the two sees the other, since dictionaries and attributes change in one order
  for all threads. Who releases holds the lock.
  After a fork the child has the fds and not the mappings (the kernel does not copy perf's), and taking a ring out
  of the map would end the parent's recording: in the child nothing is used and nothing is released.
Cost: a system call, getpid, for each use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from threading import get_ident
from types import TracebackType

from otel_perfbuf.errors import ReaderClosed

__all__ = ["Gate"]


class Gate:
    """``with gate:`` around each use; raises ReaderClosed once ``close`` was called.

    ``wake`` must make everyone who waits inside come out soon; ``release`` is called once, when nobody is inside.
    """

    def __init__(self, wake: Callable[[], None], release: Callable[[], None]) -> None:
        self._wake = wake
        self._release = release
        # Re-entrant: a signal handler may call close() inside the few lines that hold it.
        self._changed = threading.Condition(threading.RLock())
        self._inside: dict[int, int] = {}
        self._pid = os.getpid()
        self._closed = False
        self._released = False

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return self._closed

    def __enter__(self) -> None:
        """Goes inside, or raises ReaderClosed."""
        if os.getpid() != self._pid:
            raise ReaderClosed(f"the reader belongs to process {self._pid}, which forked this one; open a new one")
        thread = get_ident()
        self._inside[thread] = self._inside.get(thread, 0) + 1
        if self._closed:
            self.__exit__(None, None, None)
            raise ReaderClosed("the reader was closed before this call; open a new one")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Goes outside; the last one out of a closed gate releases."""
        thread, inside = get_ident(), self._inside
        left = inside[thread] - 1
        # A signal handler may come between any two lines: there is never one inside who is not counted.
        if left:
            inside[thread] = left
        else:
            del inside[thread]
        if self._closed:
            with self._changed:
                self._release_once()

    def check(self) -> None:
        """Raises ReaderClosed when close was called meanwhile."""
        if self._closed:
            raise ReaderClosed("the reader was closed while this call waited")

    def close(self) -> None:
        """Closes; returns when everything is released, or at once when its own thread is inside. Twice is fine."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            if not self._closed:
                self._closed = True
                if self._inside:
                    self._wake()
            self._release_once()
            if get_ident() not in self._inside:
                self._changed.wait_for(lambda: self._released)

    def _release_once(self) -> None:
        if self._closed and not self._inside and not self._released:
            self._released = True
            try:
                self._release()
            finally:
                self._changed.notify_all()
