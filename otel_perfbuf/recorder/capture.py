# SPDX-License-Identifier: Apache-2.0
"""What one snapshot of the history holds. What it is not: it takes none (source.py)."""

from __future__ import annotations

from dataclasses import dataclass

from otel_perfbuf.bpf.syscalls import Stats
from otel_perfbuf.rings import Batch

from .history import ProcessKey
from .inflight import EntryFrames
from .processes import Process

__all__ = ["Capture"]


@dataclass(frozen=True, slots=True)
class Capture:
    """One snapshot: thread pages, rings, what calls in flight point to, and the processes; taken at ``taken_ns``.

    ``shared``: the batch is of one ring for all CPUs, and ``stats`` were read before it.
    """

    pages: bytes
    batch: Batch
    entries: EntryFrames
    processes: dict[ProcessKey, Process]
    stats: Stats
    unix_offset_ns: int
    taken_ns: int
    snapshot_ns: int
    shared: bool = False
