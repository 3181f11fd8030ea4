# SPDX-License-Identifier: Apache-2.0
"""The system calls of an architecture: numbers, names, and the names and C types of their arguments.

Numbers and user names come from the shipped tables (data/syscalls_*.tsv, made out of the kernel's headers by
scripts/make_syscall_tables.py); argument names and types from the running kernel's tracefs where there is one, since
they change between kernels, else from the same tables.

What it is not: it does not know how an argument is shown (arguments.py).
Source: /sys/kernel/tracing/events/syscalls/sys_enter_*/format.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from otel_perfbuf.errors import ConfigError

__all__ = [
    "MACHINES",
    "TRACEFS_ROOTS",
    "Parameter",
    "Syscall",
    "data_lines",
    "load_syscalls",
    "parse_format",
    "shipped_syscalls",
]

MACHINES = ("x86_64", "aarch64")
TRACEFS_ROOTS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))

_FIELD = re.compile(r"^\tfield:(.*);\toffset:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument as the kernel declares it: ``Parameter("const char *", "filename")``."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class Syscall:
    """One row: ``name`` is the user's (strace's) name, ``kernel_name`` the one in tracefs (``newfstat``)."""

    number: int
    name: str
    kernel_name: str
    parameters: tuple[Parameter, ...]


def data_lines(name: str) -> list[str]:
    """The lines of a data file of this package, without comments and empty ones."""
    text = (resources.files("otel_perfbuf.records") / "data" / name).read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def _parameter(declaration: str) -> Parameter:
    """``const char * filename`` to type and name; a name may have no type before it in no format known."""
    type_, _, name = declaration.strip().rpartition(" ")
    return Parameter(" ".join(type_.split()), name)


def shipped_syscalls(machine: str) -> dict[int, Syscall]:
    """The shipped table of ``x86_64`` or ``aarch64`` by number. ConfigError for another machine."""
    if machine not in MACHINES:
        raise ConfigError(f"loading the syscall table of {machine!r}: only {' and '.join(MACHINES)} have one")
    found = {}
    for line in data_lines(f"syscalls_{machine}.tsv"):
        number, name, kernel_name, arguments = line.split("\t")
        parameters = tuple(_parameter(argument) for argument in arguments.split("|") if argument)
        found[int(number)] = Syscall(int(number), name, kernel_name, parameters)
    return found


def parse_format(text: str) -> tuple[Parameter, ...]:
    """The arguments that a ``sys_enter_*/format`` file declares, in order; the common fields are left out.

    So are the texts that arguments point to, of which newer kernels (7.3) have a ``__data_loc`` field each.
    """
    declared = (_parameter(field) for field in _FIELD.findall(text))
    own = (p for p in declared if not p.name.startswith("common_") and p.name != "__syscall_nr")
    return tuple(p for p in own if not p.type.startswith("__data_loc "))


def _tracefs(roots: tuple[Path, ...]) -> Path | None:
    for root in roots:
        events = root / "events" / "syscalls"
        try:
            if (events / "sys_enter_openat" / "format").is_file():
                return events
        except OSError:  # no permission to look: the shipped table does
            continue
    return None


def load_syscalls(
    machine: str | None = None, *, roots: tuple[Path, ...] = TRACEFS_ROOTS, parameters: Mapping[str, str] | None = None
) -> dict[int, Syscall]:
    """Every syscall of this machine by number; argument names from tracefs under ``roots`` when it can be read.

    ``machine`` defaults to the running one; another machine never asks tracefs. ``parameters`` (tracefs name to
    format text) takes tracefs's place. Reads each format file once. Raises ConfigError for an unknown machine.
    """
    running = platform.machine()
    table = shipped_syscalls(machine or running)
    if machine not in (None, running) and parameters is None:
        return table
    events = _tracefs(roots) if parameters is None else None
    if events is None and parameters is None:
        return table
    for number, syscall in table.items():
        try:
            if parameters is not None:
                text = parameters[syscall.kernel_name]
            else:
                assert events is not None
                text = (events / f"sys_enter_{syscall.kernel_name}" / "format").read_text(encoding="ascii")
        except (OSError, KeyError, UnicodeDecodeError):
            continue  # not in this kernel: the shipped row stays
        found = parse_format(text)
        # names change between kernels, the number of arguments does not: another count is not understood
        if len(found) == len(syscall.parameters):
            table[number] = replace(syscall, parameters=found)
    return table
