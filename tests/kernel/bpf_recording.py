# SPDX-License-Identifier: Apache-2.0
"""What the tests of the BPF programs share: processes to record, a recording of them, and its records as Python values.

Not a test. Records are read by the declarations of bpf/records.h (cffi) and by nothing else of ours.
"""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from building import program as build
from machine import SLOWNESS

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.bpf.syscalls import AlertRules, SyscallProgram
from otel_perfbuf.records import build_plan, syscall_rules
from otel_perfbuf.rings import PerfReader, RingbufReader, Sample

BODIES = {
    lib.PB_RECORD_SYSCALL: "struct pb_syscall",
    lib.PB_RECORD_ENTRY: "struct pb_record",
    lib.PB_RECORD_SIGNAL: "struct pb_signal",
    lib.PB_RECORD_EXEC: "struct pb_exec",
    lib.PB_RECORD_FORK: "struct pb_fork",
    lib.PB_RECORD_EXIT: "struct pb_exit",
    lib.PB_RECORD_OOM_KILL: "struct pb_oom_kill",
    lib.PB_RECORD_SPAN: "struct pb_span_record",
}


def compile_targets(folder: Path) -> Path:
    """The path of targets.c's program."""
    return build("targets", folder)


@cache
def names() -> Any:
    """The plan, for its names of numbers."""
    return build_plan()


@dataclass
class Capture:
    """Bytes behind a record."""

    argument: int
    kind: int
    flags: int
    extent: int
    data: bytes


@dataclass
class Record:
    """One record with what its sample says of it."""

    kind: int
    flags: int
    sequence: int
    time_ns: int
    cpu: int
    tid: int
    tgid: int
    instance: int
    comm: str
    sample_kind: int
    body: Any
    args: list[int]
    captures: list[Capture]
    open: bool = False
    span: str | None = None

    @property
    def name(self) -> str:
        """A call's name; for other kinds the kind's."""
        if self.kind != lib.PB_RECORD_SYSCALL:
            return {
                lib.PB_RECORD_ENTRY: "<entry>",
                lib.PB_RECORD_SIGNAL: "<signal>",
                lib.PB_RECORD_EXEC: "<exec>",
                lib.PB_RECORD_FORK: "<fork>",
                lib.PB_RECORD_EXIT: "<exit>",
                lib.PB_RECORD_OOM_KILL: "<oom>",
                lib.PB_RECORD_SPAN: "<span>",
            }[self.kind]
        if self.flags & lib.PB_FLAG_COMPAT:
            return f"compat_{int(self.body.number)}"
        return str(names().syscall_name(int(self.body.number)))

    @property
    def result(self) -> int:
        """A call's result."""
        return int(self.body.result)

    def capture(self, argument: int) -> Capture:
        """The one capture of an argument."""
        (found,) = [capture for capture in self.captures if capture.argument == argument]
        return found


def _struct(name: str, data: bytes) -> Any:
    """A copy as a cffi struct, which owns its memory."""
    value = ffi.new(name + " *")
    ffi.memmove(value, data, ffi.sizeof(name))
    return value


def _captures(data: bytes, count: int) -> list[Capture]:
    found = []
    for _ in range(count):
        head = _struct("struct pb_capture", data)
        size = int(head.bytes)
        pad = data[8 + size : 8 + (size + 7 & ~7)]
        assert pad == bytes(len(pad)), "the pad holds bytes of something else"
        found.append(Capture(head.argument, head.kind, head.flags, head.extent, data[8 : 8 + size]))
        data = data[8 + (size + 7 & ~7) :]
    assert not data, "bytes behind the last capture"
    return found


def _record(data: bytes, sample: Any, *, open_call: bool = False) -> Record:
    head = _struct("struct pb_record", data[:24])
    body = ffi.new(BODIES[head.kind] + " *")
    size = ffi.sizeof(body[0])
    if head.kind == lib.PB_RECORD_SYSCALL:
        size -= 8 * (6 - head.arguments)
    ffi.memmove(body, data[: min(size, len(data))], min(size, len(data)))
    return Record(
        kind=head.kind,
        flags=head.flags,
        sequence=head.sequence,
        time_ns=head.time_ns,
        cpu=head.cpu,
        tid=sample.tid,
        tgid=sample.tgid,
        instance=sample.instance,
        comm=ffi.string(ffi.cast("char *", sample.comm)).decode(),
        sample_kind=sample.kind,
        body=body,
        args=list(body.args)[: head.arguments] if head.kind == lib.PB_RECORD_SYSCALL else [],
        captures=[] if open_call else _captures(data[size : head.bytes], head.captures),
        open=open_call,
    )


def parse_sample(data: bytes) -> list[Record]:
    """The records of a sample; asserts that its sizes and counts agree with themselves."""
    sample = _struct("struct pb_sample", data[:64])
    assert sample.version == lib.PB_VERSION
    assert 64 <= sample.bytes <= len(data) < sample.bytes + 12
    at, records, span = 64, [], None
    while at < sample.bytes:
        size = int.from_bytes(data[at : at + 2], "little")
        assert size >= 24 and size % 8 == 0 and at + size <= sample.bytes
        record = _record(data[at : at + size], sample)
        at += size
        if record.kind == lib.PB_RECORD_SPAN:
            span = bytes(record.body.ids.span_id).hex()
            continue
        if record.flags & lib.PB_FLAG_SPAN:
            assert span is not None, "a record has a span that does not stand before it in its sample"
            record.span = span
        records.append(record)
    own = sum(record.kind != lib.PB_RECORD_ENTRY for record in records)
    assert sample.records == (0 if sample.kind == lib.PB_SAMPLE_AGAIN else own)
    return records


