# SPDX-License-Identifier: Apache-2.0
"""Sample and page bytes made by a writer that plays the BPF programs, and their way through the C engine.

What it is not: it checks nothing; bytes that disagree with themselves are made by tampering with what it gives.
Source: bpf/records.h, whose structs it fills through cffi.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_perfbuf._core._core import ffi, lib

SAMPLE_FRAME = 9  # PERF_RECORD_SAMPLE


@dataclass(frozen=True)
class Capture:
    """One captured argument; ``extent`` None: as many as there are bytes."""

    argument: int
    kind: int
    data: bytes
    extent: int | None = None
    flags: int = 0
    part: int = 0

    def encode(self) -> bytes:
        """Header, data, padding to 8."""
        extent = len(self.data) if self.extent is None else self.extent
        head = struct.pack("=BBBBHH", self.argument, self.kind, self.flags, self.part, len(self.data), extent)
        return head + self.data + bytes(-len(self.data) % 8)


def string(argument: int, data: bytes, flags: int = 0) -> Capture:
    """A NUL-terminated string's capture."""
    return Capture(argument, lib.PB_CAPTURE_STRING, data, None, flags)


def word(argument: int, value: int) -> Capture:
    """A 32-bit word behind a pointer."""
    return Capture(argument, lib.PB_CAPTURE_WORD, struct.pack("=I", value & 0xFFFFFFFF))


