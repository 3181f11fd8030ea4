# SPDX-License-Identifier: Apache-2.0
"""What the fds of a living process are, as the kernel says it now: the seeds of the fd names.

What it is not: it knows no records; a seed holds only where no record touches its fd (_core/fd_seeds.c).
Source: proc_pid_fd(5), proc_pid_fdinfo(5); strace -yy for the texts; sock_diag(7) for sockets (sockets.py).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from otel_perfbuf._core._core import lib

from .processes import started_at
from .sockets import socket_texts

__all__ = ["FdSeed", "Seeds", "read_seeds", "seed_text"]

_FDS_MAX = 4096  # of a process; one that has more gets no seeds
_O_CLOEXEC = 0o2000000
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_DELETED = " (deleted)"
_PLAIN = {ord(c): c for c in map(chr, range(32, 127)) if c not in '<>"\\'}
_NAMED = {9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


@dataclass(frozen=True, slots=True)
class FdSeed:
    """One fd (-100: the working directory): its text with brackets, and ``enum pb_fd_exec``."""

    fd: int
    text: bytes
    on_exec: int


@dataclass(frozen=True, slots=True)
class Seeds:
    """A process's fds at ``seen_ns`` (CLOCK_MONOTONIC)."""

    seen_ns: int
    fds: tuple[FdSeed, ...]


def _escaped(path: bytes) -> str:
    """As strace writes a path between < and >."""
    out = []
    for index, byte in enumerate(path):
        digit = path[index + 1 : index + 2].isdigit()
        out.append(_PLAIN.get(byte) or _NAMED.get(byte) or (f"\\{byte:03o}" if digit else f"\\{byte:o}"))
    return "".join(out)


def seed_text(link: str) -> bytes:
    """``</etc/hosts>``, ``</tmp/x>(deleted)``, ``<pipe:[17]>`` of what /proc/PID/fd/N points to."""
    path, deleted = (link[: -len(_DELETED)], "(deleted)") if link.endswith(_DELETED) else (link, "")
    return f"<{_escaped(os.fsencode(path))}>{deleted}".encode("ascii")


def _on_exec(pid: int, fd: int) -> int:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("flags:"):
                closes = int(line.split()[1], 8) & _O_CLOEXEC
                return int(lib.PB_FD_EXEC_CLOSES if closes else lib.PB_FD_EXEC_STAYS)
    return int(lib.PB_FD_EXEC_UNKNOWN)


def _links(pid: int) -> dict[int, str]:
    names = os.listdir(f"/proc/{pid}/fd")
    if len(names) > _FDS_MAX:
        return {}
    links = {}
    for name in names:
        try:
            links[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
    return links


def read_seeds(pid: int, start_ns: int = 0) -> Seeds | None:
    """What the process's fds are now; None when it is gone, is another one by now, or may not be looked into.

    ``start_ns``: when it began (CLOCK_MONOTONIC); 0: whoever has the pid. Looks twice and keeps what stood still, so an
    fd that changes meanwhile has no seed.
    """
    try:
        if start_ns and not started_at(pid, start_ns):
            return None
        before = _links(pid)
        texts = socket_texts(pid, _inodes(before.values()))
        seen_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        seeds = [FdSeed(int(lib.PB_FD_WORKING_DIRECTORY), seed_text(os.readlink(f"/proc/{pid}/cwd")), 1)]
        for fd, link in _links(pid).items():
            if before.get(fd) != link:
                continue
            inode = _SOCKET.fullmatch(link)
            text = texts.get(int(inode[1])) if inode else None
            try:
                seeds.append(FdSeed(fd, text or seed_text(link), _on_exec(pid, fd)))
            except OSError:
                continue
        if start_ns and not started_at(pid, start_ns):
            return None
    except OSError:
        return None
    return Seeds(seen_ns, tuple(seeds))


def _inodes(links: Iterable[str]) -> frozenset[int]:
    return frozenset(int(found[1]) for link in links if (found := _SOCKET.fullmatch(link)))
