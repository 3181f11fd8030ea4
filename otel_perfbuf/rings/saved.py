# SPDX-License-Identifier: Apache-2.0
"""Rings that were saved from a live reader, as files: a set of rings without a kernel behind it.

What it is not: it walks nothing; the readouts do, as on live rings. Its files:
    rings.json          version, overwritable, sample_type, capacity, page_bytes, and rings: [{cpu, file}]
    cpu3.ring           the header page, then ``capacity`` data bytes, as they were mapped
A page of another size than this host's is fine: the files are copied to memory.
Source: Linux include/uapi/linux/perf_event.h (struct perf_event_mmap_page).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from otel_perfbuf._core._core import ffi as core_ffi
from otel_perfbuf._core._core import lib as core
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.rings.ring import Ring

__all__ = ["INDEX", "VERSION", "SavedRings"]

INDEX = "rings.json"
VERSION = 1


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
