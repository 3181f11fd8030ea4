# SPDX-License-Identifier: Apache-2.0
"""The sending queue: order, retry, bounds, counts, drain. No test sleeps: clocks are arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from export_samples import ScriptedExporter, SkippingClock, SteppedClock
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.errors import ExportError
from otel_perfbuf.exporters.backoff import Backoff
from otel_perfbuf.exporters.item import ChunkInfo, KeptFault
from otel_perfbuf.exporters.options import QueueOptions, RetryOptions
from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.exporters.queue import Outcome, SendingQueue

STEADY = RetryOptions(randomization_factor=0)
WAIT_S = 20


def chunk(name: str, records: int = 1, *, traces: bool = False) -> Chunk:
    """A chunk whose bytes are its name."""
    return Chunk("traces" if traces else "logs", name.encode(), records)


def refused(retry_after_s: float | None = None) -> ExportError:
    """A retryable answer."""
    return ExportError("sending to nowhere failed: refused", retryable=True, retry_after_s=retry_after_s)


def started(exporter: ScriptedExporter, **keys: object) -> SendingQueue:
    """A queue that runs, with time that jumps unless told otherwise."""
    queue = SendingQueue(exporter, name="otlp_grpc", **{"clock": SkippingClock(), "retry": STEADY, **keys})  # type: ignore[arg-type]
    queue.start()
    return queue


def settled(
    queue: SendingQueue, put: Callable[[SendingQueue, Callable[[Payload, Outcome], object]], object]
) -> Outcome:
    """The outcome of what ``put`` puts, waited for in real time."""
    done = threading.Event()
    outcomes: list[Outcome] = []
    put(queue, lambda _payload, outcome: (outcomes.append(outcome), done.set()))
    assert done.wait(WAIT_S)
    return outcomes[0]


def put_all(*chunks: Chunk) -> Callable[[SendingQueue, Callable[[Payload, Outcome], object]], object]:
    """Puts one payload of these chunks."""
    return lambda queue, done: queue.put(Payload(chunks, "id"), done)


def test_header_chunk_is_acknowledged_before_the_others_are_sent() -> None:
    """While the first chunk is on its way no other chunk of its payload is sent, though three streams are free."""
    release, first_seen = threading.Event(), threading.Event()
    seen_meanwhile: list[int] = []

    def answer(sent: Chunk, _before: int) -> int:
        if sent.body == b"first":
            first_seen.set()
            assert release.wait(WAIT_S)
            seen_meanwhile.append(len(exporter.sent))
        return 0

    exporter = ScriptedExporter(answer)
    queue = started(exporter, queue=QueueOptions(num_consumers=4))
    rest = [chunk(f"c{number}") for number in range(10)]
    done = threading.Event()
    queue.put(Payload((chunk("first"), *rest), "id"), lambda _payload, _outcome: done.set())
    assert first_seen.wait(WAIT_S)
    release.set()
    assert done.wait(WAIT_S)
    assert seen_meanwhile == [1]
    assert {sent.body for sent in exporter.sent[1:]} == {each.body for each in rest}
    queue.drain(1)


def test_other_chunks_go_over_several_streams() -> None:
    """Behind the first chunk as many sends are under way at once as there are streams."""
    barrier = threading.Barrier(3)

    def answer(sent: Chunk, _before: int) -> int:
        if sent.body != b"first":
            barrier.wait(WAIT_S)  # passes only when three are here together
        return 0

    queue = started(ScriptedExporter(answer), queue=QueueOptions(num_consumers=3))
    outcome = settled(queue, put_all(chunk("first"), chunk("a"), chunk("b"), chunk("c")))
    assert outcome.logs.sent == 4
    queue.drain(1)


def test_retryable_answers_are_retried_with_growing_waits() -> None:
    """Waits are 5 s, then 1.5 times as long each, at most 30 s, and nothing is lost."""

    def answer(_sent: Chunk, before: int) -> int:
        if before < 7:
            raise refused()
        return 0

    clock = SkippingClock()
    queue = started(ScriptedExporter(answer), clock=clock)
    outcome = settled(queue, put_all(chunk("a", 5)))
    assert clock.waits == pytest.approx([5, 7.5, 11.25, 16.875, 25.3125, 30, 30])
    assert (outcome.logs.sent, outcome.logs.failed, outcome.delivered) == (5, 0, True)
    queue.drain(1)


def test_receivers_retry_after_is_waited_at_least() -> None:
    """A receiver that asks for 12 s gets them instead of the first 5."""

    def answer(_sent: Chunk, before: int) -> int:
        if before == 0:
            raise refused(12.0)
        return 0

    clock = SkippingClock()
    queue = started(ScriptedExporter(answer), clock=clock)
    settled(queue, put_all(chunk("a")))
    assert clock.waits == [12.0]
    queue.drain(1)


def test_request_is_given_up_after_max_elapsed_time() -> None:
    """A receiver that is away for longer costs the whole dump, counted as failed, without a wait for each chunk."""

    def answer(_sent: Chunk, _before: int) -> int:
        raise refused()

    clock = SkippingClock()
    exporter = ScriptedExporter(answer)
    queue = started(exporter, clock=clock, retry=RetryOptions(randomization_factor=0, max_elapsed_time="60s"))  # type: ignore[arg-type]
    outcome = settled(queue, put_all(chunk("a", 2), chunk("b", 3), chunk("s", traces=True)))
    assert (outcome.logs.failed, outcome.traces.failed, outcome.delivered) == (5, 1, False)
    assert sum(clock.waits) <= 60
    assert {sent.body for sent in exporter.sent} == {b"a"}
    assert outcome.error == "sending to nowhere failed: refused"
    assert queue.stats().queue_size == queue.stats().queue_bytes == 0
    queue.drain(1)


def test_refused_chunk_does_not_take_the_others_with_it() -> None:
    """One chunk that the receiver refuses for good is counted as failed; the others of its payload arrive."""

    def answer(sent: Chunk, _before: int) -> int:
        if sent.body == b"bad":
            raise ExportError("sending failed: INVALID_ARGUMENT", retryable=False)
        return 0

    exporter = ScriptedExporter(answer)
    queue = started(exporter)
    outcome = settled(queue, put_all(chunk("bad", 2), chunk("good", 3)))
    assert (outcome.logs.sent, outcome.logs.failed) == (3, 2)
    assert len(exporter.sent) == 2
    queue.drain(1)


def test_rejected_records_are_counted_apart_from_sent_ones() -> None:
    """Partial success: what the receiver rejected is rejected, the rest sent; more than there are cannot be."""
    queue = started(ScriptedExporter(lambda sent, _before: 4 if sent.body == b"a" else 99))
    outcome = settled(queue, put_all(chunk("a", 10), chunk("b", 2)))
    assert (outcome.logs.sent, outcome.logs.rejected) == (6, 6)
    assert queue.stats().logs.rejected == 6
    queue.drain(1)


@pytest.mark.parametrize("fault", [RuntimeError("poison"), KeyError("x"), SystemExit(3), MemoryError()])
def test_poisoned_exporter_never_kills_the_streams(fault: BaseException) -> None:
    """Whatever an exporter raises, the chunk is failed, and the next payload is sent by the same streams."""

    def answer(sent: Chunk, _before: int) -> int:
        if sent.body == b"poison":
            raise fault
        return 0

    queue = started(ScriptedExporter(answer), queue=QueueOptions(num_consumers=1))
    assert settled(queue, put_all(chunk("poison"))).logs.failed == 1
    assert settled(queue, put_all(chunk("good"))).logs.sent == 1
    queue.drain(1)


def test_poisoned_listener_never_kills_the_streams() -> None:
    """A listener that raises is told of in a sentence and nothing else."""
    queue = started(ScriptedExporter(), queue=QueueOptions(num_consumers=1))

    def bad(_payload: Payload, _outcome: Outcome) -> None:
        raise ValueError("listener")

    queue.put(Payload((chunk("a"),)), bad)
    assert settled(queue, put_all(chunk("b"))).logs.sent == 1
    queue.drain(1)


def test_full_queue_refuses_and_counts() -> None:
    """With room for two requests the third is not taken, at once, and its records are dropped; later there is room."""
    release = threading.Event()

    def answer(_sent: Chunk, _before: int) -> int:
        assert release.wait(WAIT_S)
        return 0

    queue = started(ScriptedExporter(answer), queue=QueueOptions(queue_size=2, num_consumers=1), clock=None)
    assert queue.put(Payload((chunk("a"), chunk("b"))))
    outcomes: list[Outcome] = []
    assert not queue.put(Payload((chunk("c", 7),)), lambda _payload, outcome: outcomes.append(outcome))
    assert outcomes[0].logs.dropped == 7 == queue.stats().logs.dropped
    assert outcomes[0].error is not None
    assert "full" in outcomes[0].error
    assert (queue.stats().queue_size, queue.stats().queue_capacity) == (2, 2)
    release.set()
    assert queue.flush(WAIT_S)
    assert queue.put(Payload((chunk("d"),)))
    queue.drain(WAIT_S)


def test_queue_is_bounded_in_bytes_but_takes_one_payload_of_any_size() -> None:
    """A dump larger than max_bytes is taken by an empty queue; beside another it is dropped."""
    release = threading.Event()

    def answer(_sent: Chunk, _before: int) -> int:
        assert release.wait(WAIT_S)
        return 0

    queue = started(ScriptedExporter(answer), queue=QueueOptions(max_bytes=10), clock=None)
    assert queue.put(Payload((chunk("x" * 100),)))
    assert not queue.put(Payload((chunk("y"),)))
    release.set()
    assert queue.drain(WAIT_S).sentence == ""
    assert queue.stats().logs.sent == 1


def test_drain_sends_what_waits_for_a_retry() -> None:
    """A back-off of 30 s is cut short by a drain, and the receiver that is back gets the chunk."""
    clock = SteppedClock()

    def answer(_sent: Chunk, before: int) -> int:
        if before == 0:
            raise refused(30.0)
        return 0

    queue = started(ScriptedExporter(answer), clock=clock)
    queue.put(Payload((chunk("a", 3),)))
    clock.until_waiting()
    drained: list[str] = []
    thread = threading.Thread(target=lambda: drained.append(queue.drain(5).sentence))
    thread.start()
    clock.until_waiting(2)
    clock.advance(0.6)
    thread.join(WAIT_S)
    assert drained == [""]
    assert queue.stats().logs.sent == 3


def test_drain_drops_the_rest_in_one_sentence() -> None:
    """At the deadline all that is left is counted as dropped; exporter and threads are stopped."""

    def answer(_sent: Chunk, _before: int) -> int:
        raise refused()

    exporter = ScriptedExporter(answer)
    queue = started(exporter, queue=QueueOptions(num_consumers=1))
    outcomes: list[Outcome] = []
    for name in ("a", "b"):
        queue.put(
            Payload((chunk(name, 4), chunk("s", traces=True)), name), lambda _payload, outcome: outcomes.append(outcome)
        )
    left = queue.drain(0.0)
    assert (left.records, left.spans) == (8, 2)
    assert "8 log records and 2 spans" in left.sentence
    assert "\n" not in left.sentence
    stats = queue.stats()
    assert (stats.logs.dropped, stats.traces.dropped, stats.queue_size, stats.queue_bytes) == (8, 2, 0, 0)
    assert len(outcomes) == 2
    assert exporter.stopped.is_set()
    assert queue.drain(1).sentence == ""
    assert not queue.put(Payload((chunk("late"),)))


def test_drain_does_not_wait_for_a_send_that_hangs() -> None:
    """A send that does not return is given its deadline; the drain ends, and a late answer changes no count."""
    release, hanging = threading.Event(), threading.Event()

    def answer(_sent: Chunk, _before: int) -> int:
        hanging.set()
        release.wait(WAIT_S)
        return 0

    queue = started(ScriptedExporter(answer), clock=None)
    queue.put(Payload((chunk("a", 5),)))
    assert hanging.wait(WAIT_S)
    left = queue.drain(0.05)
    assert left.records == 5
    release.set()
    for thread in queue._threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert (queue.stats().logs.dropped, queue.stats().logs.sent) == (5, 0)


def test_drain_limits_each_attempt_to_what_is_left() -> None:
    """An attempt in a drain never gets more time than the deadline leaves."""
    release, entered = threading.Event(), threading.Event()

    def answer(_sent: Chunk, before: int) -> int:
        if before == 0:
            entered.set()
            assert release.wait(WAIT_S)
            raise refused()
        return 0

    exporter = ScriptedExporter(answer)
    clock = SteppedClock()
    queue = started(exporter, clock=clock, timeout_s=60.0)
    queue.put(Payload((chunk("a"),)))
    assert entered.wait(WAIT_S)
    thread = threading.Thread(target=lambda: queue.drain(3))
    thread.start()
    clock.until_waiting()
    release.set()
    clock.until_waiting(2)
    clock.advance(1)
    thread.join(WAIT_S)
    assert exporter.timeouts == [60.0, 2.0]


def test_every_record_is_counted_once() -> None:
    """Over mixed outcomes sent + failed + rejected + dropped equals what was put."""

    def answer(sent: Chunk, before: int) -> int:
        kind = sent.body[0] % 4
        if kind == 0:
            raise ExportError("no", retryable=False)
        if kind == 1 and before % 2:
            raise refused()
        return 1 if kind == 2 else 0

    queue = started(ScriptedExporter(answer))
    for number in range(40):
        queue.put(Payload(tuple(Chunk("logs", bytes([number + part]), 3) for part in range(3)), str(number)))
    queue.flush(1e9)
    queue.drain(1e9)
    counts = queue.stats().logs
    assert counts.sent + counts.failed + counts.rejected + counts.dropped == 40 * 9


@given(
    st.floats(0.001, 1000),
    st.floats(1, 10),
    st.floats(0.001, 1000),
    st.floats(0, 0.99),
    st.lists(st.floats(0, 0.999), min_size=1, max_size=30),
)
def test_waits_stay_within_their_bounds(
    initial: float, multiplier: float, most: float, factor: float, randoms: list[float]
) -> None:
    """Whatever the options, no wait is longer than max_interval and its spread, and none is negative."""
    options = RetryOptions.model_construct(
        enabled=True,
        initial_interval=initial,
        multiplier=multiplier,
        max_interval=most,
        max_elapsed_time=0.0,
        randomization_factor=factor,
    )
    numbers = iter(randoms)
    backoff = Backoff(options, lambda: next(numbers))
    for _ in randoms:
        wait_s = backoff.next_wait_s(0.0, None)
        assert wait_s is not None
        assert 0 <= wait_s <= most * (1 + factor) * 1.001


def logs(records: int) -> Chunk:
    """A real request whose records are numbered, over two resources."""
    request = ExportLogsServiceRequest()
    for number in range(records):
        if number in (0, records // 3):
            scope = request.resource_logs.add(schema_url=f"r{number}").scope_logs.add(schema_url="s")
        scope.log_records.add().time_unix_nano = number + 1
    return Chunk("logs", request.SerializeToString(), records)


def numbers(chunks: list[Chunk]) -> list[int]:
    """The records of requests, in order, by protobuf's own parser."""
    return [
        record.time_unix_nano
        for each in chunks
        for resource in ExportLogsServiceRequest.FromString(each.body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


@given(st.integers(1, 60), st.integers(1, 60))
def test_too_large_chunks_are_halved_until_they_fit(records: int, most: int) -> None:
    """A receiver that takes ``most`` records at a time gets all, in order, each once, in whole requests."""
    taken: list[Chunk] = []

    def answer(sent: Chunk, _before: int) -> int:
        if sent.records > most:
            raise ExportError("sending failed: 413", retryable=False, too_large=True)
        taken.append(sent)
        return 0

    queue = started(ScriptedExporter(answer))
    outcome = settled(queue, put_all(logs(records)))
    queue.drain(1)
    assert numbers(taken) == list(range(1, records + 1))
    assert [each.records for each in taken] == [len(numbers([each])) for each in taken]
    assert (outcome.logs.sent, outcome.logs.failed, outcome.delivered) == (records, 0, True)


def test_a_record_that_is_too_large_alone_is_given_up_without_the_others() -> None:
    """The one is counted as failed; what is left of its chunk arrives."""

    def answer(sent: Chunk, _before: int) -> int:
        if 7 in numbers([sent]):
            raise ExportError("sending failed: 413", retryable=False, too_large=True)
        return 0

    queue = started(ScriptedExporter(answer))
    outcome = settled(queue, put_all(logs(10)))
    assert (outcome.logs.sent, outcome.logs.failed) == (9, 1)
    queue.drain(1)


def test_halves_are_retried_and_rejected_like_chunks() -> None:
    """The first half is refused for a while, the second in part: all is counted once."""

    def answer(sent: Chunk, before: int) -> int:
        if before == 0:
            raise ExportError("sending failed: 413", retryable=False, too_large=True)
        if before < 4:
            raise refused()
        return 2 if 10 in numbers([sent]) else 0

    queue = started(ScriptedExporter(answer))
    outcome = settled(queue, put_all(logs(10)))
    assert (outcome.logs.sent, outcome.logs.rejected) == (8, 2)
    queue.drain(1)


def test_a_failure_that_was_made_good_is_not_told() -> None:
    """After a retry that worked the outcome has no error."""

    def answer(_sent: Chunk, before: int) -> int:
        if before < 3:
            raise refused()
        return 0

    queue = started(ScriptedExporter(answer))
    assert settled(queue, put_all(chunk("a"), chunk("b"))).error is None
    queue.drain(1)


class KeptInMemory:
    """A Kept payload of a test: chunks that are settled are noted."""

    dump_id = "kept"

    def __init__(self, *chunks: Chunk) -> None:
        self.all = chunks
        self.settled: list[tuple[int, bool]] = []
        self.drop: Callable[[], bool] = lambda: False

    def begin(self) -> list[ChunkInfo]:
        """Those of the test."""
        return [ChunkInfo(each.signal, each.records, len(each.body)) for each in self.all]

    def load(self, index: int) -> Chunk:
        """From memory; one called gone is not there."""
        if self.all[index].body == b"gone":
            raise KeptFault("reading the spool failed: the checksum is wrong")
        return self.all[index]

    def settle(self, index: int, *, delivered: bool) -> None:
        """Noted."""
        self.settled.append((index, delivered))

    def on_drop(self, drop: Callable[[], bool]) -> None:
        """Kept for the test."""
        self.drop = drop


def test_kept_payload_outlives_max_elapsed_time() -> None:
    """An hour of outage: what is in memory is given up after 300 s, what is in the spool arrives."""
    clock = SkippingClock()

    def answer(_sent: Chunk, _before: int) -> int:
        if clock.now < 1000.0 + 3600:
            raise refused()
        return 0

    queue = started(ScriptedExporter(answer), clock=clock, queue=QueueOptions(num_consumers=1))
    kept = KeptInMemory(chunk("h"), chunk("a", 5))
    outcome = settled(queue, lambda queue, done: queue.put_kept(kept, done))
    assert (outcome.logs.sent, outcome.error) == (6, None)
    assert kept.settled == [(0, True), (1, True)]
    assert max(clock.waits) <= 30
    clock.now = 1000.0
    assert settled(queue, put_all(chunk("m"))).logs.failed == 1
    queue.drain(1)


def test_explicit_max_elapsed_time_holds_for_the_spool_too() -> None:
    """Who writes a bound means it: the dump is counted as failed and acknowledged as given up."""

    def answer(_sent: Chunk, _before: int) -> int:
        raise refused()

    queue = started(ScriptedExporter(answer), retry=RetryOptions.model_validate({"max_elapsed_time": "60s"}))
    kept = KeptInMemory(chunk("h"), chunk("a", 5))
    outcome = settled(queue, lambda queue, done: queue.put_kept(kept, done))
    assert (outcome.logs.failed, outcome.delivered) == (6, False)
    assert sorted(kept.settled) == [(0, False), (1, False)]
    queue.drain(1)


def test_kept_payloads_take_no_room_in_memory() -> None:
    """Whatever lies in the spool, a queue of one request has room for one in memory."""
    release = threading.Event()

    def answer(_sent: Chunk, _before: int) -> int:
        assert release.wait(WAIT_S)
        return 0

    queue = started(ScriptedExporter(answer), queue=QueueOptions(queue_size=1, num_consumers=1), clock=None)
    for _ in range(50):
        queue.put_kept(KeptInMemory(chunk("x" * 1000), chunk("y" * 1000)))
    assert (queue.stats().queue_size, queue.stats().queue_bytes) == (100, 0)
    assert queue.put(Payload((chunk("m"),)))
    release.set()
    assert queue.flush(WAIT_S)
    queue.drain(WAIT_S)


def test_drain_leaves_kept_payloads_where_they_are() -> None:
    """They are not dropped, not settled and their listener is not called; one sentence says how many stay."""
    tried = threading.Event()

    def answer(sent: Chunk, _before: int) -> int:
        if sent.body == b"a":
            tried.set()
            raise refused()
        return 0

    queue = started(ScriptedExporter(answer))
    kept = KeptInMemory(chunk("h"), chunk("a", 5))
    outcomes: list[Outcome] = []
    queue.put_kept(kept, lambda _payload, outcome: outcomes.append(outcome))
    assert tried.wait(WAIT_S)
    left = queue.drain(2.0)
    assert (left.records, left.kept) == (0, 1)
    assert left.sentence == "stopping otlp_grpc: 1 dump stays in the spool for the next start"
    assert kept.settled == [(0, True)]
    assert outcomes == []
    assert queue.stats().logs.dropped == 0


def test_a_kept_payload_that_the_spool_drops_is_counted() -> None:
    """What was not sent of it is dropped, once; a late answer changes nothing, and the queue goes on."""
    release, sending = threading.Event(), threading.Event()

    def answer(sent: Chunk, _before: int) -> int:
        if sent.body == b"a":
            sending.set()
            assert release.wait(WAIT_S)
        return 0

    queue = started(ScriptedExporter(answer), queue=QueueOptions(num_consumers=1), clock=None)
    kept = KeptInMemory(chunk("h"), chunk("a", 5), chunk("b", 7))
    outcomes: list[Outcome] = []
    queue.put_kept(kept, lambda _payload, outcome: outcomes.append(outcome))
    assert sending.wait(WAIT_S)
    kept.drop()
    kept.drop()
    assert [(each.logs.sent, each.logs.dropped) for each in outcomes] == [(1, 12)]
    assert "oldest dump was dropped" in str(outcomes[0].error)
    release.set()
    assert settled(queue, put_all(chunk("next"))).logs.sent == 1
    assert (queue.stats().logs.sent, queue.stats().logs.dropped) == (2, 12)
    queue.drain(1)


def test_a_kept_chunk_that_cannot_be_read_is_dropped_alone() -> None:
    """A damaged chunk is counted; the others arrive."""
    queue = started(ScriptedExporter())
    kept = KeptInMemory(chunk("h"), chunk("gone", 5), chunk("b", 7))
    outcome = settled(queue, lambda queue, done: queue.put_kept(kept, done))
    assert (outcome.logs.sent, outcome.logs.dropped) == (8, 5)
    assert "checksum" in str(outcome.error)
    queue.drain(1)
