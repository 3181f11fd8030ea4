# SPDX-License-Identifier: Apache-2.0
"""What one snapshot of the history holds, and what is not in it. What it is not: it takes none (source.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from otel_perfbuf.bpf.syscalls import Stats
from otel_perfbuf.rings import Batch

from .descriptors import Seeds
from .history import ProcessKey
from .inflight import EntryFrames
from .processes import Process

__all__ = ["Capture", "Losses"]


@dataclass(frozen=True, slots=True)
class Capture:
    """One snapshot: thread pages, rings, what calls in flight point to, and the processes; taken at ``taken_ns``.

    ``shared``: the batch is of one ring for all CPUs, and ``stats`` were read before it.
    ``seeds`` are the fds of processes that lived then, read a moment later; ``later_pages`` tell what happened between.
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
    seeds: Mapping[ProcessKey, Seeds] = field(default_factory=dict)
    later_pages: bytes = b""


@dataclass(frozen=True, slots=True)
class Losses:
    """Counts since the last dump, of the whole host (CONTRACT section 3).

    ``missed_events``: at which the kernel ran no program (`BpfObject.missed_events`); whose they were is not known.
    """

    lost: int = 0
    overwritten: int = 0
    missed_events: int = 0
    suppressed: int = 0
