# SPDX-License-Identifier: Apache-2.0
"""The real parts: programs, rings and recorders for configured options.

What it is not: it starts nothing; running.py does, in order. The modules that need libbpf and the C core are imported
only here and only when asked, so that `validate` runs on any host.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from otel_perfbuf.errors import KernelError, ReaderClosed
from otel_perfbuf.exporters.payload import Payload
from otel_perfbuf.service.alerts import AlertTrigger
from otel_perfbuf.service.options import FlightRecorderOptions, PerfBufferOptions, TriggersOptions
from otel_perfbuf.service.parts import Gate, History, Live, MadeDump, Recorder
from otel_perfbuf.triggers.firing import Evidence, Match, Trigger
from otel_perfbuf.triggers.process_exit import CORE_SIGNALS, ProcessExitOptions
from otel_perfbuf.triggers.spans import SpanRegistry

if TYPE_CHECKING:
    from otel_perfbuf.bpf.syscalls import AlertRules
    from otel_perfbuf.recorder.source import HistorySource
    from otel_perfbuf.rings import PerfReader

__all__ = ["KernelParts"]

_LOOK_LEAST_S, _LOOK_MOST_S = 0.1, 1.0  # between two looks at the calls in flight


class _KernelHistory:
    """A HistorySource with the service's view of it."""

    def __init__(self, source: HistorySource) -> None:
        from otel_perfbuf.recorder.clock import unix_offset_ns
        from otel_perfbuf.recorder.finding import ProcessFinder
        from otel_perfbuf.recorder.hosts import this_host
        from otel_perfbuf.recorder.processes import cgroup_paths

        self.source = source
        self._finder = ProcessFinder(source.processes, cgroup_paths, unix_offset_ns, this_host())

    def attach(self) -> None:
        self.source.attach()
        self.source.watch_cpus()

    @property
    def started_s(self) -> float:
        return self.source.started_ns / 1e9

    def status(self) -> Mapping[str, Any]:
        from otel_perfbuf.rings.cpus import online_cpus

        reader, rings = self.source.reader, self.source.rings
        status: dict[str, Any] = {
            "mode": "overwritable",
            "ring": "shared" if rings.shared else "per_cpu",
            "ring_bytes": rings.bytes,
            "cpus": len(online_cpus() if rings.shared else cast("PerfReader", reader).cpus),
        }
        try:
            stats = reader.stats
            status.update(overwritten_bytes=stats.overwritten_bytes, malformed=stats.malformed)
            lost = self.source.program.stats()
            status.update(lost=lost.lost, missed_events=lost.missed_events)
        except ReaderClosed:
            pass  # asked while the agent ends
        return status

    def alerts(self, triggers: TriggersOptions) -> Trigger | None:
        from otel_perfbuf.recorder.clock import unix_offset_ns
        from otel_perfbuf.records.errnos import error_rows
        from otel_perfbuf.triggers.alerts import AlertJudge

        if not triggers.of_the_kernel:
            return None
        errors = {number: name for number, name, _ in error_rows()}
        judge = AlertJudge(
            triggers.process_exit, self.source.plan.syscall_name, lambda number: errors.get(number, str(number))
        )
        slow = triggers.syscall_latency.longer_than if triggers.syscall_latency is not None else 0.0
        return AlertTrigger(
            self.source.alerts,
            judge,
            unix_offset_ns,
            self.source.program.slow_calls if slow else None,
            look_s=min(max(slow / 4, _LOOK_LEAST_S), _LOOK_MOST_S) if slow else _LOOK_MOST_S,
        )

    def spans(self, conditions: Mapping[str, Any]) -> SpanRegistry:
        return SpanRegistry(self.source.program.spans, conditions)

    def find(self, evidence: Evidence) -> Match:
        return self._finder(evidence)

    def close(self) -> None:
        self.source.close()