@dataclass
class Page:
    """One thread's page as the iterator gave it."""

    tid: int
    tgid: int
    flags: int
    last_sequence: int
    records: list[Record] = field(default_factory=list)
    sent: list[Record] = field(default_factory=list)
    open_call: Record | None = None


def parse_pages(data: bytes) -> list[Page]:
    """All pages of the iterator's output."""
    pages, at, head_bytes = [], 0, ffi.sizeof("struct pb_page_head")
    while at < len(data):
        head = _struct("struct pb_page_head", data[at : at + head_bytes])
        at += head_bytes
        sample = _struct("struct pb_sample", data[at : at + 64])
        assert sample.bytes == 64 + head.used
        page = Page(sample.tid, sample.tgid, head.flags, head.last_sequence)
        page.records = parse_sample(data[at : at + sample.bytes])
        if head.flags & lib.PB_PAGE_OPEN:
            page.open_call = _record(bytes(ffi.buffer(ffi.addressof(head[0], "open"))), sample, open_call=True)
            if page.open_call.flags & lib.PB_FLAG_SPAN:
                page.open_call.span = bytes(head.open_span.span_id).hex()
        pages.append(page)
        at += sample.bytes
    return pages


class Recording:
    """The syscall program with its rings, on chosen processes."""

    def __init__(
        self, program: SyscallProgram, reader: PerfReader | RingbufReader | None, alerts: PerfReader | None
    ) -> None:
        self.program, self.reader, self.alerts = program, reader, alerts

    def pages(self) -> list[Page]:
        """All pages now."""
        return parse_pages(self.program.read_pages())

    def page(self, tid: int) -> Page:
        """One thread's page; `sent` are the records that it sent last, which are read with it."""
        *sent, page = [page for page in self.pages() if page.tid == tid]
        assert len(sent) <= 1
        page.sent = sent[0].records if sent else []
        return page

    def samples(self) -> list[bytes]:
        """All samples in the rings."""
        assert self.reader is not None
        batch = self.reader.snapshot(since="all")
        assert (batch.malformed, batch.lost) == (0, 0)
        return [bytes(sample.data) for sample in batch if isinstance(sample, Sample)]

    def records(self) -> list[Record]:
        """All records once, those in rings and on pages, by instance and sequence (an ENTRY before its call)."""
        pages = self.pages()
        found = [record for page in pages for record in page.records]
        found += [record for sample in self.samples() for record in parse_sample(sample)]
        unique = {(record.instance, record.sequence, record.kind != lib.PB_RECORD_ENTRY): record for record in found}
        return [unique[key] for key in sorted(unique)]

    def events(self, tid: int) -> list[Record]:
        """Records that own a sequence, of the one instance that has the thread id; asserts that they are gapless."""
        instances = {record.instance for record in self.records() if record.tid == tid}
        assert len(instances) == 1, f"{len(instances)} instances of thread {tid}"
        events = [r for r in self.records() if r.instance in instances and r.kind != lib.PB_RECORD_ENTRY]
        assert [record.sequence for record in events] == list(range(1, len(events) + 1))
        return events


@contextmanager
def recording(
    *,
    include: Iterable[str] = (),
    buffers: Any = "none",
    path_bytes: int = 512,
    per_cpu_bytes: int = 1 << 20,
    filter_targets: bool = True,
    rings: bool = True,
    alerts: AlertRules | None = None,
    **options: Any,
) -> Iterator[Recording]:
    """An attached recording; whom it follows is the caller's choice. ``shared_history_bytes``: on the shared ring."""
    rules = syscall_rules(include=list(include), buffers=buffers, max_path_bytes=path_bytes)
    with SyscallProgram(syscall_rules=rules, filter_targets=filter_targets, alerts=alerts, **options) as program:
        if not rings:
            program.attach()
            yield Recording(program, None, None)
            return
        with (
            (
                RingbufReader(program.history_map)
                if options.get("shared_history_bytes")
                else PerfReader(
                    program.history_map, per_cpu_bytes=per_cpu_bytes, overwritable=True, max_sample_bytes=8192
                )
            ) as reader,
            PerfReader(program.alerts_map, per_cpu_bytes=1 << 14, wakeup_events=1) as wakes,
        ):
            program.attach()
            yield Recording(program, reader, wakes)


class Target:
    """A process that waits for `go`; ended and waited for at the end of its `with` block."""

    def __init__(self, program: Path, *arguments: str, **options: Any) -> None:
        self.process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, **options)
        self.pid = self.process.pid

    def go(self, data: bytes = b"x") -> None:
        """Lets it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def run(self) -> int:
        """Lets it begin and waits for its end; gives Popen's return code."""
        self.go()
        return self.process.wait(20 * SLOWNESS)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """For what has no event to wait for: asks every few milliseconds."""
    end = time.monotonic() + seconds * SLOWNESS
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        select.select([], [], [], 0.005)


def state_of(pid: int) -> str:
    """The scheduler's letter: R, S, Z, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
