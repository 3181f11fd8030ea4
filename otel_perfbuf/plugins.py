# SPDX-License-Identifier: Apache-2.0
"""Which readers installed packages have registered; told without loading one, or any C part of ours.

What it is not: it loads none (rings/protocol.py does). Source: Python packaging's entry points, CONTRACT section 2
(``mode``).
"""

from __future__ import annotations

from importlib.metadata import entry_points

__all__ = ["GROUP", "OURS", "registered_readers"]

GROUP = "otel_perfbuf.readers"
OURS = ("forward", "overwritable")


def registered_readers() -> tuple[str, ...]:
    """The names that installed packages have registered, sorted; nothing is loaded."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))
