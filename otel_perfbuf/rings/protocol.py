# SPDX-License-Identifier: Apache-2.0
"""What a forward reader is to whoever uses one, and how a third party's is found by its name.

A reader is registered under the entry point group ``otel_perfbuf.readers``; its name can stand in ``mode:`` of a
``perf_buffer`` receiver. The entry point is a callable ``(map, *, per_cpu_bytes) -> Reader``. Whoever writes one can
begin with ``otel_perfbuf.rings.base.ReaderBase`` and prove it with ``otel_perfbuf.testing.ReaderContract``.
What it is not: the readers of this package. Source: CONTRACT section 6; examples/custom_reader.py.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol, cast

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.plugins import GROUP, OURS, registered_readers
from otel_perfbuf.rings.base import ReaderStats
from otel_perfbuf.rings.batch import Batch
from otel_perfbuf.rings.maps import MapLike

__all__ = ["GROUP", "Reader", "ReaderFactory", "find_reader", "registered_readers"]


class Reader(Protocol):
    """A forward reader; all methods from any thread. ReaderContract tests what these sentences say."""

    def read(self, timeout: float | None = None) -> Batch:
        """Waits; at the timeout what is there, perhaps an empty batch; ReaderClosed when closed meanwhile."""
        ...

    def flush(self) -> Batch:
        """What is there, at once; a blocked read wakes and gets it instead."""
        ...

    def fileno(self) -> int:
        """Readable when ``read(0)`` is worth a call."""
        ...

    @property
    def stats(self) -> ReaderStats:
        """Counts since it was opened."""
        ...

    def close(self) -> None:
        """Gives everything back; twice is fine."""
        ...


class ReaderFactory(Protocol):
    """What an entry point of the group loads to."""

    def __call__(self, map: MapLike, *, per_cpu_bytes: int) -> Reader:
        """A new reader of the map."""
        ...


def find_reader(name: str) -> ReaderFactory:
    """Loads the reader of this name; ConfigError when there is none, or it cannot be loaded."""
    for point in entry_points(group=GROUP, name=name):
        try:
            return cast(ReaderFactory, point.load())
        except Exception as error:
            raise ConfigError(f"loading the reader {name!r} from {point.value}: {error}") from error
    known = ", ".join((*OURS, *registered_readers()))
    raise ConfigError(f"there is no reader {name!r}; known are {known}; others are installed as Python packages")
