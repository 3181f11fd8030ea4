# SPDX-License-Identifier: Apache-2.0
"""What the processes that were there before recording began say of themselves in OTEL_* variables.

What it is not: the process table; the programs fill that, and take the environment at exec. These processes have done
their exec before: their environment is read from /proc once, when recording begins: so it is known of the dead too.
Source: CONTRACT section 4 (Resource); proc_pid_environ(5).
"""

from __future__ import annotations

import os
from dataclasses import replace

from .processes import Process, process_from_proc, same_start, start_of

__all__ = ["FirstSight"]


class FirstSight:
    """The processes of /proc that have OTEL_* variables, as of when this is made; what may not be read is left out."""

    def __init__(self) -> None:
        self._seen: dict[int, Process] = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and _has_variables(name):
                start_ns, process = start_of(int(name)), process_from_proc(int(name))
                if start_ns is not None and process is not None:
                    self._seen[process.pid] = replace(process, start_ns=start_ns)

    def completed(self, process: Process) -> Process:
        """The process with the environment that was seen, of itself or of the parent that it was forked from.

        Unchanged when its exec was recorded: then the table has its environment.
        """
        if process.environment:
            return process
        seen = self._seen.get(process.pid)
        if seen is None or not same_start(seen.start_ns, process.start_ns):
            seen = self._seen.get(process.parent_pid)
            if seen is None or seen.start_ns > process.start_ns:
                return process
        # Another program than the one that was seen: it was executed since, in an environment without OTEL_*.
        return replace(process, environment=seen.environment) if seen.executable == process.executable else process


def _has_variables(name: str) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return b"OTEL_" in file.read()
    except OSError:
        return False
