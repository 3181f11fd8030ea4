# SPDX-License-Identifier: Apache-2.0
"""A path is missing, and the message hides which."""

import sys

try:
    with open("/srv/no-such-app/config.json") as file:
        file.read()
except OSError:
    print("error: bad configuration", file=sys.stderr)
    sys.exit(1)
