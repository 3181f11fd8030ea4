# SPDX-License-Identifier: Apache-2.0
"""What an application publishes of its spans, moment by moment; each case is a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def _run(case: str) -> dict[str, int]:
    program = Path(__file__).parent / "exact_program.py"
    done = subprocess.run([sys.executable, program, case], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, int] = json.loads(done.stdout)
    return seen


def test_interleaved_tasks_are_exact() -> None:
    """20 tasks on one loop, to_thread within: every one of 1,500 moments has the current span, none another."""
    seen = _run("interleaved")
    assert seen.keys() == {"exact"}
    assert seen["exact"] >= 1500


def test_frames_that_are_not_known_publish_nothing() -> None:
    """Spans left open by work items, contexts run elsewhere, threads started past `threading`: missing, never wrong."""
    seen = _run("pools")
    assert "wrong" not in seen
    assert seen["exact"] >= 10
    assert seen["missing"] >= 5


def test_a_loop_without_hooks_publishes_nothing() -> None:
    """As uvloop's: all that runs on it stays unstamped."""
    seen = _run("other_loop")
    assert "wrong" not in seen
    assert seen["missing"] >= 15


def test_a_forked_child_registers_itself() -> None:
    """And its parent's slot is left alone."""
    assert _run("forks") == {"exact": 1, "kept": 1}


def test_an_agent_that_comes_back_is_asked_again() -> None:
    """The span that was open meanwhile is published in the new map when the thread's span changes next."""
    assert _run("restart") == {"exact": 3}


def test_an_answer_that_is_none_harms_nothing() -> None:
    """A map that cannot be: no span is published, and the application does not notice."""
    seen = _run("garbage")
    assert seen["missing"] >= 1500


@pytest.mark.parametrize("module", ["gevent", "eventlet"])
def test_green_threads_publish_nothing(module: str) -> None:
    """They switch on one thread, and no hook sees it."""
    code = (
        f"import sys, types; sys.modules[{module!r}] = types.ModuleType({module!r})\n"
        f"sys.argv = ['x', 'pools']; exec(open({str(Path(__file__).parent / 'exact_program.py')!r}).read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() <= {"missing", "exact"}
    assert json.loads(done.stdout)["missing"] >= 10
