# SPDX-License-Identifier: Apache-2.0
"""A server resets the connection while its client, another thread, waits for an answer."""

import socket
import struct
import sys
import threading

listener = socket.create_server(("127.0.0.1", 0))


def serve() -> None:
    """Takes the request and hangs up hard."""
    connection, _ = listener.accept()
    connection.recv(10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


thread = threading.Thread(target=serve)
thread.start()
client = socket.create_connection(listener.getsockname())
client.send(b"GET /")
try:
    client.recv(100)
except OSError:
    thread.join()
    sys.exit(7)
