# SPDX-License-Identifier: Apache-2.0
"""Starts load.c's program and runs rounds of it. What it is not: it records nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

BUILT = Path(__file__).resolve().parents[1] / ".cache" / "bench"


class Load:
    """A running load, pinned to one CPU; ``run`` is one round of its calls."""

    def __init__(self, mode: str, calls: int, cpu: int) -> None:
        self._process = subprocess.Popen(
            [BUILT / "load", mode, str(calls)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(self.pid, {cpu})
        assert self._process.stdout is not None and self._process.stdin is not None
        self._out, self._in = self._process.stdout, self._process.stdin
        if self._out.readline() != "ready\n":
            raise SystemExit("bench: the load did not start; build it with `make bench`")

    @property
    def pid(self) -> int:
        """The load's process id."""
        return self._process.pid

    def run(self) -> float:
        """One round; gives the wall nanoseconds of one call."""
        self._in.write("go\n")
        self._in.flush()
        return float(self._out.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()
        self._process.wait(10)
        self._out.close()