@dataclass
class SampleWriter:
    """Collects the records of one thread and gives them as a sample or as a page of the task iterator."""

    tid: int = 100
    tgid: int = 100
    instance: int = 1
    process_start_ns: int = 5
    comm: bytes = b"worker"
    sent_ns: int = 0
    cpu: int = 0
    records: list[bytes] = field(default_factory=list)
    own: int = 0
    last: int = 0

    def _add(
        self, name: str, kind: int, sequence: int, time_ns: int, captures: Sequence[Capture] = (), **body: Any
    ) -> None:
        record = ffi.new(f"struct {name} *")
        head = record if name == "pb_record" else record.record
        size = ffi.sizeof(f"struct {name}")
        if name == "pb_syscall":
            args = body.pop("args")
            record.args[0 : len(args)] = [value & (1 << 64) - 1 for value in args]
            head.arguments, size = len(args), 48 + 8 * len(args)
        head.flags = body.pop("flags", 0)
        for key, value in body.items():
            setattr(record, key, value)
        tail = b"".join(capture.encode() for capture in captures)
        head.bytes, head.kind, head.cpu, head.captures = size + len(tail), kind, self.cpu, len(captures)
        head.sequence, head.time_ns = sequence, time_ns
        self.records.append(bytes(ffi.buffer(record, size)) + tail)
        if kind not in (lib.PB_RECORD_ENTRY, lib.PB_RECORD_SPAN):
            self.own += 1
            self.last = max(self.last, sequence)
        self.sent_ns = max(self.sent_ns, time_ns)

    def syscall(
        self,
        sequence: int,
        time_ns: int,
        number: int = 0,
        args: Sequence[int] = (),
        result: int = 0,
        duration_ns: int = 10,
        captures: Sequence[Capture] = (),
        flags: int = 0,
    ) -> SampleWriter:
        """A finished call."""
        self._add(
            "pb_syscall", lib.PB_RECORD_SYSCALL, sequence, time_ns, captures,
            number=number, args=args, result=result, duration_ns=duration_ns, flags=flags,
        )  # fmt: skip
        return self

    def entry(self, sequence: int, time_ns: int, captures: Sequence[Capture]) -> SampleWriter:
        """What was captured when the call of that sequence began."""
        self._add("pb_record", lib.PB_RECORD_ENTRY, sequence, time_ns, captures)
        return self

    def span(self, trace_id: bytes, span_id: bytes) -> SampleWriter:
        """The span of the records behind it that carry PB_FLAG_SPAN."""
        ids = ffi.new("struct pb_span_ids *", {"trace_id": trace_id, "span_id": span_id})
        self._add("pb_span_record", lib.PB_RECORD_SPAN, self.last, self.sent_ns, ids=ids[0])
        return self

    def signal(self, sequence: int, time_ns: int, number: int, code: int = 0, fields: bytes = b"", error: int = 0,
               has_info: int = 1) -> SampleWriter:  # fmt: skip
        """A delivered signal; ``fields``: the beginning of siginfo's union."""
        self._add("pb_signal", lib.PB_RECORD_SIGNAL, sequence, time_ns, number=number, code=code, error=error,
                  has_info=has_info, fields=fields.ljust(32, b"\0"))  # fmt: skip
        return self

    def exec(self, sequence: int, time_ns: int, path: bytes) -> SampleWriter:
        """An execve that succeeded."""
        self._add("pb_exec", lib.PB_RECORD_EXEC, sequence, time_ns, [string(0, path)], old_tid=self.tid)
        return self

    def fork(self, sequence: int, time_ns: int, child_tid: int, child_tgid: int) -> SampleWriter:
        """A child: a process or a thread."""
        self._add("pb_fork", lib.PB_RECORD_FORK, sequence, time_ns, child_tid=child_tid, child_tgid=child_tgid)
        return self

    def exit(self, sequence: int, time_ns: int, status: int) -> SampleWriter:
        """The process's end, by its wait status."""
        self._add("pb_exit", lib.PB_RECORD_EXIT, sequence, time_ns, status=status)
        return self

    def oom_kill(self, sequence: int, time_ns: int, victim: int, cgroup: int) -> SampleWriter:
        """The kernel killed somebody for memory."""
        self._add("pb_oom_kill", lib.PB_RECORD_OOM_KILL, sequence, time_ns, victim_tgid=victim, cgroup_id=cgroup)
        return self

    def lost(self, sequence: int, time_ns: int, count: int, reason: int) -> SampleWriter:
        """Records that are not here, as the live stream has them."""
        self._add("pb_lost", lib.PB_RECORD_LOST, sequence, time_ns, count=count, reason=reason)
        return self

    def sample(self) -> bytes:
        """The sample's own bytes, without the kernel's padding."""
        body = b"".join(self.records)
        head = ffi.new("struct pb_sample *")
        head.version, head.kind, head.bytes = lib.PB_VERSION, lib.PB_SAMPLE_PAGE, 64 + len(body)
        head.records, head.tid, head.tgid, head.instance = self.own, self.tid, self.tgid, self.instance
        head.process_start_ns, head.sent_ns = self.process_start_ns, self.sent_ns
        head.comm = self.comm.ljust(16, b"\0")
        return bytes(ffi.buffer(head)) + body

    def page(
        self,
        open_call: SampleWriter | None = None,
        seen_ns: int = 0,
        last_sequence: int | None = None,
        flags: int | None = None,
    ) -> bytes:
        """The page as the iterator gives it; ``open_call``'s one record is the call in flight."""
        head = ffi.new("struct pb_page_head *")
        head.flags = lib.PB_PAGE_TARGET if flags is None else flags
        head.used, head.seen_ns = sum(map(len, self.records)), seen_ns
        head.last_sequence = self.last if last_sequence is None else last_sequence
        if open_call is not None:
            head.flags |= lib.PB_PAGE_OPEN
            head.last_sequence = max(head.last_sequence, open_call.last)
            data = open_call.records[0]
            ffi.memmove(ffi.addressof(head, "open"), data, min(len(data), ffi.sizeof("struct pb_syscall")))
        return bytes(ffi.buffer(head)) + self.sample()


