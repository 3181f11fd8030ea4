# SPDX-License-Identifier: Apache-2.0
"""A reading of a dump: at most three candidates for the cause, the longest wait, what is still under way.

What it is not: no proof. It ranks what stands out among the records (_core/reading.h gathers it while they are encoded)
by rules that are data (records/data/cause_rules.tsv), and points to the records, so that a person can judge.
Source: the errors' meaning in the calls' man pages.

    score = the rule's weight + 10 x how late it last happened (0 at the dump's begin, 1 at its end)
            - what a storm costs (2 for each tenfold repetition: what failed once explains more than what is retried)
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.records.errnos import error_rows
from otel_perfbuf.records.plan import Plan
from otel_perfbuf.records.syscalls import data_lines

__all__ = ["Candidate", "Finding", "Reading", "rank", "read_reading"]

_MOST = 3
_NOISE = 30
_WORTH_TELLING_NS = 100_000_000  # shorter waits explain no failure
# Calls that wait for work as their purpose: named only when nothing else waited.
_IDLE = frozenset({
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6", "futex", "nanosleep",
    "clock_nanosleep", "execve", "wait4", "waitid", "pause", "rt_sigtimedwait", "rt_sigsuspend", "accept", "accept4",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Records that failed alike, by their last: ``call`` is a syscall's name, ``signal``, ``exit`` or ``oom_kill``."""

    call: str
    error: str
    line: str
    count: int
    last_ns: int
    tid: int
    instance: int
    sequence: int
    duration_ns: int = 0
    exit_only: bool = False
    tgid: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate for the cause: why, and which record shows it."""

    sentence: str
    finding: Finding
    score: float

    def text(self) -> str:
        """``nobody listens there: connect(...) = -1 ECONNREFUSED (...) (9,990 times, thread 4711, record 812)``."""
        found = self.finding
        times = f"{found.count:,} times, " if found.count > 1 else ""
        return f"{self.sentence}: {found.line} ({times}thread {found.tid}, record {found.sequence})"


@dataclass(frozen=True, slots=True)
class Reading:
    """Candidates, the likeliest first; the longest call that returned, the oldest that has not."""

    candidates: tuple[Candidate, ...] = ()
    longest_wait: Finding | None = None
    in_flight: Finding | None = None

    def sentences(self) -> Iterator[str]:
        """One line each, for the header's body."""
        for word, candidate in zip(("likely cause", "or", "or"), self.candidates, strict=False):
            yield f"{word}: {candidate.text()}"
        for words, found in (("longest wait", self.longest_wait), ("under way", self.in_flight)):
            if found is not None:
                place = f"thread {found.tid}, record {found.sequence}"
                yield f"{words} {found.duration_ns / 1e9:.3f} s: {found.line} ({place})"


@dataclass(frozen=True, slots=True)
class _Rule:
    weight: int
    call: re.Pattern[str]
    error: re.Pattern[str]
    line: str
    sentence: str


@cache
def _rules() -> tuple[_Rule, ...]:
    rows = (line.split("\t") for line in data_lines("cause_rules.tsv"))
    return tuple(
        _Rule(int(weight), re.compile(call), re.compile(error), line, sentence)
        for weight, call, error, line, sentence in rows
    )


def _weigh(found: Finding, lacks_interpreter: Callable[[Finding], bool]) -> tuple[int, str]:
    for rule in _rules():
        if not rule.call.fullmatch(found.call) or not rule.error.fullmatch(found.error):
            continue
        if rule.line == "<<exit_only>>":
            fits = found.exit_only
        elif rule.line == "<<interpreter>>":
            fits = lacks_interpreter(found)
        else:
            fits = bool(re.search(rule.line, found.line))
        if fits:
            return rule.weight, rule.sentence
    return 0, ""


def rank(
    findings: Iterable[Finding],
    begin_ns: int,
    end_ns: int,
    lacks_interpreter: Callable[[Finding], bool],
) -> tuple[Candidate, ...]:
    """The candidates of a dump that reaches from ``begin_ns`` to ``end_ns``, the likeliest first, at most three."""
    candidates = []
    for found in findings:
        weight, sentence = _weigh(found, lacks_interpreter)
        if weight < _NOISE:
            continue
        late = (found.last_ns - begin_ns) / max(end_ns - begin_ns, 1)
        score = weight + 10 * min(max(late, 0.0), 1.0) - 2 * math.log10(found.count)
        candidates.append(Candidate(sentence, found, score))
    candidates.sort(key=lambda candidate: (-candidate.score, -candidate.finding.last_ns))
    return tuple(candidates[:_MOST])


def _interpreter_of(path: str) -> str:
    """The interpreter that a script's first line names; "" when it is no script."""
    with open(path, "rb") as file:
        first = file.readline(256)
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""


def _lacks_interpreter(found: Finding) -> bool:
    """Whether an execve's ENOENT is about what the file names: itself it is there, as the process sees files."""
    path = re.search(r'"((?:[^"\\]|\\.)*)"', found.line)
    if path is None or not path[1].startswith("/"):
        return False
    root = f"/proc/{found.tgid}/root" if os.path.exists(f"/proc/{found.tgid}/root/") else ""
    try:
        interpreter = _interpreter_of(root + path[1])
    except OSError:
        return False
    return bool(interpreter) and not os.path.exists(root + interpreter)


@cache
def _errors() -> dict[int, str]:
    return {number: name for number, name, _ in error_rows()}


def _names(row: Any, plan: Plan) -> tuple[str, str]:
    if row.kind == lib.PB_RECORD_SYSCALL:
        return plan.syscall_name(int(row.number)), _errors().get(int(row.error), str(int(row.error)))
    if row.kind == lib.PB_RECORD_SIGNAL:
        number = int(row.status)
        name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"SIGRT_{number - 32}"
        return "signal", name
    return ("oom_kill", "") if row.kind == lib.PB_RECORD_OOM_KILL else ("exit", "")


def _finding(row: Any, plan: Plan) -> Finding:
    call, error = _names(row, plan)
    return Finding(
        call=call,
        error=error,
        line=bytes(ffi.buffer(row.line, row.line_bytes)).decode("ascii", "replace"),
        count=int(row.count),
        last_ns=int(row.last_ns),
        tid=int(row.tid),
        instance=int(row.instance),
        sequence=int(row.sequence),
        duration_ns=int(row.duration_ns),
        exit_only=bool(row.flags & lib.PB_FLAG_EXIT_ONLY),
        tgid=int(row.tgid),
    )


def _longest(rows: Sequence[Any], plan: Plan, least_ns: int = 0) -> Finding | None:
    found = [_finding(row, plan) for row in rows if row.count and row.duration_ns >= least_ns]
    return max(found, key=lambda each: (each.call not in _IDLE, each.duration_ns), default=None)


def read_reading(reading: Any, plan: Plan, begin_ns: int, end_ns: int) -> Reading:
    """The reading of what was gathered in a ``struct pb_reading`` while a dump was encoded."""
    failed = [_finding(row, plan) for row in reading.findings if row.count]
    told = rank((each for each in failed if each.call != "exit"), begin_ns, end_ns, _lacks_interpreter)
    return Reading(told, _longest(reading.waits, plan, _WORTH_TELLING_NS), _longest(reading.in_flight, plan))
