# SPDX-License-Identifier: Apache-2.0
"""What the service needs of the parts that touch the kernel; so that it can be tested without one.

What it is not: an implementation (assembly.py builds the real ones; recorder/ has them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from otel_perfbuf.exporters.payload import Payload
from otel_perfbuf.service.options import FlightRecorderOptions, PerfBufferOptions, TriggersOptions
from otel_perfbuf.triggers.firing import Evidence, Firing, Match, Trigger, TriggerKind
from otel_perfbuf.triggers.spans import SpanRegistry

__all__ = ["Gate", "Header", "History", "Live", "MadeDump", "Parts", "Recorder"]


class Header(Protocol):
    """Of a dump's header, what is shown and counted."""

    @property
    def dump_id(self) -> str:
        """32 hex digits."""

    @property
    def trigger(self) -> str:
        """The kind of its first firing."""

    @property
    def records(self) -> int:
        """Without the header itself."""

    @property
    def lost(self) -> int:
        """Of the whole host, since the last dump."""

    @property
    def overwritten(self) -> int:
        """Of the whole host, since the last dump."""

    @property
    def dropped(self) -> int:
        """By max_records."""

    @property
    def snapshot_ns(self) -> int:
        """How long the copy took."""

    @property
    def complete_since_unix_ns(self) -> int:
        """Every ring is whole from here on."""

    @property
    def window_end_unix_ns(self) -> int:
        """When the snapshot was taken."""


class MadeDump(Protocol):
    """A dump."""

    @property
    def header(self) -> Header:
        """Its counts."""

    @property
    def payload(self) -> Payload:
        """What is sent."""


class Gate(Protocol):
    """Whether a firing may make a dump; the recorder asks under its lock."""

    def admit(self, firing: Firing) -> bool:
        """False: it is counted as suppressed."""

    def spent(self, kind: TriggerKind) -> bool:
        """Whether no firing of this kind may make a dump now, whatever its key."""

    def suppress(self, kind: TriggerKind, count: int) -> None:
        """Counts occurrences that nobody could have asked for one by one."""

    def take_suppressed(self) -> int:
        """How many since the last call."""


class History(Protocol):
    """A history that is being recorded; ``close`` detaches everything, twice is fine."""

    def attach(self) -> None:
        """Begins to record."""

    @property
    def started_s(self) -> float:
        """When it began to record, in seconds of time.monotonic()."""

    def status(self) -> Mapping[str, Any]:
        """ring_bytes, lost, overwritten_bytes, malformed: counts since it was opened."""

    def alerts(self, triggers: TriggersOptions) -> Trigger | None:
        """The triggers that the kernel decides, together; None when none of them is on."""

    def spans(self, conditions: Mapping[str, Any]) -> SpanRegistry | None:
        """Who registers processes for exact spans, not started; None: nobody can be. See SpanRegistry."""

    def find(self, evidence: Evidence) -> Match:
        """The recorded processes that telemetry is of; called by one thread."""

    def close(self) -> None:
        """Detaches."""


class Recorder(Protocol):
    """Makes dumps of a history."""

    def start(self) -> None:
        """Takes firings from now on."""

    def fire(self, firing: Firing) -> Future[Any] | None:
        """Returns at once: the dump that it will be part of, or None (suppressed)."""

    def suppress(self, kind: TriggerKind, count: int) -> None:
        """Counts occurrences that were not told one by one."""

    def sift(self, firing: Firing) -> tuple[list[Firing], int]:
        """Of a suppressed firing's alike: those that may join a dump, and how many others, which are suppressed."""

    def pass_over(self, firing: Firing) -> bool:
        """Suppresses all of the firing's alike if none of that kind can make or join a dump now."""

    def stop(self, timeout_s: float) -> bool:
        """Finishes what is in the making; False when that was not done in time."""

    def status(self) -> Mapping[str, Any]:
        """Counts."""


class Live(Protocol):
    """A forward stream."""

    def start(self) -> None:
        """Attaches and drains."""

    def stop(self) -> None:
        """Detaches, passes on what the rings hold; twice is fine."""

    def status(self) -> Mapping[str, Any]:
        """ring_bytes, records, lost."""


class Parts(Protocol):
    """Builds them; each may raise KernelError or NotSupported."""

    def check(self) -> None:
        """Raises KernelError when this process may not record at all; asked before anything is opened."""

    def history(self, options: PerfBufferOptions, triggers: TriggersOptions) -> History:
        """Loads the program and opens its rings; ``triggers``: what `History.alerts` will be asked for."""

    def recorder(
        self, history: History, options: FlightRecorderOptions, emit: Callable[[MadeDump], object], gate: Gate
    ) -> Recorder:
        """The recorder of a history."""

    def live(self, options: PerfBufferOptions, emit: Callable[[Payload], object]) -> Live:
        """Loads the program and opens its rings."""