def _alert_rules(triggers: TriggersOptions) -> AlertRules:
    """What the kernel sends; it may be more than fires (lists of exit codes), never less."""
    from otel_perfbuf.bpf.syscalls import AlertRules
    from otel_perfbuf.records.errnos import error_rows

    exits = triggers.process_exit or ProcessExitOptions(signals="none")
    names = CORE_SIGNALS if exits.signals == "core" else () if isinstance(exits.signals, str) else exits.signals
    error, latency = triggers.syscall_error, triggers.syscall_latency
    numbers = {name: number for number, name, _ in error_rows()}
    return AlertRules(
        everything=exits.signals == "all",
        nonzero=exits.exit_codes not in ("none", ()),
        signals=tuple(int(signal.Signals[f"SIG{name}"]) for name in names),
        oom_kill=triggers.oom_kill is not None,
        errnos=[numbers[name] for name in error.errnos] if error is not None and error.syscalls else (),
        slow_ns=int(latency.longer_than * 1e9) if latency is not None else 0,
    )


class KernelParts:
    """Parts on this host's kernel."""

    def check(self) -> None:
        """KernelError without CAP_BPF and CAP_PERFMON."""
        from otel_perfbuf.bpf.object import has_bpf

        if not has_bpf():
            raise KernelError(
                errno.EPERM, "starting to record: this needs root, or the capabilities CAP_BPF and CAP_PERFMON"
            )

    def history(self, options: PerfBufferOptions, triggers: TriggersOptions) -> History:
        """Loads the flight-recorder program and opens its rings."""
        from otel_perfbuf.recorder.source import HistorySource, SourceOptions
        from otel_perfbuf.records import Redact

        targets, error, latency = options.targets, triggers.syscall_error, triggers.syscall_latency
        return _KernelHistory(
            HistorySource(
                SourceOptions(
                    per_cpu_bytes=options.per_cpu_bytes,
                    max_total_bytes=options.max_total_bytes,
                    whole_host=options.whole_host,
                    pids=targets.pids,
                    comms=targets.comms,
                    cgroups=targets.cgroups,
                    exclude_comms=options.exclude.comms,
                    include=options.syscalls.include,
                    exclude=options.syscalls.exclude,
                    string_bytes=options.strings.max_bytes,
                    path_bytes=options.strings.max_path_bytes,
                    buffers=options.buffers,
                    ring=options.ring,
                    swap=options.snapshot == "swap",
                    fd_names=options.fd_names,
                    redact=[Redact(row.pattern, row.replace) for row in options.redact],
                    alerts=_alert_rules(triggers),
                    error_syscalls=error.syscalls if error is not None and error.errnos else (),
                    slow_syscalls=latency.syscalls if latency is not None and latency.longer_than else None,
                )
            )
        )

    def recorder(
        self, history: History, options: FlightRecorderOptions, emit: Callable[[MadeDump], object], gate: Gate
    ) -> Recorder:
        """The recorder of a history that this object made."""
        from otel_perfbuf.recorder.dump import DumpOptions
        from otel_perfbuf.recorder.recorder import FlightRecorder

        return FlightRecorder(
            cast(_KernelHistory, history).source,
            DumpOptions(scope=options.scope, before_s=options.window.before, max_records=options.max_records),
            emit,
            after_s=options.window.after,
            gate=gate,
        )

    def live(self, options: PerfBufferOptions, emit: Callable[[Payload], object]) -> Live:
        """Loads the process program, if it is asked for, and opens its reader."""
        from otel_perfbuf.bpf.process import ProcessProgram
        from otel_perfbuf.recorder.live import LiveStream, NamedMap
        from otel_perfbuf.records import Redact, build_plan, build_redaction
        from otel_perfbuf.rings.protocol import find_reader

        open_reader = None if options.mode == "forward" else find_reader(options.mode)
        return LiveStream(
            ProcessProgram() if options.map is None else NamedMap(options.map),
            build_plan(redaction=build_redaction([Redact(row.pattern, row.replace) for row in options.redact])),
            emit,
            per_cpu_bytes=options.per_cpu_bytes,
            watermark_bytes=int(options.per_cpu_bytes * options.watermark),
            open_reader=open_reader,
            mode=options.mode,
        )
