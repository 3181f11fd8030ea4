# SPDX-License-Identifier: Apache-2.0
"""One spooled dump and each exporter's share of it. What it is not: it decides not what is dropped (storage.py).

Files of a dump: ``NUMBER.dump``, written once, and ``NUMBER.acks``, appended as receivers acknowledge. Both go when
every share is settled. Acknowledgements are not fsynced: one that a power cut takes is a chunk that is sent twice.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from otel_perfbuf.exporters.item import ChunkInfo, KeptFault
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.spool.frames import ACK_BYTES, FrameFault, Meta, Place, ack, parse_acks, read_chunk

__all__ = ["Entry", "Share"]


class Entry:
    """A whole dump on disk. ``gone`` is called once, when its files are deleted."""

    def __init__(
        self, path: Path, size_bytes: int, meta: Meta, places: Sequence[Place], gone: Callable[[Entry], object]
    ) -> None:
        self.path = path
        self.meta = meta
        self.places = places
        self.file_bytes = size_bytes
        self.acks_bytes = 0
        self._gone = gone
        self._lock = threading.RLock()
        self._deleted = False
        self.shares = {
            name: Share(self, number, indices) for number, (name, indices) in enumerate(sorted(meta.shares.items()))
        }

    @property
    def size_bytes(self) -> int:
        """Of both files."""
        return self.file_bytes + self.acks_bytes

    def restore(self) -> None:
        """Reads what was acknowledged before a restart; deletes the dump when that was all of it."""
        with contextlib.suppress(FileNotFoundError):
            data = self._acks.read_bytes()
            self.acks_bytes = len(data)
            by_number = {share.number: share for share in self.shares.values()}
            for number, index, delivered in parse_acks(data):
                if number in by_number:
                    by_number[number].restore(index, delivered)
            if len(data) % ACK_BYTES:  # a cut one: what is appended must begin where one begins
                self.acks_bytes -= len(data) % ACK_BYTES
                os.truncate(self._acks, self.acks_bytes)
        self._delete_if_settled()

    def load(self, index: int) -> Chunk:
        """A chunk by its place in the file; raises KeptFault."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                return read_chunk(fd, self.places[index])
            finally:
                os.close(fd)
        except (OSError, FrameFault) as fault:
            cause = fault.strerror if isinstance(fault, OSError) else str(fault)
            raise KeptFault(
                f"reading chunk {index} of dump {self.meta.dump_id} from the spool file {self.path} failed: {cause}"
            ) from fault

    def settle(self, share: Share, index: int, *, delivered: bool) -> None:
        """Notes it on disk, where there is room; without, the chunk is sent again after a restart."""
        with self._lock:
            if self._deleted or not share.note(index, delivered):
                return
            if all(each.settled for each in self.shares.values()):
                self._delete_if_settled()
                return
            with contextlib.suppress(OSError):
                fd = os.open(self._acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    self.acks_bytes += os.write(fd, ack(share.number, index, delivered=delivered))
                finally:
                    os.close(fd)

    def drop(self) -> list[Share]:
        """Deletes it, whatever is acknowledged; gives the shares that were open, whose queues are not told yet."""
        with self._lock:
            open_shares = [share for share in self.shares.values() if not share.settled]
            self._delete()
        return open_shares

    @property
    def _acks(self) -> Path:
        return self.path.with_suffix(".acks")

    def _delete_if_settled(self) -> None:
        with self._lock:
            if all(share.settled for share in self.shares.values()):
                self._delete()

    def _delete(self) -> None:
        if self._deleted:
            return
        self._deleted = True
        # The dump first: acknowledgements without their dump are only swept up
        for path in (self.path, self._acks):
            with contextlib.suppress(OSError):
                path.unlink()
        self._gone(self)


class Share:
    """One exporter's part of a spooled dump: a Kept payload of its sending queue."""

    def __init__(self, entry: Entry, number: int, indices: Sequence[int]) -> None:
        self.number = number
        self._entry = entry
        self._left = list(indices)
        self._offered: tuple[int, ...] = ()
        self._drop: Callable[[], bool] | None = None
        self._is_dropped = False
        self.failed = False

    @property
    def dump_id(self) -> str:
        """Of the dump."""
        return self._entry.meta.dump_id

    @property
    def trigger(self) -> str:
        """The kind of the dump's first firing."""
        return self._entry.meta.trigger

    @property
    def entry(self) -> Entry:
        """The dump that it is of."""
        return self._entry

    @property
    def settled(self) -> bool:
        """Nothing is left for its exporter."""
        return not self._left

    def begin(self) -> Sequence[ChunkInfo]:
        """What is left, in order; `load` and `settle` count in what this gave last."""
        self._offered = tuple(self._left)
        return [self._entry.places[index].info for index in self._offered]

    def load(self, index: int) -> Chunk:
        """See Kept."""
        return self._entry.load(self._offered[index])

    def settle(self, index: int, *, delivered: bool) -> None:
        """See Kept."""
        self._entry.settle(self, self._offered[index], delivered=delivered)

    def on_drop(self, drop: Callable[[], bool]) -> None:
        """See Kept."""
        self._drop = drop
        if self._is_dropped:
            drop()

    def tell_dropped(self) -> bool:
        """The entry was dropped: its queue is told; False when none had it any more."""
        self._is_dropped = True
        return self._drop is not None and self._drop()

    def note(self, index: int, delivered: bool) -> bool:
        """Takes a chunk off what is left; the entry's lock is held. False: it was off already."""
        if index not in self._left:
            return False
        self._left.remove(index)
        self.failed |= not delivered
        return True

    def restore(self, index: int, delivered: bool) -> None:
        """As `note`, read from disk."""
        self.note(index, delivered)
