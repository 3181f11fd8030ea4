# SPDX-License-Identifier: Apache-2.0
"""A connection that does not wait: what went wrong is in SO_ERROR only."""

import select
import socket
import sys

with socket.socket() as client:
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", int(sys.argv[1])))
    poll = select.poll()
    poll.register(client, select.POLLOUT)
    poll.poll(5000)
    if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        sys.exit("payment failed")
