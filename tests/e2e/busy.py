# SPDX-License-Identifier: Apache-2.0
"""A process with a history that grows all the time, and what arrived of its dumps, counted with json alone."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector import attribute

__all__ = ["Dumps", "busy_process", "read_dumps"]

# About 10,000 calls a second and a mostly idle core
_PROGRAM = """
import os, sys, time
print("busy", flush=True)
while True:
    for _ in range(200):
        os.getppid()
    time.sleep(0.02)
"""


@contextlib.contextmanager
def busy_process(directory: Path, name: str = "pbbusy") -> Iterator[int]:
    """Its pid; ``name`` is what its threads are called, so that only it is recorded."""
    python = directory / name
    python.symlink_to(sys.executable)
    process = subprocess.Popen([python, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        yield process.pid
    finally:
        process.terminate()  # KILL would fire process_exit
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@dataclass
class Dumps:
    """By dump id: what its header says, its span, and how often each of its records arrived.

    A record is known by (thread instance, sequence).
    """

    headers: dict[str, int] = field(default_factory=dict)
    spans: Counter[str] = field(default_factory=Counter)
    records: defaultdict[str, Counter[tuple[int, int]]] = field(default_factory=lambda: defaultdict(Counter))
    first: dict[str, str] = field(default_factory=dict)

    def whole(self, dump_id: str) -> bool:
        """Header, span and every record that the header counts are there, however often."""
        there = dump_id in self.headers and self.spans[dump_id] > 0
        return there and len(self.records[dump_id]) == self.headers[dump_id]


def read_dumps(*paths: Path) -> Dumps:
    """What the Collector's file exporter wrote, one file after the other."""
    dumps = Dumps()
    for path in paths:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.split("\n")[:-1]:
            _take(dumps, json.loads(line))
    return dumps


def _take(dumps: Dumps, line: dict[str, Any]) -> None:
    for entry in line.get("resourceSpans", ()):
        for scope in entry["scopeSpans"]:
            for span in scope["spans"]:
                dumps.spans[attribute(span, "perfbuf.dump.id")] += 1
    for entry in line.get("resourceLogs", ()):
        for scope in entry["scopeLogs"]:
            for record in scope["logRecords"]:
                dump_id = attribute(record, "perfbuf.dump.id")
                dumps.first.setdefault(dump_id, record.get("eventName", ""))
                if record.get("eventName") == "perfbuf.dump":
                    dumps.headers[dump_id] = attribute(record, "perfbuf.dump.records")
                elif record.get("eventName") != "perfbuf.lost":
                    key = attribute(record, "perfbuf.thread.instance"), attribute(record, "perfbuf.sequence")
                    dumps.records[dump_id][key] += 1
