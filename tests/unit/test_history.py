# SPDX-License-Identifier: Apache-2.0
"""The join of pages and ring samples: each record once, in the order of time, gaps and threads counted exactly.

Source: otel_perfbuf/_core/history.h. What it is not: hostile bytes (test_history_fuzz.py).
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Engine, SampleWriter, string

from otel_perfbuf._core._core import ffi, lib


def calls(instance: int, sequences: list[int], *, step: int = 10, **more: int) -> SampleWriter:
    """A thread's calls, `step` ns apart."""
    writer = SampleWriter(instance=instance, **more)  # type: ignore[arg-type]
    for sequence in sequences:
        writer.syscall(sequence, 1000 + step * sequence)
    return writer


def test_samples_and_pages_join_in_the_order_of_time() -> None:
    """Records of two threads, from rings and pages, come oldest first."""
    engine = Engine(
        [calls(2, [3, 4], tid=2).sample(), calls(1, [1, 2]).sample(), calls(2, [1, 2], tid=2).sample()],
        calls(1, [3]).page() + calls(2, [5], tid=2).page(),
    ).join()
    assert engine.sequences() == sorted(engine.sequences())
    assert [(i, s) for _, i, s in engine.sequences()] == [
        (1, 1),
        (2, 1),
        (1, 2),
        (2, 2),
        (1, 3),
        (2, 3),
        (2, 4),
        (2, 5),
    ]
    assert [(t.tid, t.events, t.missing, t.gap_end_ns) for t in engine.threads] == [(100, 3, 0, 0), (2, 5, 0, 0)]


def test_a_record_of_page_and_ring_is_one_event_of_the_page() -> None:
    """A page sent between iterator and snapshot is in both: the records are counted as doubles and stay a page's."""
    writer = calls(1, [1, 2, 3])
    engine = Engine([writer.sample()], writer.page()).join()
    assert [int(e.sequence) for e in engine.events] == [1, 2, 3]
    assert all(e.flags & lib.PB_EVENT_PAGE for e in engine.events)
    assert engine.c.duplicates == 3


def test_a_finished_call_beats_itself_in_flight() -> None:
    """The call that ended between iterator and snapshot is complete, its page flag stays."""
    page = SampleWriter().page(SampleWriter().syscall(1, 1000, args=(7,)))
    engine = Engine([SampleWriter().syscall(1, 1000, args=(7,), result=5).sample()], page).join()
    (event,) = engine.events
    assert not event.flags & lib.PB_EVENT_IN_FLIGHT
    assert event.flags & lib.PB_EVENT_PAGE


def test_an_open_call_is_in_flight_with_its_age() -> None:
    """A page's open call is an event that borrows the page, with the time at which it was seen."""
    engine = Engine(pages=calls(1, [1]).page(SampleWriter().syscall(2, 5000), seen_ns=9000)).join()
    event = engine.events[-1]
    assert event.flags == lib.PB_EVENT_PAGE | lib.PB_EVENT_IN_FLIGHT
    assert (event.sequence, event.time_ns, event.seen_ns) == (2, 5000, 9000)
    assert engine.threads[0].missing == 0


def test_entry_records_are_hung_to_their_call() -> None:
    """What was captured at enter belongs to the call of its sequence, whichever sample it came in."""
    entry = SampleWriter().entry(2, 1020, [string(0, b"/x")])
    engine = Engine([entry.sample(), calls(1, [1, 2]).sample()]).join()
    assert [bool(e.entry) for e in engine.events] == [False, True]
    assert engine.c.orphans == 0


def test_an_entry_without_its_call_is_no_record() -> None:
    """An ENTRY whose call was lost is counted, not shown."""
    engine = Engine([SampleWriter().entry(2, 1020, []).sample()]).join()
    assert engine.events == []
    assert engine.c.orphans == 1


def test_gaps_inside_become_lost_records_and_are_counted() -> None:
    """Missing sequences: those before the first are counted, those inside also make a record before what follows."""
    engine = Engine([calls(1, [5, 6]).sample(), calls(1, [9]).sample(), calls(1, [11]).sample()]).join()
    assert [(int(e.sequence), kind(e)) for e in engine.events] == [
        (5, 1), (6, 1), (7, lib.PB_RECORD_LOST), (9, 1), (10, lib.PB_RECORD_LOST), (11, 1),
    ]  # fmt: skip
    assert [engine.c.gaps[i].count for i in range(engine.c.gap_count)] == [2, 1]
    (thread,) = engine.threads
    assert (thread.first_sequence, thread.last_sequence, thread.missing, thread.gap_end_ns) == (5, 11, 7, 1110)


def kind(event: object) -> int:
    """A record's kind; the record may be unaligned, so its bytes are read."""
    return int(ffi.buffer(event.record, 24)[2][0])  # type: ignore[attr-defined]


