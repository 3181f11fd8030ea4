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
from otel_perfbuf.rings._sys import lib
from otel_perfbuf.rings.batch import PERF_RECORD_SAMPLE, Batch
from otel_perfbuf.rings.ring import Ring
from otel_perfbuf.rings.ringbuf import RingbufReader

if TYPE_CHECKING:
    from otel_perfbuf.rings.reader import PerfReader

__all__ = ["INDEX", "VERSION", "SavedRings", "save_rings"]

INDEX = "rings.json"
VERSION = 1
PAGE_BYTES = 4096
U64 = 1 << 64
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
    reader: PerfReader | RingbufReader,
    directory: str | os.PathLike[str],
    batch: Batch | None = None,
    *,
    mode: int = 0o600,
) -> None:
    """Saves what the reader's rings hold, for ``PerfReader.from_file``; nothing is taken out of them.

    ``directory`` is made where it is missing; files of the same names are replaced, with ``mode``. Of an overwritable
    reader a snapshot (since="all") is saved: ``batch`` where one was taken already. Records that were cut or torn are
    left out. An overwritable BPF ring buffer is saved as one perf ring, of CPU 0, with the same samples in their order.
    OSError when files cannot be written, ConfigError for a reader with ``swap``, whose history is in two rings, and for
    a ring buffer that is read forward.
    """
    if isinstance(reader, RingbufReader):
        images, sample_type = [_as_perf_ring(_ringbuf_batch(reader, batch))], int(lib.PB_SYS_SAMPLE_RAW)
    elif reader.swap:
        raise ConfigError("saving the rings of a reader with swap: a CPU's history lies in two; open it without swap")
    else:
        images = _history(batch or reader.snapshot(since="all")) if reader.overwritable else reader._waiting_bytes()
        sample_type = reader.sample_type
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
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
        "sample_type": sample_type,
        "capacity": len(images[0][3]),
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


def _ringbuf_batch(reader: RingbufReader, batch: Batch | None) -> Batch:
    if not reader.overwritable:
        raise ConfigError("saving a ring buffer that is read forward: what read() gives can be kept as it is")
    return batch or reader.snapshot(since="all")


def _as_perf_ring(batch: Batch) -> tuple[int, int, int, bytes]:
    """A ring buffer's samples as an overwritable perf ring has them, newest first: cpu, head, tail, data."""
    frames = [_frame(data) for data in batch.data()]
    frames.reverse()
    records, wrapped = b"".join(frames), any(state.wrapped for state in batch.states)
    # A ring that has overwritten has room for the cut record that says so.
    capacity = max(PAGE_BYTES, 1 << (len(records) + (7 if wrapped else -1)).bit_length())
    if wrapped:
        return 0, U64 - 2 * capacity, 0, (records + _cut(capacity - len(records))).ljust(capacity, b"\0")
    return 0, (U64 - len(records)) % U64, 0, bytes(capacity - len(records)) + records


def _frame(data: bytes) -> bytes:
    raw_bytes = (len(data) + 4 + 7) // 8 * 8 - 4
    size = 12 + raw_bytes
    if size >= LARGEST_FRAME:
        raise ConfigError(f"saving a ring buffer: a record of {len(data)} bytes is longer than a perf ring can hold")
    return struct.pack("<IHHI", PERF_RECORD_SAMPLE, 0, size, raw_bytes) + data.ljust(raw_bytes, b"\0")


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
