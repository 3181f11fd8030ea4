# SPDX-License-Identifier: Apache-2.0
"""The contract of every forward reader as tests: subclass it in a pytest module and fill in two methods.

    class TestMyReader(ReaderContract):
        def open_reader(self): ...          # a new reader, nothing in it
        def write(self, data): ...          # one sample of these bytes reaches the reader that was opened last

What it is not: tests of what lies behind the reader. Source: CONTRACT section 6; otel_perfbuf/rings/protocol.py.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from otel_perfbuf.errors import ReaderClosed
from otel_perfbuf.rings.batch import Batch, Sample
from otel_perfbuf.rings.protocol import Reader

__all__ = ["ReaderContract"]

PATIENCE_S = 10.0


class ReaderContract:
    """Tests that any forward reader passes; samples may come padded at their end."""

    def open_reader(self) -> Reader:
        """A new reader with nothing in it."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Makes one sample; it is there when this returns, whether or not anybody wakes for it."""
        raise NotImplementedError

    @contextmanager
    def opened(self) -> Iterator[Reader]:
        """A reader that is closed at the end."""
        reader = self.open_reader()
        try:
            yield reader
        finally:
            reader.close()

    def sent(self, batch: Batch, length: int) -> list[bytes]:
        """What was written, without the pad."""
        return [bytes(data[:length]) for data in batch.data()]

    def test_samples_come_once_and_in_order(self) -> None:
        """What was written before a read comes out as it went in, and never again."""
        with self.opened() as reader:
            written = [b"sample %03d" % number for number in range(50)]
            for data in written:
                self.write(data)
            got: list[bytes] = []
            while batch := self.sent(reader.read(0), 10):
                got += batch
            assert got == written
            assert len(reader.read(0)) == 0

    def test_iterating_and_data_agree(self) -> None:
        """A batch has a length, iterates samples, and lists the same bytes; iterating twice gives the same."""
        with self.opened() as reader:
            self.write(b"one 4567")
            self.write(b"two 4567")
            batch = reader.read(0)
            assert len(batch) == 2
            for _ in range(2):
                assert [bytes(item.data) for item in batch if isinstance(item, Sample)] == batch.data()
            assert (batch.lost, batch.malformed, batch.truncated) == (0, 0, 0)

    def test_a_timeout_gives_an_empty_batch(self) -> None:
        """With nothing there read waits as long as it was told, and gives an empty batch."""
        with self.opened() as reader:
            reader.read(0)
            begun = time.monotonic()
            assert len(reader.read(0.05)) == 0
            assert time.monotonic() - begun >= 0.049

    def test_a_timeout_gives_what_is_there(self) -> None:
        """Whatever would not have woken anybody comes at the timeout at the latest."""
        with self.opened() as reader:
            reader.read(0)
            self.write(b"12345678")
            assert self.sent(reader.read(0.05), 8) == [b"12345678"]

    def test_flush_does_not_wait(self) -> None:
        """It gives what is there, and an empty batch when nothing is."""
        with self.opened() as reader:
            self.write(b"12345678")
            assert self.sent(reader.flush(), 8) == [b"12345678"]
            assert len(reader.flush()) == 0

    def test_flush_wakes_a_blocked_read(self) -> None:
        """The read returns, whatever there is."""
        with self.opened() as reader:
            reader.read(0)
            waiting = _Reading(reader)
            waiting.assert_waits()
            reader.flush()
            assert isinstance(waiting.finish(), Batch)

    def test_a_batch_outlives_later_reads_and_close(self) -> None:
        """Its bytes stay as they are as long as it is kept."""
        with self.opened() as reader:
            self.write(b"first   ")
            kept = reader.read(0)
            for number in range(20):
                self.write(b"later %02d" % number)
                reader.read(0)
        assert self.sent(kept, 8) == [b"first   "]

    def test_close_wakes_a_blocked_read(self) -> None:
        """The read raises ReaderClosed; a second close is fine."""
        reader = self.open_reader()
        reader.read(0)
        waiting = _Reading(reader)
        waiting.assert_waits()
        reader.close()
        assert isinstance(waiting.finish(), ReaderClosed)
        reader.close()

    def test_a_closed_reader_refuses(self) -> None:
        """Every call but close raises ReaderClosed."""
        reader = self.open_reader()
        reader.close()
        calls: list[Callable[[], object]] = [lambda: reader.read(0), reader.flush, reader.fileno, lambda: reader.stats]
        for call in calls:
            try:
                call()
            except ReaderClosed:
                continue
            raise AssertionError("a closed reader answered")

    def test_fileno_is_not_readable_when_nothing_is_there(self) -> None:
        """An event loop that waits for it does not spin."""
        with self.opened() as reader:
            reader.read(0)
            assert select.select([reader.fileno()], [], [], 0.02)[0] == []

    def test_stats_count_what_was_read(self) -> None:
        """Samples, and nothing lost."""
        with self.opened() as reader:
            for _ in range(3):
                self.write(b"12345678")
            reader.read(0)
            assert (reader.stats.samples, reader.stats.lost, reader.stats.malformed) == (3, 0, 0)


class _Reading(threading.Thread):
    """A thread that waits in one read."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(daemon=True)
        self._reader = reader
        self._result: list[Batch | Exception] = []
        self.start()

    def run(self) -> None:
        """Reads once."""
        try:
            self._result.append(self._reader.read())
        except Exception as error:  # noqa: BLE001 (whatever it is, the test looks at it)
            self._result.append(error)

    def assert_waits(self) -> None:
        """Still inside after a moment."""
        self.join(0.1)
        assert self.is_alive()

    def finish(self) -> Batch | Exception:
        """What it got."""
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self._result[0]
