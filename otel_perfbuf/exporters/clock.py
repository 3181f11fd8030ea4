# SPDX-License-Identifier: Apache-2.0
"""Time and waiting of the sending queue, so that tests need neither. What it is not: wall-clock time."""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock"]


class Clock(Protocol):
    """Time and waiting."""

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
