# SPDX-License-Identifier: Apache-2.0
"""Where each ring's history begins, and what was pushed out before it. Source: DESIGN section 4, "Three counters"."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_perfbuf._core._core import ffi, lib

from .capture import Capture

__all__ = ["Edge", "ring_edges"]

_SAMPLE = ffi.sizeof("struct pb_sample")
_PERF_RECORD_SAMPLE = 9


@dataclass(frozen=True, slots=True)
class Edge:
    """One CPU's oldest end: whole since ``since_ns`` (monotonic); ``overwritten`` records were sent before it."""

    since_ns: int
    overwritten: int


def _edges(capture: Capture, started_ns: int) -> dict[int, Edge]:
    edges = {}
    sent = capture.stats.ring_records_by_cpu
    for ring in capture.batch.rings:
        edge = Edge(started_ns, 0)
        if ring.wrapped:
            edge = Edge(capture.taken_ns, sent.get(ring.cpu, 0))
            for index in range(ring.first_frame, ring.first_frame + ring.frame_count):
                frame = capture.batch.frames[index]
                if frame.type != _PERF_RECORD_SAMPLE or frame.bytes < _SAMPLE:
                    continue
                sample = ffi.new("struct pb_sample *")
                ffi.memmove(sample, capture.batch.arena + frame.offset, _SAMPLE)
                if sample.version == lib.PB_VERSION:
                    edge = Edge(int(sample.sent_ns), int(sample.ring_records))
                    break
        edges[ring.cpu] = edge
    return edges


def ring_edges(captures: Sequence[Capture], started_ns: int) -> Mapping[int, Edge]:
    """The edges, by CPU, of what all captures hold together; ``captures`` in the order of their time.

    A later capture goes on where the earlier one ended unless a whole ring was overwritten between them: then history
    is whole only from the later one's edge on.
    """
    edges = _edges(captures[0], started_ns)
    for before, after in itertools.pairwise(captures):
        for cpu, edge in _edges(after, started_ns).items():
            if cpu not in edges or edge.since_ns > before.taken_ns:
                edges[cpu] = edge
    return edges
