# SPDX-License-Identifier: Apache-2.0
"""One occurrence of a trigger. What it is not: it knows no rings and no exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from otel_perfbuf.triggers.alike import Alike  # which needs the C core: who checks a configuration does not

__all__ = ["Evidence", "Find", "Fire", "Firing", "Match", "ProcessKey", "SpanContext", "Trigger", "TriggerKind"]

ProcessKey = tuple[int, int]
"""A process for good: its pid (the host's) and when it started (CLOCK_MONOTONIC ns)."""

TriggerKind = Literal[
    "span_error",
    "log_severity",
    "process_exit",
    "oom_kill",
    "syscall_error",
    "span_latency",
    "syscall_latency",
    "manual",
]


@dataclass(frozen=True, slots=True)
class SpanContext:
    """A span, as W3C Trace Context names it: 16 and 8 bytes, neither all zero."""

    trace_id: bytes
    span_id: bytes
    flags: int = 1


@dataclass(frozen=True, slots=True)
class Firing:
    """One occurrence of a trigger; pids and tids are the host's (the initial pid namespace).

    ``span`` is the failed span; ``start_unix_ns``/``end_unix_ns`` its time (0: not known); ``tid`` the thread that ran
    it. ``interleaved``: other spans may have run on that thread meanwhile, so no ``thread_window`` may be claimed.
    ``pid`` None with ``cgroup`` None means the whole host. ``processes``: those that telemetry may be of, when it had
    to be found out (``pid`` is the first one's); ``matched_by`` names the attribute that told. ``repeats``: further
    occurrences that were only counted. ``alike``: further ones of the same hold-off key, each with a span of its own.
    """

    kind: TriggerKind
    reason: str
    unix_ns: int
    pid: int | None = None
    tid: int | None = None
    span: SpanContext | None = None
    start_unix_ns: int = 0
    end_unix_ns: int = 0
    service_name: str | None = None
    span_name: str | None = None
    interleaved: bool = False
    cgroup: str | None = None
    processes: tuple[ProcessKey, ...] = ()
    matched_by: str | None = None
    repeats: int = 0
    alike: Alike | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What telemetry says of the process that it is of: resource attributes (texts and integers), and its own.

    ``process_id``/``thread_id``: attributes of the span or log record itself; times are the span's (0: not known).
    """

    resource: Mapping[str, str | int]
    process_id: int | None = None
    thread_id: int | None = None
    start_unix_ns: int = 0
    end_unix_ns: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """The recorded processes that evidence leads to, by which attribute; none: ``why`` says what was missing."""

    processes: tuple[ProcessKey, ...] = ()
    by: str | None = None
    why: str = ""


Find = Callable[[Evidence], Match]

Fire = Callable[[Firing], object]


class Trigger(Protocol):
    """A condition that can fire.

    ``start`` returns when the trigger is armed (or raises); ``fire`` may be called from any thread of the trigger's own
    and must return at once. ``stop`` returns when no more firing can come; it may be called twice.
    """

    def start(self, fire: Fire) -> None:
        """Arms it."""

    def stop(self) -> None:
        """Disarms it."""
