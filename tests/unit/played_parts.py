# SPDX-License-Identifier: Apache-2.0
"""The service's parts as played ones: a kernel that does what it is told, and the configuration that goes with it.

What it is not: a test. Everything but the kernel is real: configuration, sockets, exporters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.service.options import FlightRecorderOptions, PerfBufferOptions, TriggersOptions
from otel_perfbuf.service.parts import Gate, MadeDump
from otel_perfbuf.triggers.firing import Evidence, Fire, Firing, Match, Trigger, TriggerKind


def chunk_of(records: int) -> Chunk:
    """A chunk of so many log records."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for number in range(records):
        scope.log_records.add().time_unix_nano = number + 1
    return Chunk("logs", request.SerializeToString(), records)


@dataclass
class PlayedHeader:
    """What the service reads of a dump's header."""

    dump_id: str = "cd" * 16
    trigger: str = "manual"
    records: int = 2
    lost: int = 0
    overwritten: int = 5
    dropped: int = 0
    snapshot_ns: int = 1_000_000
    complete_since_unix_ns: int = 3_000_000_000
    window_end_unix_ns: int = 7_000_000_000


@dataclass
class PlayedDump:
    """What the service passes on."""

    header: PlayedHeader
    payload: Payload


class _Trigger:
    def __init__(self, parts: PlayedParts) -> None:
        self._parts = parts
        self.fire: Fire | None = None

    def start(self, fire: Fire) -> None:
        """Remembers where to fire."""
        self._parts.log.append("trigger armed")
        self.fire = fire

    def stop(self) -> None:
        """Notes it."""
        self._parts.log.append("trigger disarmed")


class _History:
    def __init__(self, parts: PlayedParts) -> None:
        self._parts = parts
        self.trigger = _Trigger(parts)
        self.started_s = time.monotonic()

    def attach(self) -> None:
        """Notes it."""
        self._parts.log.append("attached")

    def status(self) -> Mapping[str, Any]:
        """Made up."""
        return {"mode": "overwritable", "ring_bytes": 8 << 20, "lost": 1, "overwritten_bytes": 2, "malformed": 3}

    def alerts(self, triggers: TriggersOptions) -> Trigger:
        """The played trigger."""
        return self.trigger

    def find(self, evidence: Evidence) -> Match:
        """The process that the telemetry names."""
        pid = evidence.resource.get("process.pid")
        return Match(((int(pid), 1),), "process.pid") if pid else Match(why="it has no process.pid")

    def spans(self, conditions: Mapping[str, Any]) -> None:
        """No process can register here."""

    def close(self) -> None:
        """Notes it."""
        self._parts.log.append("detached")


class _Recorder:
    def __init__(self, parts: PlayedParts, emit: Callable[[MadeDump], object], gate: Gate) -> None:
        self._parts = parts
        self._emit = emit
        self._gate = gate
        self.firings: list[Firing] = []

    def start(self) -> None:
        """Notes it."""
        self._parts.log.append("recorder started")

    def fire(self, firing: Firing) -> Future[Any] | None:
        """Makes a dump at once, or fails with the parts' fault."""
        if not self._gate.admit(firing):
            return None
        self.firings.append(firing)
        future: Future[Any] = Future()
        if self._parts.dump_fault is not None:
            future.set_exception(self._parts.dump_fault)
            return future
        dump = PlayedDump(PlayedHeader(trigger=firing.kind), Payload((chunk_of(1), chunk_of(2)), "cd" * 16))
        self._emit(dump)
        future.set_result(dump)
        return future

    def suppress(self, kind: TriggerKind, count: int) -> None:
        """As the real one."""
        self._gate.suppress(kind, count)

    def sift(self, firing: Firing) -> tuple[list[Firing], int]:
        """As the real one with no dump in the making."""
        count = 0 if firing.alike is None else len(firing.alike)
        self._gate.suppress(firing.kind, count)
        return [], count

    def pass_over(self, firing: Firing) -> bool:
        """As the real one with no dump in the making."""
        return self._gate.spent(firing.kind) and bool(self.sift(firing)[1])

    def stop(self, timeout_s: float) -> bool:
        """Notes it."""
        self._parts.log.append("recorder stopped")
        return True

    def status(self) -> Mapping[str, Any]:
        """Made up."""
        return {"dumps": {"made": len(self.firings), "failed": 0}}


class _Live:
    def __init__(self, parts: PlayedParts, emit: Callable[[Payload], object]) -> None:
        self._parts = parts
        self.emit = emit

    def start(self) -> None:
        """Fails when the parts say so."""
        if self._parts.live_fault is not None:
            raise self._parts.live_fault
        self._parts.log.append("live started")

    def stop(self) -> None:
        """Passes on what its rings hold."""
        self.emit(Payload((chunk_of(4),)))
        self._parts.log.append("live stopped")

    def status(self) -> Mapping[str, Any]:
        """Made up."""
        return {"mode": "forward", "ring_bytes": 1024, "records": 4, "lost": 0}


@dataclass
class PlayedParts:
    """Plays the kernel."""

    log: list[str] = field(default_factory=list)
    live_fault: Exception | None = None
    check_fault: Exception | None = None
    dump_fault: Exception | None = None
    histories: list[_History] = field(default_factory=list)
    recorders: list[_Recorder] = field(default_factory=list)
    lives: list[_Live] = field(default_factory=list)

    def check(self) -> None:
        """Raises ``check_fault``."""
        if self.check_fault is not None:
            raise self.check_fault

    def history(self, options: PerfBufferOptions, triggers: TriggersOptions) -> _History:
        """A played history."""
        self.log.append("loaded")
        self.histories.append(_History(self))
        return self.histories[-1]

    def recorder(
        self, history: Any, options: FlightRecorderOptions, emit: Callable[[MadeDump], object], gate: Gate
    ) -> _Recorder:
        """A played recorder."""
        self.recorders.append(_Recorder(self, emit, gate))
        return self.recorders[-1]

    def live(self, options: PerfBufferOptions, emit: Callable[[Payload], object]) -> _Live:
        """A played stream."""
        self.lives.append(_Live(self, emit))
        return self.lives[-1]


def usual_tree(directory: Path) -> dict[str, Any]:
    """A configuration with a history, a live stream, a flight recorder and files, all in ``directory``."""
    return {
        "receivers": {"perf_buffer": None, "perf_buffer/live": {"program": "process", "mode": "forward"}},
        "connectors": {
            "flight_recorder": {
                "history": ["perf_buffer"],
                "triggers": {"socket": {"path": f"{directory}/trigger.sock"}, "process_exit": None},
            }
        },
        "exporters": {"file": {"path": f"{directory}/dumps"}, "file/live": {"path": f"{directory}/live"}},
        "extensions": {"control": {"path": f"{directory}/control.sock"}},
        "service": {
            "extensions": ["control"],
            "pipelines": {
                "logs/dumps": {"receivers": ["flight_recorder"], "exporters": ["file"]},
                "logs/live": {"receivers": ["perf_buffer/live"], "exporters": ["file/live"]},
            },
        },
    }
