# SPDX-License-Identifier: Apache-2.0
"""Process and thread ids of a sender's pid namespace, mapped to the host's.

What it is not: it trusts no number that a sender gave. Source: proc(5), /proc/PID/status: NSpid, from the namespace of
this procfs inward, so the first is the host's and the last the process's own.
"""

from __future__ import annotations

import os

__all__ = ["host_pid", "host_tid"]


def host_tid(sender_pid: int, tid: int, proc: str = "/proc") -> int | None:
    """The host's id of thread ``tid``, as process ``sender_pid`` (the host's id) sees it.

    None: it cannot be told, since the process or the thread has ended in another namespace. Where the sender shares our
    namespace, a thread that has ended is believed. Raises PermissionError when the number is another process's thread.
    """
    own = _namespace_ids(f"{proc}/{sender_pid}/status")
    if own is None:  # the sender has ended; a first thread that has its process's host id is in our namespace
        return tid if tid == sender_pid else None
    if len(own) == 1:
        group = _field(f"{proc}/{tid}/status", "Tgid:")
        if group is not None and group != [sender_pid]:
            raise PermissionError(f"thread {tid} is of process {group[0]}, not of process {sender_pid}")
        return tid
    if own[-1] == tid:
        return sender_pid
    for name in _numbers(f"{proc}/{sender_pid}/task"):
        ids = _namespace_ids(f"{proc}/{sender_pid}/task/{name}/status")
        if ids is not None and len(ids) == len(own) and ids[-1] == tid:
            return name
    return None


def host_pid(sender_pid: int, pid: int, proc: str = "/proc") -> int | None:
    """The host's id of process ``pid`` as process ``sender_pid`` sees it; None: there is none in its namespace.

    Processes of namespaces below the sender's are not found: /proc does not tell whose number a column is.
    """
    own = _namespace_ids(f"{proc}/{sender_pid}/status")
    if own is None:
        return pid if pid == sender_pid else None
    if own[-1] == pid:
        return sender_pid
    if len(own) == 1:
        return pid if _field(f"{proc}/{pid}/status", "Tgid:") == [pid] else None
    namespace = _link(f"{proc}/{sender_pid}/ns/pid")
    for name in _numbers(proc) if namespace is not None else ():
        ids = _namespace_ids(f"{proc}/{name}/status")
        if ids is not None and len(ids) == len(own) and ids[-1] == pid and _link(f"{proc}/{name}/ns/pid") == namespace:
            return name
    return None


def _namespace_ids(path: str) -> list[int] | None:
    return _field(path, "NSpid:")


def _field(path: str, key: str) -> list[int] | None:
    try:
        with open(path, encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith(key):
                    return [int(word) for word in line.split()[1:]] or None
    except OSError:
        return None
    return None


def _numbers(path: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(path) if name.isdigit()]
    except OSError:
        return []


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
