# SPDX-License-Identifier: Apache-2.0
"""PerfReader as a contender of readers.py, with something done to every batch.

usage: readers_ours.py MAP_FD BYTES batches|samples|bytes|memcpy; for each line "N": reads N records, prints the CPU
nanoseconds. ``memcpy`` is no reader: it copies what the rings hold and looks at nothing, the least that copying costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from otel_perfbuf._core._core import ffi
from otel_perfbuf._core._fast import Arena
from otel_perfbuf.rings import Batch, PerfReader
from otel_perfbuf.rings.reader import _mapped
from otel_perfbuf.rings.readout import SLICE_BYTES, MappedRing

RECORD_BYTES = 112  # a sample of 100 bytes in the ring


def iterate(batch: Batch) -> None:
    """Every record as a Sample."""
    for _ in batch:
        pass


def as_bytes(batch: Batch) -> None:
    """Every record as bytes."""
    list(batch.data())


USES: dict[str, Callable[[Batch], object]] = {"batches": len, "samples": iterate, "bytes": as_bytes}


class Copy:
    """Copies slices as large as a batch's into one prefaulted buffer, and frees them for the kernel."""

    def __init__(self, rings: list[MappedRing]) -> None:
        self._rings = rings
        self._memory = Arena(SLICE_BYTES)
        self._into = ffi.from_buffer("uint8_t[]", self._memory)

    def drain(self) -> int:
        """How many records it copied."""
        copied = 0
        for ring in self._rings:
            words = ffi.cast("volatile uint64_t *", ring.page)  # data_head at 1024, data_tail at 1032
            head, tail, data = words[128], words[129], ffi.cast("uint8_t *", ring.data)
            copied += head - tail
            while tail != head:
                offset = tail % ring.capacity
                size = min(head - tail, SLICE_BYTES, ring.capacity - offset)
                ffi.memmove(self._into, data + offset, size)
                tail += size
            words[129] = head
        return copied // RECORD_BYTES


def main() -> None:
    """Answers line by line."""
    fd, ring_bytes, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with PerfReader(fd, per_cpu_bytes=ring_bytes) as reader:
        copy = Copy([_mapped(ring) for ring in reader._set.rings])
        use = USES.get(how, len)
        print("ready", flush=True)
        for line in sys.stdin:
            wanted, seen = int(line), 0
            begun = time.process_time_ns()
            while seen < wanted:
                if how == "memcpy":
                    seen += copy.drain()
                else:
                    batch = reader.read(0)
                    use(batch)
                    seen += len(batch)
            print(time.process_time_ns() - begun, flush=True)


if __name__ == "__main__":
    main()
