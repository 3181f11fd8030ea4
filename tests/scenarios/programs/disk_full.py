# SPDX-License-Identifier: Apache-2.0
"""Writes a report where there is no room for it."""

import os
import sys

try:
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    while True:
        os.write(file, bytes(16384))
except OSError:
    sys.exit(4)
