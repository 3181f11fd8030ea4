# SPDX-License-Identifier: Apache-2.0
"""A storm: a sender's datagrams beyond a hundred a second are counted and not looked at; others' are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from otel_perfbuf.triggers.firing import Firing
from otel_perfbuf.triggers.manners import BudgetOptions, Manners
from otel_perfbuf.triggers.pace import Pace
from otel_perfbuf.triggers.socket import SocketOptions, SocketTrigger


def test_each_sender_has_its_own_count() -> None:
    """Three of each within a second; the skipped are told when it is over, once."""
    now = [10.0]
    pace = Pace(most=3, clock=lambda: now[0])
    assert [pace.takes(1) for _ in range(5)] == [True, True, True, False, False]
    assert pace.takes(2)
    assert (pace.storming, pace.take_skipped()) == (True, 0)
    now[0] += 1.0
    assert (pace.take_skipped(), pace.take_skipped(), pace.storming) == (2, 0, False)
    assert pace.takes(1)


STORM = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect(sys.argv[1])
for number in range(10000):
    s.send(json.dumps({"v": 1, "kind": "span_error", "trace_id": f"{number + 1:032x}", "span_id": f"{number + 1:016x}",
                       "service_name": "shop", "reason": f"timeout after {number} ms"}).encode())
"""


def test_a_storm_makes_one_dump_and_every_firing_is_counted(tmp_path: Path) -> None:
    """10,000 datagrams of one reason, as fast as a process can send: one is admitted, 9,999 are suppressed."""
    manners = Manners(30.0, BudgetOptions())
    admitted: list[Firing] = []
    told: Counter[str] = Counter()

    def fire(firing: Firing) -> None:
        if manners.admit(firing):
            admitted.append(firing)

    def suppress(kind: str, count: int) -> None:
        told[kind] += count

    trigger = SocketTrigger(SocketOptions(path=str(tmp_path / "t.sock")), suppress=suppress)
    trigger.start(fire)
    try:
        subprocess.run([sys.executable, "-c", STORM, trigger.path], check=True, timeout=50)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:  # another sender is heard meanwhile
            other.connect(trigger.path)
            other.send(b'{"v": 1, "kind": "manual", "reason": "of another process"}')
        end = time.monotonic() + 20
        while len(admitted) + manners.suppressed.total() + told.total() < 10_001 and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        trigger.stop()
    assert [(firing.kind, firing.pid == os.getpid()) for firing in admitted] == [
        ("span_error", False), ("manual", True),
    ]  # fmt: skip
    assert manners.suppressed["span_error"] + told.total() == 9_999
    assert trigger.received == 10_001
