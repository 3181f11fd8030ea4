# SPDX-License-Identifier: Apache-2.0
"""The flight-recorder program: its knobs, whom it follows, its pages and tables. Source: bpf/syscalls.bpf.c.

What it is not: it reads no rings (otel_perfbuf/rings) and knows no syscall (otel_perfbuf/records).
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import ConfigError, KernelError

from .features import load_builtin
from .maps import BpfMap, open_pinned_map
from .object import BpfObject
from .process_table import ProcessEntry, Stats, read_processes, read_stats
from .spans import SpanMaps

__all__ = ["AlertRules", "ProcessEntry", "Stats", "SyscallProgram"]

_log = logging.getLogger(__name__)

_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_ROUNDS = 64
_EVERY_TASK = _U32.pack(0)  # bpf/iterators.bpf.h


@dataclass(frozen=True, slots=True)
class AlertRules:
    """What wakes the agent.

    Ends of recorded processes: all, or those by a signal of ``signals``, or (``nonzero``) with an exit code but 0.
    OOM kills. Of the calls that the syscall rules watch: an errno of ``errnos``, or more than ``slow_ns`` (0: none).
    """

    everything: bool = False
    signals: Sequence[int] = ()
    nonzero: bool = False
    oom_kill: bool = False
    errnos: Sequence[int] = ()
    slow_ns: int = 0


OBI_MAP = "/sys/fs/bpf/otel/traces_ctx_v1"
"""Where OpenTelemetry eBPF Instrumentation pins which span each thread runs (FACTS 33)."""

_HASHES = frozenset({1, 9})  # linux/bpf.h: BPF_MAP_TYPE_HASH, _LRU_HASH


def _take_obi_map(program: BpfObject, path: str) -> bool:
    """Lets the program read OBI's map, if it is pinned there and of the form that is known."""
    if not os.path.exists(path):
        return False
    try:
        found = open_pinned_map(path)
    except KernelError as error:  # it belongs to root, and the agent need not be root
        _log.warning("%s; the spans of what it instruments are not taken", error)
        return False
    try:
        fits = found.type in _HASHES and found.key_size == 8 and found.value_size >= ffi.sizeof("struct pb_span_ids")
        if fits:
            program.reuse_map("obi_spans", found)
        return fits
    finally:
        found.close()


