# SPDX-License-Identifier: Apache-2.0
"""How many datagrams of one sender are looked at: in a storm the rest are counted unread.

What it is not: hold-off (manners.py), which knows what a firing is about. Facts: a datagram costs some 50 us to read,
check and judge, and a wake-up 10 us; a program that fails 10,000 times a second would take half a core of us.
Decision: after ``most`` of one sender within a second, its further ones are taken off the queue and only counted, and
the queue is looked at every 2 ms instead of at each datagram.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Pace"]

_SENDERS_MAX: Final = 4096
_WINDOW_S: Final = 1.0


class Pace:
    """Counts senders within windows of a second. Not thread-safe."""

    def __init__(self, most: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._until_s = 0.0
        self._seen: dict[int, int] = {}
        self._skipped = 0

    def takes(self, pid: int) -> bool:
        """Whether this datagram of the sender is looked at."""
        now_s = self._clock()
        if now_s >= self._until_s:
            self._seen.clear()
            self._until_s = now_s + _WINDOW_S
        seen = self._seen.get(pid, 0) + 1
        if len(self._seen) < _SENDERS_MAX or seen > 1:
            self._seen[pid] = seen
        if seen <= self._most:
            return True
        self._skipped += 1
        return False

    @property
    def storming(self) -> bool:
        """Whether a sender is over its count now."""
        return self._skipped > 0

    def take_skipped(self) -> int:
        """How many were not looked at, once the window is over; 0 before that."""
        if not self._skipped or self._clock() < self._until_s:
            return 0
        skipped, self._skipped = self._skipped, 0
        return skipped
