# SPDX-License-Identifier: Apache-2.0
"""The agent's own counts, and their text for Prometheus.

What it is not: a metrics library. Source: CONTRACT section 7 (names, which carry no `_total`, as the Collector's did
not: prometheus_client would add it); Prometheus text exposition format 0.0.4.

Counters live as long as the agent, over reloads; gauges are asked from their owners when someone looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

__all__ = ["METRICS", "Metric", "Point", "Sample", "Telemetry"]

Kind = Literal["counter", "gauge", "summary"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One name: what kind it is, what its labels are called, what it means."""

    kind: Kind
    labels: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of one metric; ``labels`` in the metric's order."""

    name: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Point:
    """What one metric with these labels stands at; a summary's ``value`` is its sum, and the rest is its own."""

    name: str
    labels: tuple[str, ...]
    value: float
    count: int = 0
    least: float = 0.0
    greatest: float = 0.0


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {
        "otelcol_receiver_accepted_log_records": Metric("counter", ("receiver",), "Records read and passed on."),
        "otelcol_receiver_refused_log_records": Metric("counter", ("receiver",), "Records that no queue had room for."),
        "otelcol_receiver_accepted_spans": Metric("counter", ("receiver",), "Spans looked at."),
        "otelcol_receiver_refused_spans": Metric("counter", ("receiver",), "Spans that no trigger had room for."),
        "otelcol_exporter_sent_log_records": Metric("counter", ("exporter",), "Records the peer has taken."),
        "otelcol_exporter_send_failed_log_records": Metric("counter", ("exporter",), "Records given up or rejected."),
        "otelcol_exporter_queue_size": Metric("gauge", ("exporter",), "Requests waiting to be sent."),
        "otelcol_exporter_queue_capacity": Metric("gauge", ("exporter",), "Requests the queue has room for."),
        "perfbuf_ring_lost_records": Metric("counter", ("receiver",), "Records that found no room."),
        "perfbuf_missed_events": Metric(
            "counter", ("receiver",), "Events at which the kernel ran no program, of all processes."
        ),
        "perfbuf_ring_overwritten_bytes": Metric("counter", ("receiver",), "Bytes of history pushed out."),
        "perfbuf_ring_malformed_records": Metric("counter", ("receiver",), "Records that disagree with themselves."),
        "perfbuf_history_seconds": Metric("gauge", ("receiver",), "Depth at the last dump, the shortest over CPUs."),
        "perfbuf_snapshot_duration_seconds": Metric("summary", ("receiver",), "How long snapshots took."),
        "perfbuf_dumps": Metric("counter", ("trigger", "outcome"), "Dumps by trigger and what became of them."),
        "perfbuf_triggers_refused": Metric(
            "counter", ("cause",), "Trigger datagrams and telemetry that fired nothing."
        ),
        "perfbuf_spool_bytes": Metric("gauge", (), "Bytes of dumps kept on disk."),
    }
)

Source = Callable[[], Iterable[Sample]]


class Telemetry:
    """Counts from any thread; sources are asked at ``render`` and may be exchanged at a reload."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}
        self._observed: dict[tuple[str, tuple[str, ...]], tuple[int, float, float]] = {}  # count, least, greatest
        self._sources: list[Source] = []

    def add(self, name: str, labels: tuple[str, ...], value: float = 1) -> None:
        """Adds to a counter, or observes ``value`` for a summary."""
        assert len(METRICS[name].labels) == len(labels), name
        key = name, labels
        with self._lock:
            self._values[key] = self._values.get(key, 0) + value
            if METRICS[name].kind == "summary":
                count, least, greatest = self._observed.get(key, (0, value, value))
                self._observed[key] = count + 1, min(least, value), max(greatest, value)

    def get(self, name: str, labels: tuple[str, ...]) -> float:
        """A counter's value."""
        with self._lock:
            return self._values.get((name, labels), 0)

    def add_source(self, source: Source) -> Callable[[], None]:
        """Asks ``source`` at each render; the result takes it out again, keeping the last of its counters."""

        def remove() -> None:
            if source in self._sources:
                self._sources.remove(source)
                for sample in source():
                    if METRICS[sample.name].kind == "counter":
                        self.add(sample.name, sample.labels, sample.value)

        self._sources.append(source)
        return remove

    def collect(self) -> list[Point]:
        """All metrics as they stand now, by name, then labels."""
        with self._lock:
            values, observed = dict(self._values), dict(self._observed)
        values["perfbuf_spool_bytes", ()] = 0  # without a spool
        for source in list(self._sources):
            for sample in source():
                key = sample.name, sample.labels
                values[key] = values.get(key, 0) + sample.value
        return [Point(*key, value, *observed.get(key, ())) for key, value in sorted(values.items())]

    def render(self) -> str:
        """All metrics in Prometheus' text format."""
        points = self.collect()
        lines: list[str] = []
        for name, metric in METRICS.items():
            lines += [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.kind}"]
            for point in points:
                if point.name != name:
                    continue
                shown = _labels(metric.labels, point.labels)
                if metric.kind == "summary":
                    lines += [f"{name}_sum{shown} {point.value:.9g}", f"{name}_count{shown} {point.count}"]
                else:
                    lines.append(f"{name}{shown} {_number(point.value)}")
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.9g}"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
