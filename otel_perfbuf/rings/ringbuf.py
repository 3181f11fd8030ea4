# SPDX-License-Identifier: Apache-2.0
"""RingbufReader: one BPF ring buffer, read forward, or by snapshots where its map overwrites.

What it is not: it walks no bytes (ringbuf_readout.py) and does not know how to wait (base.py).
Source: CONTRACT section 6; Linux Documentation/bpf/ringbuf.rst, kernel/bpf/ringbuf.c.

Facts: a reader may not pass a record that is still being written (BUSY), the fd is readable all that time, and the
  writer's commit need not wake. Decision: such a record is looked at again every millisecond, up to the read's end; a
  snapshot does so for 20 ms, since what other CPUs wrote meanwhile lies behind it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from typing import Literal

from otel_perfbuf.errors import ConfigError, KernelError, NotOverwritable, NotSupported
from otel_perfbuf.rings._sys import ffi, lib
from otel_perfbuf.rings.base import ReaderBase, Waiting
from otel_perfbuf.rings.batch import Batch
from otel_perfbuf.rings.maps import MapLike, open_map
from otel_perfbuf.rings.ringbuf_readout import MappedRingbuf, RingbufReadout

__all__ = ["RingbufReader", "create_ringbuf"]

BUSY_RETRY_S = 0.001
SNAPSHOT_TRIES = 20


class RingbufReader(ReaderBase):
    """Reads what BPF programs put into a BPF_MAP_TYPE_RINGBUF with ``bpf_ringbuf_output``, ``_submit`` and so on.

    ``map``: an object with ``fd``, an fd (both borrowed), or a pinned path. Whether it is read by ``read`` or by
    ``snapshot`` is decided by the map's flag BPF_F_RB_OVERWRITE. There must be no other reader of the same map: the
    kernel keeps one position. Samples have cpu 0: the ring is shared, and does not tell. Records that a writer
    discarded are passed over.

    Raises ConfigError for another type of map, KernelError where the kernel refuses (nothing stays open then).
    All methods may be called from any thread; ``read``, ``flush`` and ``snapshot`` take turns.
    """

    def __init__(self, map: MapLike) -> None:
        fd, info, what = open_map(map, lib.PB_SYS_MAP_RINGBUF, "ring buffers need BPF_MAP_TYPE_RINGBUF")
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, fd)
            super().__init__(overwritable=bool(info.flags & lib.PB_SYS_RB_OVERWRITE))
            self._what = what
            self.capacity: int = info.max_entries
            """Data bytes of the ring."""
            consumer, producer = ffi.new("void **"), ffi.new("void **")
            status = lib.pb_sys_ringbuf_map(fd, self.capacity, consumer, producer)
            if status < 0:
                raise KernelError(-status, f"mapping {what}, {self.capacity} bytes (needs CAP_BPF or its owner's fd)")
            opened.callback(lib.pb_sys_ringbuf_unmap, consumer[0], producer[0], self.capacity)
            page = int(ffi.cast("uintptr_t", producer[0]))
            own = int(ffi.cast("uintptr_t", consumer[0]))
            mapped = MappedRingbuf(own, page, page + resource.getpagesize(), self.capacity, self.overwritable)
            self._readout = RingbufReadout(mapped, pause=_pause)
            waiting = Waiting()
            opened.callback(waiting.close)
            waiting.add(fd)
            self._opened = opened.pop_all()
        self._start(waiting)

    @property
    def available_bytes(self) -> int:
        """Bytes in the ring that were not read yet (overwritable: that it holds), headers and unfinished ones too."""
        with self._gate:
            return self._readout.available_bytes()

    @property
    def discarded(self) -> int:
        """Records that their writers threw away and that a read has passed over."""
        return self._readout.discarded

    def snapshot(self, since: Literal["last", "all"] = "last") -> Batch:
        """The history that an overwritable ring holds, oldest first, up to the first record that is being written.

        ``last``: what no snapshot has returned before; ``all``: everything that is still held. Either way the next
        "last" begins behind it. Raises NotOverwritable when the map does not overwrite.
        """
        if not self.overwritable:
            raise NotOverwritable(f"snapshot of {self._what}, which is made without BPF_F_RB_OVERWRITE: use read()")
        return self._snapshot(since, lambda everything: self._readout.snapshot(everything=everything))

    def _take(self) -> Batch:
        return self._readout.drain()

    def _has_more(self) -> bool:
        if self._readout.busy and not self._fresh:
            return False
        return self._readout.available_bytes() > 0

    def _retry_after_s(self) -> float | None:
        return BUSY_RETRY_S if self._readout.busy else None


def _pause(tries: int) -> bool:
    time.sleep(BUSY_RETRY_S)
    return tries < SNAPSHOT_TRIES


def create_ringbuf(capacity: int, *, overwritable: bool = False) -> int:
    """An fd of a new ring buffer of ``capacity`` bytes, a power of two of whole pages; the caller closes it.

    ``overwritable``: with BPF_F_RB_OVERWRITE. NotSupported where this kernel has it not (first 6.19), KernelError where
    it refuses otherwise, ConfigError for the capacity.
    """
    if capacity < resource.getpagesize() or capacity & (capacity - 1) or capacity >= 1 << 32:
        raise ConfigError(f"a ring buffer of {capacity} bytes: give a power of two, at least a page, below 4 GiB")
    flags = lib.PB_SYS_RB_OVERWRITE if overwritable else 0
    fd = int(lib.pb_sys_map_create(lib.PB_SYS_MAP_RINGBUF, 0, 0, capacity, flags))
    if fd == -errno.EINVAL and overwritable:
        raise NotSupported(
            errno.EINVAL,
            "creating an overwritable BPF ring buffer: this kernel has no BPF_F_RB_OVERWRITE, which came with Linux "
            "6.19; use an overwritable PerfReader",
            feature="BPF_F_RB_OVERWRITE",
            first_kernel="6.19",
        )
    if fd < 0:
        raise KernelError(-fd, f"creating a BPF ring buffer of {capacity} bytes (needs CAP_BPF)")
    return fd
