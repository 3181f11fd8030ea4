# SPDX-License-Identifier: Apache-2.0
"""A payload on its way through a sending queue, in memory or kept on disk. What it is not: it sends nothing.

A kept payload (a dump in the spool) is read chunk by chunk when it is sent: an outage costs disk, not
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from otel_perfbuf.exporters.delivery import Counts, Done, Outcome
from otel_perfbuf.exporters.payload import Chunk, Payload, Signal

__all__ = ["ChunkInfo", "Item", "Kept", "KeptFault", "copied"]


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """What is known of a chunk without its bytes."""

    signal: Signal
    records: int
    size_bytes: int


class KeptFault(Exception):
    """A kept chunk that can no longer be read; its text is a sentence."""


class Kept(Protocol):
    """One exporter's part of a payload that is kept elsewhere until each chunk is settled.

    Its methods may be called from any thread; ``drop`` of the queue's listener may come at any time.
    """

    @property
    def dump_id(self) -> str:
        """Of the dump."""

    def begin(self) -> Sequence[ChunkInfo]:
        """The chunks that are not settled yet, in their order; the other methods count in what this gave."""

    def load(self, index: int) -> Chunk:
        """A chunk, whole and checked; raises KeptFault."""

    def settle(self, index: int, *, delivered: bool) -> None:
        """It was acknowledged (or given up, counted): it need not be kept for this exporter any more."""

    def on_drop(self, drop: Callable[[], bool]) -> None:
        """``drop`` is called if the keeper gives the payload up to make room, at once if it has; whether it counted."""


@dataclass(slots=True, eq=False)
class Item:
    """A payload on its way; all but ``load`` is guarded by the queue's condition."""

    payload: Payload
    chunks: Sequence[ChunkInfo]
    done: Done | None
    kept: Kept | None = None
    taken: int = 0  # chunks given to a stream so far, in order
    opened: bool = False  # the first chunk is settled: the others may go
    doomed: bool = False  # the receiver was away for too long: the rest is not tried
    finished: bool = False  # its listener was called
    settled: set[int] = field(default_factory=set)
    left: dict[int, int] = field(default_factory=dict)  # records not counted yet of a chunk that was split
    counts: dict[Signal, Counts] = field(default_factory=lambda: {"logs": Counts(), "traces": Counts()})
    error: str | None = None

    @classmethod
    def of(cls, payload: Payload, done: Done | None) -> Item:
        """One whose bytes are in memory."""
        return cls(payload, [ChunkInfo(each.signal, each.records, len(each.body)) for each in payload.chunks], done)

    @classmethod
    def of_kept(cls, kept: Kept, done: Done | None) -> Item:
        """One whose bytes are elsewhere; its listener gets a payload without chunks."""
        return cls(Payload((), kept.dump_id), tuple(kept.begin()), done, kept)

    @property
    def size_bytes(self) -> int:
        """What it holds of memory."""
        return 0 if self.kept is not None else sum(chunk.size_bytes for chunk in self.chunks)

    def load(self, index: int) -> Chunk:
        """The chunk with its bytes; raises KeptFault."""
        return self.payload.chunks[index] if self.kept is None else self.kept.load(index)

    def records_left(self, index: int) -> int:
        """Records of a chunk that are in no count yet."""
        return self.left.get(index, self.chunks[index].records)

    def outcome(self) -> Outcome:
        """Its counts so far; a failure that a later attempt made good is none."""
        outcome = Outcome(copied(self.counts["logs"]), copied(self.counts["traces"]), self.error)
        return Outcome(outcome.logs, outcome.traces) if outcome.delivered else outcome


def copied(counts: Counts) -> Counts:
    """The same numbers in an object of their own."""
    return Counts(counts.sent, counts.failed, counts.rejected, counts.dropped)
