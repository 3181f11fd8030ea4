# SPDX-License-Identifier: Apache-2.0
"""Starts a script whose interpreter is missing; says only that it did not work."""

import subprocess
import sys

try:
    subprocess.run([sys.argv[1]], check=True)
except OSError:
    sys.exit(6)
