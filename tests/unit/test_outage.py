# SPDX-License-Identifier: Apache-2.0
"""Receivers that are away, wrong or silent, and a spool on a real disk: each count must come out even.

Time is simulated where minutes pass; the spool, its files and the sockets are real.
"""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from export_samples import DUMP_ID, ScriptedExporter, SkippingClock, logs_request
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.errors import ExportError, PerfbufError
from otel_perfbuf.exporters.delivery import Outcome
from otel_perfbuf.exporters.options import QueueOptions, RetryOptions
from otel_perfbuf.exporters.otlp_http import Options, create
from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.exporters.queue import SendingQueue
from otel_perfbuf.spool.frames import Meta
from otel_perfbuf.spool.storage import Spool

HOUR_S = 3600.0
WAIT_S = 60
NAME = "otlp_http"


def bodies(number: int, parts: int) -> tuple[Chunk, ...]:
    """The chunks of a dump: each record is known by (dump, part, record)."""
    return tuple(Chunk("logs", f"{number}.{part}".encode(), 10) for part in range(parts))


def refused() -> ExportError:
    """As a Collector's memory limiter."""
    return ExportError("sending failed: HTTP 503", retryable=True)


@pytest.mark.parametrize(("max_bytes", "fits"), [(1 << 20, True), (3000, False)])
def test_an_hour_of_outage(tmp_path: Path, max_bytes: int, fits: bool) -> None:
    """A dump a minute, the receiver away for an hour: all arrive, or the oldest are dropped and counted."""
    clock = SkippingClock()
    made, got = Counter[bytes](), Counter[bytes]()
    outcomes: list[Outcome] = []
    spool = Spool(tmp_path, max_bytes)
    spool.open()

    def answer(sent: Chunk, _before: int) -> int:
        if clock.now < 1000.0 + HOUR_S:
            make_due()
            raise refused()
        got[sent.body] += 1
        return 0

    lock = threading.Lock()

    def make_due() -> None:
        """A dump for each minute that has passed."""
        with lock:
            while len(dumps) < 60 and clock.now >= 1000.0 + 60 * len(dumps):
                make()

    dumps: list[str] = []

    def make() -> None:
        chunks = bodies(len(dumps), 4)
        dumps.append(f"{len(dumps):032x}")
        made.update(chunk.body for chunk in chunks)
        entry = spool.add(Meta(dumps[-1], "manual", 40, {NAME: (0, 1, 2, 3)}), chunks)
        queue.put_kept(entry.shares[NAME], lambda _payload, outcome: outcomes.append(outcome))

    queue = SendingQueue(
        ScriptedExporter(answer),
        name=NAME,
        clock=clock,
        retry=RetryOptions(randomization_factor=0),
        queue=QueueOptions(num_consumers=2),
    )
    queue.start()
    with lock:
        make()
    settled = threading.Event()

    def watch() -> None:
        while len(dumps) < 60 or not queue.flush(1e9):
            pass
        settled.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    assert settled.wait(WAIT_S)
    thread.join(WAIT_S)
    queue.drain(1)
    counts = queue.stats().logs
    dropped = spool.stats().dropped
    assert len(dumps) == len(outcomes) == 60
    assert counts.sent + counts.dropped == 60 * 40
    assert counts.failed == counts.rejected == 0
    assert sum(outcome.delivered for outcome in outcomes) == 60 - dropped
    assert (dropped == 0) == fits
    assert set(got) <= set(made)
    assert counts.sent == 10 * len(got)
    assert spool.stats().dumps == 0
    assert not list(tmp_path.glob("*.dump"))


def test_restarts_at_random_moments_of_an_outage(tmp_path: Path) -> None:
    """Twenty agents after each other, each left at a random moment by the receiver's whim: every chunk arrives."""
    randomness = random.Random(6)
    made, got = set[bytes](), Counter[bytes]()
    for generation in range(20):
        last = generation == 19
        spool = Spool(tmp_path, 1 << 20)
        spool.open()
        patience = randomness.randrange(0, 6)
        given_up = threading.Event()

        def answer(
            sent: Chunk, before: int, patience: int = patience, last: bool = last, up: threading.Event = given_up
        ) -> int:
            if before >= patience and not last:
                up.set()
                raise refused()
            got[sent.body] += 1
            return 0

        queue = SendingQueue(ScriptedExporter(answer), name=NAME)
        queue.start()
        for share in spool.shares(NAME):
            queue.put_kept(share)
        if not last:
            chunks = bodies(generation, 3)
            made.update(chunk.body for chunk in chunks)
            entry = spool.add(Meta(f"{generation:032x}", "manual", 30, {NAME: (0, 1, 2)}), chunks)
            queue.put_kept(entry.shares[NAME])
            given_up.wait(0.05)
        else:
            assert queue.flush(WAIT_S)
        queue.drain(0.0)
        spool.close()
    assert set(got) == made
    assert not list(tmp_path.glob("*.dump"))


