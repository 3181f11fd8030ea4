# SPDX-License-Identifier: Apache-2.0
"""Takes memory in the cgroup that it is moved to, until it is killed: no call fails."""

import os
import sys

with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as file:
    file.write(str(os.getpid()))
kept = []
while True:
    kept.append(bytearray(os.urandom(1 << 20)))
