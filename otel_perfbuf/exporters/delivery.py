# SPDX-License-Identifier: Apache-2.0
"""What became of records on their way out, in numbers. What it is not: it sends nothing.

Words: STYLE.md (dropped: we gave up, a bound; rejected: the receiver refused). Source: CONTRACT section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from otel_perfbuf.exporters.payload import Payload

__all__ = ["Counts", "Done", "Leftover", "Outcome", "QueueStats"]


@dataclass(slots=True)
class Counts:
    """What became of records: each is counted once, in one of the four, or is still queued."""

    sent: int = 0
    failed: int = 0
    rejected: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one payload's log records and spans; ``error`` is the last failure's sentence."""

    logs: Counts
    traces: Counts
    error: str | None = None

    @property
    def delivered(self) -> bool:
        """Nothing of it failed or was dropped (rejected records do not count here)."""
        return not (self.logs.failed or self.logs.dropped or self.traces.failed or self.traces.dropped)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue at one moment. Sizes count requests (chunks) that are not settled yet."""

    logs: Counts
    traces: Counts
    queue_size: int
    queue_capacity: int
    queue_bytes: int


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a drain had to drop: log records and spans, and dumps that stay in the spool; ``sentence`` tells both."""

    records: int
    spans: int
    sentence: str
    kept: int = 0


Done = Callable[[Payload, Outcome], object]
"""Called once a payload, on one of the queue's threads or on the one that put or drained; must be short."""
