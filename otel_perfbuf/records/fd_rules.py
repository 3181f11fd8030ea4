# SPDX-License-Identifier: Apache-2.0
"""What a system call that works does to its process's fds: the meaning of data/fd_rules.tsv.

What it is not: it follows no fd (_core/fd_names.c does). Source: otel_perfbuf/_core/plan.h (struct pb_fd_rule).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from otel_perfbuf.records.syscalls import data_lines

__all__ = ["FdRule", "fd_calls", "fd_rule"]


@dataclass(frozen=True, slots=True)
class FdRule:
    """``fd``, ``path`` and ``flags`` are argument numbers, None: there is no such argument."""

    action: str
    fd: int | None = None
    path: int | None = None
    flags: int | None = None
    close_on_exec: int = 0
    text: str | None = None


def _number(cell: str) -> int | None:
    return None if cell in ("", "-") else int(cell, 0)


@cache
def _rules() -> dict[str, FdRule]:
    rules = {}
    for line in data_lines("fd_rules.tsv"):
        cells = [cell.strip() for cell in line.split("\t")]
        name, action, fd, path, flags, bit, text = [*cells, *[""] * 7][:7]
        rules[name] = FdRule(action, _number(fd), _number(path), _number(flags), _number(bit) or 0, text or None)
    return rules


def fd_rule(syscall: str, result_kind: str) -> FdRule | None:
    """The rule of a syscall; one whose result is an fd that no row tells about makes an unknown one; None: none."""
    return _rules().get(syscall) or (FdRule("unknown") if result_kind == "fd" else None)


def fd_calls() -> frozenset[str]:
    """The syscalls that must all be recorded for fds to be followed: those of the table that change any (others make
    unknown ones).
    """
    return frozenset(name for name, rule in _rules().items() if rule.action != "local")
