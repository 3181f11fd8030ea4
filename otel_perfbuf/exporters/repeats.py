# SPDX-License-Identifier: Apache-2.0
"""Runs of records that say the same again, folded for the text view: ``# ... 412 more like the last``.

What it is not: it drops nothing anywhere else; files and wires have every record. Source: CONTRACT section 1, "Text".

Alike are records of one thread whose bodies differ in numbers and addresses only (not in strings: another path).
A loop of up to eight calls (socket, connect, close) counts as one: after two rounds that are alike, more are folded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

__all__ = ["Folded", "Line", "folded"]

_PERIOD_MAX: Final = 8
_VARIABLE: Final = re.compile(r'"(?:[^"\\]|\\.)*"(?:\.\.\.)?|\b(?:0x[0-9a-f]+|\d+)\b')


@dataclass(slots=True)
class Folded:
    """``count`` records that are like the ``period`` records before them, in turn."""

    count: int
    period: int

    def text(self) -> str:
        """A line that is no record."""
        which = "the last" if self.period == 1 else f"the last {self.period}"
        return f"# ... {self.count:,} more like {which}"


class Line(NamedTuple):
    """One line to be shown, for the records numbered from ``first`` to ``last``."""

    first: int
    last: int
    item: LogRecord | Folded


def _shape(record: LogRecord) -> str:
    thread = next((pair.value.int_value for pair in record.attributes if pair.key == "thread.id"), 0)
    return f"{thread} {_VARIABLE.sub(_variable, record.body.string_value)}"


def _variable(found: re.Match[str]) -> str:
    """A number is like any other, a string only like itself."""
    return found[0] if found[0].startswith('"') else "_"


def folded(records: Iterable[tuple[int, LogRecord]]) -> Iterator[Line]:
    """The numbered records, with what repeats folded; streams, and looks at the last sixteen only."""
    shapes: deque[str] = deque(maxlen=2 * _PERIOD_MAX)
    run: Folded | None = None
    first = last = 0
    for number, record in records:
        shape = _shape(record)
        if run is not None and shape == shapes[-run.period]:
            run.count += 1
        else:
            if run is not None:
                yield Line(first, last, run)
            period = _period(shapes, shape)
            run = Folded(1, period) if period else None
            first = number
        if run is None:
            yield Line(number, number, record)
        shapes.append(shape)
        last = number
    if run is not None:
        yield Line(first, last, run)


def _period(shapes: deque[str], shape: str) -> int:
    """The shortest loop of which two rounds are behind us and ``shape`` begins a third; 0: none."""
    known = list(shapes)
    for period in range(1, _PERIOD_MAX + 1):
        if len(known) >= 2 * period and known[-period:] == known[-2 * period : -period] and shape == known[-period]:
            return period
    return 0
