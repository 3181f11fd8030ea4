# SPDX-License-Identifier: Apache-2.0
"""The history that a dump is made of: the syscall program with its rings, and one capture of both.

What it is not: it knows no triggers, no spans, no exporters. Order and its reason: DESIGN section 4 (first the thread
pages, then the rings: in this order there is no gap between them).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from otel_perfbuf.bpf.syscalls import AlertRules, SyscallProgram
from otel_perfbuf.errors import KernelError
from otel_perfbuf.records import (
    Redact,
    build_plan,
    build_redaction,
    default_patterns,
    fd_calls,
    records_all,
    syscall_rules,
)
from otel_perfbuf.records.plan import Plan
from otel_perfbuf.rings import PerfReader

from .capture import Capture, Losses
from .clock import unix_offset_ns
from .edges import ring_edges
from .first_sight import FirstSight
from .history import ProcessKey
from .history_rings import RingKind, plan_rings
from .inflight import blocked_before, read_entries
from .processes import Process, table_process
from .seeds import SeedBook

__all__ = ["HistorySource", "SourceOptions"]

_log = logging.getLogger(__name__)

_CAPTURES_MAX = 8


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """A perf_buffer receiver's options, as the recorder needs them; sizes in bytes."""

    per_cpu_bytes: int = 4 << 20
    ring: RingKind = "auto"
    max_total_bytes: int = 512 << 20
    whole_host: bool = True
    pids: Sequence[int] = ()
    comms: Sequence[str] = ()
    cgroups: Sequence[str] = ()
    exclude_comms: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    string_bytes: int = 128
    path_bytes: int = 512
    buffers: Literal["none", "sizes", "content"] = "none"
    swap: bool = False
    fd_names: bool = True
    redact: Sequence[Redact] = field(default_factory=default_patterns)
    alerts: AlertRules = field(default_factory=AlertRules)
    error_syscalls: Sequence[str] = ()
    slow_syscalls: Sequence[str] | None = None


@dataclass(slots=True)
class _Account:
    """What the last dump has already reported."""

    overwritten: dict[int, int] = field(default_factory=dict)
    lost: int = 0
    missed_events: int = 0


