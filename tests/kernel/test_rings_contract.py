# SPDX-License-Identifier: Apache-2.0
"""PerfReader, forward, under the suite that readers of other packages run."""

from __future__ import annotations

import pytest
from ring_program import number_of, send

from otel_perfbuf.bpf import BpfObject
from otel_perfbuf.rings import Batch, PerfReader
from otel_perfbuf.testing import ReaderContract


class TestPerfReader(ReaderContract):
    """The program chooses the samples' bytes: they are told apart by their numbers."""

    @pytest.fixture(autouse=True)
    def _program(self, program: BpfObject) -> None:
        self.map = program.maps["events"]

    def open_reader(self) -> PerfReader:
        """New rings in the map."""
        self.written: list[bytes] = []
        return PerfReader(self.map, per_cpu_bytes=1 << 16)

    def write(self, data: bytes) -> None:
        """A sample of the same length; what the suite wrote is kept for ``sent``."""
        self.written.append(data)
        send(max(8, len(data)))

    def sent(self, batch: Batch, length: int) -> list[bytes]:
        """What was written, for samples that came in the order of their numbers."""
        numbers = [number_of(data) for data in batch.data()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        texts, self.written = self.written[: len(numbers)], self.written[len(numbers) :]
        return texts

    def test_a_batch_outlives_later_reads_and_close(self) -> None:
        """The suite's own test needs the bytes that it wrote; here all bytes are compared."""
        with self.opened() as reader:
            self.write(b"first   ")
            kept = reader.read(0)
            before = kept.data()
            for _ in range(20):
                self.write(b"later   ")
                reader.read(0)
        assert kept.data() == before
