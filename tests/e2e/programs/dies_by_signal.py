# SPDX-License-Identifier: Apache-2.0
"""Dies by a signal: SEGV by reading address 0, or KILL from a child while it is blocked in read(2).

usage: dies_by_signal.py SEGV|KILL
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

if sys.argv[1] == "SEGV":
    ctypes.string_at(0)
reading, _writing = os.pipe()
parent = os.getpid()
if os.fork() == 0:
    # The parent is in the read when /proc says so: number 0 on x86-64, 63 on arm64.
    while Path(f"/proc/{parent}/syscall").read_text().split()[0] not in ("0", "63"):
        pass
    os.kill(parent, signal.SIGKILL)
    os._exit(0)
os.read(reading, 4711)
