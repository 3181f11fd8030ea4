# SPDX-License-Identifier: Apache-2.0
"""Who a process is, also when it is dead: the kernel's process table beside /proc, as OTel resources.

What it is not: it decides no scope. Source: bpf/records.h (struct pb_process), proc(5), CONTRACT section 4 (Resource).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_perfbuf.bpf.syscalls import ProcessEntry

__all__ = [
    "Process",
    "attribute",
    "cgroup_path",
    "cgroup_paths",
    "container_of",
    "process_from_proc",
    "process_resource",
    "same_start",
    "start_of",
    "started_at",
    "table_process",
]

_CONTAINER_ID = re.compile(r"([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Process:
    """One process as far as it is known; ids are the initial pid namespace's, ``start_ns`` CLOCK_MONOTONIC."""

    pid: int
    start_ns: int = 0
    parent_pid: int = 0
    namespace_pid: int = 0
    executable: str = ""
    comm: str = ""
    cgroup_id: int = 0
    cgroup: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    exit_status: int | None = None
    exit_ns: int = 0
    """CLOCK_MONOTONIC; 0: it is alive, as far as is known."""

    @property
    def said(self) -> Mapping[str, str]:
        """Resource attributes that its OTEL_* environment has."""
        get = self.environment.get
        return _environment_attributes(get("OTEL_RESOURCE_ATTRIBUTES", ""), get("OTEL_SERVICE_NAME", ""))


def attribute(key: str, value: str | int | bool) -> KeyValue:
    """An OTLP attribute; 64-bit unsigned values beyond 2^63 wrap, as OTLP has signed integers only."""
    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        signed = value - (1 << 64) if value >= 1 << 63 else value
        return KeyValue(key=key, value=AnyValue(int_value=signed))
    return KeyValue(key=key, value=AnyValue(string_value=value))


@cache
def _cgroup_mount() -> Path | None:
    """Where cgroup v2 is mounted, or None."""
    try:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            if rest.split(" ", 1)[0] == "cgroup2":
                return Path(fields.split(" ")[4])
    except OSError:
        return None
    return None


@lru_cache(maxsize=4096)
def _folder_of(mount: Path, cgroup_id: int) -> str:
    """Where the cgroup's folder is; KeyError when it is gone. An id is never used again: what was found stays true."""
    for folder, _, _ in os.walk(mount):
        with contextlib.suppress(OSError):
            if os.stat(folder).st_ino == cgroup_id:
                return folder
    raise KeyError(cgroup_id)


def cgroup_paths() -> dict[int, str]:
    """The paths of all cgroups (v2) that are there, by id, in one walk."""
    mount = _cgroup_mount()
    found: dict[int, str] = {}
    for folder, _, _ in os.walk(mount) if mount is not None else ():
        with contextlib.suppress(OSError):
            found[os.stat(folder).st_ino] = "/" if folder == str(mount) else "/" + os.path.relpath(folder, mount)
    return found


def container_of(cgroup: str) -> str | None:
    """The container's id (64 hex digits) that a cgroup's path names, or None; the innermost one where they nest."""
    found = _CONTAINER_ID.findall(cgroup)
    return found[-1] if found else None


def cgroup_path(cgroup_id: int) -> str:
    """A cgroup's path by its id (the inode number of its folder), "" when it is gone or not v2."""
    mount = _cgroup_mount()
    if mount is None or not cgroup_id:
        return ""
    try:
        folder = _folder_of(mount, cgroup_id)
    except KeyError:
        return ""
    return "/" if folder == str(mount) else "/" + os.path.relpath(folder, mount)


def table_process(key: tuple[int, int], entry: ProcessEntry) -> Process:
    """A row of the kernel's process table."""
    return Process(
        pid=key[0],
        start_ns=key[1],
        parent_pid=entry.parent_tgid,
        namespace_pid=entry.namespace_pid,
        executable=entry.executable,
        comm=entry.comm,
        cgroup_id=entry.cgroup_id,
        environment=entry.environment,
        exit_status=entry.exit_status if entry.exit_ns else None,
        exit_ns=entry.exit_ns,
    )


