# SPDX-License-Identifier: Apache-2.0
"""What the machine under test lacks, and how slow it is: the only reasons for which a kernel test may skip or shrink.

A test says what it needs by @pytest.mark.needs("kprobes", ...): names of `otel-perfbuf check`, or of ELSEWHERE below.
What it is not: a guess from a kernel version. Each feature is found by trying.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache

from otel_perfbuf.rings.probe import probe_host

__all__ = ["DISPOSABLE", "SLOWNESS", "allowed_skip", "heavy", "lacking"]

# A guest under software emulation: how many times slower than the machine that the tests' sizes were chosen on.
SLOWNESS = int(os.environ.pop("OTEL_PERFBUF_TEST_SLOWNESS", "1"))
DISPOSABLE = os.environ.pop("OTEL_PERFBUF_TEST_DISPOSABLE", "") == "1"
SKIP = re.compile(r"missing feature: ([^'\"]+)")  # in the report it stands in quotes
# What only tests ask for.
ELSEWHERE: dict[str, Callable[[], bool]] = {
    # a guest's: CPUs are taken away, and it is locked down at the end
    "disposable kernel": lambda: DISPOSABLE,
}


@cache
def _lacks() -> frozenset[str]:
    missing = {finding.name for finding in probe_host() if not finding.ok}
    return frozenset(missing | {name for name, there in ELSEWHERE.items() if not there()})


def lacking(*names: str) -> str:
    """The reason to skip: the first of the features that is not here; empty when all are."""
    known = {finding.name for finding in probe_host()} | set(ELSEWHERE) if names else set()
    assert set(names) <= known, f"no such feature: {sorted(set(names) - known)}"
    return next((f"missing feature: {name}" for name in names if name in _lacks()), "")


def allowed_skip(reason: str) -> bool:
    """Whether a skip's reason names a feature that is missing here."""
    match = SKIP.search(reason)
    return bool(match) and match[1].strip() in _lacks()


def heavy(count: int, least: int = 1) -> int:
    """How often to do what is done ``count`` times on a machine of full speed."""
    return max(count // SLOWNESS, least)
