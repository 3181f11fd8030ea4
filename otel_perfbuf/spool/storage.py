# SPDX-License-Identifier: Apache-2.0
"""The file_storage extension: a bounded directory of dumps that are not acknowledged yet. What it is not: a sender.

Facts: a dump must outlive its backend's absence and the agent's own end (DESIGN section 6); a disk has an end too.
Decision: one file a dump, written and fsynced (file, then directory) before the dump counts as made; the oldest whole
dump is dropped first when ``max_bytes`` would be passed. Order is a running number in the name, never a clock, which
may be stepped. Names and ids are the agent's own; only root reads (0700, 0600), since arguments of calls are in there.
Cost: a dump's bytes are written twice, to disk and to the wire; nothing is written while nothing fails.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.spool.entry import Entry, Share
from otel_perfbuf.spool.frames import FrameFault, Meta, layout, scan, written
from otel_perfbuf.units import format_size

__all__ = ["Spool", "SpoolStats"]

_log = logging.getLogger(__name__)
_DUMPS_MAX: Final = 10_000  # dumps of a few kilobytes must not fill the memory that knows them
_WRITE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """The spool at one moment; all but the first two count since it was opened.

    ``malformed``: files that were cut or damaged, found at the start. ``dropped``: dumps pushed out by newer ones.
    ``failed``: dumps that could not be written.
    """

    dumps: int
    size_bytes: int
    malformed: int
    dropped: int
    failed: int


class Spool:
    """Dumps in ``directory``, at most ``max_bytes`` of them. All methods may be called from any thread."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        *,
        dumps_max: int = _DUMPS_MAX,
        fsync: Callable[[int], object] = os.fsync,
        on_dropped: Callable[[Meta], object] = lambda _: None,
    ) -> None:
        """``on_dropped`` is told of dumps that are dropped while no queue has them (those tell their own listeners)."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._dumps_max = dumps_max
        self._fsync = fsync
        self._on_dropped = on_dropped
        self._lock = threading.RLock()
        self._entries: dict[int, Entry] = {}  # by number: the oldest is the first
        self._next = 1
        self._guard = -1
        self._malformed = self._dropped = self._failed = 0

    def open(self) -> None:
        """Makes the directory and finds what an earlier agent left; PerfbufError when it cannot be used."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._directory.stat()
            if found.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}")
            if stat.S_IMODE(found.st_mode) != 0o700:
                self._directory.chmod(0o700)
            self._guard = os.open(
                self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            self.close()
            cause = "another agent uses it" if isinstance(fault, BlockingIOError) else fault.strerror
            raise PerfbufError(
                f"opening the spool {self._directory}: {cause}; give a directory of its own to file_storage.directory"
            ) from fault
        self._recover()

    def close(self) -> None:
        """Lets another agent have it; twice is fine. What is in it stays."""
        guard, self._guard = self._guard, -1
        if guard >= 0:
            os.close(guard)

    def add(self, meta: Meta, chunks: Sequence[Chunk]) -> Entry:
        """Writes a dump and fsyncs it, dropping the oldest ones where there is no room.

        Raises PerfbufError, a sentence, and counts it when it cannot be kept; nothing of it is left then.
        """
        places, size_bytes = layout(meta, chunks)
        if size_bytes > self._max_bytes:
            self._failed += 1
            raise PerfbufError(
                f"keeping dump {meta.dump_id} in the spool {self._directory}: it has {format_size(size_bytes)}, more "
                f"than max_bytes ({format_size(self._max_bytes)})"
            )
        self._make_room(size_bytes)
        with self._lock:
            number, self._next = self._next, self._next + 1
        path = self._path(number)
        try:
            self._write(path, meta, chunks)
        except OSError as fault:
            with self._lock:
                self._failed += 1
            with contextlib.suppress(OSError):
                path.unlink()
            raise PerfbufError(
                f"keeping dump {meta.dump_id} in the spool {self._directory}: {fault.strerror}"
            ) from fault
        entry = Entry(path, size_bytes, meta, places, lambda _: self._forget(number))
        with self._lock:
            self._entries[number] = entry
        return entry

    def shares(self, exporter: str) -> list[Share]:
        """What is left for one exporter, oldest first."""
        with self._lock:
            found = [entry.shares[exporter] for entry in self._entries.values() if exporter in entry.shares]
        return [share for share in found if not share.settled]

    def exporters(self) -> Mapping[str, int]:
        """How many dumps are left for each exporter."""
        counts: dict[str, int] = {}
        with self._lock:
            for entry in self._entries.values():
                for name, share in entry.shares.items():
                    if not share.settled:
                        counts[name] = counts.get(name, 0) + 1
        return counts

    def stats(self) -> SpoolStats:
        """The numbers as of now."""
        with self._lock:
            return SpoolStats(len(self._entries), self._size_bytes(), self._malformed, self._dropped, self._failed)

    def _size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self._entries.values())

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:016d}.dump"

    def _forget(self, number: int) -> None:
        with self._lock:
            self._entries.pop(number, None)

    def _make_room(self, size_bytes: int) -> None:
        while True:
            with self._lock:
                full = self._size_bytes() + size_bytes > self._max_bytes or len(self._entries) >= self._dumps_max
                if not full or not self._entries:
                    return
                oldest = next(iter(self._entries.values()))
                self._dropped += 1
            _log.warning(
                "the spool %s is full (%s): its oldest dump %s is dropped",
                self._directory,
                format_size(self._max_bytes),
                oldest.meta.dump_id,
            )
            # Without the lock: a queue has one of its own
            told = [share.tell_dropped() for share in oldest.drop()]
            if not any(told):
                self._on_dropped(oldest.meta)

    def _write(self, path: Path, meta: Meta, chunks: Sequence[Chunk]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            buffer = bytearray()
            for part in written(meta, chunks):
                buffer += part
                if len(buffer) >= _WRITE_BYTES:
                    _write_all(fd, buffer)
                    buffer.clear()
            _write_all(fd, buffer)
            self._fsync(fd)
        finally:
            os.close(fd)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._fsync(directory)
        finally:
            os.close(directory)

    def _recover(self) -> None:
        numbers = sorted(_numbers(self._directory))
        self._next = numbers[-1] + 1 if numbers else 1
        for number in numbers:
            path = self._path(number)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:  # only acknowledgements, of a dump that was settled when the agent was killed
                self._sweep(number)
                continue
            except OSError as fault:
                self._set_aside(number, fault.strerror or str(fault))
                continue
            try:
                meta, places = scan(fd)
                size_bytes = os.fstat(fd).st_size
            except (FrameFault, OSError) as fault:
                self._set_aside(number, str(fault))
                continue
            finally:
                os.close(fd)
            entry = Entry(path, size_bytes, meta, places, lambda _, number=number: self._forget(number))  # type: ignore[misc]  # mypy: a default in a lambda
            self._entries[number] = entry
            entry.restore()
        self._make_room(0)
        if self._entries:
            stats = self.stats()
            _log.info("the spool %s holds %d dumps (%d bytes)", self._directory, stats.dumps, stats.size_bytes)

    def _set_aside(self, number: int, cause: str) -> None:
        self._malformed += 1
        _log.warning("the spool file %s is malformed and deleted: %s", self._path(number), cause)
        self._sweep(number)

    def _sweep(self, number: int) -> None:
        for suffix in (".dump", ".acks"):
            with contextlib.suppress(OSError):
                self._path(number).with_suffix(suffix).unlink()


def _numbers(directory: Path) -> Iterator[int]:
    names = {entry.name for entry in os.scandir(directory)}
    found = set()
    for name in names:
        stem, _, suffix = name.partition(".")
        if suffix in ("dump", "acks") and stem.isascii() and stem.isdigit() and len(stem) == 16:
            found.add(int(stem))
    yield from found


def _write_all(fd: int, data: bytearray) -> None:
    view = memoryview(bytes(data))
    while view:
        view = view[os.write(fd, view) :]