def test_gaps_without_room_are_added_to_the_last() -> None:
    """Three gaps in memory for two: nothing fails, no count is lost."""
    engine = Engine(
        [calls(1, [1]).sample(), calls(1, [3]).sample(), calls(1, [6]).sample(), calls(1, [10]).sample()], gaps=2
    )
    engine.join()
    assert [engine.c.gaps[i].count for i in range(engine.c.gap_count)] == [1, 2 + 3]


def test_a_pages_last_sequence_counts_what_was_given_and_is_not_here() -> None:
    """The page tells how many records the thread ever made."""
    engine = Engine([calls(1, [1]).sample()], SampleWriter(instance=1).page(last_sequence=10)).join()
    assert (engine.threads[0].last_sequence, engine.threads[0].missing) == (10, 9)


def test_a_torn_page_is_counted_and_left_out() -> None:
    """A page that changed during every try gives no records; the next one is read."""
    engine = Engine(pages=calls(1, [1]).page(flags=lib.PB_PAGE_TORN) + calls(2, [1]).page()).join()
    assert engine.c.torn == 1
    assert [i for _, i, _ in engine.sequences()] == [2]


def test_exec_from_a_thread_keeps_one_row_with_the_newest_ids() -> None:
    """An exec gives the thread the leader's id: one instance, one row."""
    old, new = calls(1, [1], tid=101, comm=b"sh"), calls(1, [2], tid=100, comm=b"ls")  # type: ignore[arg-type]
    engine = Engine([new.sample(), old.sample()]).join()
    (thread,) = engine.threads
    assert (thread.tid, ffi.string(thread.comm)) == (100, b"ls")


def test_reused_thread_ids_are_two_instances_of_two_processes() -> None:
    """The same tid and tgid with another start is another process."""
    engine = Engine([calls(1, [1]).sample(), calls(9, [1], process_start_ns=77).sample()]).join()
    assert engine.c.process_count == 2
    assert [engine.c.processes[i].start_ns for i in range(2)] == [5, 77]
    assert [t.process for t in engine.threads] == [0, 1]


def test_a_process_end_is_known_of_its_process() -> None:
    """The wait status is at the process's row."""
    engine = Engine([SampleWriter().exit(1, 10, 11 | 128).sample()]).join()
    assert (engine.c.processes[0].exited, engine.c.processes[0].exit_status) == (1, 139)


def test_a_record_without_a_sequence_is_never_joined() -> None:
    """OOM kills and lost counts may have sequence 0: each stays."""
    writer = SampleWriter(instance=0).oom_kill(0, 5, 42, 7).oom_kill(0, 6, 42, 7).lost(0, 7, 3, 2)
    engine = Engine([writer.sample()]).join()
    assert [int(e.time_ns) for e in engine.events] == [5, 6, 7]
    assert engine.threads[0].missing == 0
    assert engine.c.malformed == 0


def test_the_window_keeps_calls_that_end_in_it_and_pages_of_any_age() -> None:
    """In: began or ended inside, and everything from a page; out: ended before, began after."""
    old = SampleWriter(instance=1).syscall(1, 100, duration_ns=5)
    ring = SampleWriter(instance=1).syscall(2, 200, duration_ns=900).syscall(3, 1500).syscall(4, 3000)
    engine = Engine([old.sample(), ring.sample()], SampleWriter(instance=2).syscall(1, 1).page()).join()
    assert engine.select(1000, 2000) == (3, 0)
    assert [(i, s) for t, i, s in engine.sequences() if selected(engine, t)] == [(2, 1), (1, 2), (1, 3)]


def test_a_page_sent_within_the_window_is_in_it_whole() -> None:
    """A thread that waited for long and ended: its last calls were still in its own page when the window began."""
    ended = SampleWriter(instance=1).syscall(1, 100).syscall(2, 110, duration_ns=5000).exit(3, 5110, 256)
    engine = Engine([calls(2, [8, 9]).sample(), ended.sample()]).join()
    assert engine.select(5000, 6000) == (3, 0)


def test_a_call_that_two_pages_have_in_flight_is_as_old_as_the_later_saw_it() -> None:
    """Two snapshots of one dump: the age is that at the second, in whatever order they come."""
    pages = [calls(1, [1]).page(open_call=calls(1, [2]), seen_ns=seen) for seen in (5000, 9000)]
    for order in (pages, pages[::-1]):
        engine = Engine([], b"".join(order)).join()
        (flying,) = [event for event in engine.events if event.flags & lib.PB_EVENT_IN_FLIGHT]
        assert (flying.sequence, flying.seen_ns) == (2, 9000)


def test_a_page_sent_again_is_no_second_count() -> None:
    """PB_SAMPLE_AGAIN owns no records: nothing of it is malformed, each record is there once."""
    again = ffi.new("struct pb_sample *")
    data = bytearray(calls(1, [1, 2]).sample())
    ffi.memmove(again, data, 64)
    again.kind, again.records = lib.PB_SAMPLE_AGAIN, 0
    data[:64] = ffi.buffer(again)
    for samples in ([bytes(data)], [calls(1, [1, 2]).sample(), bytes(data)]):
        engine = Engine([*samples, calls(1, [3]).sample()]).join()
        assert [int(event.sequence) for event in engine.events] == [1, 2, 3]
        assert engine.c.malformed == 0


