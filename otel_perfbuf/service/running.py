# SPDX-License-Identifier: Apache-2.0
"""One configuration, running: everything is started in order or nothing is; everything is stopped within a bound.

What it is not: it waits for no signal (agent.py). Order of the start, and why: sockets first, so that a second agent is
refused before it loads a program; then where dumps go; then what records; last what fires. The stop is the reverse.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, Final, cast

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.components import exporter_module
from otel_perfbuf.exporters.delivery import Outcome
from otel_perfbuf.exporters.payload import Payload
from otel_perfbuf.exporters.queue import SendingQueue
from otel_perfbuf.service.control import Control, ControlBackend, DumpRequest, DumpSummary
from otel_perfbuf.service.graph import Graph, build_graph
from otel_perfbuf.service.health import HealthCheck
from otel_perfbuf.service.model import Component, Configuration
from otel_perfbuf.service.options import (
    ControlOptions,
    FlightRecorderOptions,
    HealthCheckOptions,
    PerfBufferOptions,
)
from otel_perfbuf.service.parts import History, Live, MadeDump, Parts
from otel_perfbuf.service.recording import Recording
from otel_perfbuf.service.telemetry import Sample, Telemetry

__all__ = ["STOP_S", "Running"]

_log = logging.getLogger(__name__)

STOP_S: Final = 4.5  # "within 5 seconds" has the threads' ends and the unmapping in it
_DUMP_WAIT_S: Final = 30.0


class Running:
    """The started components of one configuration.

    ``start`` raises what the first component that could not start raised, after stopping the others. ``stop`` returns
    sentences about what had to be dropped; twice is fine. ``kept``: running queues by exporter id, of a configuration
    that ran before and has these exporters unchanged; after a failed start they go on, and are the caller's again.
    """

    def __init__(
        self,
        configuration: Configuration,
        parts: Parts,
        telemetry: Telemetry,
        status: Callable[[], dict[str, Any]] = dict,
        kept: Mapping[str, SendingQueue] | None = None,
    ) -> None:
        self._configuration = configuration
        self._parts = parts
        self._telemetry = telemetry
        self._agent_status = status
        self._graph: Graph = build_graph(configuration)
        self._undo = contextlib.ExitStack()
        self._kept = dict(kept or {})
        self._queues: dict[str, SendingQueue] = {}
        self._recordings: dict[str, Recording] = {}
        self._histories: dict[str, History] = {}
        self._live: dict[str, Live] = {}
        self._deadline_s = 0.0
        self._keep: frozenset[str] = frozenset()
        self._leftovers: list[str] = []

    def start(self) -> None:
        """Starts everything."""
        try:
            if self._needs_kernel():
                self._parts.check()
            self._undo.callback(self._telemetry.add_source(self._samples))
            for name in self._configuration.service.extensions:
                self._start_extension(self._configuration.extensions[name])
            self._undo.callback(self._drain)  # after whatever fills the queues has stopped
            for name in self._graph.exporters:
                self._start_exporter(self._configuration.exporters[name])
            for name in self._graph.recorders:
                self._start_recorder(self._configuration.connectors[name])
            for name in self._graph.forward:
                self._start_live(self._configuration.receivers[name])
        except BaseException:
            self.stop(timeout_s=1.0, keep=self._kept)
            raise

    def _needs_kernel(self) -> bool:
        """Whether a program of ours is to be loaded: a registered reader over somebody else's map may need nothing."""
        receivers = (self._configuration.receivers[name].options for name in self._graph.forward)
        return bool(self._graph.recorders) or any(cast(PerfBufferOptions, options).program for options in receivers)

    def queues(self) -> Mapping[str, SendingQueue]:
        """The running queues, by exporter id."""
        return dict(self._queues)

    def stop(self, timeout_s: float = STOP_S, keep: Iterable[str] = ()) -> list[str]:
        """Stops everything within about ``timeout_s``: triggers, recorders, live streams, then the queues.

        ``keep``: ids of exporters whose queues go on; they are the caller's from then on.
        """
        self._deadline_s = time.monotonic() + timeout_s
        self._keep = frozenset(keep)
        self._undo.close()
        leftovers, self._leftovers = self._leftovers, []
        return leftovers

    def _start_extension(self, component: Component) -> None:
        extension: Control | HealthCheck
        if isinstance(component.options, ControlOptions):
            backend = ControlBackend(self.dump, self.status, self._telemetry.render)
            extension = Control(component.options, backend)
        else:
            assert isinstance(component.options, HealthCheckOptions)
            extension = HealthCheck(component.options)
        extension.start()
        self._undo.callback(extension.stop)

    def _start_exporter(self, component: Component) -> None:
        if component.id in self._kept:
            self._queues[component.id] = self._kept[component.id]
            return
        options: Any = component.options
        queue = SendingQueue(
            exporter_module(component.type).create(options),
            name=component.id,
            retry=getattr(options, "retry_on_failure", None),
            queue=getattr(options, "sending_queue", None),
        )
        # Before it is started: one that fails half-way has threads too.
        self._queues[component.id] = queue
        queue.start()

    def _start_recorder(self, component: Component) -> None:
        options = cast(FlightRecorderOptions, component.options)
        receiver = options.history[0]
        perf_buffer = cast(PerfBufferOptions, self._configuration.receivers[receiver].options)
        history = self._parts.history(perf_buffer, options.triggers.process_exit)
        self._undo.callback(history.close)
        self._histories[receiver] = history
        history.attach()
        recording = Recording(
            component.id,
            receiver,
            options,
            history,
            self._parts,
            self._telemetry,
            lambda dump: self._emit(component.id, dump),
        )
        self._undo.callback(lambda: self._stop_recording(recording))
        recording.start()
        self._recordings[component.id] = recording

    def _stop_recording(self, recording: Recording) -> None:
        left_s = max(self._deadline_s - time.monotonic(), 0.1)
        if not recording.stop(left_s / 2):
            self._leftovers.append(f"stopping {recording.id}: a dump in the making was not finished in time")

    def _start_live(self, component: Component) -> None:
        live = self._parts.live(
            cast(PerfBufferOptions, component.options), lambda payload: self._pass_on(component.id, payload)
        )
        self._undo.callback(live.stop)
        live.start()
        self._live[component.id] = live

    def _pass_on(self, receiver: str, payload: Payload) -> None:
        taken = False
        for route in self._graph.routes[receiver]:
            part = route.part(payload)
            if part is not None:
                taken |= self._queues[route.exporter].put(part, self._counted(route.exporter))
        outcome = "accepted" if taken else "refused"
        self._telemetry.add(f"otelcol_receiver_{outcome}_log_records", (receiver,), payload.records)

    def _emit(self, connector: str, dump: MadeDump) -> None:
        """Hands a dump to all its exporters; when the last has settled it, it is exported or failed."""
        parts = [
            (route.exporter, part)
            for route in self._graph.routes[connector]
            if (part := route.part(dump.payload)) is not None
        ]
        waiting = _Waiting(len(parts))

        def settled(exporter: str, payload: Payload, outcome: Outcome) -> None:
            self._counted(exporter)(payload, outcome)
            delivered = waiting.settle(outcome.delivered)
            if delivered is None:
                return
            word = "exported" if delivered else "failed"
            self._telemetry.add("perfbuf_dumps", (dump.header.trigger, word))
            reason = f": {outcome.error}" if not delivered and outcome.error else ""
            _log.log(
                logging.INFO if delivered else logging.WARNING,
                "dump %s (%s, %d records) %s%s",
                dump.header.dump_id,
                dump.header.trigger,
                dump.header.records,
                word,
                reason,
            )

        for exporter, part in parts:
            self._queues[exporter].put(part, partial(settled, exporter))

    def _counted(self, exporter: str) -> Callable[[Payload, Outcome], None]:
        def count(_: Payload, outcome: Outcome) -> None:
            logs = outcome.logs
            self._telemetry.add("otelcol_exporter_sent_log_records", (exporter,), logs.sent)
            failed = logs.failed + logs.rejected + logs.dropped
            self._telemetry.add("otelcol_exporter_send_failed_log_records", (exporter,), failed)

        return count

    def _drain(self) -> None:
        """All queues at the same time: one peer that is away must not take the others' seconds."""
        left_s = max(self._deadline_s - time.monotonic(), 0.1)

        def drain(queue: SendingQueue) -> None:
            leftover = queue.drain(left_s)
            if leftover.sentence:
                self._leftovers.append(leftover.sentence)

        ending = [queue for name, queue in self._queues.items() if name not in self._keep]
        threads = [threading.Thread(target=drain, args=(queue,), daemon=True) for queue in ending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(left_s + 1.0)

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
        exporters = {}
        for name, queue in self._queues.items():
            stats = queue.stats()
            exporters[name] = {
                "queue_size": stats.queue_size,
                "queue_capacity": stats.queue_capacity,
                "sent": stats.logs.sent,
                "failed": stats.logs.failed,
                "rejected": stats.logs.rejected,
                "dropped": stats.logs.dropped,
            }
        return {
            **self._agent_status(),
            "receivers": receivers,
            "connectors": {name: recording.status() for name, recording in self._recordings.items()},
            "exporters": exporters,
            "spool_bytes": 0,
        }

    def _samples(self) -> Iterable[Sample]:
        for name, status in [
            *((name, history.status()) for name, history in self._histories.items()),
            *((name, live.status()) for name, live in self._live.items()),
        ]:
            yield Sample("perfbuf_ring_lost_records", (name,), status.get("lost", 0))
            yield Sample("perfbuf_ring_overwritten_bytes", (name,), status.get("overwritten_bytes", 0))
            yield Sample("perfbuf_ring_malformed_records", (name,), status.get("malformed", 0))
        for recording in self._recordings.values():
            if recording.history_s is not None:
                yield Sample("perfbuf_history_seconds", (recording.receiver,), recording.history_s)
            for cause, count in recording.refused().items():
                yield Sample("perfbuf_triggers_refused", (cause,), count)
        for name, queue in self._queues.items():
            stats = queue.stats()
            yield Sample("otelcol_exporter_queue_size", (name,), stats.queue_size)
            yield Sample("otelcol_exporter_queue_capacity", (name,), stats.queue_capacity)


class _Waiting:
    """Counts down the exporters of one dump."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._delivered = True
        self._lock = threading.Lock()

    def settle(self, delivered: bool) -> bool | None:
        """One exporter is done: whether all have delivered, when it is the last; else None."""
        with self._lock:
            self._left -= 1
            self._delivered &= delivered
            return self._delivered if self._left == 0 else None