class Arena:
    """Samples as a ring's copy holds them: raw data at 4 modulo 8, padded by the kernel with stale bytes."""

    def __init__(self, samples: Iterable[bytes], pad: bytes = b"\xee") -> None:
        data, places = bytearray(), []
        for sample in samples:
            data += b"\xaa" * 4  # the size word in front
            padded = (len(sample) + 4 + 7) // 8 * 8 - 4
            places.append((len(data), padded))
            data += sample + pad * (padded - len(sample))
        self.frame_count = len(places)
        self.frames = ffi.new("struct pb_frame[]", max(len(places), 1))
        self.arena = ffi.new("uint8_t[]", bytes(data) or b"\0")
        for frame, (offset, size) in zip(self.frames, places, strict=False):
            frame.offset, frame.bytes, frame.type = offset, size, SAMPLE_FRAME


class Engine:
    """A history over its inputs, with exactly the memory that the counting functions ask for."""

    def __init__(
        self, samples: Iterable[bytes] = (), pages: bytes = b"", *, gaps: int = 64, pages_first: bool = True
    ) -> None:
        self.ring, self.pages = Arena(samples), ffi.new("uint8_t[]", pages or b"\0")
        size = ffi.new("struct pb_history_size *")
        assert lib.pb_history_count_samples(self.ring.arena, self.ring.frames, self.ring.frame_count, size) == lib.PB_OK
        assert lib.pb_history_count_pages(self.pages, len(pages), size) == lib.PB_OK
        self.counted = (int(size.events), int(size.samples))
        events, rows = self.counted
        self.keep = [
            ffi.new("struct pb_event[]", events or 1), ffi.new("struct pb_thread[]", rows or 1),
            ffi.new("struct pb_process_entry[]", rows or 1), ffi.new("uint64_t[]", 4 * events or 1),
            ffi.new("struct pb_lost[]", gaps or 1),
        ]  # fmt: skip
        self.c = ffi.new("struct pb_history *")
        self.c.events, self.c.event_capacity = self.keep[0], events
        self.c.threads, self.c.thread_capacity = self.keep[1], rows
        self.c.processes, self.c.process_capacity = self.keep[2], rows
        self.c.workspace, self.c.workspace_bytes = ffi.cast("uint8_t *", self.keep[3]), 32 * events
        self.c.gaps, self.c.gap_capacity = self.keep[4], gaps
        steps = [
            lambda: lib.pb_history_add_pages(self.c, self.pages, len(pages)),
            lambda: lib.pb_history_add_samples(self.c, self.ring.arena, self.ring.frames, self.ring.frame_count),
        ]
        for step in steps if pages_first else reversed(steps):
            assert step() == lib.PB_OK

    def join(self) -> Engine:
        """Joins; asserts that the counted memory was enough."""
        assert lib.pb_history_join(self.c) == lib.PB_OK
        return self

    @property
    def events(self) -> list[Any]:
        """The joined events, oldest first."""
        return [self.c.events[i] for i in range(self.c.event_count)]

    @property
    def threads(self) -> list[Any]:
        """The thread instances."""
        return [self.c.threads[i] for i in range(self.c.thread_count)]

    def sequences(self) -> list[tuple[int, int, int]]:
        """(time, instance, sequence) of each event."""
        return [(int(e.time_ns), int(e.instance), int(e.sequence)) for e in self.events]

    def select(self, start_ns: int = 0, end_ns: int = 1 << 62, most: int = 1 << 40) -> tuple[int, int]:
        """Selects of all processes; (selected, dropped)."""
        for i in range(self.c.process_count):
            self.c.processes[i].scope = 1
        selected, dropped = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        assert lib.pb_history_select(self.c, start_ns, end_ns, most, selected, dropped) == lib.PB_OK
        return int(selected[0]), int(dropped[0])

    def line(self, plan: Any, index: int = 0) -> str:
        """One event's body; strict UTF-8."""
        out, size = ffi.new("char[]", lib.PB_LINE_BYTES), ffi.new("uint64_t *")
        assert lib.pb_text_line(self.c, plan, index, out, lib.PB_LINE_BYTES, size) == lib.PB_OK
        return bytes(ffi.buffer(out, size[0])).decode("utf-8")