def selected(engine: Engine, time_ns: int) -> bool:
    """Whether the event of that time is selected."""
    return any(e.flags & lib.PB_EVENT_SELECTED for e in engine.events if e.time_ns == time_ns)


def test_max_records_drops_the_oldest_of_the_rings_only() -> None:
    """A bound of three with two from pages leaves the newest one of the rings."""
    engine = Engine([calls(1, [1, 2, 3, 4]).sample()], calls(2, [1, 2], step=1).page()).join()
    assert engine.select(most=3) == (3, 3)
    assert [(i, s) for t, i, s in engine.sequences() if selected(engine, t)] == [(2, 1), (2, 2), (1, 4)]
    assert engine.select(most=0) == (2, 4)
    assert engine.select() == (6, 0)


def test_only_processes_in_scope_are_selected() -> None:
    """Scope is the caller's; each process's selected records are counted."""
    engine = Engine([calls(1, [1, 2]).sample(), calls(2, [1], tgid=7).sample()]).join()
    engine.select()
    assert [engine.c.processes[i].selected for i in range(2)] == [1, 2]
    engine.c.processes[0].scope = 0
    selected, dropped = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    assert lib.pb_history_select(engine.c, 0, 1 << 62, 99, selected, dropped) == lib.PB_OK
    assert selected[0] == 2


@pytest.mark.parametrize("field", ["event_capacity", "thread_capacity", "process_capacity", "workspace_bytes"])
def test_too_little_memory_is_said_and_nothing_is_written(field: str) -> None:
    """One less than is needed: PB_NO_ROOM, counts as before; with enough it works."""
    writer = calls(1, [1, 2])
    engine = Engine([writer.sample(), calls(2, [1]).sample()])
    enough, before = getattr(engine.c, field), engine.c.event_count
    if field == "event_capacity":
        setattr(engine.c, field, before)
        ring = engine.ring
        assert lib.pb_history_add_samples(engine.c, ring.arena, ring.frames, 1) == lib.PB_NO_ROOM
        assert engine.c.event_count == before
    else:
        setattr(engine.c, field, {"workspace_bytes": 32 * before - 1}.get(field, 1))
        assert lib.pb_history_join(engine.c) == lib.PB_NO_ROOM
    setattr(engine.c, field, enough)
    engine.join()
    assert len(engine.events) == 3


def test_after_the_join_nothing_is_added() -> None:
    """Order of use: a second join or a late input is refused."""
    engine = Engine([calls(1, [1]).sample()]).join()
    assert lib.pb_history_join(engine.c) == lib.PB_INVALID
    assert lib.pb_history_add_samples(engine.c, engine.ring.arena, engine.ring.frames, 1) == lib.PB_INVALID


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 5), st.sets(st.integers(1, 60), min_size=1, max_size=40), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_each_sequence_is_there_once_sorted_whatever_the_inputs_order(
    threads: dict[int, set[int]], shuffle: random.Random, pages_first: bool
) -> None:
    """Chunks of each thread's sequences in any order, some twice and some as pages: one sorted list, counts exact."""
    samples, pages, expected = [], b"", []
    for instance, sequences in threads.items():
        ordered = sorted(sequences)
        for at in range(0, len(ordered), 8):
            writer = calls(instance, ordered[at : at + 8], tid=instance)
            samples += [writer.sample()] * shuffle.choice([1, 1, 2])
            if shuffle.random() < 0.3:
                pages += writer.page()
        expected += [(1000 + 10 * s, instance, s) for s in ordered]
    shuffle.shuffle(samples)
    engine = Engine(samples, pages, pages_first=pages_first).join()
    assert engine.c.malformed == 0
    found = [key for key, event in zip(engine.sequences(), engine.events, strict=True) if kind(event) == 1]
    assert found == sorted(expected)
    for thread in engine.threads:
        sequences = threads[thread.instance]
        assert thread.events == len(sequences)
        assert thread.missing == max(sequences) - len(sequences)
    inside = sum(max(s) - min(s) + 1 - len(s) for s in threads.values())
    assert sum(engine.c.gaps[i].count for i in range(engine.c.gap_count)) == inside


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, (1 << 64) - 2), st.integers(0, (1 << 64) - 1)), max_size=60))
def test_the_sort_holds_for_keys_of_all_64_bits(keys: list[tuple[int, int]]) -> None:
    """Instances, sequences and times of any size come out in the order of (time, instance, sequence)."""
    unique = {(instance, sequence): time for time, (sequence, instance) in enumerate(keys)}
    writers = [
        SampleWriter(instance=instance).syscall(sequence, (time * 0x9E3779B97F4A7C15) % (1 << 64))
        for (instance, sequence), time in unique.items()
    ]
    engine = Engine([writer.sample() for writer in writers], gaps=0).join()
    assert engine.sequences() == sorted(engine.sequences())
    assert {(i, s) for _, i, s in engine.sequences()} == set(unique)
