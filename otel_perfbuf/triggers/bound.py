# SPDX-License-Identifier: Apache-2.0
"""A Unix socket bound to a path: directory, mode, stale and live predecessors.

What it is not: it reads nothing. Source: unix(7); CONTRACT section 5. Used by the trigger socket (datagram, 0666) and
the control socket (stream, 0600); OTLP in over HTTP binds here, over gRPC (which binds itself) only clears the way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from otel_perfbuf.errors import PerfbufError

__all__ = ["RUN_DIRECTORY", "BoundSocket", "bind_unix", "path_fault", "prepare_unix"]

RUN_DIRECTORY: Final = "/run/otel-perfbuf"
_PATH_MAX_BYTES: Final = 107  # sun_path without its NUL


def path_fault(path: str) -> str | None:
    """Why no Unix socket can have this path, wherever it is; None when one can."""
    if not path:
        return "its path is empty; write the path of a socket"
    if "\0" in path:
        return "its path has a NUL character; write the path of a socket"
    if len(os.fsencode(path)) > _PATH_MAX_BYTES:
        return f"its path is longer than the {_PATH_MAX_BYTES} bytes of a Unix socket; shorten it"
    return None


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A bound socket and the file it made; ``close`` removes the file if it is still this socket's."""

    socket: socket.socket
    path: str
    inode: int

    def close(self) -> None:
        """Closes the socket and removes its file; twice is fine."""
        self.socket.close()
        try:
            if os.lstat(self.path).st_ino == self.inode:
                os.unlink(self.path)
        except OSError:
            pass  # someone removed it already, or the whole directory


def bind_unix(path: str, kind: socket.SocketKind, mode: int, what: str) -> BoundSocket:
    """Binds a non-blocking socket of ``kind`` at ``path`` with exactly ``mode``, whatever the umask.

    A socket file that nobody listens on is replaced. Raises PerfbufError (a sentence that begins with what failed)
    when a live one is there, when something else is there, or when the directory is missing; /run/otel-perfbuf alone
    is created.
    """
    with _prepared(path, kind, what):
        opened = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
        try:
            if kind == socket.SOCK_DGRAM:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before a datagram can be queued
            os.fchmod(opened.fileno(), mode)  # bind() gives the file the socket's mode less the umask: never more
            opened.bind(path)
            os.chmod(path, mode)
            if kind == socket.SOCK_STREAM:
                opened.listen(16)
            return BoundSocket(opened, path, os.lstat(path).st_ino)
        except BaseException:
            opened.close()
            raise


def prepare_unix(path: str, kind: socket.SocketKind, what: str) -> None:
    """Clears the way for a library that binds ``path`` itself; raises as ``bind_unix`` does."""
    with _prepared(path, kind, what):
        pass


@contextlib.contextmanager
def _prepared(path: str, kind: socket.SocketKind, what: str) -> Iterator[None]:
    """The directory is there and locked, and nothing is at ``path``; what goes wrong inside is told as a sentence."""
    doing = f"cannot open the {what} {path}"
    if cause := path_fault(path):
        raise PerfbufError(f"{doing}: {cause}")
    directory = os.path.dirname(path) or "."
    try:
        if directory == RUN_DIRECTORY and not os.path.isdir(directory):
            os.mkdir(directory)
            os.chmod(directory, 0o755)  # noqa: S103 - every application must reach the trigger socket
        with _locked(directory):
            _clear(path, kind, doing)
            yield
    except FileNotFoundError:
        raise PerfbufError(
            f"{doing}: the directory {directory} is missing; create it, or choose a path in {RUN_DIRECTORY}"
        ) from None
    except OSError as fault:
        way = "; run as root or choose another path" if fault.errno in (errno.EACCES, errno.EPERM) else ""
        raise PerfbufError(f"{doing}: {os.strerror(fault.errno or 0)}{way}") from fault


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Two agents that start at once must not each take the other's new socket for a stale one."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _clear(path: str, kind: socket.SocketKind, doing: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise PerfbufError(f"{doing}: a file that is no socket is there; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as fault:
            # EAGAIN: it listens, and its queue is full; EPROTOTYPE: a socket of the other type listens.
            if fault.errno not in (errno.EAGAIN, errno.EPROTOTYPE):
                raise
    raise PerfbufError(f"{doing}: another program listens there, perhaps an agent; stop it, or choose another path")