class HistorySource:
    """The flight recorder on this host: loads, attaches, and takes captures.

    Owns the program and its rings; ``close`` detaches everything (twice is fine).
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.plan: Plan = build_plan(string_bytes=options.string_bytes, redaction=build_redaction(options.redact))
        self._rules = syscall_rules(
            include=options.include,
            exclude=options.exclude,
            max_string_bytes=options.string_bytes,
            max_path_bytes=options.path_bytes,
            buffers=options.buffers,
            error_syscalls=options.error_syscalls,
            slow_syscalls=options.slow_syscalls,
        )
        self._account = _Account()
        self._first_sight: FirstSight | None = None
        # Names need every call that changes an fd.
        followed = options.fd_names and records_all(self._rules, fd_calls())
        self._seed_book = SeedBook(lambda: self.program.read_pages()) if followed else None
        self._closed = False
        self.rings = plan_rings(options.ring, options.per_cpu_bytes, swap=options.swap)
        """Which rings hold the history."""
        self.rings.check_total(options.max_total_bytes)
        self.program = SyscallProgram(
            syscall_rules=self._rules,
            filter_targets=not options.whole_host,
            comms=options.comms,
            cgroups=options.cgroups,
            exclude_comms=options.exclude_comms,
            alerts=options.alerts,
            record_unknown=not options.include,
            shared_history_bytes=self.rings.each_bytes if self.rings.shared else 0,
        )
        try:
            self.reader = self.rings.open(self.program.history_map)
            self.alerts = PerfReader(self.program.alerts_map, per_cpu_bytes=64 << 10, wakeup_events=1)
        except BaseException:
            self.close()
            raise
        self.started_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def attach(self) -> None:
        """Begins to record; targets given as pids are followed with their descendants."""
        self.program.attach()
        self.started_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._first_sight = FirstSight()
        for pid in self.options.pids:
            self.follow(pid)

    def watch_cpus(self) -> None:
        """From now on a CPU that comes back is recorded again, by itself; where that cannot be had, a warning says so.

        Starts threads: `record` calls it after its fork.
        """
        try:
            if isinstance(self.reader, PerfReader):
                self.reader.watch_cpus()  # a shared ring is every CPU's
            self.alerts.watch_cpus()
        except KernelError as error:
            _log.warning("%s; a CPU that comes back is not recorded", error)

    def follow(self, pid: int, *, wait_exec: bool = False) -> None:
        """Makes a process and its children targets (`SyscallProgram.follow`); what its fds are now is kept."""
        self.program.follow(pid, wait_exec=wait_exec)
        if self._seed_book is not None:
            self._seed_book.add(pid)

    def capture(self, pids: Collection[int] | None = None) -> Capture:
        """Takes a snapshot now; recording goes on meanwhile.

        ``pids``: whose fds (and their children's) are looked at, None: of all recorded processes.
        """
        begin = time.perf_counter_ns()
        pages = self.program.read_pages()
        # What a CPU without a sample in a shared ring had sent by now is overwritten for sure.
        stats = self.program.stats() if self.rings.shared else None
        batch = self.reader.snapshot(since="all")
        snapshot_ns = time.perf_counter_ns() - begin
        taken_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        pages += self._blocked_before(pages)
        entries = read_entries(pages, self._rules, self._read_pages_again)
        processes = self.processes()
        stats = stats or self.program.stats()
        offset_ns, shared = unix_offset_ns(), self.rings.shared
        seeds, later = ({}, b"") if self._seed_book is None else self._seed_book.read(pages, processes, pids)
        return Capture(pages, batch, entries, processes, stats, offset_ns, taken_ns, snapshot_ns, shared, seeds, later)

    def processes(self) -> dict[ProcessKey, Process]:
        """The kernel's process table as it is now, the dead too; takes some microseconds a process."""
        sight = self._first_sight
        table = {key: table_process(key, entry) for key, entry in self.program.processes().items()}
        return table if sight is None else {key: sight.completed(process) for key, process in table.items()}

    def _read_pages_again(self) -> bytes:
        """The pages now, for `read_entries`: which calls are still the same."""
        pages = self.program.read_pages()
        return pages + self._blocked_before(pages)

    def _blocked_before(self, pages: bytes) -> bytes:
        return blocked_before(pages, self._rules, record_unknown=not self.options.include)

    @property
    def names_fds(self) -> bool:
        """Whether fds are followed: asked for, and every call that changes one is recorded."""
        return self._seed_book is not None

    @property
    def captures_max(self) -> int:
        """How many captures may be held at once within ``max_total_bytes``, beside one that is being taken; 1 to 8."""
        return max(1, min(_CAPTURES_MAX, self.options.max_total_bytes // self.rings.bytes - 2))

    def losses(self, captures: Sequence[Capture]) -> Losses:
        """What is not there, of the whole host, since this was last called; ``captures`` oldest first."""
        overwritten = 0
        for cpu, edge in ring_edges(captures, self.started_ns).items():
            reported = self._account.overwritten.get(cpu, 0)
            overwritten += max(edge.before - reported - edge.kept, 0)
            self._account.overwritten[cpu] = max(edge.before, reported)
        stats = captures[-1].stats
        lost = max(stats.lost - self._account.lost, 0)
        missed_events = max(stats.missed_events - self._account.missed_events, 0)
        self._account.lost += lost
        self._account.missed_events += missed_events
        return Losses(lost, overwritten, missed_events)

    def close(self) -> None:
        """Detaches the program, unmaps the rings."""
        if self._closed:
            return
        self._closed = True
        for name in ("reader", "alerts", "program"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()

    def __enter__(self) -> Self:
        """The source itself, closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
