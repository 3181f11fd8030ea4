# SPDX-License-Identifier: Apache-2.0
"""One configuration, running: everything is started in order or nothing is; everything is stopped within a bound.

What it is not: it waits for no signal (agent.py). Order of the start, and why: sockets first, so that a second agent is
refused before it loads a program; then where dumps go; then what records; last what fires. The stop is the reverse.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.payload import Payload, Signal
from otel_perfbuf.receivers.fluent.options import FluentReceiverOptions
from otel_perfbuf.receivers.otlp.options import OtlpReceiverOptions
from otel_perfbuf.service.control import Control, ControlBackend, DumpRequest, DumpSummary
from otel_perfbuf.service.graph import Graph, build_graph
from otel_perfbuf.service.health import HealthCheck
from otel_perfbuf.service.kept import Kept, Outlet, Part
from otel_perfbuf.service.model import Component, Configuration
from otel_perfbuf.service.options import (
    ControlOptions,
    FileStorageOptions,
    FlightRecorderOptions,
    HealthCheckOptions,
    PerfBufferOptions,
    TriggersOptions,
)
from otel_perfbuf.service.outlets import Outlets
from otel_perfbuf.service.own_metrics import PrometheusReader, PushReader, start_reader
from otel_perfbuf.service.parts import History, Live, MadeDump, Parts
from otel_perfbuf.service.recording import Recording
from otel_perfbuf.service.telemetry import Sample, Telemetry

if TYPE_CHECKING:
    from otel_perfbuf.receivers.fluent.receiver import FluentReceiver
    from otel_perfbuf.receivers.otlp.receiver import OtlpReceiver

__all__ = ["STOP_S", "Running"]

_log = logging.getLogger(__name__)

STOP_S: Final = 4.5  # "within 5 seconds" has the threads' ends and the unmapping in it
_DUMP_WAIT_S: Final = 30.0
_HOLD_S: Final = 2.0


class Running:
    """The started components of one configuration.

    ``start`` raises what the first component that could not start raised, after stopping the others. ``stop`` returns
    sentences about what had to be dropped; twice is fine. ``kept``: what runs on from a configuration that ran before,
    whose components are unchanged in this one; after a failed start it goes on, and is the caller's again.
    """

    def __init__(
        self,
        configuration: Configuration,
        parts: Parts,
        telemetry: Telemetry,
        status: Callable[[], dict[str, Any]] = dict,
        kept: Kept | None = None,
    ) -> None:
        self._configuration = configuration
        self._parts = parts
        self._telemetry = telemetry
        self._agent_status = status
        self._graph: Graph = build_graph(configuration)
        self._undo = contextlib.ExitStack()
        self._kept = kept or Kept()
        self._wanted = _identities(configuration, self._graph)
        self._running: dict[str, Part] = {}
        self._outlets = Outlets(telemetry, self._kept)
        self._recordings: dict[str, Recording] = {}
        self._histories: dict[str, History] = {}
        self._live: dict[str, Live] = {}
        self._receivers: dict[str, OtlpReceiver | FluentReceiver] = {}
        self._deadline_s = 0.0
        self._keep = Kept()
        self._leftovers: list[str] = []

    def start(self) -> None:
        """Starts everything."""
        try:
            if self._needs_kernel():
                self._parts.check()
            self._undo.callback(self._telemetry.add_source(self._samples))
            self._undo.callback(lambda: self._outlets.close_spools(frozenset(self._keep.spools)))
            self._start_own_metrics()
            for name in self._configuration.service.extensions:
                self._start_extension(self._configuration.extensions[name])
            self._undo.callback(self._drain)  # after whatever fills the queues has stopped
            for name in self._graph.exporters:
                self._outlets.start_exporter(self._configuration.exporters[name])
            self._outlets.resume()
            for name in self._graph.recorders:
                self._start_recorder(self._configuration.connectors[name])
            for name in self._graph.forward:
                self._start_live(self._configuration.receivers[name])
            for name in self._graph.triggers:  # last: what they bring may fire at once
                self._start_telemetry(self._configuration.receivers[name])
        except BaseException:
            self.stop(timeout_s=1.0, keep=self._kept)
            raise

    def _needs_kernel(self) -> bool:
        """Whether a program of ours is to be loaded: a registered reader over somebody else's map may need nothing."""
        receivers = (self._configuration.receivers[name].options for name in self._graph.forward)
        return bool(self._graph.recorders) or any(cast(PerfBufferOptions, options).program for options in receivers)

    def running_parts(self) -> Kept:
        """Everything that runs."""
        return Kept(self._outlets.queues, self._outlets.spools, self._running)

    def unchanged_parts(self, changed: Configuration) -> dict[str, Part]:
        """The parts that another configuration would make of the very same: they need not be made again."""
        wanted = _identities(changed, build_graph(changed))
        return {name: part for name, part in self._running.items() if name in wanted and part.of == wanted[name]}

    def _kept_part(self, name: str, *targets: Callable[..., Any]) -> Part | None:
        """A part that goes on, its results pointed here; None: it is to be made."""
        part = self._kept.parts.get(name)
        if part is not None:
            self._add(name, part)
            for outlet, target in zip(part.outlets, targets, strict=True):
                outlet.point(target)
        return part

    def _add(self, name: str, part: Part) -> None:
        self._running[name] = part
        self._undo.callback(self._stop_part, name)

    def _stop_part(self, name: str) -> None:
        if name not in self._keep.parts:
            sentence = self._running[name].stop(max(self._deadline_s - time.monotonic(), 0.1))
            if sentence is not None:
                self._leftovers.append(sentence)

    def stop(self, timeout_s: float = STOP_S, keep: Kept | None = None) -> list[str]:
        """Stops everything within about ``timeout_s``: triggers, recorders, live streams, then the queues.

        ``keep``: what goes on; it is the caller's from then on, and its results wait for the next configuration.
        """
        self._deadline_s = time.monotonic() + timeout_s
        self._keep = keep or Kept()
        for part in self._keep.parts.values():
            for outlet in part.outlets:
                outlet.hold(_HOLD_S)
        self._undo.close()
        leftovers, self._leftovers = self._leftovers, []
        return leftovers

    def _start_own_metrics(self) -> None:
        metrics = self._configuration.service.telemetry.metrics
        for index, options in enumerate(metrics.readers if metrics.level != "none" else ()):
            name = f"service.telemetry.metrics.readers.{index}"
            if self._kept_part(name) is None:
                reader = start_reader(options, self._telemetry, str(self._agent_status().get("version", "")))
                self._add(name, Part(reader, self._wanted[name], partial(_stop_reader, reader)))

    def _start_extension(self, component: Component) -> None:
        extension: Control | HealthCheck
        if isinstance(component.options, FileStorageOptions):
            self._outlets.start_spool(component, component.options)
            return
        name = f"extensions.{component.id}"
        targets = (self.dump, self.status) if isinstance(component.options, ControlOptions) else ()
        if self._kept_part(name, *targets) is not None:
            return
        outlets = tuple(Outlet(target) for target in targets)
        if isinstance(component.options, ControlOptions):
            dump, status = outlets
            extension = Control(component.options, ControlBackend(dump, status, self._telemetry.render))
        else:
            assert isinstance(component.options, HealthCheckOptions)
            extension = HealthCheck(component.options)
        extension.start()
        self._add(name, Part(extension, self._wanted[name], lambda _: extension.stop(), outlets))

    def _start_recorder(self, component: Component) -> None:
        options = cast(FlightRecorderOptions, component.options)
        history = self._start_history(options.history[0])
        name = f"connectors.{component.id}"

        def emit(dump: MadeDump) -> None:
            self._outlets.emit(dump, self._graph.routes[component.id])

        part = self._kept_part(name, emit)
        if part is None:
            outlet = Outlet(emit)
            recording = Recording(
                component.id, options.history[0], options, history, self._parts, self._telemetry, outlet
            )
            part = Part(recording, self._wanted[name], partial(_stop_recording, recording), (outlet,))
            self._add(name, part)
            recording.start()
        self._recordings[component.id] = part.made

    def _start_history(self, receiver: str) -> History:
        name = f"receivers.{receiver}"
        part = self._kept_part(name)
        if part is None:
            of = cast(tuple[PerfBufferOptions, TriggersOptions], self._wanted[name])
            history = self._parts.history(*of)
            part = Part(history, of, lambda _: history.close())
            self._add(name, part)
            history.attach()
        self._histories[receiver] = part.made
        return cast(History, part.made)

    def _start_live(self, component: Component) -> None:
        name = f"receivers.{component.id}"

        def emit(payload: Payload) -> None:
            self._outlets.pass_on(component.id, payload, self._graph.routes[component.id])

        part = self._kept_part(name, emit)
        if part is None:
            outlet = Outlet(emit)
            live = self._parts.live(cast(PerfBufferOptions, component.options), outlet)
            part = Part(live, self._wanted[name], lambda _: live.stop(), (outlet,))
            self._add(name, part)
            live.start()
        self._live[component.id] = part.made

    def _drain(self) -> None:
        left_s = max(self._deadline_s - time.monotonic(), 0.1)
        self._leftovers += self._outlets.drain(left_s, frozenset(self._keep.queues))

    def _start_telemetry(self, component: Component) -> None:
        name = f"receivers.{component.id}"
        signals = self._graph.triggers[component.id]
        consumers = {signal: self._consumer(component.id, signal, names) for signal, names in signals.items()}
        part = self._kept_part(name, *consumers.values())
        if part is None:
            outlets = {signal: Outlet(consume) for signal, consume in consumers.items()}
            receiver = _telemetry_receiver(component, outlets)
            part = Part(receiver, self._wanted[name], lambda _: receiver.stop(), tuple(outlets.values()))
            self._add(name, part)
            receiver.start()
            for protocol, endpoint in receiver.endpoints.items():
                _log.info("%s: %s at %s", component.id, protocol, endpoint)
        self._receivers[component.id] = part.made

    def _consumer(self, receiver: str, signal: Signal, connectors: Iterable[str]) -> Callable[[bytes], None]:
        recordings = [self._recordings[name] for name in connectors]
        noun = "log_records" if signal == "logs" else "spans"

        def consume(body: bytes) -> None:
            found = [recording.consume(signal, body) for recording in recordings]
            dropped = max(each.dropped for each in found)
            self._telemetry.add(f"otelcol_receiver_accepted_{noun}", (receiver,), found[0].records - dropped)
            self._telemetry.add(f"otelcol_receiver_refused_{noun}", (receiver,), dropped)

        return consume

    def dump(self, request: DumpRequest) -> DumpSummary:
        """A dump on demand, waited for; PerfbufError when none can be made."""
        if self._graph.recorders and not self._recordings:
            raise PerfbufError("making a dump: the agent is only starting; ask again in a second")
        if not self._recordings:
            raise PerfbufError(
                "making a dump: no flight_recorder is configured; add one, see config/flight-recorder.yaml"
            )
        recording = next(iter(self._recordings.values()))
        future = recording.ask(request)
        if future is None:
            raise PerfbufError("making a dump: the agent is stopping")
        try:
            header = future.result(_DUMP_WAIT_S + recording.after_s).header
        except FutureTimeoutError:
            raise PerfbufError(f"making a dump: it took more than {_DUMP_WAIT_S:g} s") from None
        except (PerfbufError, OSError) as fault:
            raise PerfbufError(f"making a dump: {fault}") from fault
        return DumpSummary(header.dump_id, header.records, header.lost, header.overwritten, header.dropped)

    def status(self) -> dict[str, Any]:
        """What runs, for `otel-perfbuf status`."""
        receivers = {name: dict(history.status()) for name, history in self._histories.items()}
        receivers |= {name: dict(live.status()) for name, live in self._live.items()}
        for recording in self._recordings.values():
            if recording.history_s is not None:
                receivers[recording.receiver]["history_seconds"] = recording.history_s
        return {
            **self._agent_status(),
            "receivers": receivers,
            "connectors": {name: recording.status() for name, recording in self._recordings.items()},
            **self._outlets.status(),
        }

    def _samples(self) -> Iterable[Sample]:
        # Counts of what a reload leaves running go on there.
        statuses = [
            *((name, history.status()) for name, history in self._histories.items() if not self._goes_on(name)),
            *((name, live.status()) for name, live in self._live.items() if not self._goes_on(name)),
        ]
        for name, status in statuses:
            yield Sample("perfbuf_ring_lost_records", (name,), status.get("lost", 0))
            yield Sample("perfbuf_missed_events", (name,), status.get("missed_events", 0))
            yield Sample("perfbuf_ring_overwritten_bytes", (name,), status.get("overwritten_bytes", 0))
            yield Sample("perfbuf_ring_malformed_records", (name,), status.get("malformed", 0))
        for name, telemetry in self._receivers.items():
            if self._goes_on(name):
                continue
            if passed_over := getattr(telemetry, "passed_over", 0):
                yield Sample("otelcol_receiver_accepted_log_records", (name,), passed_over)
            for cause, count in telemetry.refused.copy().items():
                yield Sample("perfbuf_triggers_refused", (cause,), count)
        for recording in self._recordings.values():
            if recording.history_s is not None:
                yield Sample("perfbuf_history_seconds", (recording.receiver,), recording.history_s)
            if f"connectors.{recording.id}" not in self._keep.parts:
                for cause, count in recording.refused().items():
                    yield Sample("perfbuf_triggers_refused", (cause,), count)
        yield from self._outlets.samples()

    def _goes_on(self, receiver: str) -> bool:
        return f"receivers.{receiver}" in self._keep.parts


