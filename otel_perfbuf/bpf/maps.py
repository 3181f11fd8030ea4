# SPDX-License-Identifier: Apache-2.0
"""BPF maps as bytes. What it is not: it knows no layouts and no rings. Source: bpf(2), linux/bpf.h."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from otel_perfbuf.errors import KernelError

from ._libbpf import ffi, lib

__all__ = ["BpfMap", "map_from_fd", "open_pinned_map"]

_PER_CPU_TYPES = frozenset({5, 6, 10, 21})  # PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH, PERCPU_CGROUP_STORAGE


class BpfMap:
    """One map. Keys and values are bytes of exactly ``key_size`` and ``value_size``.

    Owns ``fd`` only when made by `open_pinned_map` or `map_from_fd`; a BpfObject's maps live as long as it does.
    """

    def __init__(self, fd: int, *, owned: bool = False, name: str = "") -> None:
        info, size = ffi.new("struct bpf_map_info *"), ffi.new("__u32 *", ffi.sizeof("struct bpf_map_info"))
        if lib.bpf_obj_get_info_by_fd(fd, info, size):
            raise KernelError(ffi.errno, f"asking what BPF map fd {fd} is")
        self.fd = fd
        self._owned = owned
        self.name = name or ffi.string(info.name).decode("ascii", "replace")
        self.type, self.id = int(info.type), int(info.id)
        self.key_size, self.value_size = int(info.key_size), int(info.value_size)
        self.max_entries, self.flags = int(info.max_entries), int(info.map_flags)

    def _sized(self, what: str, data: bytes, size: int) -> bytes:
        if len(data) != size:
            raise ValueError(f"map {self.name}: a {what} has {size} bytes, not {len(data)}")
        return data

    def lookup(self, key: bytes) -> bytes | None:
        """The value of ``key``, or None. Of a per-CPU map use `per_cpu`."""
        value = ffi.new("uint8_t[]", self._value_bytes())
        if lib.bpf_map_lookup_elem(self.fd, self._sized("key", key, self.key_size), value):
            if ffi.errno == errno.ENOENT:
                return None
            raise KernelError(ffi.errno, f"looking up a key of map {self.name}")
        return bytes(ffi.buffer(value))

    def _value_bytes(self) -> int:
        if self.type in _PER_CPU_TYPES:
            return _padded(self.value_size) * int(lib.libbpf_num_possible_cpus())
        return self.value_size

    def per_cpu(self, key: bytes) -> list[bytes]:
        """The values of ``key`` by possible CPU number; empty when there is none. Of per-CPU maps only."""
        if self.type not in _PER_CPU_TYPES:
            raise ValueError(f"map {self.name} is not a per-CPU map (type {self.type})")
        data, step = self.lookup(key), _padded(self.value_size)
        return [data[at : at + self.value_size] for at in range(0, len(data), step)] if data else []

    def update(self, key: bytes, value: bytes) -> None:
        """Sets ``key``; KernelError E2BIG when the map is full."""
        key, value = self._sized("key", key, self.key_size), self._sized("value", value, self.value_size)
        if lib.bpf_map_update_elem(self.fd, key, value, 0):
            raise KernelError(ffi.errno, f"setting a key of map {self.name}")

    def delete(self, key: bytes) -> bool:
        """Removes ``key``; False when it was not there."""
        if lib.bpf_map_delete_elem(self.fd, self._sized("key", key, self.key_size)):
            if ffi.errno == errno.ENOENT:
                return False
            raise KernelError(ffi.errno, f"deleting a key of map {self.name}")
        return True

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, each key at most once; the map may change meanwhile.

        A key that is deleted under the iteration makes the kernel begin again: what was seen is passed over, and the
        iteration ends after twice ``max_entries`` steps whatever happens.
        """
        seen: set[bytes] = set()
        key, following = ffi.new("uint8_t[]", self.key_size), ffi.new("uint8_t[]", self.key_size)
        previous = ffi.NULL
        for _ in range(2 * self.max_entries + 1):
            if lib.bpf_map_get_next_key(self.fd, previous, following):
                if ffi.errno == errno.ENOENT:
                    return
                raise KernelError(ffi.errno, f"walking map {self.name}")
            ffi.memmove(key, following, self.key_size)
            previous, found = key, bytes(ffi.buffer(key))
            if found in seen:
                continue
            seen.add(found)
            value = self.lookup(found)
            if value is not None:
                yield found, value

    def pin(self, path: Path | str) -> None:
        """Pins the map at ``path`` in a bpffs."""
        if lib.bpf_obj_pin(self.fd, os.fsencode(path)):
            raise KernelError(ffi.errno, f"pinning map {self.name} at {path} (is a bpf file system mounted there?)")

    def close(self) -> None:
        """Closes an owned fd; twice is fine."""
        if self._owned and self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = -1


def _padded(size: int) -> int:
    """A per-CPU value takes a multiple of 8 bytes in the kernel's answer."""
    return (size + 7) & ~7


def map_from_fd(fd: int) -> BpfMap:
    """The map behind ``fd``, which stays the caller's."""
    return BpfMap(fd)


def open_pinned_map(path: Path | str) -> BpfMap:
    """The map pinned at ``path``; close it."""
    fd = lib.bpf_obj_get(os.fsencode(path))
    if fd < 0:
        raise KernelError(ffi.errno, f"opening the pinned map {path}")
    try:
        return BpfMap(fd, owned=True)
    except BaseException:
        os.close(fd)
        raise