def start_of(pid: int) -> int | None:
    """When the process that has ``pid`` now started (CLOCK_MONOTONIC ns, to a clock tick); None: there is none.

    Source: proc_pid_stat(5): field 22 counts clock ticks of CLOCK_BOOTTIME.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        ticks = int(stat[stat.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return ticks * _tick_ns() - suspended


def same_start(start_ns: int, other_ns: int) -> bool:
    """Whether two starts are one, where one is known to a clock tick only: two ticks of difference are allowed."""
    return abs(start_ns - other_ns) <= 2 * _tick_ns()


def started_at(pid: int, start_ns: int) -> bool:
    """Whether the process that has ``pid`` now is the one that started at ``start_ns`` (CLOCK_MONOTONIC)."""
    found = start_of(pid)
    return found is not None and same_start(found, start_ns)


def _tick_ns() -> int:
    return 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def process_from_proc(pid: int) -> Process | None:
    """A living process from /proc, or None when it is gone. Environment that may not be read is empty."""
    base = Path("/proc") / str(pid)
    try:
        stat = (base / "stat").read_bytes()
        comm_end = stat.rindex(b")")
        parent = int(stat[comm_end + 2 :].split()[1])
        comm = stat[stat.index(b"(") + 1 : comm_end].decode("utf-8", "replace")
    except (OSError, ValueError, IndexError):
        return None
    environment: dict[str, str] = {}
    executable = cgroup = ""
    namespace_pid = pid
    try:
        executable = os.readlink(base / "exe").removesuffix(" (deleted)")
        for item in (base / "environ").read_bytes().split(b"\0"):
            if item.startswith(b"OTEL_"):
                key, _, value = item.decode("utf-8", "replace").partition("=")
                environment[key] = value
    except OSError:
        pass
    try:
        for line in (base / "cgroup").read_text().splitlines():
            if line.startswith("0::"):
                cgroup = line[3:]
        for line in (base / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                namespace_pid = int(line.split()[-1])
    except (OSError, ValueError, IndexError):
        pass
    return Process(
        pid=pid,
        parent_pid=parent,
        namespace_pid=namespace_pid,
        executable=executable,
        comm=comm,
        cgroup=cgroup,
        environment=environment,
    )


@lru_cache(maxsize=1024)
def _environment_attributes(pairs: str, service_name: str) -> Mapping[str, str]:
    """OTEL_RESOURCE_ATTRIBUTES (W3C Baggage form: percent-encoded values) and OTEL_SERVICE_NAME, which wins."""
    found: dict[str, str] = {}
    for item in pairs.split(","):
        key, equals, value = item.partition("=")
        if equals and key.strip():
            found[key.strip()] = unquote(value.strip())
    if service_name:
        found["service.name"] = service_name
    return MappingProxyType(found)


def process_resource(process: Process, service_name: str | None = None) -> Resource:
    """A process as an OTel resource (CONTRACT section 4); ``service_name`` is the trigger's and wins."""
    name = os.path.basename(process.executable) or process.comm
    attributes: dict[str, str | int] = dict(process.said)
    if service_name or "service.name" not in attributes:
        attributes["service.name"] = service_name or name or "unknown_service"
    attributes["process.pid"] = process.pid
    if process.parent_pid:
        attributes["process.parent_pid"] = process.parent_pid
    if name:
        attributes["process.executable.name"] = name
    if process.executable:
        attributes["process.executable.path"] = process.executable
    cgroup = process.cgroup or cgroup_path(process.cgroup_id)
    if cgroup:
        attributes["process.linux.cgroup"] = cgroup
        if container := container_of(cgroup):
            attributes["container.id"] = container
    attributes["host.name"] = socket.gethostname()
    if process.namespace_pid not in (0, process.pid):
        attributes["perfbuf.process.namespace_pid"] = process.namespace_pid
    ordered = sorted(attributes.items(), key=lambda item: item[0] != "service.name")
    return Resource(attributes=[attribute(key, value) for key, value in ordered])
