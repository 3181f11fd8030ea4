# SPDX-License-Identifier: Apache-2.0
"""What the kernel's conditions say (a process's end, an OOM kill, an errno, a slow call), as firings.

What it is not: it reads no ring, and the conditions themselves are bpf/condition.bpf.h. Source: bpf/records.h, struct
pb_alert; CONTRACT section 2 (triggers).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.triggers.datagram import printable
from otel_perfbuf.triggers.firing import Firing, SpanContext, TriggerKind
from otel_perfbuf.triggers.process_exit import ProcessExitOptions, reason_to_fire

__all__ = ["AlertJudge"]

_SIZE: Final = ffi.sizeof("struct pb_alert")
_SEEN_MAX: Final = 4096


@dataclass(slots=True)
class AlertJudge:
    """Makes firings of alerts. ``exits`` None: ends do not fire.

    ``syscall_name`` and ``error_name`` name a system call's number and an errno. A call that was told in flight is not
    told again at its end.
    """

    exits: ProcessExitOptions | None
    syscall_name: Callable[[int], str]
    error_name: Callable[[int], str]
    _told: OrderedDict[tuple[int, int], None] = field(default_factory=OrderedDict)

    def split(self, alerts: bytes) -> list[bytes]:
        """The alerts that stand one behind the other in an iterator's output, each alone."""
        return [alerts[at : at + _SIZE] for at in range(0, len(alerts), _SIZE)]

    def firing(self, alert: bytes | memoryview, unix_offset_ns: int) -> Firing | None:
        """The firing of one struct pb_alert (longer samples are padded by the kernel); None when it is a quiet one.

        ``unix_offset_ns`` makes unix time of the kernel's. Raises ValueError when the bytes are none.
        """
        if len(alert) < _SIZE:
            raise ValueError(f"an alert of {len(alert)} bytes is malformed: it has {_SIZE}")
        fields: Any = ffi.new("struct pb_alert *")
        ffi.memmove(fields, alert, _SIZE)
        judged = self._judge(fields)
        if judged is None:
            return None
        kind, what = judged
        comm = printable(bytes(ffi.string(fields.comm)).decode("utf-8", "replace"))
        span = SpanContext(bytes(fields.span.trace_id), bytes(fields.span.span_id))
        return Firing(
            kind=kind,
            reason=f"{comm} {what} (pid {fields.tgid})",
            unix_ns=int(fields.time_ns) + unix_offset_ns,
            pid=int(fields.tgid),
            tid=int(fields.tid),
            span=span if fields.flags & lib.PB_ALERT_SPAN else None,
            repeats=int(fields.suppressed),
        )

    def _judge(self, fields: Any) -> tuple[TriggerKind, str] | None:
        if fields.kind == lib.PB_ALERT_EXIT:
            what = None if self.exits is None else reason_to_fire(int(fields.status), self.exits)
            return None if what is None else ("process_exit", what)
        if fields.kind == lib.PB_ALERT_OOM_KILL:
            return "oom_kill", "was chosen by the OOM killer"
        if fields.kind == lib.PB_ALERT_SYSCALL_ERROR:
            name = self.syscall_name(int(fields.number))
            return "syscall_error", f"got {self.error_name(-int(fields.result))} from {name}"
        if fields.kind == lib.PB_ALERT_SYSCALL_LATENCY:
            return self._slow(fields)
        raise ValueError(f"an alert of kind {fields.kind} is malformed")

    def _slow(self, fields: Any) -> tuple[TriggerKind, str] | None:
        call = (int(fields.instance), int(fields.sequence))
        if call in self._told:
            return None
        name, seconds = self.syscall_name(int(fields.number)), int(fields.duration_ns) / 1e9
        if not fields.flags & lib.PB_ALERT_IN_FLIGHT:
            return "syscall_latency", f"waited {seconds:.3f} s for {name}"
        self._told[call] = None
        if len(self._told) > _SEEN_MAX:
            self._told.popitem(last=False)
        return "syscall_latency", f"has been waiting {seconds:.3f} s for {name}"
