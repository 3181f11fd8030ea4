# SPDX-License-Identifier: Apache-2.0
"""Which processes are in a dump's scope. What it is not: it asks the kernel nothing. Source: CONTRACT section 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .history import ProcessKey
from .processes import Process

__all__ = ["descendants", "newest", "topmost"]


def newest(pid: int, processes: Iterable[ProcessKey], before_ns: int | None = None) -> ProcessKey | None:
    """The youngest process that had ``pid`` (pids are reused), or None.

    ``before_ns`` (CLOCK_MONOTONIC): when it was alive; one that started later has the pid after it, unless there is no
    other.
    """
    keys = [key for key in processes if key[0] == pid]
    then = [key for key in keys if before_ns is None or key[1] <= before_ns]
    return max(then or keys, key=lambda key: key[1], default=None)


def _parents(processes: Mapping[ProcessKey, Process]) -> dict[ProcessKey, ProcessKey]:
    """Each process's parent, as far as it is in ``processes``.

    A child belongs to the youngest process of its parent's pid that was there before the child: so a reused pid brings
    no strangers in. A process whose parent ended is a child of the pid that it was forked from, which the table keeps.
    """
    by_pid: dict[int, list[ProcessKey]] = {}
    for key in processes:
        by_pid.setdefault(key[0], []).append(key)
    parents: dict[ProcessKey, ProcessKey] = {}
    for key, process in processes.items():
        older = [parent for parent in by_pid.get(process.parent_pid, ()) if parent[1] <= key[1] and parent != key]
        if older:
            parents[key] = max(older, key=lambda parent: parent[1])
    return parents


def descendants(root: ProcessKey, processes: Mapping[ProcessKey, Process]) -> set[ProcessKey]:
    """``root`` and every process below it."""
    children: dict[ProcessKey, list[ProcessKey]] = {}
    for key, parent in _parents(processes).items():
        children.setdefault(parent, []).append(key)
    found, waiting = {root}, [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def topmost(keys: Iterable[ProcessKey], processes: Mapping[ProcessKey, Process]) -> list[ProcessKey]:
    """Those of ``keys`` that are below no other one of them, in their order."""
    wanted = list(dict.fromkeys(keys))
    inside, parents = set(wanted), _parents(processes) if len(wanted) > 1 else {}

    def is_below(key: ProcessKey) -> bool:
        seen = {key}
        while (above := parents.get(key)) is not None and above not in seen:
            if above in inside:
                return True
            seen.add(above)
            key = above
        return False

    return [key for key in wanted if not is_below(key)]
