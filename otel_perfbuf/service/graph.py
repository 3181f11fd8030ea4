# SPDX-License-Identifier: Apache-2.0
"""How components are joined: what is checked of it, and what is used.

What it is not: it creates nothing. Source: CONTRACT section 2: trigger pipelines end in a flight recorder, dump
pipelines begin with one; an overwritable receiver is read by dumps only.

    receivers: [perf_buffer/live]   -- logs --> exporters: [otlp_grpc]            live
    receivers: [otlp]               -- any ---> exporters: [flight_recorder]      triggers
    receivers: [flight_recorder]    -- any ---> exporters: [otlp_grpc, file]      dumps
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from otel_perfbuf.exporters.components import LOGS_ONLY
from otel_perfbuf.exporters.payload import Payload, Signal
from otel_perfbuf.receivers.fluent.options import FluentReceiverOptions
from otel_perfbuf.service.model import Configuration, PipelineOptions
from otel_perfbuf.service.options import (
    ControlOptions,
    FileStorageOptions,
    FlightRecorderOptions,
    PerfBufferOptions,
)
from otel_perfbuf.service.problems import Problems
from otel_perfbuf.service.registry import Section
from otel_perfbuf.triggers.bound import path_fault

__all__ = ["Graph", "Route", "build_graph", "check_graph"]

_SIGNALS: Final = ("logs", "traces")


@dataclass(frozen=True, slots=True)
class Route:
    """From a source to one exporter: which signals go that way."""

    exporter: str
    signals: frozenset[Signal]

    def part(self, payload: Payload) -> Payload | None:
        """What of a payload goes this way, in its order; None when nothing does."""
        chunks = tuple(chunk for chunk in payload.chunks if chunk.signal in self.signals)
        if len(chunks) == len(payload.chunks):
            return payload
        return Payload(chunks, payload.dump_id) if chunks else None


@dataclass(frozen=True, slots=True)
class Graph:
    """What is used: components that no pipeline leads to are not started, as in a Collector.

    ``routes``: by id of a forward receiver or a flight recorder, each exporter once. ``triggers``: by id of a telemetry
    receiver, the flight recorders that each signal of it ends in.
    """

    forward: tuple[str, ...]
    recorders: tuple[str, ...]
    exporters: tuple[str, ...]
    routes: Mapping[str, tuple[Route, ...]]
    triggers: Mapping[str, Mapping[Signal, tuple[str, ...]]]


def build_graph(configuration: Configuration) -> Graph:
    """The graph of a checked configuration."""
    signals: dict[str, dict[str, set[Signal]]] = {}
    for name, pipeline in configuration.service.pipelines.items():
        signal = cast(Signal, name.partition("/")[0])
        for source in pipeline.receivers:
            for exporter in pipeline.exporters:
                if exporter in configuration.exporters:
                    signals.setdefault(source, {}).setdefault(exporter, set()).add(signal)
    routes = {
        source: tuple(Route(exporter, frozenset(found)) for exporter, found in ways.items())
        for source, ways in signals.items()
    }
    recorders = tuple(source for source in routes if source in configuration.connectors)
    return Graph(
        forward=tuple(source for source in routes if source in configuration.receivers),
        recorders=recorders,
        exporters=tuple(dict.fromkeys(route.exporter for ways in routes.values() for route in ways)),
        routes=routes,
        triggers=_triggers(configuration, recorders),
    )


def _triggers(
    configuration: Configuration, recorders: tuple[str, ...]
) -> Mapping[str, Mapping[Signal, tuple[str, ...]]]:
    found: dict[str, dict[Signal, tuple[str, ...]]] = {}
    for name, pipeline in configuration.service.pipelines.items():
        signal = cast(Signal, name.partition("/")[0])
        ends = [target for target in pipeline.exporters if target in recorders]
        for source in pipeline.receivers if ends else ():
            if source in configuration.receivers:
                signals = found.setdefault(source, {})
                signals[signal] = tuple(dict.fromkeys((*signals.get(signal, ()), *ends)))
    return found


def check_graph(configuration: Configuration, named: Mapping[Section, set[str]], problems: Problems) -> None:
    """Adds what is wrong with how components are joined; ``named``: ids that the configuration names at all."""
    service = configuration.service
    for index, extension in enumerate(service.extensions):
        if extension not in named["extensions"]:
            problems.add(f"service.extensions.{index}", _undefined("extension", extension, named["extensions"]))
    for name, pipeline in service.pipelines.items():
        _check_pipeline(name, pipeline, configuration, named, problems)
    _check_sockets(configuration, problems)
    owners: dict[str, str] = {}
    for name, connector in configuration.connectors.items():
        if isinstance(connector.options, FlightRecorderOptions):
            _check_recorder(name, connector.options, configuration, named, problems)
            for index, receiver in enumerate(connector.options.history):
                if (owner := owners.setdefault(receiver, name)) != name:
                    sentence = f"{receiver} is the history of {owner} already; a receiver has one flight_recorder"
                    problems.add(f"connectors.{name}.history.{index}", sentence)
    _check_storage(configuration, named, problems)


def _check_storage(configuration: Configuration, named: Mapping[Section, set[str]], problems: Problems) -> None:
    """Each sending queue's storage is a file_storage that is started; no two share a directory."""
    for name, exporter in configuration.exporters.items():
        storage = getattr(getattr(exporter.options, "sending_queue", None), "storage", None)
        path = f"exporters.{name}.sending_queue.storage"
        extension = configuration.extensions.get(storage or "")
        if storage is None:
            continue
        if storage not in named["extensions"]:
            problems.add(path, _undefined("extension", storage, named["extensions"]))
        elif extension is not None and not isinstance(extension.options, FileStorageOptions):
            problems.add(path, f"{storage} is no file_storage")
        elif storage not in configuration.service.extensions:
            problems.add(path, f"{storage} is not started: add it to service.extensions")
    owners: dict[str, str] = {}
    for name, extension in configuration.extensions.items():
        if isinstance(extension.options, FileStorageOptions):
            directory = extension.options.directory
            path = f"extensions.{name}.directory"
            if not directory.startswith("/"):
                problems.add(path, f"{directory!r} is no absolute path")
            elif (owner := owners.setdefault(directory.rstrip("/"), name)) != name:
                problems.add(path, f"{directory} is the directory of {owner} already; a spool needs one of its own")


