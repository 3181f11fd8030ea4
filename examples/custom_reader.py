# SPDX-License-Identifier: Apache-2.0
"""A reader of your own: samples that come as datagrams, say from a BPF program's user-space half on another host.

Register it in your package's pyproject.toml, and it can stand in a receiver's `mode:`

    [project.entry-points."otel_perfbuf.readers"]
    datagrams = "custom_reader:DatagramReader"

Waiting, timeouts, flush, asyncio, statistics and closing come with ReaderBase; you say how to take what is there.
Prove it with otel_perfbuf.testing.ReaderContract, as tests/unit/test_rings_custom.py does. Try it: run this file.
"""

import socket

from otel_perfbuf.rings import Batch
from otel_perfbuf.rings.base import ReaderBase, Waiting

LARGEST_BYTES = 64 << 10
BATCH = 1000


class DatagramReader(ReaderBase):
    """`map` is where to listen, host:port (port 0: any, see `address`); the socket holds about `per_cpu_bytes`."""

    def __init__(self, map: str, *, per_cpu_bytes: int) -> None:
        super().__init__(overwritable=False)
        host, _, port = map.rpartition(":")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._opened.callback(self._socket.close)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, per_cpu_bytes)
        self._socket.bind((host, int(port)))
        self.address = self._socket.getsockname()
        waiting = Waiting()
        self._opened.callback(waiting.close)
        waiting.add(self._socket.fileno())
        self._start(waiting)

    def _take(self) -> Batch:
        datagrams: list[bytes] = []
        try:
            while len(datagrams) < BATCH:
                datagrams.append(self._socket.recv(LARGEST_BYTES))
        except BlockingIOError:
            pass  # that was all
        return Batch.from_data(datagrams)


if __name__ == "__main__":
    with DatagramReader("127.0.0.1:0", per_cpu_bytes=1 << 20) as reader:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"hello", reader.address)
        for sample in reader.read(timeout=1.0):
            print(sample.cpu, bytes(sample.data))
