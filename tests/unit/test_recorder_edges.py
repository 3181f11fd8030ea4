# SPDX-License-Identifier: Apache-2.0
"""Where the history of one or two captures begins, and how many records are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.recorder.edges import Edge, ring_edges

STARTED_NS = 5
SAMPLE_BYTES = ffi.sizeof("struct pb_sample")


def capture(taken_ns: int, *samples: tuple[int, int, int], wrapped: bool = True, sent: int = 0) -> Any:
    """A capture of CPU 3's ring with samples (sent_ns, ring_records, records), oldest first."""
    data = b""
    for sent_ns, before, records in samples:
        head = {"version": lib.PB_VERSION, "sent_ns": sent_ns, "ring_records": before, "records": records}
        data += bytes(ffi.buffer(ffi.new("struct pb_sample *", head)))
    frames = ffi.new("struct pb_frame[]", max(len(samples), 1))
    for index in range(len(samples)):
        frames[index].offset, frames[index].bytes, frames[index].type = index * SAMPLE_BYTES, SAMPLE_BYTES, 9
    ring = SimpleNamespace(cpu=3, wrapped=wrapped, first_frame=0, frame_count=len(samples))
    batch = SimpleNamespace(arena=ffi.from_buffer("uint8_t[]", data), frames=frames, rings=[ring])
    return SimpleNamespace(taken_ns=taken_ns, batch=batch, stats=SimpleNamespace(ring_records_by_cpu={3: sent}))


def test_a_ring_that_never_wrapped_is_whole_since_the_beginning() -> None:
    """Nothing is gone, whatever time its first sample has."""
    assert ring_edges([capture(100, (50, 0, 8), wrapped=False)], STARTED_NS) == {3: Edge(STARTED_NS, 0)}


def test_a_wrapped_ring_begins_with_its_oldest_sample() -> None:
    """What was ever sent before that sample is gone."""
    assert ring_edges([capture(100, (50, 40, 8), (60, 48, 8))], STARTED_NS) == {3: Edge(50, 40)}


def test_a_wrapped_ring_without_a_whole_sample_holds_nothing() -> None:
    """All that was sent is gone, and history begins now."""
    assert ring_edges([capture(100, sent=70)], STARTED_NS) == {3: Edge(100, 70)}


def test_two_captures_that_overlap_begin_with_the_first() -> None:
    """What the ring lost between the two is in the first."""
    both = [capture(100, (50, 40, 8), (90, 48, 8)), capture(200, (90, 48, 8), (150, 56, 8))]
    assert ring_edges(both, STARTED_NS) == {3: Edge(50, 40)}


def test_what_the_first_of_two_captures_holds_is_not_gone() -> None:
    """A ring that was overwritten between them leaves a gap: only what neither holds is missing."""
    both = [capture(100, (50, 40, 8), (90, 48, 8)), capture(200, (150, 156, 8))]
    (edge,) = ring_edges(both, STARTED_NS).values()
    assert edge == Edge(150, 156, kept=16)
    assert edge.before - edge.kept == 40 + 100  # before the first, and between the two


def test_a_cpu_that_came_back_begins_with_its_first_ring() -> None:
    """The second ring goes on where the first one ended; without the first one it tells what is gone itself."""
    both = capture(100, (50, 40, 8), (60, 48, 8))
    first = both.batch.rings[0]
    first.frame_count = 1
    both.batch.rings.append(SimpleNamespace(cpu=3, wrapped=False, first_frame=1, frame_count=1))
    assert ring_edges([both], STARTED_NS) == {3: Edge(50, 40)}
    del both.batch.rings[0]
    assert ring_edges([both], STARTED_NS) == {3: Edge(60, 48)}
