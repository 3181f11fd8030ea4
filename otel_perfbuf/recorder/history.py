# SPDX-License-Identifier: Apache-2.0
"""Ring bytes and thread pages to OTLP chunks: the Python handle of the C engine.

What it is not: it chooses nothing (dump.py says what is in scope) and no Python code runs for a record here.
Source: otel_perfbuf/_core/history.h and otlp.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import PerfbufError

__all__ = ["Encoding", "Frames", "History", "ProcessKey", "ThreadRow"]

ProcessKey = tuple[int, int]
"""(tgid, start time of the leader in CLOCK_MONOTONIC ns): a process, whatever its pid is reused for."""


class Frames(Protocol):
    """What the history takes of a `rings.Batch`: C pointers that live as long as the object."""

    @property
    def arena(self) -> Any:
        """``uint8_t *``."""

    @property
    def frames(self) -> Any:
        """``struct pb_frame *``, with offsets into the arena."""

    @property
    def frame_count(self) -> int:
        """How many frames."""


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread instance of the history; times are CLOCK_MONOTONIC ns."""

    index: int
    instance: int
    tid: int
    process: int
    comm: str
    first_sequence: int
    last_sequence: int
    events: int
    missing: int


@dataclass(frozen=True, slots=True)
class Encoding:
    """What is the same for every record of a dump; ``trace_id`` None makes a live batch, without any ids."""

    unix_offset_ns: int
    observed_unix_ns: int
    scope: bytes
    trace_id: bytes | None = None
    trace_flags: int = 0
    dump_span_id: bytes = bytes(8)
    span_id: bytes = bytes(8)
    dump_id: str = ""


def _check(status: int, doing: str) -> None:
    if status != lib.PB_OK:
        raise PerfbufError(f"{doing}: the C engine answered {status}; this is a defect, please report it")


