# SPDX-License-Identifier: Apache-2.0
"""Processes' own span maps: made, put where the program finds them, taken away. Source: bpf/records.h, bpf/span.bpf.h.

What it is not: it decides not who gets one (triggers/spans.py) and writes no span (the process itself does).

Order, and why: the map is in its place before the gate is open, the gate before the change is told; so no thread page
ever remembers a gate whose map is another's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import KernelError

from ._libbpf import lib as libbpf
from .maps import BpfMap

__all__ = ["SpanMaps"]

_U32 = struct.Struct("=I")
_ARRAY, _MMAPABLE, _INNER = 2, 1 << 10, 1 << 12  # linux/bpf.h: BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, BPF_F_INNER_MAP
_BUCKET: int = ffi.sizeof("struct pb_span_bucket")


class SpanMaps:
    """The three span maps of a loaded program. Not thread-safe: one thread opens and closes."""

    def __init__(self, maps: Mapping[str, BpfMap]) -> None:
        self._spans, self._gates, self._state = (maps[name] for name in ("span_maps", "span_gates", "span_state"))
        self._open: dict[int, int] = {}
        self._changes = 0

    processes_max: int = lib.PB_SPAN_PROCESSES
    buckets_max: int = lib.PB_SPAN_BUCKETS_MAX

    @property
    def bytes(self) -> int:
        """Memory of all maps that are open."""
        return sum(self._open.values()) * _BUCKET

    def geometry(self, buckets: int) -> dict[str, object]:
        """What a process must know to write into a map of so many buckets: sizes in bytes."""
        return {
            "buckets": buckets,
            "buckets_max": self.buckets_max,
            "slots": int(lib.PB_SPAN_SLOTS),
            "slot_bytes": int(ffi.sizeof("struct pb_span_slot")),
            "hash": [int(lib.PB_SPAN_HASH_1), int(lib.PB_SPAN_HASH_2)],
        }

    def open(self, tgid: int, buckets: int) -> int:
        """Makes an empty map of ``buckets`` (a power of two) for a process; gives its fd, which is the caller's.

        It replaces an earlier one of the same tgid. Nothing is left of it when this raises KernelError.
        """
        fd = int(libbpf.pb_shim_map_create(_ARRAY, b"perfbuf_spans", 4, _BUCKET, buckets, _MMAPABLE | _INNER))
        if fd < 0:
            raise KernelError(-fd, f"creating a span map of {buckets * _BUCKET} bytes for process {tgid}")
        try:
            key = _U32.pack(tgid)
            self._spans.update(key, _U32.pack(fd))
            gate = ffi.new("struct pb_span_gate *", {"buckets": buckets})
            self._gates.update(key, bytes(ffi.buffer(gate)))
        except BaseException:
            os.close(fd)
            self.close(tgid)
            raise
        self._open[tgid] = buckets
        self._tell()
        return fd

    def close(self, tgid: int) -> None:
        """Takes a process's map away; one that has none is no error."""
        key = _U32.pack(tgid)
        self._gates.delete(key)
        self._spans.delete(key)
        if self._open.pop(tgid, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._changes += 1
        state = ffi.new("struct pb_span_state *", {"changes": self._changes, "processes": len(self._open)})
        self._state.update(bytes(4), bytes(ffi.buffer(state)))
