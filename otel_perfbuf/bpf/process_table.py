# SPDX-License-Identifier: Apache-2.0
"""The kernel's process table and loss counters as Python values. Source: bpf/records.h."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_perfbuf._core._core import ffi

from .maps import BpfMap

__all__ = ["ProcessEntry", "Stats", "read_process", "read_processes", "read_stats"]


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A row of map `processes`; ids of the initial pid namespace, times CLOCK_MONOTONIC ns.

    ``exit_ns`` 0: alive; ``exit_status`` is a wait status. ``environment`` holds OTEL_* variables only.
    """

    parent_tgid: int
    namespace_pid: int
    cgroup_id: int
    exit_ns: int
    exit_status: int
    uid: int
    comm: str
    executable: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stats:
    """Losses since the program was loaded, in records, summed over CPUs; see struct pb_stats.

    ``missed_events``: of all tasks, recorded or not (`BpfObject.missed_events`).
    """

    no_page: int
    no_space: int
    no_ring: int
    other: int
    processes: int
    ring_records_by_cpu: Mapping[int, int]
    alerts: int = 0
    missed_events: int = 0

    @property
    def lost(self) -> int:
        """Records that are in no ring and on no page."""
        return self.no_page + self.no_space + self.no_ring + self.other


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


def _environment(data: bytes) -> dict[str, str]:
    found = {}
    for item in data.split(b"\0"):
        key, equals, value = item.decode("utf-8", "replace").partition("=")
        if equals:
            found[key] = value
    return found


def _entry(row: Any) -> ProcessEntry:
    path, size = bytes(row.executable), min(int(row.executable_bytes), len(row.executable))
    environment = bytes(row.environment)[: int(row.environment_bytes)]
    return ProcessEntry(
        parent_tgid=int(row.parent_tgid),
        namespace_pid=int(row.namespace_pid),
        cgroup_id=int(row.cgroup_id),
        exit_ns=int(row.exit_ns),
        exit_status=int(row.exit_status),
        uid=int(row.uid),
        comm=_text(bytes(row.comm)),
        executable=path[len(path) - size :].decode("utf-8", "replace"),
        environment=_environment(environment),
    )


def _row(value: bytes) -> ProcessEntry:
    row = ffi.new("struct pb_process *")
    ffi.memmove(row, value, min(len(value), ffi.sizeof("struct pb_process")))
    return _entry(row)


def read_process(table: BpfMap, key: tuple[int, int]) -> ProcessEntry | None:
    """The row of (tgid, start time of the leader) as it is now, or None."""
    value = table.lookup(bytes(ffi.buffer(ffi.new("struct pb_process_key *", {"tgid": key[0], "start_ns": key[1]}))))
    return None if value is None else _row(value)


def read_processes(table: BpfMap) -> dict[tuple[int, int], ProcessEntry]:
    """All rows by (tgid, start time of the leader)."""
    rows = {}
    for key, value in table.items():
        c_key = ffi.from_buffer("struct pb_process_key[]", key)[0]
        rows[int(c_key.tgid), int(c_key.start_ns)] = _row(value)
    return rows


def read_stats(stats: BpfMap, missed_events: int) -> Stats:
    """The counters of map `stats`, and those of the kernel."""
    rows = []
    for data in stats.per_cpu(bytes(4)):
        row = ffi.new("struct pb_stats *")
        ffi.memmove(row, data, ffi.sizeof("struct pb_stats"))
        rows.append(row)
    return Stats(
        no_page=sum(int(row.lost_no_page) for row in rows),
        no_space=sum(int(row.lost_no_space) for row in rows),
        no_ring=sum(int(row.lost_no_ring) for row in rows),
        other=sum(int(row.lost_other) for row in rows),
        processes=sum(int(row.lost_process) for row in rows),
        alerts=sum(int(row.lost_alerts) for row in rows),
        missed_events=missed_events,
        ring_records_by_cpu={cpu: int(row.ring_records) for cpu, row in enumerate(rows)},
    )