def _check_sockets(configuration: Configuration, problems: Problems) -> None:
    """Paths that no socket can have, and paths that two sockets would share."""
    paths = {
        f"extensions.{name}.path": extension.options.path
        for name, extension in configuration.extensions.items()
        if isinstance(extension.options, ControlOptions)
    }
    for name, connector in configuration.connectors.items():
        socket = connector.options.triggers.socket if isinstance(connector.options, FlightRecorderOptions) else None
        if socket is not None:
            paths[f"connectors.{name}.triggers.socket.path"] = socket.path
    owners: dict[str, str] = {}
    for key, path in paths.items():
        if fault := path_fault(path):
            problems.add(key, fault)
        elif (owner := owners.setdefault(path, key)) != key:
            problems.add(key, f"{path} is the path of {owner} already; a socket needs a path of its own")


def _check_pipeline(
    name: str,
    pipeline: PipelineOptions,
    configuration: Configuration,
    named: Mapping[Section, set[str]],
    problems: Problems,
) -> None:
    path = f"service.pipelines.{name}"
    signal = name.partition("/")[0]
    if signal not in _SIGNALS:
        problems.add(path, f"a pipeline is logs or traces, or logs/NAME or traces/NAME, not {signal}")
    for key, ids in (("receivers", pipeline.receivers), ("exporters", pipeline.exporters)):
        if not ids:
            problems.add(f"{path}.{key}", "at least one id belongs here")
        known = named[cast(Section, key)] | named["connectors"]
        for index, component in enumerate(ids):
            if component not in known:
                problems.add(f"{path}.{key}.{index}", _undefined(key[:-1], component, known))
            elif component in ids[:index]:
                problems.add(f"{path}.{key}.{index}", f"{component} is there twice")
    for index, source in enumerate(pipeline.receivers):
        receiver = configuration.receivers.get(source)
        here = f"{path}.receivers.{index}"
        if receiver is None:
            continue
        if not isinstance(receiver.options, PerfBufferOptions):
            if isinstance(receiver.options, FluentReceiverOptions):
                _check_fluent(here, source, pipeline, signal, configuration, problems)
            passed = [target for target in pipeline.exporters if target in named["exporters"]]
            if passed:
                sentence = f"{source} only triggers: it can end in a flight_recorder, not in {passed[0]}"
                problems.add(here, f"{sentence}; let a Collector pass telemetry on")
            continue
        if receiver.options.mode == "overwritable":
            problems.add(
                here, f"{source} is overwritable: only dumps read it; name it in the history of a flight_recorder"
            )
        elif signal == "traces":
            problems.add(here, f"{source} gives log records; put it into a logs pipeline")
    for index, target in enumerate(pipeline.exporters):
        exporter = configuration.exporters.get(target)
        if signal == "traces" and exporter is not None and exporter.type in LOGS_ONLY:
            sentence = f"{target} carries log records only; name an OTLP exporter here (the header record has it all)"
            problems.add(f"{path}.exporters.{index}", sentence)
    both = [source for source in pipeline.receivers if source in configuration.connectors]
    ends = [target for target in pipeline.exporters if target in configuration.connectors]
    if both and ends:
        problems.add(path, f"it begins with {both[0]} and ends in {ends[0]}: dumps trigger no dumps")
    sources = [source for source in pipeline.receivers if source in configuration.receivers]
    if ends and any(isinstance(configuration.receivers[source].options, PerfBufferOptions) for source in sources):
        problems.add(path, f"records of a perf_buffer do not trigger; only telemetry can end in {ends[0]}")


