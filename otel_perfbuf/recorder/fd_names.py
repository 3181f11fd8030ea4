# SPDX-License-Identifier: Apache-2.0
"""The Python handle of the fd names: memory for them, and the seeds that /proc gave.

What it is not: it reads nothing of a process (descriptors.py) and names nothing itself (C, at encoding).
Source: otel_perfbuf/_core/fd_names.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.records.plan import Plan

from .descriptors import Seeds
from .history import History, ProcessKey

__all__ = ["FdNames"]

_ENTRIES_MAX = 1 << 20
_CHILDREN_COPIES = 1 << 16  # fds that forked children inherit; beyond that they have no names
_TEXT_BYTES_A_THING = 256  # longer paths find room as long as others are shorter


class FdNames:
    """What fds are at each moment of ``history``; ``pointer`` is a ``struct pb_fd_names *`` for one encoding.

    ``complete_since_ns`` (monotonic): before that, records of any thread may be missing. ``seeds`` are what the kernel
    said of the processes that were alive. Owns its memory; borrows the history and the plan.
    """

    def __init__(self, history: History, plan: Plan, seeds: Mapping[ProcessKey, Seeds], complete_since_ns: int) -> None:
        rows = self._rows(history, seeds)
        entries = min(history.events + len(rows) + _CHILDREN_COPIES, _ENTRIES_MAX)
        things = min(history.events + len(rows) + 1, _ENTRIES_MAX)
        buckets = 1 << (2 * entries - 1).bit_length()
        new = ffi.new_allocator(should_clear_after_alloc=False)
        self._keep: list[Any] = [
            history,
            plan,
            new("struct pb_fd_process[]", max(history.process_count, 1)),
            new("struct pb_fd_pending[]", max(history.thread_count, 1)),
            new("struct pb_fd_entry[]", entries),
            new("uint32_t[]", buckets),
            new("struct pb_fd_thing[]", things),
            new("char[]", things * _TEXT_BYTES_A_THING),
        ]
        names = self.pointer = ffi.new("struct pb_fd_names *")
        names.history, names.plan = history.pointer, plan.pointer
        names.processes, names.pending, names.entries, names.buckets, names.things, names.text = self._keep[2:]
        names.entry_capacity, names.bucket_count, names.thing_capacity = entries, buckets, things
        names.text_capacity = things * _TEXT_BYTES_A_THING
        names.complete_since_ns = complete_since_ns
        c_rows = ffi.new("struct pb_fd_seed[]", rows)
        self._keep.append(c_rows)
        status = lib.pb_fd_names_open(names, c_rows, len(rows))
        if status != lib.PB_OK:
            raise PerfbufError(f"naming fds: the C engine answered {status}; this is a defect, please report it")

    def _rows(self, history: History, seeds: Mapping[ProcessKey, Seeds]) -> list[tuple[Any, ...]]:
        self._texts = []
        rows = []
        for index, key in enumerate(history.processes()):
            found = seeds.get(key)
            for seed in found.fds if found is not None else ():
                text = ffi.new("char[]", seed.text)
                self._texts.append(text)
                rows.append((index, seed.fd, found.seen_ns if found else 0, text, len(seed.text), seed.on_exec))
        return rows