def _identities(configuration: Configuration, graph: Graph) -> dict[str, object]:
    """By key path: all that a part is made of, to be compared."""
    found: dict[str, object] = {
        f"extensions.{name}": configuration.extensions[name].options for name in configuration.service.extensions
    }
    metrics = configuration.service.telemetry.metrics
    if metrics.level != "none":
        found |= {f"service.telemetry.metrics.readers.{index}": each for index, each in enumerate(metrics.readers)}
    for name in graph.recorders:
        options = cast(FlightRecorderOptions, configuration.connectors[name].options)
        receiver = options.history[0]
        history = (configuration.receivers[receiver].options, options.triggers.kernel_part())
        found |= {f"receivers.{receiver}": history, f"connectors.{name}": (options, history)}
    for name in graph.forward:
        found[f"receivers.{name}"] = configuration.receivers[name].options
    for name, signals in graph.triggers.items():
        found[f"receivers.{name}"] = (configuration.receivers[name].options, list(signals.items()))
    return found


def _stop_reader(reader: PushReader | PrometheusReader, _left_s: float) -> None:
    reader.stop()


def _stop_recording(recording: Recording, left_s: float) -> str | None:
    if recording.stop(left_s / 2):
        return None
    return f"stopping {recording.id}: a dump in the making was not finished in time"


def _telemetry_receiver(
    component: Component, consumers: Mapping[Signal, Callable[[bytes], object]]
) -> OtlpReceiver | FluentReceiver:
    if isinstance(component.options, FluentReceiverOptions):
        from otel_perfbuf.receivers.fluent.receiver import FluentReceiver

        return FluentReceiver(component.options, consumers["logs"])
    from otel_perfbuf.receivers.otlp.receiver import OtlpReceiver  # gRPC takes long to import

    return OtlpReceiver(cast(OtlpReceiverOptions, component.options), consumers)
