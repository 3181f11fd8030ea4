# SPDX-License-Identifier: Apache-2.0
"""Memory of a job, at the address at which it will lie: structs with pointers into it can be written down.

What it is not: it knows no system call (contents.py does). Source: caller.c, which maps it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

__all__ = ["ADDRESS", "UNREADABLE", "Content", "Memory"]

ADDRESS = 0x1000_0000_0000
UNREADABLE = 0x1234
PAGE = 4096


class Memory:
    """Grows by what is put into it; the last page ends where nothing is mapped and holds no NUL."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._known: dict[bytes, int] = {}
        self._edges: list[tuple[int, bytes]] = []

    def put(self, data: bytes, room: int = 0) -> int:
        """The address of memory that begins so, zeros behind it up to ``room`` and 64 bytes more; never shared."""
        address = ADDRESS + len(self.data)
        self.data += data.ljust(room, b"\0") + bytes(64)
        self.data += bytes(-len(self.data) % 16)
        return address

    def at_edge(self, size: int) -> int:
        """An address ``size`` bytes in front of unmapped memory. Known only in the end: a placeholder until then."""
        return -size - 0x7000_0000

    def finish(self) -> tuple[bytes, int]:
        """All bytes, and where they end."""
        self.data += bytes(-len(self.data) % PAGE) + b"edge" * (PAGE // 4)
        return bytes(self.data), ADDRESS + len(self.data)


Content = bytes | Callable[[Memory], bytes]


def pack(*fields: tuple[str, int]) -> bytes:
    """Fields one after the other, native order, no padding but what is told."""
    return b"".join(struct.pack("=" + form, value) for form, value in fields)


def words(*values: int, size: int = 8) -> bytes:
    """Unsigned integers of one size."""
    return b"".join((value & ((1 << 8 * size) - 1)).to_bytes(size, "little") for value in values)


def vector(pieces: Sequence[tuple[bytes, int]]) -> Content:
    """An array of struct iovec over memory of its own."""
    return lambda memory: b"".join(words(memory.put(data), size) for data, size in pieces)
