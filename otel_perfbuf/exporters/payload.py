# SPDX-License-Identifier: Apache-2.0
"""What exporters get: OTLP requests as bytes. What it is not: it knows not where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Chunk", "Exporter", "Payload", "Signal"]

Signal = Literal["logs", "traces"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One OTLP request as bytes (ExportLogsServiceRequest or ExportTraceServiceRequest).

    At most 3.5 MiB and 8,192 records. ``records`` counts its log records or spans.
    """

    signal: Signal
    body: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Payload:
    """A dump or a live batch: chunks that belong together.

    The first chunk (of a dump: the one with the header record) is acknowledged before the others are sent.
    ``dump_id`` is None for a live batch.
    """

    chunks: tuple[Chunk, ...]
    dump_id: str | None = None

    @property
    def records(self) -> int:
        """Log records in it."""
        return sum(chunk.records for chunk in self.chunks if chunk.signal == "logs")


class Exporter(Protocol):
    """Takes chunks to one place. Its component module has TYPE, STABILITY, Options and create(options).

    ``send`` is called by several threads at once, as many as the sending queue has streams.
    """

    def start(self) -> None:
        """Checks what can be checked without the peer; raises ConfigError or OSError."""

    def send(self, chunk: Chunk, timeout_s: float) -> int:
        """Delivers one chunk within ``timeout_s``; gives how many of its records the peer rejected (partial success).

        Raises ExportError, which says whether the same bytes may be sent again, and when.
        """

    def stop(self) -> None:
        """Closes connections and files; twice is fine."""