class History:
    """Events of some inputs, each once, in the order of time.

    The inputs (batches, page bytes) are borrowed: they stay referenced by this object and unchanged. ``later_pages``
    were read after the snapshot: they tell what happened to fds since, and are in no dump and no count.
    """

    def __init__(self, batches: Sequence[Frames], pages: Sequence[bytes], later_pages: Sequence[bytes] = ()) -> None:
        self._batches = list(batches)
        self._pages = [(ffi.from_buffer("uint8_t[]", data), len(data)) for data in pages if data]
        self._later = [(ffi.from_buffer("uint8_t[]", data), len(data)) for data in later_pages if data]
        self._c = ffi.new("struct pb_history *")
        self.redactions = 0
        """Strings and buffers that the plan's patterns changed, in what was encoded last."""
        self._allocate()
        for batch in self._batches:
            _check(lib.pb_history_add_samples(self._c, batch.arena, batch.frames, batch.frame_count), "reading samples")
        for pointer, size in self._pages:
            _check(lib.pb_history_add_pages(self._c, pointer, size), "reading thread pages")
        for pointer, size in self._later:
            _check(lib.pb_history_add_later_pages(self._c, pointer, size), "reading later thread pages")
        _check(lib.pb_history_join(self._c), "joining the history")

    def _allocate(self) -> None:
        size = ffi.new("struct pb_history_size *")
        for batch in self._batches:
            _check(lib.pb_history_count_samples(batch.arena, batch.frames, batch.frame_count, size), "counting")
        for pointer, length in (*self._pages, *self._later):
            _check(lib.pb_history_count_pages(pointer, length, size), "counting")
        events, rows = int(size.events) + 1, int(size.samples) + 1
        # Not zeroed: the engine writes every element before it reads it, and zeroing 64 MiB costs a snapshot's time.
        new = ffi.new_allocator(should_clear_after_alloc=False)
        self._keep = [
            new("struct pb_event[]", events),
            new("struct pb_thread[]", rows),
            new("struct pb_process_entry[]", rows),
            new("uint64_t[]", events * (lib.PB_WORKSPACE_BYTES // 8)),
            new("struct pb_lost[]", rows),
        ]
        history = self._c
        history.events, history.event_capacity = self._keep[0], events
        history.threads, history.thread_capacity = self._keep[1], rows
        history.processes, history.process_capacity = self._keep[2], rows
        history.workspace = ffi.cast("uint8_t *", self._keep[3])
        history.workspace_bytes = events * lib.PB_WORKSPACE_BYTES
        history.gaps, history.gap_capacity = self._keep[4], rows

    @property
    def pointer(self) -> Any:
        """``struct pb_history *``, as long as this object lives."""
        return self._c

    @property
    def events(self) -> int:
        """How many records there are, in and out of scope."""
        return int(self._c.event_count)

    @property
    def process_count(self) -> int:
        """Of ``processes()``."""
        return int(self._c.process_count)

    @property
    def thread_count(self) -> int:
        """Of ``threads()``."""
        return int(self._c.thread_count)

    @property
    def malformed(self) -> int:
        """Samples and records whose bytes disagree with themselves."""
        return int(self._c.malformed)

    @property
    def torn(self) -> int:
        """Thread pages that could not be read in one piece."""
        return int(self._c.torn)

    def processes(self) -> list[ProcessKey]:
        """The processes that have events, by process index."""
        rows = self._c.processes
        return [(int(rows[i].tgid), int(rows[i].start_ns)) for i in range(self._c.process_count)]

    def exit_statuses(self) -> dict[ProcessKey, int]:
        """Wait statuses of the processes whose end is among the events."""
        rows = self._c.processes
        return {
            (int(rows[i].tgid), int(rows[i].start_ns)): int(rows[i].exit_status)
            for i in range(self._c.process_count)
            if rows[i].exited
        }

    def threads(self) -> list[ThreadRow]:
        """The thread instances that have events."""
        rows = self._c.threads
        return [
            ThreadRow(
                i,
                int(rows[i].instance),
                int(rows[i].tid),
                int(rows[i].process),
                bytes(rows[i].comm).split(b"\0", 1)[0].decode("utf-8", "replace"),
                int(rows[i].first_sequence),
                int(rows[i].last_sequence),
                int(rows[i].events),
                int(rows[i].missing),
            )
            for i in range(self._c.thread_count)
        ]

    def set_span(self, thread: ThreadRow, start_ns: int, end_ns: int) -> None:
        """Records of ``thread`` in [start_ns, end_ns] (monotonic) get the span's id and ``thread_window``."""
        row = self._c.threads[thread.index]
        row.span_start_ns, row.span_end_ns = max(start_ns, 0), max(end_ns, 0)

    def select(self, in_scope: Sequence[bool], start_ns: int, end_ns: int, max_records: int) -> tuple[int, int]:
        """Marks what a dump holds; gives (selected, dropped by ``max_records``). One bool for each process index."""
        for index, inside in enumerate(in_scope):
            self._c.processes[index].scope = int(inside)
        selected, dropped = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        status = lib.pb_history_select(self._c, max(start_ns, 0), max(end_ns, 0), max_records, selected, dropped)
        _check(status, "selecting the dump's records")
        return int(selected[0]), int(dropped[0])

    @property
    def gaps_selected(self) -> int:
        """How many of the selected only tell what is missing (`perfbuf.lost`)."""
        return int(self._c.gaps_selected)

    def selected_of(self, process: int) -> int:
        """How many records of a process index were selected."""
        return int(self._c.processes[process].selected)

    def encode(
        self, plan: Any, resources: Sequence[bytes], encoding: Encoding, fds: Any = ffi.NULL, reading: Any = ffi.NULL
    ) -> Iterator[tuple[bytes, int]]:
        """ExportLogsServiceRequest chunks of the selected records, oldest first: (bytes, records).

        ``plan`` is the decode plan's C pointer, ``resources`` one encoded Resource for each process index, ``fds`` a
        ``struct pb_fd_names *`` of this history that no encoding has used yet, or NULL: fds are bare numbers;
        ``reading`` a ``struct pb_reading *``, all zero, that gathers what stands out, or NULL.
        """
        keep = [ffi.from_buffer("uint8_t[]", data or b"\0") for data in resources]
        table = ffi.new("struct pb_bytes[]", max(len(resources), 1))
        for index, data in enumerate(resources):
            table[index].data, table[index].size = keep[index], len(data)
        c = ffi.new("struct pb_encoding *")
        scope = ffi.from_buffer("uint8_t[]", encoding.scope)
        c.plan, c.resources, c.fds, c.reading = plan, table, fds, reading
        c.scope.data, c.scope.size = scope, len(encoding.scope)
        c.unix_offset_ns, c.observed_unix_ns = encoding.unix_offset_ns, encoding.observed_unix_ns
        if encoding.trace_id is not None:
            c.has_trace, c.trace_flags = 1, encoding.trace_flags & 0xFF
            ffi.memmove(c.trace_id, encoding.trace_id, 16)
            ffi.memmove(c.dump_span_id, encoding.dump_span_id, 8)
            ffi.memmove(c.span_id, encoding.span_id, 8)
            ffi.memmove(c.dump_id, encoding.dump_id.encode("ascii"), len(encoding.dump_id))
        if plan.redaction:
            c.redactions = lib.pb_history_redact(self._c, plan.redaction)
        new = ffi.new_allocator(should_clear_after_alloc=False)
        out, scratch = new("uint8_t[]", lib.PB_CHUNK_BYTES), new("uint8_t[]", 2 * lib.PB_CHUNK_BYTES)
        cursor, size, records = ffi.new("uint64_t *"), ffi.new("uint64_t *"), ffi.new("uint32_t *")
        while True:
            status = lib.pb_otlp_encode_chunk(
                self._c, c, cursor, scratch, 2 * lib.PB_CHUNK_BYTES, out, lib.PB_CHUNK_BYTES, size, records
            )
            _check(status, "encoding a chunk")
            if not size[0]:
                return
            self.redactions = int(c.redactions)
            yield bytes(ffi.buffer(out, size[0])), int(records[0])
