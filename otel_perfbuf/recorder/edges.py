# SPDX-License-Identifier: Apache-2.0
"""Where each CPU's history begins, and what was pushed out before it. Source: DESIGN section 4, "Three counters".

A shared ring: facts: samples lie in the order of their reservation, each CPU's in its own order; a time is taken before
  the reservation. Meaning: what was overwritten was reserved before the oldest sample that is held, and that was before
  the same CPU sent another. Decision: whole since the earliest such later sample, whatever CPU a record is of; counts
  are each CPU's own, so they are exact without an atomic. Cost: the ring's first few samples lie before that time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.rings import Batch

from .capture import Capture

__all__ = ["Edge", "ring_edges"]

_SAMPLE = ffi.sizeof("struct pb_sample")
_PERF_RECORD_SAMPLE = 9


@dataclass(frozen=True, slots=True)
class Edge:
    """One CPU's oldest end: whole since ``since_ns`` (monotonic); ``before`` records were ever sent before it, of which
    an earlier capture's ring of the same dump holds ``kept`` (what stood in thread pages then, a few records a thread,
    is not among them).
    """

    since_ns: int
    before: int
    kept: int = 0


def _sample(batch: Batch, index: int) -> Any | None:
    """The header of a frame's sample; None when it is none of ours."""
    frame = batch.frames[index]
    if frame.type != _PERF_RECORD_SAMPLE or frame.bytes < _SAMPLE:
        return None
    sample = ffi.new("struct pb_sample *")
    ffi.memmove(sample, batch.arena + frame.offset, _SAMPLE)
    return sample if sample.version == lib.PB_VERSION else None


def _senders(capture: Capture) -> dict[int, Any]:
    """The CPUs that have samples in a shared ring, as ``struct pb_sender``."""
    count, batch = len(capture.stats.ring_records_by_cpu), capture.batch
    table = ffi.new("struct pb_sender[]", max(count, 1))
    lib.pb_history_senders(batch.arena, batch.frames, batch.frame_count, table, count)
    return {cpu: table[cpu] for cpu in range(count) if table[cpu].samples}


def _shared_edges(capture: Capture, started_ns: int) -> dict[int, Edge]:
    (ring,), senders = capture.batch.rings, _senders(capture)
    sent = capture.stats.ring_records_by_cpu
    if not ring.wrapped:
        return {cpu: Edge(started_ns, 0) for cpu in sent}
    since_ns = min((int(each.later_ns) for each in senders.values() if each.later_ns), default=capture.taken_ns)
    # Who has no sample there: all that it had sent when the snapshot began is gone.
    return {cpu: Edge(since_ns, int(senders[cpu].before) if cpu in senders else sent[cpu]) for cpu in sent}


def _edges(capture: Capture, started_ns: int) -> dict[int, Edge]:
    if capture.shared:
        return _shared_edges(capture, started_ns)
    edges = {}
    sent = capture.stats.ring_records_by_cpu
    for ring in capture.batch.rings:
        if ring.cpu in edges:
            continue  # a CPU that came back has a second ring, which goes on where the first one ended
        frames = range(ring.first_frame, ring.first_frame + ring.frame_count)
        oldest = next(filter(None, (_sample(capture.batch, index) for index in frames)), None)
        # One that never wrapped may have had a predecessor, given back since.
        if oldest is not None and (ring.wrapped or oldest.ring_records):
            edges[ring.cpu] = Edge(int(oldest.sent_ns), int(oldest.ring_records))
        elif ring.wrapped:
            edges[ring.cpu] = Edge(capture.taken_ns, sent.get(ring.cpu, 0))
        else:
            edges[ring.cpu] = Edge(started_ns, 0)
    return edges


def _ends(capture: Capture) -> dict[int, int]:
    """By CPU: records ever sent, up to the newest sample that the capture holds."""
    if capture.shared:
        return {cpu: int(each.end) for cpu, each in _senders(capture).items()}
    ends = {}
    for ring in capture.batch.rings:
        frames = range(ring.first_frame + ring.frame_count - 1, ring.first_frame - 1, -1)
        newest = next(filter(None, (_sample(capture.batch, index) for index in frames)), None)
        if newest is not None:
            ends[ring.cpu] = int(newest.ring_records) + int(newest.records)
    return ends


def ring_edges(captures: Sequence[Capture], started_ns: int) -> Mapping[int, Edge]:
    """The edges, by CPU, of what all captures hold together; ``captures`` in the order of their time.

    A later capture goes on where the earlier one ended unless a whole ring was overwritten between them: then history
    is whole only from the later one's edge on, and what the earlier one holds is not gone.
    """
    edges = _edges(captures[0], started_ns)
    for earlier, later in itertools.pairwise(captures):
        ends = _ends(earlier)
        for cpu, edge in _edges(later, started_ns).items():
            known = edges.get(cpu)
            if known is None:
                edges[cpu] = edge
            elif edge.since_ns > earlier.taken_ns:
                held = max(ends.get(cpu, known.before) - known.before, 0)
                edges[cpu] = replace(edge, kept=min(known.kept + held, edge.before))
    return edges