def _check_fluent(
    path: str, source: str, pipeline: PipelineOptions, signal: str, configuration: Configuration, problems: Problems
) -> None:
    if signal == "traces":
        problems.add(path, f"{source} gives log records; put it into a logs pipeline")
    for target in pipeline.exporters:
        connector = configuration.connectors.get(target)
        options = connector.options if connector is not None else None
        if isinstance(options, FlightRecorderOptions) and options.triggers.log_severity is None:
            problems.add(path, f"nothing of {source} can fire: {target} has no trigger log_severity; add one")


def _check_recorder(
    name: str,
    options: FlightRecorderOptions,
    configuration: Configuration,
    named: Mapping[Section, set[str]],
    problems: Problems,
) -> None:
    path = f"connectors.{name}"
    if not options.history:
        problems.add(f"{path}.history", "name the overwritable perf_buffer receiver whose history it dumps")
    for index, receiver in enumerate(options.history):
        here = f"{path}.history.{index}"
        if receiver not in named["receivers"]:
            problems.add(here, _undefined("receiver", receiver, named["receivers"]))
            continue
        found = configuration.receivers.get(receiver)
        if found is None:
            continue
        if not isinstance(found.options, PerfBufferOptions):
            problems.add(here, f"{receiver} is no perf_buffer: it has no history")
        elif found.options.mode != "overwritable":
            problems.add(here, f"{receiver} is in mode {found.options.mode}: it keeps no history; set overwritable")
    begins = {
        pipeline.partition("/")[0]
        for pipeline, found_pipeline in configuration.service.pipelines.items()
        if name in found_pipeline.receivers
    }
    if "logs" not in begins:
        problems.add(path, "no logs pipeline begins with it, so its dumps would go nowhere; add one like logs/dumps")


def _undefined(what: str, component: str, known: set[str]) -> str:
    names = ", ".join(sorted(known)) or "none"
    return f"there is no {what} {component} in this configuration; defined: {names}"
