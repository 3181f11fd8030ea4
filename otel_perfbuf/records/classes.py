# SPDX-License-Identifier: Apache-2.0
"""Which system calls a list of names and strace's classes means: ``["%file", "!stat", "connect"]``.

Classes come from data/classes.tsv (made by scripts/make_class_tables.py with the installed strace as oracle).
What it is not: the filter; rules.py marks the syscalls for the BPF program.
Source: strace(1), -e trace=.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records.syscalls import data_lines

__all__ = ["load_classes", "select_syscalls"]


def load_classes() -> dict[str, frozenset[str]]:
    """The classes by name with their ``%``: ``{"%file": {"openat", ...}, ...}``; ``%net`` is ``%network``."""
    classes: dict[str, frozenset[str]] = {}
    for line in data_lines("classes.tsv"):
        name, members = line.split("\t")
        classes[name] = classes[members] if members.startswith("%") else frozenset(members.split())
    return classes


def _close(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, sorted(known), n=3, cutoff=0.6)
    if word.startswith("%"):
        matches = matches or sorted(known)
    return f"did you mean {', '.join(matches)}?" if matches else "names are those that strace prints"


def _resolve(
    words: Sequence[str], key: str, known: frozenset[str], classes: Mapping[str, frozenset[str]]
) -> tuple[set[str], set[str], list[tuple[str, str]]]:
    """The names meant, those behind a ``!``, and the problems found."""
    wanted: set[str] = set()
    unwanted: set[str] = set()
    problems: list[tuple[str, str]] = []
    for index, word in enumerate(words):
        text = word.strip()
        target = unwanted if text.startswith("!") else wanted
        name = text.removeprefix("!").strip()
        if name == "all":
            target |= known
        elif name.startswith("%") and name in classes:
            target |= classes[name] & known
        elif name in known:
            target.add(name)
        else:
            kind = "class of system calls" if name.startswith("%") else "system call"
            hint = _close(name, classes if name.startswith("%") else known)
            problems.append((f"{key}.{index}", f"{name!r} is no {kind} of this machine; {hint}"))
    return wanted, unwanted, problems


def select_syscalls(
    known: Iterable[str], *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> frozenset[str]:
    """The syscalls of ``known`` that are recorded: those included (all when none is) less those excluded.

    Both take names, classes (``%file``) and ``all``; ``!`` turns a word of ``include`` into an exclusion. All unknown
    words are reported at once: ConfigError, its problems at ``include.N`` and ``exclude.N``, with close matches.
    """
    names = frozenset(known)
    classes = load_classes()
    wanted, unwanted, problems = _resolve(include, "include", names, classes)
    excluded, back, more = _resolve(exclude, "exclude", names, classes)
    problems += more
    if problems:
        sentences = "; ".join(sentence for _, sentence in problems)
        raise ConfigError(f"choosing the system calls to record: {sentences}", tuple(problems))
    if not any(not word.strip().startswith("!") for word in include):
        wanted = set(names)
    return frozenset(wanted - unwanted - (excluded - back))
