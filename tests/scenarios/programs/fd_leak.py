# SPDX-License-Identifier: Apache-2.0
"""Opens a file again and again, until no fd is left."""

import os
import resource
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
leaked = []
try:
    while True:
        leaked.append(os.open(sys.argv[1], os.O_RDONLY))
except OSError:
    sys.exit(2)
