# SPDX-License-Identifier: Apache-2.0
"""Threads and processes whose last call is cut short: by exit_group, SIGKILL, SIGSEGV, and another thread's exec."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path


def wait_until_blocked(thread: int) -> None:
    """Until a thread sleeps; while strace holds it, its state is another."""
    while Path(f"/proc/{thread}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)


def blocked_threads() -> None:
    """Two that wait in different calls until their process ends."""
    for wait in (threading.Event().wait, lambda: time.sleep(100)):
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        wait_until_blocked(thread.native_id or 0)


def child(work: Callable[[], object]) -> int:
    """A forked process that does the work and ends with 7."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(7)
    return pid


def exits_beside_threads() -> None:
    """exit_group while two threads wait."""
    blocked_threads()
    os._exit(3)


reading, writing = os.pipe()
subprocess.run(["true"], check=True)
statuses = [os.waitpid(child(exits_beside_threads), 0)[1]]
segv = child(lambda: os.kill(os.getpid(), signal.SIGSEGV))
statuses.append(os.waitpid(segv, 0)[1] & 0x7F)
killed = child(lambda: os.read(reading, 1))
wait_until_blocked(killed)
os.kill(killed, signal.SIGKILL)
statuses.append(os.waitpid(killed, 0)[1])
assert statuses == [3 << 8, signal.SIGSEGV, signal.SIGKILL], statuses
blocked_threads()
threading.Thread(target=os.execv, args=("/bin/true", ["true"])).start()
threading.Event().wait()