ANSWERS = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy",
    b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    b"\x00\x01garbage\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
    b"",
    None,
)
"""None: nothing is said and the connection stays open."""


@contextmanager
def wrong_receiver() -> Iterator[tuple[str, list[bytes], Counter[int]]]:
    """(endpoint, bodies that it took, how often each answer was given): wrong seven times out of eight, by turns."""
    taken: list[bytes] = []
    given: Counter[int] = Counter()
    lock = threading.Lock()
    turns = itertools.count()
    held: list[socket.socket] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while (line := stream.readline()) != b"":
            length = 0
            while (header := stream.readline()) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = stream.read(length)
            assert line.startswith(b"POST /v1/logs")
            with lock:
                turn = next(turns) % (len(ANSWERS) + 1)
                if turn == 2 and length < 2000:  # a record alone would never fit
                    turn = next(turns) % (len(ANSWERS) + 1)
                given[turn] += 1
                if turn == len(ANSWERS):
                    taken.append(body)
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    continue
            said = ANSWERS[turn]
            if said is None:
                held.append(connection)
                return
            connection.sendall(said)
            if said == b"" or b"garbage" in said or b"half" in said or b"close" in said:
                connection.shutdown(socket.SHUT_RDWR)
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", taken, given
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)
    for connection in held:
        connection.close()


def times(requests: list[bytes]) -> Counter[int]:
    """How often each record arrived, by protobuf's own parser."""
    return Counter(
        record.time_unix_nano
        for body in requests
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    )


def test_every_kind_of_wrong_answer(tmp_path: Path) -> None:
    """429 with Retry-After, 503, 413, garbage, half an answer, a closed and a silent connection: all of it arrives."""
    spool = Spool(tmp_path, 1 << 20)
    spool.open()
    chunks = []
    for part in range(4):
        request = logs_request(16, begin_ns=10**18 + part * 10**9, header=part == 0)
        chunks.append(Chunk("logs", request.SerializeToString(), 16 + (part == 0)))
    expected = times([chunk.body for chunk in chunks])
    outcomes: list[Outcome] = []
    with wrong_receiver() as (endpoint, taken, given):
        exporter = create(Options.model_validate({"endpoint": endpoint, "compression": "none", "timeout": "300ms"}))
        retry = RetryOptions.model_validate({"initial_interval": "5ms", "max_interval": "5ms"})
        queue = SendingQueue(exporter, name=NAME, retry=retry, queue=QueueOptions(num_consumers=2))
        queue.start()
        entry = spool.add(Meta(DUMP_ID, "manual", 64, {NAME: (0, 1, 2, 3)}), chunks)
        queue.put_kept(entry.shares[NAME], lambda _payload, outcome: outcomes.append(outcome))
        assert queue.flush(WAIT_S)
        queue.drain(1)
    assert set(given) == set(range(len(ANSWERS) + 1))
    assert times(taken).keys() == expected.keys()
    assert max(times(taken).values()) <= 2
    counts = queue.stats().logs
    assert (counts.sent, counts.failed, counts.dropped, counts.rejected) == (65, 0, 0, 0)
    assert [outcome.delivered for outcome in outcomes] == [True]
    assert spool.stats().dumps == 0


def test_memory_is_bounded_while_a_receiver_is_away(tmp_path: Path) -> None:
    """A full queue in memory refuses and counts; what went to disk holds no bytes in memory."""
    release = threading.Event()

    def answer(_sent: Chunk, _before: int) -> int:
        release.wait(WAIT_S)
        return 0

    queue = SendingQueue(ScriptedExporter(answer), name=NAME, queue=QueueOptions(queue_size=10, max_bytes=5000))
    queue.start()
    spool = Spool(tmp_path, 1 << 20)
    spool.open()
    put = sum(queue.put(Payload((Chunk("logs", b"x" * 1000, 1),))) for _ in range(100))
    for number in range(20):
        entry = spool.add(Meta(f"{number:032x}", "manual", 1, {NAME: (0,)}), [Chunk("logs", b"y" * 10_000, 1)])
        queue.put_kept(entry.shares[NAME])
    assert put == 5
    assert queue.stats().queue_bytes <= 5000
    release.set()
    assert queue.flush(WAIT_S)
    queue.drain(1)
    assert (queue.stats().logs.sent, queue.stats().logs.dropped) == (25, 95)


def test_a_spool_on_a_read_only_directory_is_a_sentence(tmp_path: Path) -> None:
    """What cannot be opened is said before anything records."""
    (tmp_path / "lock").mkdir()
    with pytest.raises(PerfbufError, match="Is a directory"):
        Spool(tmp_path, 1 << 20).open()
