# SPDX-License-Identifier: Apache-2.0
"""A living process's sockets by inode, as text: what sock_diag tells in the process's own network namespace.

What it is not: it knows no fds (descriptors.py). Source: sock_diag(7), pyroute2's DiagSocket; strace -yy for the texts.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["socket_texts"]

_UNIX = {socket.SOCK_STREAM: "UNIX-STREAM", socket.SOCK_DGRAM: "UNIX-DGRAM", socket.SOCK_SEQPACKET: "UNIX-SEQPACKET"}
_INET = {
    (socket.AF_INET, socket.IPPROTO_TCP): "TCP",
    (socket.AF_INET6, socket.IPPROTO_TCP): "TCPv6",
    (socket.AF_INET, socket.IPPROTO_UDP): "UDP",
    (socket.AF_INET6, socket.IPPROTO_UDP): "UDPv6",
}
_TIMEOUT_S = 5.0


def _endpoint(family: int, address: str, port: int) -> str:
    return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"


def _inet_text(family: int, name: str, row: Any) -> str:
    local, peer_port = _endpoint(family, row["idiag_src"], row["idiag_sport"]), row["idiag_dport"]
    if not peer_port:
        return f"<{name}:[{local}]>"
    return f"<{name}:[{local}->{_endpoint(family, row['idiag_dst'], peer_port)}]>"


def _unix_text(row: Any) -> str:
    peer, path = row.get_attr("UNIX_DIAG_PEER"), row.get_attr("UNIX_DIAG_NAME")
    ends = f"{row['udiag_ino']}->{peer}" if peer else str(row["udiag_ino"])
    if path:
        # The library takes the NUL in front of an abstract name off; such a name has no file.
        abstract = "" if row.get_attr("UNIX_DIAG_VFS") else "@"
        ends += f',{abstract}"{str(path).encode("ascii", "backslashreplace").decode()}"'
    return f"<{_UNIX.get(row['udiag_type'], 'UNIX')}:[{ends}]>"


def _ask(diag: Any, wanted: frozenset[int]) -> Iterator[tuple[int, bytes]]:
    for (family, protocol), name in _INET.items():
        for row in diag.get_sock_stats(family=family, protocol=protocol):
            if row["idiag_inode"] in wanted:
                yield row["idiag_inode"], _inet_text(family, name, row).encode("ascii")
    for row in diag.get_sock_stats(family=socket.AF_UNIX):
        if row["udiag_ino"] in wanted:
            yield row["udiag_ino"], _unix_text(row).encode("ascii")


def _in_namespace_of(pid: int, ask: Callable[[], dict[int, bytes]]) -> dict[int, bytes]:
    """Asks in a thread of its own, which enters the process's network namespace and ends there."""
    found: dict[int, bytes] = {}

    def run() -> None:
        from pyroute2 import netns

        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            netns.setns(namespace)
        finally:
            os.close(namespace)
        found.update(ask())

    thread = threading.Thread(target=run, name="perfbuf-sockets", daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return found


def socket_texts(pid: int, inodes: frozenset[int]) -> dict[int, bytes]:
    """``<TCP:[127.0.0.1:41234->127.0.0.1:5432]>`` by inode, of those of ``inodes`` that the kernel tells about.

    Empty when it cannot be asked (no such process, no rights, a kernel without sock_diag).
    """
    if not inodes:
        return {}

    def ask() -> dict[int, bytes]:
        from pyroute2 import DiagSocket  # half of all that a start would import, for what a dump may need

        with DiagSocket() as diag:
            return dict(_ask(diag, inodes))

    try:
        if os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
            return ask()
        return _in_namespace_of(pid, ask)
    except Exception:  # noqa: BLE001  the library raises its own kinds; without an answer the sockets keep their inodes
        return {}