class SyscallProgram:
    """Loaded when made, recording from `attach` on; ``close`` (or the end of a ``with`` block) leaves nothing behind.

    ``syscall_rules`` are the bytes of ``struct pb_rules``; ``filter_targets`` records only what
    `follow`, ``comms`` or ``cgroups`` (paths of cgroup v2) name, and its children. The caller is never recorded.
    ``shared_history_bytes`` 0: `history_map` is a perf event array, a ring for each CPU; else one overwritable BPF ring
    buffer of so many bytes (a power of two of pages; Linux 6.19).
    """

    def __init__(
        self,
        *,
        syscall_rules: bytes,
        filter_targets: bool,
        comms: Sequence[str] = (),
        cgroups: Sequence[str] = (),
        exclude_comms: Sequence[str] = (),
        alerts: AlertRules | None = None,
        forward: bool = False,
        record_unknown: bool = True,
        shared_history_bytes: int = 0,
        obi_map: str = OBI_MAP,
    ) -> None:
        alerts = alerts or AlertRules()
        self._turn = threading.Lock()  # the iterators share one copy of a page for each CPU
        constants: dict[str, bytes | int] = {
            "rules": syscall_rules,
            "agent_tgid": os.getpid(),
            "filter_targets": int(filter_targets),
            "forward": int(forward),
            "record_unknown": int(record_unknown),
            "shared_history": int(bool(shared_history_bytes)),
            "use_target_comms": int(bool(comms)),
            "use_target_cgroups": int(bool(cgroups)),
            "use_exclude_comms": int(bool(exclude_comms)),
            "alert_all": int(alerts.everything),
            "alert_exit_codes": int(alerts.nonzero),
            "alert_signals_mask": sum(1 << number for number in set(alerts.signals)),
            "alert_oom_kill": int(alerts.oom_kill),
            "alert_errnos": _bits(alerts.errnos, lib.PB_ALERT_ERRNOS),
            "alert_slow_ns": alerts.slow_ns,
        }

        def prepare(program: BpfObject) -> None:
            for name, value in constants.items():
                program.set_rodata(name, value)
            program.set_rodata("use_obi", int(_take_obi_map(program, obi_map)))
            if shared_history_bytes:
                program.make_ringbuf("history", shared_history_bytes, overwritable=True)

        self._object = load_builtin("syscalls", prepare)
        try:
            for name, names in (("target_comms", comms), ("exclude_comms", exclude_comms)):
                for comm in names:
                    self._object.maps[name].update(_comm_key(comm), _U32.pack(1))
            for path in cgroups:
                self._object.maps["target_cgroups"].update(_cgroup_key(path), _U32.pack(1))
        except BaseException:
            self._object.close()
            raise
        self.spans = SpanMaps(self._object.maps)
        """The maps of processes that tell their threads' spans."""
        self._named = bool(comms or cgroups)
        self._whole_host = not filter_targets

    def attach(self) -> None:
        """Begins to record; processes that already have a named comm or cgroup become targets.

        Recording the whole host, every thread gets its page before: one that waits in a call and makes no other is
        known too, and so is the call.
        """
        if self._whole_host:
            self._seed_all()
        self._object.attach()
        for _ in range(_ROUNDS if self._named else 0):
            if not self._seed():
                break

    def _seed_all(self) -> None:
        # Before the programs are attached: no thread makes its own page meanwhile.
        seeds = self._object.maps["target_tgids"]
        seeds.update(_EVERY_TASK, _U32.pack(lib.PB_PAGE_TARGET))
        try:
            self._object.read_iterator("seed_targets")
        finally:
            seeds.delete(_EVERY_TASK)

    def follow(self, pid: int, *, wait_exec: bool = False) -> None:
        """Makes ``pid``, all its threads and its children (those of today too) targets.

        ``wait_exec``: only ``pid`` itself, and from its next execve on. A pid that is gone is no error.
        """
        flags = lib.PB_PAGE_TARGET | (lib.PB_PAGE_WAIT_EXEC if wait_exec else 0)
        seeds, seeded = self._object.maps["target_tgids"], set[int]()
        try:
            # A thread or child that is made between the listing and the seeding may be of an unseeded parent.
            for _ in range(_ROUNDS):
                new = ({pid} if wait_exec else _family(pid)) - seeded
                for each in new:
                    seeds.update(_U32.pack(each), _U32.pack(flags))
                seeded |= new
                if not self._seed() and not new:
                    return
        finally:
            for each in seeded:
                seeds.delete(_U32.pack(each))

    def _seed(self) -> bytes:
        """Makes pages for the targets that are there; empty when none was made or changed."""
        with self._turn:
            return self._object.read_iterator("seed_targets")

    def read_pages(self) -> bytes:
        """All thread pages: struct pb_page_head, struct pb_sample, records, one after the other."""
        with self._turn:
            return self._object.read_iterator("read_pages")

    def slow_calls(self) -> bytes:
        """A struct pb_alert for each watched call that has been in flight for more than ``slow_ns``, at every look."""
        with self._turn:
            return self._object.read_iterator("slow_calls")

    def processes(self) -> dict[tuple[int, int], ProcessEntry]:
        """The process table, the dead too, by (tgid, start time)."""
        return read_processes(self._object.maps["processes"])

    def has_recorded(self, pid: int) -> bool:
        """Whether a process that had this pid (of the initial pid namespace) is or was recorded."""
        return self._object.maps["process_starts"].lookup(_U32.pack(pid)) is not None

    def stats(self) -> Stats:
        """What was lost, and what was sent."""
        return read_stats(self._object.maps["stats"], self._object.missed_events())

    @property
    def history_map(self) -> BpfMap:
        """The perf event array of the history rings, or the shared ring."""
        return self._object.maps["history"]

    @property
    def alerts_map(self) -> BpfMap:
        """The perf event array of alerts (struct pb_alert); a forward ring that wakes at each."""
        return self._object.maps["alerts"]

    def close(self) -> None:
        """Detaches and frees everything; twice is fine."""
        self._object.close()

    def __enter__(self) -> Self:
        """The program itself, closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bits(numbers: Sequence[int], count: int) -> bytes:
    """A bit map of ``count`` bits in words of 64."""
    return sum(1 << number for number in set(numbers)).to_bytes(count // 8, "little")


def _comm_key(comm: str) -> bytes:
    data = comm.encode()
    if not 0 < len(data) < lib.PB_COMM_BYTES:
        raise ConfigError(f"comm {comm!r}: the kernel's names have 1 to {lib.PB_COMM_BYTES - 1} bytes")
    return data.ljust(lib.PB_COMM_BYTES, b"\0")


def _cgroup_key(path: str) -> bytes:
    """A cgroup's id is the inode number of its folder."""
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        folder = Path(path) if path.startswith("/sys/fs/cgroup") else Path(mount) / path.lstrip("/")
        if (folder / "cgroup.procs").exists():
            return _U64.pack(folder.stat().st_ino)
    raise ConfigError(f"cgroup {path!r}: there is no such cgroup (v2)")


def _family(pid: int) -> set[int]:
    """``pid`` and its descendants that live now."""
    family, waiting = set[int](), [pid]
    while waiting:
        each = waiting.pop()
        if each in family or not os.path.exists(f"/proc/{each}"):
            continue
        family.add(each)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                with contextlib.suppress(OSError):
                    waiting += [int(word) for word in Path(f"/proc/{each}/task/{task}/children").read_text().split()]
    return family
