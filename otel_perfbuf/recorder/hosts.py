# SPDX-License-Identifier: Apache-2.0
"""This host as telemetry names hosts, and the names that containers on it have. What it is not: it finds no process.

Source: OpenTelemetry semantic conventions, host (host.id: the machine id; host.name: what hostname gives, in a
container the container's own); machine-id(5); proc(5): /proc/PID/ns/uts, /proc/PID/root.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from .processes import Process, started_at

__all__ = ["Host", "this_host"]

_ID_FILES = (
    "/etc/machine-id",
    "/var/lib/dbus/machine-id",
    "/var/lib/cloud/data/instance-id",  # cloud-init's: what clouds' resource detectors take for host.id
    "/sys/class/dmi/id/board_asset_tag",  # EC2's instance id
    "/sys/class/dmi/id/product_uuid",
)
_DIGIT = re.compile("[0-9]").search
_CONTAINER_NAME_MIN = 12  # hex digits of a container's id that Docker makes its host name


@dataclass(frozen=True)
class Host:
    """Names of a host; all comparisons take short and long forms of a name for the same."""

    name: str
    ids: frozenset[str] = frozenset()
    proc: str = field(default="/proc", compare=False)

    def is_this(self, resource: Mapping[str, str | int]) -> bool | None:
        """Whether telemetry with these attributes is of this host itself; None when it does not say."""
        host_id, name = str(resource.get("host.id", "")).lower(), str(resource.get("host.name", ""))
        if host_id and host_id in self.ids:
            return True
        if name:
            # A host.id that is not known here may be a cloud's, which this host does not know: its name decides.
            return _same_name(name, self.name)
        return False if host_id else None

    def has_name(self, resource: Mapping[str, str | int], process: Process, container: str | None) -> bool | None:
        """Whether the process sees the host name that the telemetry has; None when that cannot be known any more.

        ``container``: its container's id, "" when it is in none, None when that is not known.
        """
        name = str(resource.get("host.name", ""))
        said = process.said.get("host.name")
        if said is not None:
            return _same_name(name, said)
        if container and len(name) >= _CONTAINER_NAME_MIN and container.startswith(name):
            return True
        known = self._name_seen_by(process)
        if known is not None:
            return _same_name(name, known)
        # A dead process of no container saw this host's name; what a container's was nobody can say any more.
        return _same_name(name, self.name) if container == "" else None

    def process_of_thread(self, tid: int) -> int | None:
        """The process whose thread ``tid`` is now."""
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"{self.proc}/{tid}/status").read_text(errors="replace").splitlines():
                if line.startswith("Tgid:"):
                    return int(line.split()[1])
        return None

    def _name_seen_by(self, process: Process) -> str | None:
        if process.exit_ns or not started_at(process.pid, process.start_ns):
            return None
        return _seen(self.proc, self.name, process.pid, process.start_ns)


@lru_cache(maxsize=4096)
def _seen(proc: str, own: str, pid: int, start_ns: int) -> str | None:
    """The host name of a process's UTS namespace; a container's stays what it was made with."""
    del start_ns  # a part of the cache's key: pids are used again
    try:
        if os.readlink(f"{proc}/{pid}/ns/uts") == os.readlink(f"{proc}/self/ns/uts"):
            return own
        # Docker, containerd and CRI-O put the name there; entering the namespace to ask would take CAP_SYS_ADMIN.
        return Path(f"{proc}/{pid}/root/etc/hostname").read_text(errors="replace").strip() or None
    except OSError:
        return None


def _same_name(name: str, other: str) -> bool:
    name, other = name.lower(), other.lower()
    if name == other:
        return True
    short = "." not in name or "." not in other
    return short and name.split(".")[0] == other.split(".")[0] != ""


def this_host() -> Host:
    """The host that this runs on."""
    ids = set()
    for path in _ID_FILES:
        with contextlib.suppress(OSError):
            text = Path(path).read_text(errors="replace").strip().lower()
            # Some resource detectors write a machine id as a UUID. Tags like "none" or "to be filled" are no ids.
            ids |= {text, f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"} if _DIGIT(text) else set()
    return Host(socket.gethostname(), frozenset(ids))
