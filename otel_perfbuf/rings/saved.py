# SPDX-License-Identifier: Apache-2.0
"""Rings that were saved from a live reader, as files: a set of rings without a kernel behind it.

What it is not: it walks nothing; the readouts do, as on live rings. Its files:
    rings.json          version, overwritable, sample_type, capacity, page_bytes, and rings: [{cpu, file}]
    cpu3-1.ring         the header page, then ``capacity`` data bytes, as they were mapped
A page of another size than this host's is fine: the files are copied to memory.
Source: Linux include/uapi/linux/perf_event.h (struct perf_event_mmap_page).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_perfbuf._core._core import ffi as core_ffi
from otel_perfbuf._core._core import lib as core
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.rings.batch import Batch
from otel_perfbuf.rings.ring import Ring

if TYPE_CHECKING:
    from otel_perfbuf.rings.reader import PerfReader

__all__ = ["INDEX", "VERSION", "SavedRings", "save_rings"]

INDEX = "rings.json"
VERSION = 1
PAGE_BYTES = 4096
LARGEST_FRAME: int = core.PB_FRAME_MAX_BYTES


class SavedRing(Ring):
    """One saved ring; nothing writes it, nothing can be asked about it."""

    def lost(self) -> int | None:
        """None: the kernel that counted is not here."""
        return None

    def pause(self, pause: bool) -> None:
        """Nothing writes, so there is nothing to pause."""

    def close(self) -> None:
        """Its memory goes with the last batch's pointer."""


class SavedRings:
    """Stands in for RingSet. ConfigError when the directory is none, or its index and its files disagree."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        folder = Path(directory)
        try:
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            if not isinstance(index, dict) or index.get("version") != VERSION:
                raise ValueError(f"{INDEX} is not of version {VERSION}")
            self.overwritable = bool(index["overwritable"])
            self.sample_type = int(index["sample_type"])
            self.capacity = int(index["capacity"])
            self._page_bytes = int(index["page_bytes"])
            if self.capacity < 8 or self.capacity & (self.capacity - 1) or self._page_bytes < 2048:
                raise ValueError(f"a capacity of {self.capacity} bytes behind a page of {self._page_bytes}")
            if not core.pb_sample_type_known(self.sample_type):
                raise ValueError(f"sample_type {self.sample_type:#x} is not known")
            self._memory: list[Any] = []
            self.rings: list[Ring] = [self._read(folder, entry) for entry in index["rings"]]
            if not self.rings:
                raise ValueError("there is no ring")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"reading saved rings from {folder}: {error}; give a directory that save_rings or "
                "`otel-perfbuf record --save-rings` has made"
            ) from error
        self.spares: list[Ring] = []

    def _read(self, folder: Path, entry: Any) -> Ring:
        cpu, name = int(entry["cpu"]), str(entry["file"])
        if os.path.basename(name) != name or not 0 <= cpu < 1 << 16:
            raise ValueError(f"{name!r} of CPU {cpu} is no file of this directory")
        data = (folder / name).read_bytes()
        if len(data) != self._page_bytes + self.capacity:
            raise ValueError(f"{name} has {len(data)} bytes and not {self._page_bytes + self.capacity}")
        # The reader's own page size, whatever the host's was that wrote it.
        page = os.sysconf("SC_PAGESIZE")
        memory = core_ffi.new("uint64_t[]", (page + self.capacity) // 8)
        core_ffi.memmove(memory, data[:2048], 2048)
        core_ffi.memmove(core_ffi.cast("uint8_t *", memory) + page, data[self._page_bytes :], self.capacity)
        self._memory.append(memory)
        return SavedRing(cpu, -1, core_ffi.cast("void *", memory), self.capacity, counts_lost=False)

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that were saved."""
        return tuple(sorted({ring.cpu for ring in self.rings}))

    def all(self) -> list[Ring]:
        """Every ring."""
        return self.rings

    def rescan(self, _went: Collection[int], _drained: Callable[[Ring], bool]) -> list[Ring]:
        """Saved CPUs neither come nor go."""
        return []

    def flip(self) -> None:
        """Saved rings have no second ones."""
        raise AssertionError("saved rings are never swapped")

    def lost(self) -> int | None:
        """None: the kernel that counted is not here."""
        return None

    def close(self) -> None:
        """Batches own what they hold; nothing else looks at the rings any more."""
        self._memory.clear()


def save_rings(
    reader: PerfReader, directory: str | os.PathLike[str], batch: Batch | None = None, *, mode: int = 0o600
) -> None:
    """Saves what the reader's rings hold, for ``PerfReader.from_file``; nothing is taken out of them.

    ``directory`` is made where it is missing; files of the same names are replaced, with ``mode``. Of an overwritable
    reader a snapshot (since="all") is saved: ``batch`` where one was taken already. Records that were cut or torn are
    left out. OSError when files cannot be written, ConfigError for a reader with ``swap``: its history is in two rings.
    """
    if reader.swap:
        raise ConfigError("saving the rings of a reader with swap: a CPU's history lies in two; open it without swap")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    images = _history(batch or reader.snapshot(since="all")) if reader.overwritable else reader._waiting_bytes()
    entries = []
    for number, (cpu, head, tail, data) in enumerate(images):
        page = bytearray(PAGE_BYTES)
        page[1024:1040] = struct.pack("<QQ", head, tail)
        page[1040:1056] = struct.pack("<QQ", PAGE_BYTES, len(data))
        # Where a CPU came back, two rings have its number.
        name = f"cpu{cpu}-{number}.ring"
        _write(folder / name, bytes(page) + data, mode)
        entries.append({"cpu": cpu, "file": name})
    index = {
        "version": VERSION,
        "overwritable": reader.overwritable,
        "sample_type": reader.sample_type,
        "capacity": reader.per_cpu_bytes,
        "page_bytes": PAGE_BYTES,
        "rings": entries,
    }
    _write(folder / INDEX, json.dumps(index, indent=1).encode(), mode)


def _history(batch: Batch) -> list[tuple[int, int, int, bytes]]:
    """Each ring's cpu, head, tail and bytes as they lay in the ring; where bytes are missing a cut record says so."""
    images = []
    with memoryview(batch.arena_memory) as arena:
        for state in batch.states:
            whole = state.valid_bytes - state.walk.truncated_bytes
            image = bytearray(state.capacity)
            records = bytes(arena[state.arena_offset : state.arena_offset + whole]) + _cut(state.capacity - whole)
            offset = state.head % state.capacity
            first = min(len(records), state.capacity - offset)
            image[offset : offset + first] = records[:first]
            image[: len(records) - first] = records[first:]
            images.append((state.cpu, state.head, 0, bytes(image)))
    return images


def _cut(room: int) -> bytes:
    """Fills a ring's oldest end: a record's header that claims more than there is; before it whole unknown ones."""
    fill = b""
    while room >= LARGEST_FRAME:
        size = min(LARGEST_FRAME, room - 8)
        fill += struct.pack("<IHH", 0, 0, size) + bytes(size - 8)
        room -= size
    return fill + (struct.pack("<IHH", 9, 0, LARGEST_FRAME) if room >= 8 else b"")


def _write(path: Path, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
