# SPDX-License-Identifier: Apache-2.0
"""Which privileges a configuration needs beyond recording itself. What it is not: it drops none (privileges.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from otel_perfbuf.service.model import Configuration
from otel_perfbuf.service.privileges import (
    CAP_IPC_LOCK,
    CAP_NET_BIND_SERVICE,
    CAP_SYS_ADMIN,
    Capability,
    drop_capabilities,
    raise_limits,
    writing_needs,
)

__all__ = ["needs_of", "restrict"]

_LISTENERS: Final = ("receivers", "extensions")
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_FIRST_FREE_PORT: Final = 1024  # net.ipv4.ip_unprivileged_port_start, as it usually is


def restrict(configuration: Configuration) -> list[str]:
    """Raises the limits that recording needs and drops every other privilege, for good; what else is kept, and why."""
    needs = needs_of(configuration)
    if not raise_limits():
        needs[CAP_IPC_LOCK] = "RLIMIT_MEMLOCK cannot be raised, and rings are locked memory"
    if above := _strictest_perf(_PARANOID):
        needs[CAP_SYS_ADMIN] = f"perf_event_paranoid is {above}, with which Debian's and Ubuntu's kernels ask for it"
    return drop_capabilities(needs)


def _strictest_perf(sysctl: Path) -> int:
    """The level when it is one of those above 2 that only distributions' kernels have; else 0."""
    try:
        level = int(sysctl.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return level if level > 2 else 0


def needs_of(configuration: Configuration) -> dict[Capability, str]:
    """What must be kept for it, and why: to write into somebody else's directories, to listen below port 1024."""
    written: list[str] = []
    needs: dict[Capability, str] = {}
    for section in ("receivers", "connectors", "exporters", "extensions"):
        for component in configuration.section(section).values():
            for key, value in _leaves(component.options):
                if key == "endpoint" and section in _LISTENERS:
                    port = value.rpartition(":")[2]
                    if value.startswith(("unix://", "/")):
                        written.append(value.removeprefix("unix://"))
                    elif port.isdigit() and int(port) < _FIRST_FREE_PORT:
                        needs[CAP_NET_BIND_SERVICE] = f"{section}.{component.id} listens on port {port}"
                elif key == "path" and section != "receivers":
                    written.append(value)
                elif key == "directory":
                    written.append(os.path.join(value, "dump"))
    for reader in configuration.service.telemetry.metrics.readers:
        if reader.pull is not None and (number := reader.pull.exporter.prometheus.port) < _FIRST_FREE_PORT:
            needs[CAP_NET_BIND_SERVICE] = f"service.telemetry.metrics.readers listens on port {number}"
    return {**needs, **writing_needs(written)}


def _leaves(options: BaseModel) -> Iterator[tuple[str, str]]:
    """Every text of a component's options with its own key, at any depth; left out parts (None) have none."""
    for name in type(options).model_fields:
        value: Any = getattr(options, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value)
        elif value is not None and not isinstance(value, (tuple, list, dict)):
            yield name, str(value)
