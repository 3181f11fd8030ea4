# SPDX-License-Identifier: Apache-2.0
"""Which CPUs there are. What it is not: it opens no rings.

Source: Linux Documentation/admin-guide/cputopology.rst ("0-3,5": a list with holes; the map key is the CPU's number).
"""

from __future__ import annotations

from otel_perfbuf.errors import KernelError

__all__ = ["online_cpus", "parse_cpu_list"]

ONLINE = "/sys/devices/system/cpu/online"


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The CPU numbers of a list such as ``0-3,5``, ascending; ValueError when it is none."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text.strip()!r} is no list of CPUs such as 0-3,5")
        cpus.update(range(int(first), int(last or first) + 1))
    if not cpus:
        raise ValueError(f"{text.strip()!r} is no list of CPUs such as 0-3,5")
    return tuple(sorted(cpus))


def online_cpus() -> tuple[int, ...]:
    """The CPUs that are online now, ascending; there may be holes. KernelError when sysfs does not tell."""
    try:
        with open(ONLINE, encoding="ascii") as file:
            return parse_cpu_list(file.read())
    except OSError as error:
        raise KernelError(error.errno or 0, f"reading which CPUs are online from {ONLINE} (mount sysfs)") from error
