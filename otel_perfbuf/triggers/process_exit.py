# SPDX-License-Identifier: Apache-2.0
"""A process's end as a trigger: which wait statuses fire.

What it is not: it reads no alert (alerts.py does). Source: wait(2): the status; signal(7): the signals whose default
action is to dump core.
"""

from __future__ import annotations

import os
import signal
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, PlainValidator
from pydantic_core import PydanticCustomError

__all__ = ["CORE_SIGNALS", "ProcessExitOptions", "reason_to_fire", "signal_name"]

CORE_SIGNALS: Final = frozenset({"ABRT", "BUS", "FPE", "ILL", "QUIT", "SEGV", "SYS", "TRAP", "XCPU", "XFSZ", "KILL"})
"""Signals that dump core by default, and KILL; without SIG."""

_FIRST_REALTIME: Final = 32


def signal_name(number: int) -> str:
    """The name as strace writes it: "SIGSEGV", "SIGRT_3"."""
    try:
        return signal.Signals(number).name if number < _FIRST_REALTIME else f"SIGRT_{number - _FIRST_REALTIME}"
    except ValueError:
        return f"signal {number}"


def _signals(value: object) -> object:
    if isinstance(value, str) and value in ("core", "none", "all"):
        return value
    if not isinstance(value, (list, tuple)):
        raise PydanticCustomError("signals", "write core, none, all or a list of signals like [SEGV, TERM]")
    names = []
    for item in value:
        name = str(item).upper().removeprefix("SIG")
        if f"SIG{name}" not in signal.Signals.__members__:
            raise PydanticCustomError("signals", "{name} is no signal of this host", {"name": str(item)[:40]})
        number = signal.Signals[f"SIG{name}"]
        if number >= _FIRST_REALTIME:
            raise PydanticCustomError(
                "signals", "{name} is a real-time signal: only all fires at these", {"name": name}
            )
        names.append(number.name.removeprefix("SIG"))  # IOT is ABRT, CLD is CHLD
    return tuple(names)


def _exit_codes(value: object) -> object:
    if isinstance(value, str) and value in ("none", "nonzero"):
        return value
    codes = value if isinstance(value, (list, tuple)) else None
    if codes is None or not all(type(code) is int and 0 < code < 256 for code in codes):
        raise PydanticCustomError("exit_codes", "write none, nonzero or a list of codes from 1 to 255 like [1, 70]")
    return tuple(codes)


class ProcessExitOptions(BaseModel):
    """`triggers: {process_exit: {...}}`: which ends of which kind fire."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exit_codes: Annotated[Literal["none", "nonzero"] | tuple[int, ...], PlainValidator(_exit_codes)] = "none"
    signals: Annotated[Literal["core", "none", "all"] | tuple[str, ...], PlainValidator(_signals)] = "core"


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
