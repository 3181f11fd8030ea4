# SPDX-License-Identifier: Apache-2.0
"""The kernel tests on other kernels: boots Debian's under QEMU, two at a time, and prints a line for each.

Use: test_kernels.py [SERIES ...] (default: the series of tests/vm/features.tsv and the newest that is served)
     --thread multi   both virtual CPUs run at once: the tests marked as races, by default on the newest kernel only
     --select all     the tests of tests/vm/all instead of tests/vm/core, which has what a kernel can change, once each
     --tests PATH ... other tests
Passed is a kernel whose tests passed or were skipped for a feature that `otel-perfbuf check` finds missing there and
tests/vm/features.tsv says is missing; what check finds must be the table's row for row. A series that the mirror serves
no longer is reported and fails nothing. Needs QEMU and busybox (scripts/system-packages.sh kernels), x86-64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "kernels"))
from debian import Debian, Kernel, MirrorError
from guest import SLOWNESS, pack
from qemu import Boot, boot

PROJECT = Path(__file__).resolve().parents[1]
FEATURES = PROJECT / "tests/vm/features.tsv"
LOGS = PROJECT / ".cache/kernels"
AT_ONCE = 2
TIMEOUT_S = 900
SKIP = re.compile(r"missing feature: (.+?)\s*$")


@dataclass
class Verdict:
    """What is to be said of one kernel."""

    name: str
    passed: int = 0
    took_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line, and one for each fault."""
        skipped = ", ".join(f"{count} for {reason}" for reason, count in sorted(self.skips.items()))
        words = "FAILED" if self.faults else "passed"
        line = f"{self.name}: {words}, {self.passed} tests in {self.took_s:.0f} s"
        if skipped:
            line += f"; skipped, the kernel has none of it: {skipped}"
        return "\n".join([line, *(f"    {fault}" for fault in self.faults)])


def read_table() -> tuple[list[str], dict[str, dict[str, bool]]]:
    """The series, and for each feature whether a series has it."""
    lines = [line for line in FEATURES.read_text().splitlines() if line and not line.startswith("#")]
    head = lines[0].split("\t")[1:]
    rows = [line.split("\t") for line in lines[1:]]
    return head, {name: dict(zip(head, (word == "yes" for word in words), strict=True)) for name, *words in rows}


def expected(series: str) -> dict[str, bool]:
    """What the table says of a series; one that is newer than all has what the newest row has."""
    head, table = read_table()
    known = series if series in head else head[-1]
    return {name: row[known] for name, row in table.items()}


def judge_features(text: str, table: dict[str, bool]) -> list[str]:
    """What check found that the table says otherwise."""
    try:
        found = {row["name"]: row["ok"] for row in json.loads(text)["capabilities"]}
    except (ValueError, KeyError) as error:
        return [f"`otel-perfbuf check --json` gave no JSON: {error}"]
    faults = [f"check does not know {name}, which {FEATURES.name} has" for name in table if name not in found]
    for name, there in found.items():
        if name not in table:
            faults.append(f"{FEATURES.name} has no row for {name}, which check {'finds' if there else 'misses'}")
        elif there != table[name]:
            says = "there" if table[name] else "missing"
            faults.append(
                f"check finds {name} {'there' if there else 'missing'}, and {FEATURES.name} says it is {says}"
            )
    return faults


def judge_tests(text: str, table: dict[str, bool], verdict: Verdict) -> None:
    """Counts what pytest reported; a skip is right only for a feature that the table says is missing."""
    try:
        cases = ET.fromstring(text).iter("testcase")
    except ET.ParseError as error:
        verdict.faults.append(f"pytest's report cannot be read: {error}")
        return
    for case in cases:
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        wrong = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped")
        if wrong is not None:
            verdict.faults.append(f"{name}: {(wrong.get('message') or '').splitlines()[:1]}")
        elif skipped is not None:
            match = SKIP.search(skipped.get("message") or "")
            if match and table.get(match[1], True) is False:
                verdict.skips[match[1]] = verdict.skips.get(match[1], 0) + 1
            else:
                verdict.faults.append(f"{name} was skipped: {skipped.get('message')}")
        else:
            verdict.passed += 1


