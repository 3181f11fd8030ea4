# SPDX-License-Identifier: Apache-2.0
"""What is in a sending queue and what became of it, in numbers. What it is not: it has no lock; the queue's guards it.

Each record is counted once, in one of the words of Counts, or is still queued.
"""

from __future__ import annotations

from collections import deque

from otel_perfbuf.exporters.delivery import Counts, QueueStats
from otel_perfbuf.exporters.item import Item, copied
from otel_perfbuf.exporters.options import QueueOptions
from otel_perfbuf.exporters.payload import Signal

__all__ = ["Ledger"]


class Ledger:
    """The items of one queue, oldest first, and the totals of all there ever were."""

    def __init__(self, options: QueueOptions) -> None:
        self.items: deque[Item] = deque()
        self._options = options
        self._totals: dict[Signal, Counts] = {"logs": Counts(), "traces": Counts()}
        self._memory_chunks = self._kept_chunks = self._bytes = 0

    def has_room(self, item: Item) -> bool:
        """Whether one more fits into memory; an empty queue takes one of any size."""
        return not self._memory_chunks or (
            self._memory_chunks + len(item.chunks) <= self._options.queue_size
            and self._bytes + item.size_bytes <= self._options.max_bytes
        )

    def append(self, item: Item) -> None:
        """Takes one in, as the newest."""
        self.items.append(item)
        if item.kept is None:
            self._memory_chunks += len(item.chunks)
        else:
            self._kept_chunks += len(item.chunks)
        self._bytes += item.size_bytes

    def count(self, item: Item, index: int, outcome: str, records: int | None = None) -> None:
        """Counts ``records`` of a chunk (None: all that are in no count yet)."""
        left = item.records_left(index)
        records = left if records is None else min(records, left)
        item.left[index] = left - records
        signal = item.chunks[index].signal
        for counts in (item.counts[signal], self._totals[signal]):
            setattr(counts, outcome, getattr(counts, outcome) + records)

    def close(self, item: Item, index: int) -> None:
        """A chunk is settled: it takes no room any more, and the others of its payload may go."""
        item.settled.add(index)
        item.opened = True
        if item.kept is None:
            self._memory_chunks -= 1
            self._bytes -= item.chunks[index].size_bytes
        else:
            self._kept_chunks -= 1

    def drop(self, item: Item) -> dict[Signal, int]:
        """Counts all of an item that is not settled as dropped; gives how many."""
        dropped: dict[Signal, int] = {"logs": 0, "traces": 0}
        for index, chunk in enumerate(item.chunks):
            if index not in item.settled:
                dropped[chunk.signal] += item.records_left(index)
                self.count(item, index, "dropped")
                self.close(item, index)
        return dropped

    def leave(self, item: Item) -> None:
        """Ends an item here without a count: it stays in the spool."""
        for index in range(len(item.chunks)):
            if index not in item.settled:
                self.close(item, index)

    def stats(self) -> QueueStats:
        """The numbers as of now."""
        logs, traces = copied(self._totals["logs"]), copied(self._totals["traces"])
        chunks = self._memory_chunks + self._kept_chunks
        return QueueStats(logs, traces, chunks, self._options.queue_size, self._bytes)
