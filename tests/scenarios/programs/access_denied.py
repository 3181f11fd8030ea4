# SPDX-License-Identifier: Apache-2.0
"""Gives its rights away and then opens what it may not read any more."""

import os
import sys

os.setgid(65534)
os.setuid(65534)
try:
    os.open(sys.argv[1], os.O_RDONLY)
except OSError:
    sys.exit(5)
