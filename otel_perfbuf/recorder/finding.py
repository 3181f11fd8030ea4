# SPDX-License-Identifier: Apache-2.0
"""From telemetry to the recorded processes that it is of, the dead too. What it is not: it decides no scope.

Source: OpenTelemetry semantic conventions (process, service, container, host); issue 6 for the order.

Facts: a process.pid is what getpid() gave: in a container its own namespace's number, and every container has a 1.
thread.id is by convention the *managed* thread's id: Java's and Go's are no kernel ids. A host.name is the host's, or
in a container the container's. A forked child inherits OTEL_*, so one service may be many processes.
Decision: attributes are asked in the order process.pid, thread.id, service.instance.id, service.name, container.id, and
the first that leads to a process decides. What contradicts the telemetry (another host, another container, another
instance) is no candidate; what is not known contradicts nothing. A candidate below another one is left out, since a
dump takes descendants in. Cost: telemetry of another host whose resource names no host can match a namesake here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_perfbuf.triggers.firing import Evidence, Match, ProcessKey

from .hosts import Host
from .processes import Process, container_of
from .scope import topmost

__all__ = ["PROCESSES_MAX", "ProcessFinder", "find_processes"]

PROCESSES_MAX: Final = 64
"""Processes of one match; what is matched beyond is left out, and said."""

_SLACK_NS: Final = 1_000_000_000  # a span may begin before the exec that it is about, and end after its process
_FRESH_S: Final = 5.0
_AGAIN_S: Final = 1.0
_ASKED: Final = ("process.pid", "service.instance.id", "service.name", "container.id")

Table = Mapping[ProcessKey, Process]


@dataclass(frozen=True, slots=True)
class _Said:
    """Evidence with what is asked of it, and the processes that it does not contradict."""

    evidence: Evidence
    host: Host
    table: Table
    cgroups: Mapping[int, str]

    def text(self, key: str) -> str:
        """A resource attribute as text, "" when it is not there."""
        return str(self.evidence.resource.get(key, ""))

    def number(self, key: str) -> int | None:
        """A resource attribute as a number, also when it was written as text."""
        value = self.evidence.resource.get(key)
        if isinstance(value, str):
            return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None
        return value

    def container(self, process: Process) -> str | None:
        """The container that a process is in; "" when it is in none, None when that is not known."""
        cgroup = process.cgroup or self.cgroups.get(process.cgroup_id, "")
        return (container_of(cgroup) or "") if cgroup else None

    def in_container(self, process: Process) -> bool:
        """Whether it is known to be in the container that the telemetry names."""
        wanted, known = self.text("container.id"), self.container(process)
        return len(wanted) >= 12 and bool(known) and str(known).startswith(wanted.removeprefix("docker://"))

    def open(self, keys: Iterable[ProcessKey]) -> list[ProcessKey]:
        """Those of ``keys`` that nothing speaks against.

        Of another host than this one only who is in the container that the telemetry names, or sees the host name that
        it has; where nobody is known to, who may have seen it.
        """
        left = [key for key in keys if not self.contradicted(self.table[key])]
        if not left or self.host.is_this(self.evidence.resource) is not False:
            return left
        known = [key for key in left if self.in_container(self.table[key])]
        if known or not self.text("host.name"):
            return known
        sees = {key: self.sees_host_name(self.table[key]) for key in left}
        return [key for key in left if sees[key]] or [key for key in left if sees[key] is None]

    def sees_host_name(self, process: Process) -> bool | None:
        """Whether the process sees the host name that the telemetry has; None when that is not known."""
        return self.host.has_name(self.evidence.resource, process, self.container(process))

    def contradicted(self, process: Process) -> bool:
        """Whether something that is known of the process says that the telemetry is of another one."""
        if self.text("container.id"):
            known = self.container(process)
            if known is not None:
                return not self.in_container(process)
        for key in ("service.instance.id", "service.namespace"):
            wanted, said = self.text(key), process.said.get(key)
            if wanted and said and wanted != said:
                return True
        return False


def find_processes(
    evidence: Evidence, table: Table, host: Host, *, unix_offset_ns: int, cgroups: Mapping[int, str] | None = None
) -> Match:
    """The processes of ``table`` that the telemetry is of; ``cgroups``: paths by id, of those gone too."""
    lived = {key: process for key, process in table.items() if _lived(evidence, process, unix_offset_ns)}
    said = _Said(evidence, host, lived, cgroups or {})
    for by, find in _WAYS:
        found = find(said)
        if found:
            first = sorted(topmost(found, table), key=lambda key: key[1], reverse=True)  # the newest first
            return Match(tuple(first[:PROCESSES_MAX]), by)
    return Match(why=_why(said))


def _lived(evidence: Evidence, process: Process, unix_offset_ns: int) -> bool:
    start, end = evidence.start_unix_ns or evidence.end_unix_ns, evidence.end_unix_ns or evidence.start_unix_ns
    if not end:
        return not process.exit_ns
    begun = process.start_ns + unix_offset_ns - _SLACK_NS <= end
    return begun and (not process.exit_ns or process.exit_ns + unix_offset_ns + _SLACK_NS >= start)


def _by_pid(said: _Said) -> list[ProcessKey]:
    """By the number that the process itself sees, in the namespace that the rest of the telemetry points to."""
    pid = said.evidence.process_id if said.evidence.process_id is not None else said.number("process.pid")
    if pid is None:
        return []
    inner = said.number("perfbuf.process.namespace_pid")
    if inner is not None:  # our own convention: process.pid is the host's then
        return said.open(key for key in said.table if key[0] == pid and said.table[key].namespace_pid in (0, inner))
    hosts = said.open(key for key in said.table if key[0] == pid and said.table[key].namespace_pid in (0, pid))
    inside = said.open(key for key in said.table if said.table[key].namespace_pid == pid != key[0])
    known = [key for key in inside if said.in_container(said.table[key])]
    if known:
        return known
    # A namespace that nothing names: its number alone says nothing, with the service's name it does.
    name = said.text("service.name")
    named = [key for key in inside if name and said.table[key].said.get("service.name") == name]
    this = said.host.is_this(said.evidence.resource)
    if this is False:
        hosts = [key for key in hosts if said.sees_host_name(said.table[key])]
    if hosts and (this or not named):
        return [max(hosts, key=lambda key: key[1])]
    return named or [key for key in inside if said.text("host.name") and said.sees_host_name(said.table[key])]


def _by_thread(said: _Said) -> list[ProcessKey]:
    """By a kernel thread id, which only telemetry that names this host can have; the thread must be alive."""
    tid = said.evidence.thread_id
    if tid is None or tid <= 0 or said.host.is_this(said.evidence.resource) is not True:
        return []
    group, name = said.host.process_of_thread(tid), said.text("service.name")
    found = said.open(key for key in said.table if key[0] == group)
    if name and not name.startswith("unknown_service"):
        found = [key for key in found if said.table[key].said.get("service.name", name) == name]
    return found[-1:]


def _by_instance(said: _Said) -> list[ProcessKey]:
    return _by_environment(said, "service.instance.id")


def _by_service(said: _Said) -> list[ProcessKey]:
    return _by_environment(said, "service.name")


def _by_environment(said: _Said, attribute: str) -> list[ProcessKey]:
    wanted = said.text(attribute)
    if not wanted:
        return []
    return said.open(key for key, process in said.table.items() if process.said.get(attribute) == wanted)


def _by_container(said: _Said) -> list[ProcessKey]:
    if not said.text("container.id"):
        return []
    return said.open(key for key, process in said.table.items() if said.in_container(process))


_WAYS: Final = (
    ("process.pid", _by_pid),
    ("thread.id", _by_thread),
    ("service.instance.id", _by_instance),
    ("service.name", _by_service),
    ("container.id", _by_container),
)


def _why(said: _Said) -> str:
    """One sentence: which attributes were missing, and what those that are there did not lead to."""
    evidence = said.evidence
    if said.host.is_this(evidence.resource) is False and not said.text("container.id"):
        name = said.text("host.name") or said.text("host.id")
        return f"it is of host {name[:80]}, and no process that is recorded here is of a container of that name"
    given = [key for key in _ASKED if key in evidence.resource or (key == "process.pid" and evidence.process_id)]
    missing = [key for key in _ASKED if key not in given]
    parts = [f"it has no {', '.join(missing)}"] if missing else []
    parts += [f"no process that is recorded has {key} {said.text(key)[:80]}" for key in given if said.text(key)]
    if "service.name" in given:
        parts.append("set OTEL_SERVICE_NAME in its environment, or have process.pid in its resource")
    return "; ".join(parts)


@dataclass(slots=True)
class ProcessFinder:
    """Finds processes in a table that is read again when it is old, or when it does not have what is asked for.

    Called from one thread. ``read`` gives the table (it may take 100 ms), ``cgroups`` the cgroups' paths by id.
    """

    read: Callable[[], Table]
    cgroups: Callable[[], Mapping[int, str]]
    unix_offset_ns: Callable[[], int]
    host: Host
    clock: Callable[[], float] = time.monotonic
    _table: Table = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)
    _read_s: float | None = None

    def __call__(self, evidence: Evidence) -> Match:
        """The processes that the telemetry is of."""
        if self._is_older(_FRESH_S):
            self._refresh()
        match = self._match(evidence)
        if not match.processes and self._is_older(_AGAIN_S):
            self._refresh()
            match = self._match(evidence)
        return match

    def _match(self, evidence: Evidence) -> Match:
        offset = self.unix_offset_ns()
        return find_processes(evidence, self._table, self.host, unix_offset_ns=offset, cgroups=self._paths)

    def _is_older(self, age_s: float) -> bool:
        return self._read_s is None or self.clock() - self._read_s >= age_s

    def _refresh(self) -> None:
        self._table = self.read()
        # Paths of cgroups that are gone stay known as long as a process of theirs is.
        known = {process.cgroup_id for process in self._table.values()}
        self._paths = {each: path for each, path in (self._paths | dict(self.cgroups())).items() if each in known}
        self._read_s = self.clock()
