# SPDX-License-Identifier: Apache-2.0
"""What `strace -f -a1 -o FILE` wrote and what the recorder dumped of the same run, as one kind of event each thread.

What it is not: a comparison (test_strace.py), and nothing here uses the project's own decoders.
Source: strace(1), "OUTPUT FORMAT" in 6.1: `PID name(args) = result`, `<unfinished ...>`, `<... name resumed>`,
`--- SIGNAL {...} ---`, `+++ exited with N +++`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from recording import Record

__all__ = ["Event", "Recorded", "read_records", "read_strace"]

_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_NAME = re.compile(r"(\w+)\(")
_RESULT = re.compile(r"\) += (-?(?:0x[0-9a-f]+|\d+)|\?)(?: (E[A-Z0-9_]+))?(?=[ <]|$)")
_SIGNAL = re.compile(r"--- (\w+) ")
_STOPPED = "--- stopped by "
_SUPERSEDED = re.compile(r"\+\+\+ superseded by execve in pid (\d+) \+\+\+")
_END = re.compile(r"\+\+\+ (exited with \d+|killed by \w+)(?: \(core dumped\))? \+\+\+")


@dataclass(frozen=True)
class Event:
    """One thing that a thread did: ``kind`` is call, signal or end.

    ``result``: of a call its value as an unsigned 64-bit number, an error's name, or "?" when it had none; of an end
    its sentence ("superseded" by another thread's exec); of a signal "". ``text``: the whole line without strace's
    thread id.
    """

    kind: str
    name: str
    result: int | str
    text: str

    @property
    def key(self) -> tuple[str, str, int | str]:
        """What is compared; the text is not."""
        return (self.kind, self.name, self.result)


@dataclass(frozen=True)
class Recorded:
    """A thread's process and what it did."""

    process: int
    events: list[Event]


def _number(text: str) -> int:
    value = int(text, 8) if re.fullmatch(r"0\d+", text) else int(text, 0)
    return value & 0xFFFF_FFFF_FFFF_FFFF


def _call(text: str) -> Event:
    name = _NAME.match(text)
    results = list(_RESULT.finditer(text))
    assert name and results, f"not a call of strace's: {text}"
    value, error = results[-1].groups()
    result: int | str = error or ("?" if value == "?" else _number(value))
    return Event("call", name[1], result, text)


def read_strace(text: str) -> dict[int, list[Event]]:
    """Each thread's events in the order in which they began; a line of another form is an error."""
    threads: dict[int, list[Event]] = {}
    pending: dict[int, str] = {}
    for line in text.splitlines():
        parts = _LINE.fullmatch(line)
        assert parts, f"not a line of strace -f: {line}"
        thread, rest = int(parts[1]), parts[2]
        events = threads.setdefault(thread, [])
        if rest.startswith(_STOPPED):
            continue
        if superseded := _SUPERSEDED.fullmatch(rest):
            # the other thread goes on under this id; what this one did stays in front, as its own instance
            other = int(superseded[1])
            events += [Event("end", "", "superseded", rest), *threads.pop(other)]
            pending[thread] = pending.pop(other)
        elif end := _END.fullmatch(rest):
            events.append(Event("end", "", end[1], rest))
        elif signal := _SIGNAL.match(rest):
            events.append(Event("signal", signal[1], "", rest))
        elif rest.endswith(_UNFINISHED):
            assert thread not in pending, f"two calls at once: {line}"
            pending[thread] = rest.removesuffix(_UNFINISHED)
        elif resumed := _RESUMED.fullmatch(rest):
            events.append(_call(pending.pop(thread) + resumed[2]))
        else:
            events.append(_call(rest))
    assert not pending, f"calls that never ended: {pending}"
    return threads


def _recorded(record: Record, attributes: dict[str, object]) -> Event | None:
    if record.name == "perfbuf.syscall":
        value = attributes.get("perfbuf.syscall.return_value")
        result = attributes.get("error.type", "?" if value is None else int(str(value)) & 0xFFFF_FFFF_FFFF_FFFF)
        assert isinstance(result, int | str)
        return Event("call", str(attributes["perfbuf.syscall.name"]), result, record.body)
    if record.name == "perfbuf.signal":
        return Event("signal", str(attributes["perfbuf.signal.name"]), "", record.body)
    if record.name == "perfbuf.process.exit":
        end = _END.fullmatch(record.body)
        assert end, f"not an end: {record.body}"
        return Event("end", "", end[1], record.body)
    assert record.name in ("perfbuf.process.exec", "perfbuf.process.fork"), f"unexpected: {record.name} {record.body}"
    return None


def read_records(records: Iterable[Record]) -> dict[int, Recorded]:
    """Each thread's events in the order of their sequence, which has no gap; exec and fork records are checked only."""
    numbered: dict[int, dict[tuple[int, int], Event | None]] = {}
    processes: dict[int, int] = {}
    for record in records:
        attributes = record.attributes
        number = int(str(attributes["thread.id"]))
        place = (int(str(attributes["perfbuf.thread.instance"])), int(str(attributes["perfbuf.sequence"])))
        thread = numbered.setdefault(number, {})
        assert place not in thread, f"twice: {place} {record.body}"
        thread[place] = _recorded(record, attributes)
        process = int(str(record.resource["process.pid"]))
        assert processes.setdefault(number, process) == process, f"thread {number} in two processes"
    threads: dict[int, Recorded] = {}
    for number, found in numbered.items():
        counts: dict[int, int] = {}
        for instance, sequence in sorted(found):
            counts[instance] = counts.get(instance, 0) + 1
            assert sequence == counts[instance], f"thread {number}: {sequence} follows {counts[instance] - 1}"
        threads[number] = Recorded(processes[number], [event for _, event in sorted(found.items()) if event])
    return threads
