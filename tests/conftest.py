# SPDX-License-Identifier: Apache-2.0
"""What all tests share: markers by folder, root for the kernel's part, and no silent skip where the kernel is tested.

What it is not: other fixtures live beside the tests that use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from machine import DISPOSABLE, SLOWNESS, allowed_skip, lacking

TESTS = Path(__file__).parent
# Taken out of the environment: OTEL_* of the processes that tests start belong into what is recorded of them.
KERNEL_TESTS = os.environ.pop("OTEL_PERFBUF_KERNEL_TESTS", "") == "1"
TIMEOUT_S = {"kernel": 120 * SLOWNESS, "e2e": 240 * SLOWNESS, "scenarios": 240}

# scripts/asan.sh preloads the sanitizers' libraries for our modules in this process; programs that a test starts are
# other people's, and an interceptor would judge their calls (prctl with a null name) instead of ours. Tests that start
# an interpreter with our C parts put it back (a sanitized module needs its run time first).
os.environ["OTEL_PERFBUF_TEST_PRELOAD"] = os.environ.pop("LD_PRELOAD", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by their folder; what waits for real processes gets more time than a unit test."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in TIMEOUT_S:
            item.add_marker(folder)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S[folder]))
    items.sort(key=lambda item: item.get_closest_marker("irreversible") is not None)
    # A fork of a process with threads may hang in any library's locks: these come before threads are there.
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Kernel and end-to-end tests need root; `make test` gives it to them."""
    if os.geteuid() != 0 and any(item.get_closest_marker(name) for name in TIMEOUT_S):
        pytest.skip("needs root: run `make test`, which uses sudo for these tests")
    for marker in item.iter_markers("needs"):
        if reason := lacking(*marker.args):
            pytest.skip(reason)


@pytest.fixture
def register_readers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``register(name="module:factory", ...)`` installs a package with these readers; gives its place (PYTHONPATH)."""

    def register(**readers: str) -> Path:
        folder = tmp_path_factory.mktemp("installed")
        metadata = folder / "custom_readers-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: custom-readers\nVersion: 1.0\n")
        lines = [f"{name} = {value}\n" for name, value in readers.items()]
        (metadata / "entry_points.txt").write_text("".join(["[otel_perfbuf.readers]\n", *lines]))
        monkeypatch.syspath_prepend(str(folder))
        return folder

    return register


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With OTEL_PERFBUF_KERNEL_TESTS=1 a skipped test is a failed one: a host that cannot test must say so.

    But for a feature that the kernel lacks: then the test's marker names it, and `otel-perfbuf check` finds it missing.
    """
    report = yield
    if KERNEL_TESTS and report.skipped and not hasattr(report, "wasxfail") and not allowed_skip(str(report.longrepr)):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped although OTEL_PERFBUF_KERNEL_TESTS=1: {report.longrepr}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A guest's failures are on its console at once: it may not live to print them at the end."""
    if DISPOSABLE and report.failed:
        Path("/dev/console").write_text(f"\n{report.nodeid}\n{report.longreprtext[-1500:]}\n")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself as a whole."""
    report = yield
    if KERNEL_TESTS and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skipped although OTEL_PERFBUF_KERNEL_TESTS=1: {report.longrepr}"
    return report
