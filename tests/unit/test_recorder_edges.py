# SPDX-License-Identifier: Apache-2.0
"""Where the history of one or two captures begins, and how many records are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.recorder.edges import Edge, ring_edges

STARTED_NS = 5
SAMPLE_BYTES = ffi.sizeof("struct pb_sample")


def shared_capture(
    taken_ns: int, *samples: tuple[int, int, int, int], sent: tuple[int, ...], wrapped: bool = True
) -> Any:
    """A capture of a ring that all CPUs share, with samples (cpu, sent_ns, ring_records, records), oldest first."""
    data = b""
    for cpu, sent_ns, before, records in samples:
        head = ffi.new("struct pb_sample *")
        head.version, head.kind, head.bytes, head.cpu = lib.PB_VERSION, lib.PB_SAMPLE_PAGE, SAMPLE_BYTES, cpu
        head.sent_ns, head.ring_records, head.records = sent_ns, before, records
        data += bytes(ffi.buffer(head))
    frames = ffi.new("struct pb_frame[]", max(len(samples), 1))
    for index in range(len(samples)):
        frames[index].offset, frames[index].bytes, frames[index].type = index * SAMPLE_BYTES, SAMPLE_BYTES, 9
    memory = ffi.from_buffer("uint8_t[]", bytearray(data or b"-"))
    rings = [SimpleNamespace(cpu=0, wrapped=wrapped)]
    batch = SimpleNamespace(arena=memory, frames=frames, frame_count=len(samples), rings=rings)
    stats = SimpleNamespace(ring_records_by_cpu=dict(enumerate(sent)))
    return SimpleNamespace(taken_ns=taken_ns, batch=batch, stats=stats, shared=True)


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
    stats = SimpleNamespace(ring_records_by_cpu={3: sent})
    return SimpleNamespace(taken_ns=taken_ns, batch=batch, stats=stats, shared=False)


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


def test_a_shared_ring_that_never_wrapped_is_whole_since_the_beginning() -> None:
    """Nothing is gone, whatever was sent."""
    edges = ring_edges([shared_capture(100, (1, 50, 0, 8), sent=(0, 8), wrapped=False)], STARTED_NS)
    assert edges == {0: Edge(STARTED_NS, 0), 1: Edge(STARTED_NS, 0)}


def test_a_shared_ring_is_whole_since_the_first_later_sample_of_any_cpu() -> None:
    """A sample's time is taken before its place: CPU 1's of 58 lies behind CPU 0's of 60, one of 59 may be overwritten.

    CPU 0 sent again at 70: all that is overwritten was sent before. Counts are each CPU's own; CPU 2 has no sample:
    all that it ever sent is gone.
    """
    samples = [(0, 60, 40, 8), (1, 58, 20, 4), (0, 70, 48, 8), (1, 90, 24, 4)]
    edges = ring_edges([shared_capture(100, *samples, sent=(56, 28, 16))], STARTED_NS)
    assert edges == {0: Edge(70, 40), 1: Edge(70, 20), 2: Edge(70, 16)}


def test_samples_of_one_handlers_run_are_of_one_time() -> None:
    """A thread's end sends up to three samples under one time, its last but one 1 ns earlier: none is a later one."""
    samples = [(0, 60, 40, 8), (0, 59, 48, 0), (0, 60, 48, 8), (0, 61, 56, 1), (1, 80, 7, 1)]
    edges = ring_edges([shared_capture(100, *samples, sent=(57, 8))], STARTED_NS)
    assert edges == {0: Edge(100, 40), 1: Edge(100, 7)}
    edges = ring_edges([shared_capture(100, *samples, (0, 62, 57, 8), sent=(65, 8))], STARTED_NS)
    assert edges[0] == Edge(62, 40)


def test_what_the_first_of_two_shared_captures_holds_is_not_gone() -> None:
    """Each CPU's part of the gap between two captures is exact."""
    first = shared_capture(100, (0, 50, 40, 8), (1, 55, 10, 2), (0, 60, 48, 8), sent=(56, 12))
    second = shared_capture(200, (0, 150, 156, 8), (1, 155, 12, 2), (0, 160, 164, 8), sent=(172, 14))
    edges = ring_edges([first, second], STARTED_NS)
    assert edges == {0: Edge(160, 156, kept=16), 1: Edge(160, 12, kept=2)}


def test_samples_that_are_none_say_nothing_of_a_cpu() -> None:
    """A CPU that is not there, a sample of another version: passed over, and nothing is read beyond."""
    capture = shared_capture(100, (7, 60, 40, 8), (0, 70, 48, 8), (0, 80, 56, 8), sent=(64, 5))
    ffi.cast("uint8_t *", capture.batch.arena)[SAMPLE_BYTES] = lib.PB_VERSION + 1
    assert ring_edges([capture], STARTED_NS) == {0: Edge(100, 56), 1: Edge(100, 5)}
