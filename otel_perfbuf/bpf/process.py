# SPDX-License-Identifier: Apache-2.0
"""The forward program of exec, fork and exit. Source: bpf/process.bpf.c."""

from __future__ import annotations

import os

from .features import load_builtin
from .maps import BpfMap
from .process_table import ProcessEntry, Stats, read_process, read_processes, read_stats

__all__ = ["ProcessProgram"]


class ProcessProgram:
    """Loaded when made; its samples (bpf/records.h) go to ``events_map`` from `attach` on. Never about the caller."""

    def __init__(self) -> None:
        self._object = load_builtin("process", lambda program: program.set_rodata("agent_tgid", os.getpid()))

    def attach(self) -> None:
        """Begins to send."""
        self._object.attach()

    @property
    def events_map(self) -> BpfMap:
        """The perf event array to read forward."""
        return self._object.maps["events"]

    def process(self, key: tuple[int, int]) -> ProcessEntry | None:
        """The process table's row of (tgid, start time) as it is now, the dead too."""
        return read_process(self._object.maps["processes"], key)

    def processes(self) -> dict[tuple[int, int], ProcessEntry]:
        """The process table, the dead too, by (tgid, start time)."""
        return read_processes(self._object.maps["processes"])

    def stats(self) -> Stats:
        """What was lost, and what was sent."""
        return read_stats(self._object.maps["stats"], self._object.missed_events())

    def missed_events(self) -> int:
        """Events at which the kernel did not run it (`BpfObject.missed_events`)."""
        return self._object.missed_events()

    def close(self) -> None:
        """Detaches and frees everything; twice is fine."""
        self._object.close()
