# SPDX-License-Identifier: Apache-2.0
"""Kernel time and wall-clock time. Source: clock_gettime(2); the programs stamp CLOCK_MONOTONIC (bpf_ktime_get_ns)."""

from __future__ import annotations

import time

__all__ = ["unix_offset_ns"]

_TRIES = 5


def unix_offset_ns() -> int:
    """Nanoseconds to add to a CLOCK_MONOTONIC time to get unix time, now.

    Both clocks are read a few times; the reading with the shortest way between them wins, so that being scheduled away
    in the middle does not shift a dump's times.
    """
    best_gap: int | None = None
    offset = 0
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        unix = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if best_gap is None or after - before < best_gap:
            best_gap = after - before
            offset = unix - (before + after) // 2
    return offset
