# SPDX-License-Identifier: Apache-2.0
"""How long to wait before a request is sent again. What it is not: a clock; it only computes.

Source: exporterhelper's retry sender: growing intervals, spread at random, at least what the receiver asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from otel_perfbuf.exporters.options import RetryOptions

__all__ = ["Backoff"]


class Backoff:
    """The waits of one request from its first attempt on."""

    def __init__(self, options: RetryOptions, random: Callable[[], float]) -> None:
        """``random`` gives numbers in [0, 1)."""
        self._options = options
        self._random = random
        self._interval_s = min(options.initial_interval, options.max_interval)

    def next_wait_s(self, elapsed_s: float, asked_s: float | None) -> float | None:
        """Seconds to wait now, or None when the request is to be given up.

        ``elapsed_s``: since the first attempt; ``asked_s``: what the receiver asked for, which is waited at least.
        """
        options = self._options
        if not options.enabled:
            return None
        spread = options.randomization_factor * (2 * self._random() - 1)
        wait_s = max(self._interval_s * (1 + spread), asked_s or 0.0)
        if options.max_elapsed_time and elapsed_s + wait_s > options.max_elapsed_time:
            return None
        self._interval_s = min(self._interval_s * options.multiplier, options.max_interval)
        return wait_s
