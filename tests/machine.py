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
def _features() -> dict[str, bool]:
    """Whether each is here; found once, since the recorder's programs are loaded for it."""
    return {finding.name: finding.ok for finding in probe_host()} | {name: there() for name, there in ELSEWHERE.items()}


def lacking(*names: str) -> str:
    """The reason to skip: the first of the features that is not here; empty when all are."""
    for name in names:
        assert name in _features(), f"no such feature: {name}"
    return next((f"missing feature: {name}" for name in names if not _features()[name]), "")


def allowed_skip(reason: str) -> bool:
    """Whether a skip's reason names a feature that is missing here."""
    match = SKIP.search(reason)
    return bool(match) and not _features().get(match[1].strip(), True)


def heavy(count: int, least: int = 1) -> int:
    """How often to do what is done ``count`` times on a machine of full speed."""
    return max(count // SLOWNESS, least)