def judge(kernel: Kernel, found: Boot, logs: Path) -> Verdict:
    """The verdict on one boot."""
    verdict = Verdict(kernel.package, took_s=found.took_s)
    ended = re.search(r"^guest: exit (\d+)$", found.console, re.MULTILINE)
    if not ended:
        why = "its kernel or the guest died" if found.in_time else f"it was not done after {TIMEOUT_S} s"
        last = [line for line in found.console.splitlines() if line.strip()][-1:]
        verdict.faults.append(f"{why}; its last words: {last}")
    table = expected(kernel.series)
    verdict.faults += judge_features(found.ports[0], table)
    if found.ports[1]:
        judge_tests(found.ports[1], table, verdict)
    elif ended:
        verdict.faults.append("pytest left no report")
    if ended and ended[1] != "0" and not verdict.faults:
        verdict.faults.append(f"pytest ended with {ended[1]}")
    if verdict.faults:
        verdict.faults.append(f"see {os.path.relpath(logs / 'console')}")
    return verdict


def newest_series(debian: Debian) -> str:
    """The newest that is served or in the table."""
    return max([*debian.series(), *read_table()[0]], key=lambda series: tuple(map(int, series.split("."))))


def wanted_kernels(debian: Debian, asked: Sequence[str]) -> list[Kernel]:
    """The newest kernel of each series that is asked for and served."""
    served, kernels = debian.series(), []
    for series in asked or list(dict.fromkeys([*read_table()[0], newest_series(debian)])):
        kernel = debian.newest(series)
        if kernel is None:
            print(f"{series}: not served by the mirror any more (served: {', '.join(served)})", flush=True)
        else:
            kernels.append(kernel)
    return kernels


def selection(name: str) -> list[str]:
    """The tests of tests/vm/NAME; # begins a comment."""
    lines = (PROJECT / "tests/vm" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def main() -> int:
    """Runs it; 1 when a kernel failed or none could be tested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", nargs="*")
    parser.add_argument("--thread", choices=["single", "multi"], default="single")
    parser.add_argument("--select", choices=["core", "all"], default="core")
    parser.add_argument("--tests", nargs="+")
    args = parser.parse_args()
    single = args.thread == "single"
    tests = args.tests or (selection(args.select) if single else ["tests/kernel", "-m", "race"])
    if platform.machine() != "x86_64":
        print(f"test-kernels: nothing tested: it boots x86-64 kernels, and this machine is {platform.machine()}")
        return 0
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-perfbuf" / "kernels"
    try:
        debian = Debian(cache)
        debian.update()
        kernels = wanted_kernels(debian, args.series or ([] if single else [newest_series(debian)]))
    except MirrorError as error:
        print(f"test-kernels: asking the mirror for kernels failed: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="otel-perfbuf-kernels-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        initramfs = Path(folder, "guest.cpio")
        # Asserts as they are: to rewrite them in the guest takes as long as some tests.
        pack(PROJECT, initramfs, [*tests, "--tb=short", "--assert=plain"], SLOWNESS)

        def run(kernel: Kernel) -> Verdict:
            logs = LOGS / f"{kernel.series}-{args.thread}"
            found = boot(kernel.image, initramfs, logs, append="", thread=args.thread, timeout_s=TIMEOUT_S)
            verdict = judge(kernel, found, logs)
            print(verdict, flush=True)
            return verdict

        verdicts = list(pool.map(run, kernels))
    failed = [verdict.name for verdict in verdicts if verdict.faults]
    print(f"test-kernels: {len(verdicts) - len(failed)} of {len(verdicts)} kernels passed")
    return 1 if failed or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
