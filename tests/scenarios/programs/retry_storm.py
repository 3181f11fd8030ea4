# SPDX-License-Identifier: Apache-2.0
"""One file is missing, so the default port is tried: ten thousand times, in vain."""

import contextlib
import socket
import sys

port = int(sys.argv[1])
with contextlib.suppress(OSError), open("/srv/no-such-app/port") as file:
    port = int(file.read())
for _ in range(10_000):
    with socket.socket() as client, contextlib.suppress(OSError):
        client.connect(("127.0.0.1", port))
sys.exit("gave up")
