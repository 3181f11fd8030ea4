# SPDX-License-Identifier: Apache-2.0
"""Whose fds are looked at, and when: at the beginning of a target, and behind each snapshot those of the living.

What it is not: it reads no /proc itself (descriptors.py), and it judges no seed (_core/fd_seeds.c).
Source: DESIGN section 6; proc(5).

The snapshot comes first, since what is lost by waiting is lost for good. So a process may change its fds between the
snapshot and the look: the pages are read once more behind it, and their new records tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from .descriptors import Seeds, read_seeds
from .history import ProcessKey
from .inflight import page_processes
from .processes import Process, same_start, start_of
from .scope import descendants, newest

__all__ = ["SeedBook"]

_LIVING_MAX = 64  # processes that are looked at: each costs some 0.1 ms and 10 us an fd


class SeedBook:
    """The seeds of one source; ``read_pages`` gives all thread pages as they are now."""

    def __init__(self, read_pages: Callable[[], bytes]) -> None:
        self._read_pages = read_pages
        self._first: dict[int, tuple[int, Seeds]] = {}

    def add(self, pid: int) -> None:
        """Keeps what a process's fds are now, for when it is dead at the dump."""
        start_ns, seeds = start_of(pid), read_seeds(pid)
        if start_ns is not None and seeds is not None:
            self._first[pid] = (start_ns, seeds)

    def read(
        self, pages: bytes, processes: Mapping[ProcessKey, Process], pids: Collection[int] | None
    ) -> tuple[dict[ProcessKey, Seeds], bytes]:
        """Seeds by process, and the thread pages as they are behind the last look.

        ``pages`` are the snapshot's, ``processes`` the process table. ``pids``: whose fds (and their children's) are
        looked at, None: of all processes that are recorded.
        """
        seeds = {
            key: first[1]
            for key in processes
            if (first := self._first.get(key[0])) is not None and same_start(first[0], key[1])
        }
        living = page_processes(pages)
        if pids is not None:
            roots = [root for pid in pids if (root := newest(pid, living)) is not None]
            known = {**{key: Process(pid=key[0], start_ns=key[1]) for key in living}, **processes}
            living &= {key for root in roots for key in descendants(root, known)}
        for key in sorted(living, key=lambda key: -key[1])[:_LIVING_MAX]:
            found = read_seeds(*key)
            if found is not None:
                seeds[key] = found
        return seeds, self._read_pages() if living else b""
