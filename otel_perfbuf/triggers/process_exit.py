# SPDX-License-Identifier: Apache-2.0
"""A process's end as a trigger: from the kernel's alert to a firing, or to none.

What it is not: it reads no ring (the recorder drains `alerts` and asks here). Source: bpf/records.h, struct pb_alert;
wait(2): the status; signal(7): the signals whose default action is to dump core.
"""

from __future__ import annotations

import os
import signal
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from otel_perfbuf.triggers.datagram import printable
from otel_perfbuf.triggers.firing import Firing

__all__ = ["CORE_SIGNALS", "ProcessExitOptions", "firing_from_alert", "reason_to_fire", "signal_name"]

CORE_SIGNALS: Final = frozenset({"ABRT", "BUS", "FPE", "ILL", "QUIT", "SEGV", "SYS", "TRAP", "XCPU", "XFSZ", "KILL"})
"""Signals that dump core by default, and KILL; without SIG."""

_FIRST_REALTIME: Final = 32


def signal_name(number: int) -> str:
    """ "SIGSEGV"; a real-time signal as strace writes it: "SIGRT_3"."""
    try:
        return signal.Signals(number).name if number < _FIRST_REALTIME else f"SIGRT_{number - _FIRST_REALTIME}"
    except ValueError:
        return f"signal {number}"


def _name(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("signal", "a signal is a name like SEGV or SIGTERM")
    name = value.upper().removeprefix("SIG")
    if f"SIG{name}" not in signal.Signals.__members__:
        raise PydanticCustomError("signal", "{name} is no signal of this host", {"name": value})
    return name


SignalName = Annotated[str, BeforeValidator(_name)]
ExitCode = Annotated[int, Field(ge=1, le=255, strict=True)]


class ProcessExitOptions(BaseModel):
    """`triggers: {process_exit: {...}}`: which ends of which kind fire."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exit_codes: Literal["none", "nonzero"] | tuple[ExitCode, ...] = "none"
    signals: Literal["core", "none", "all"] | tuple[SignalName, ...] = "core"


def reason_to_fire(status: int, options: ProcessExitOptions) -> str | None:
    """What the wait status says ("was killed by SIGSEGV", "exited with 1") if it is one that fires, else None."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number:
        name = signal_name(number)
        wanted = CORE_SIGNALS if options.signals == "core" else options.signals
        if wanted == "all" or (wanted != "none" and name.removeprefix("SIG") in wanted):
            return f"was killed by {name}"
        return None
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
    if code and options.exit_codes != "none" and (options.exit_codes == "nonzero" or code in options.exit_codes):
        return f"exited with {code}"
    return None


def firing_from_alert(alert: bytes | memoryview, options: ProcessExitOptions, unix_offset_ns: int) -> Firing | None:
    """The firing of one struct pb_alert (longer samples are padded by the kernel); None when the end is a quiet one.

    ``unix_offset_ns`` makes unix time of the kernel's. Raises ValueError when the bytes are too few.
    """
    from otel_perfbuf._core._core import ffi

    size = ffi.sizeof("struct pb_alert")
    if len(alert) < size:
        raise ValueError(f"an alert of {len(alert)} bytes is malformed: it has {size}")
    fields: Any = ffi.new("struct pb_alert *")
    ffi.memmove(fields, alert, size)
    what = reason_to_fire(int(fields.status), options)
    if what is None:
        return None
    comm = printable(bytes(ffi.string(fields.comm)).decode("utf-8", "replace"))
    return Firing(
        kind="process_exit",
        reason=f"{comm} {what} (pid {fields.tgid})",
        unix_ns=int(fields.time_ns) + unix_offset_ns,
        pid=int(fields.tgid),
        tid=int(fields.tid),
    )
