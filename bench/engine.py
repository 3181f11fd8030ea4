# SPDX-License-Identifier: Apache-2.0
"""What the engine costs a record: ring bytes to OTLP chunks, one thread, no Python per record.

The samples are synthetic with realistic content: pages of eight records of 40 threads in 6 processes; opens that fail,
reads, fstat, connect, mmap, futex-like waits. Prints one line a step and the sum; the best of --rounds.
usage: engine.py [--records 100000] [--rounds 5] [--max-ms N]  (exit 1 when the sum is above N)
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

from plan_rows import NUMBERS, PLAN
from samples import Arena, Capture, SampleWriter, string

from otel_perfbuf._core._core import ffi, lib

THREADS, PROCESSES = 40, 6
AT_FDCWD = 0xFFFFFF9C


def template() -> tuple[bytes, list[int]]:
    """A page of eight records, and the offsets of their sequences."""
    stat = Capture(1, lib.PB_CAPTURE_STRUCT, bytes(24) + struct.pack("I", 0o100644) + bytes(116))
    inet = Capture(1, lib.PB_CAPTURE_SOCKADDR, struct.pack("=H", 2) + b"\x1f\x90\x7f\0\0\1" + bytes(8))
    writer = SampleWriter()
    path = string(1, b"/usr/lib/python3.11/site-packages/checkout/config/prices.json")
    writer.syscall(1, 1, NUMBERS["openat"], [AT_FDCWD, 1 << 46, 0o2000000, 0], -2, 3456, [path])
    writer.syscall(2, 2, NUMBERS["openat"], [AT_FDCWD, 1 << 46, 0o2000000, 0], 7, 5678, [path])
    writer.syscall(3, 3, NUMBERS["fstat"], [7, 140722222222222], 0, 800, [stat])
    writer.syscall(4, 4, NUMBERS["read"], [7, 94123456789012, 4096], 220, 1500)
    writer.syscall(5, 5, NUMBERS["lseek"], [7, 0, 1], 220, 400)
    writer.syscall(6, 6, NUMBERS["connect"], [9, 140722222222222, 16], -111, 90000, [inet])
    writer.syscall(7, 7, NUMBERS["mmap"], [0, 65536, 3, 0x22, (1 << 64) - 1, 0], 0x7F1234560000, 2100)
    writer.syscall(8, 8, NUMBERS["write"], [2, 94123456789012, 80], 80, 3100)
    offsets, at = [], 64
    for record in writer.records:
        offsets.append(at + 8)
        at += len(record)
    return writer.sample(), offsets


def make_arena(records: int) -> Arena:
    """Pages of all threads in turn; newest first, as a snapshot's walk gives them."""
    page, offsets = template()
    samples = []
    for number in range(records // len(offsets)):
        data, thread, round_ = bytearray(page), number % THREADS, number // THREADS
        struct.pack_into("=II", data, 8, 1000 + thread, 1000 + thread % PROCESSES)
        struct.pack_into("=QQQ", data, 16, 10**12 + thread, 10**11, 10**13 + 80_000 * number)
        for index, offset in enumerate(offsets):
            struct.pack_into("=QQ", data, offset, round_ * 8 + index + 1, 10**13 + 80_000 * number + 9_000 * index)
        samples.append(bytes(data))
    return Arena(reversed(samples))


class Run:
    """One pass; the steps' times in seconds."""

    def __init__(self, arena: Arena) -> None:
        self.steps: dict[str, float] = {}
        self.last = time.perf_counter()
        size = ffi.new("struct pb_history_size *")
        check(lib.pb_history_count_samples(arena.arena, arena.frames, arena.frame_count, size))
        self.step("count")
        new = ffi.new_allocator(should_clear_after_alloc=False)
        rows = int(size.samples)
        self.keep = [
            new("struct pb_event[]", size.events),
            new("struct pb_thread[]", rows),
            new("struct pb_process_entry[]", rows),
            new("uint64_t[]", 4 * size.events),
            new("struct pb_lost[]", rows),
        ]
        self.c = ffi.new("struct pb_history *")
        self.c.events, self.c.threads, self.c.processes = self.keep[:3]
        self.c.event_capacity, self.c.thread_capacity, self.c.process_capacity = size.events, rows, rows
        self.c.workspace, self.c.workspace_bytes = ffi.cast("uint8_t *", self.keep[3]), 32 * size.events
        self.c.gaps, self.c.gap_capacity = self.keep[4], rows
        check(lib.pb_history_add_samples(self.c, arena.arena, arena.frames, arena.frame_count))
        self.step("add")
        check(lib.pb_history_join(self.c))
        self.step("join")
        for index in range(self.c.process_count):
            self.c.processes[index].scope = 1
        counts = ffi.new("uint64_t[2]")
        check(lib.pb_history_select(self.c, 0, 1 << 63, 1 << 40, counts, counts + 1))
        self.step("select")
        self.records, self.bytes, self.chunks = self.encode(new)
        self.step("encode")

    def step(self, name: str) -> None:
        """Ends a step."""
        now = time.perf_counter()
        self.steps[name], self.last = now - self.last, now

    def encode(self, new: Any) -> tuple[int, int, int]:
        """All chunks: records, bytes, chunks."""
        c, resource = ffi.new("struct pb_encoding *"), ffi.new("uint8_t[]", 200)
        table = ffi.new("struct pb_bytes[]", self.c.process_count)
        for one in table:
            one.data, one.size = resource, 200
        c.plan, c.resources, c.has_trace, c.dump_id = PLAN.c, table, 1, b"0" * 32
        c.trace_id, c.dump_span_id = bytes(range(16)), bytes(range(8))
        out, scratch = new("uint8_t[]", lib.PB_CHUNK_BYTES), new("uint8_t[]", 2 * lib.PB_CHUNK_BYTES)
        cursor, size, count = ffi.new("uint64_t *"), ffi.new("uint64_t *"), ffi.new("uint32_t *")
        records = total = chunks = 0
        while True:
            check(lib.pb_otlp_encode_chunk(
                self.c, c, cursor, scratch, 2 * lib.PB_CHUNK_BYTES, out, lib.PB_CHUNK_BYTES, size, count
            ))  # fmt: skip
            if not size[0]:
                return records, total, chunks
            records, total, chunks = records + count[0], total + size[0], chunks + 1


def check(status: int) -> None:
    """Every call must succeed."""
    if status != lib.PB_OK:
        raise SystemExit(f"the engine answered {status}")


def main() -> int:
    """Runs and prints; 1 when slower than was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-ms", type=float, default=0)
    options = parser.parse_args()
    arena = make_arena(options.records)
    runs = [Run(arena) for _ in range(options.rounds)]
    best = min(runs, key=lambda run: sum(run.steps.values()))
    total = sum(best.steps.values())
    for name, seconds in best.steps.items():
        print(f"{name:8} {seconds * 1e3:8.1f} ms {seconds * 1e9 / best.records:7.0f} ns/record")
    print(
        f"engine   {total * 1e3:8.1f} ms {total * 1e9 / best.records:7.0f} ns/record: {best.records} records, "
        f"{best.bytes / best.records:.0f} bytes each, {best.chunks} chunks"
    )
    return int(bool(options.max_ms) and total * 1e3 > options.max_ms)


if __name__ == "__main__":
    sys.exit(main())
