# SPDX-License-Identifier: Apache-2.0
"""Forks as a user who may have no process more."""

import os
import resource
import sys

os.setgid(65533)
os.setuid(65533)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    if os.fork() == 0:
        os._exit(0)
except OSError:
    sys.exit(8)
