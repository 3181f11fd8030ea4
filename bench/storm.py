# SPDX-License-Identifier: Apache-2.0
"""What a storm of firings costs the agent: CPU time of the trigger's side over wall time.

usage: storm.py [PER_SECOND]. A process of its own sends datagrams at the pace that is asked for, for three seconds;
what it cannot get rid of (the socket's queue is full) it drops, as the SDK's processors do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from otel_perfbuf.triggers.firing import Firing
from otel_perfbuf.triggers.manners import BudgetOptions, Manners
from otel_perfbuf.triggers.socket import SocketOptions, SocketTrigger

SECONDS = 3
SENDER = """
import json, os, socket, sys, time
path, per_second, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(path); s.setblocking(False)
dropped, begin, number = 0, time.monotonic(), 0
while (now := time.monotonic() - begin) < seconds:
    while number < now * per_second:
        number += 1
        try: s.send(json.dumps({"v": 1, "kind": "span_error", "trace_id": f"{number:032x}", "span_id": f"{number:016x}",
                                "tid": os.getpid(), "reason": f"timeout after {number} ms"}).encode())
        except BlockingIOError: dropped += 1
    time.sleep(0.0005)
print(number, dropped)
"""


def main() -> None:
    """Prints one line."""
    per_second = sys.argv[1] if len(sys.argv) > 1 else "10000"
    manners = Manners(30.0, BudgetOptions())
    admitted = skipped = 0

    def fire(firing: Firing) -> None:
        nonlocal admitted
        admitted += manners.admit(firing)

    def suppress(_: str, count: int) -> None:
        nonlocal skipped
        skipped += count

    trigger = SocketTrigger(SocketOptions(path=tempfile.mkdtemp() + "/t.sock"), suppress=suppress)
    trigger.start(fire)
    begin, cpu = time.monotonic(), time.process_time()
    done = subprocess.run(
        [sys.executable, "-c", SENDER, trigger.path, per_second, str(SECONDS)],
        capture_output=True,
        text=True,
        check=True,
    )
    wall, used = time.monotonic() - begin, time.process_time() - cpu
    trigger.stop()
    made, dropped = map(int, done.stdout.split())
    print(
        f"{made} firings in {wall:.1f} s: {100 * used / wall:.1f} % of a core, {admitted} admitted, "
        f"{manners.suppressed.total()} suppressed, {trigger.received - admitted - manners.suppressed.total()} counted "
        f"unread, {dropped} dropped by the sender"
    )


if __name__ == "__main__":
    main()
