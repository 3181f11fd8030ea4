# SPDX-License-Identifier: Apache-2.0
"""Threads that block in open() of a FIFO nobody reads: one at the start, one more when a line comes on stdin.

Says "blocked TID" when /proc says that the thread is in that call; ends at the end of stdin. usage: FIFO FIFO
"""

import os
import sys
import threading
from pathlib import Path

OPENAT = ("257", "56")  # x86-64, arm64


def open_in_a_thread(path: str) -> None:
    """Returns when the thread is in the call."""
    thread = threading.Thread(target=os.open, args=(path, os.O_WRONLY), daemon=True)
    thread.start()
    state = Path(f"/proc/self/task/{thread.native_id}/syscall")
    while state.read_text().split()[0] not in OPENAT:
        pass
    os.write(1, f"blocked {thread.native_id}\n".encode())


open_in_a_thread(sys.argv[1])
sys.stdin.readline()
open_in_a_thread(sys.argv[2])
sys.stdin.readline()
os._exit(0)
