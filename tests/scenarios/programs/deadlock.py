# SPDX-License-Identifier: Apache-2.0
"""Two processes, each with one lock file and waiting for the other's."""

import fcntl
import os
import sys

one, other = sys.argv[1:3]
ready_read, ready_write = os.pipe()
go_read, go_write = os.pipe()
child = os.fork()
mine, theirs = (one, other) if child else (other, one)
first = os.open(mine, os.O_RDWR)
fcntl.flock(first, fcntl.LOCK_EX)
second = os.open(theirs, os.O_RDWR)
if child:
    os.read(ready_read, 1)
    print(child, flush=True)
    sys.stdin.readline()
    os.write(go_write, b"1")
else:
    os.write(ready_write, b"1")
    os.read(go_read, 1)
fcntl.flock(second, fcntl.LOCK_EX)
