# SPDX-License-Identifier: Apache-2.0
"""Impatience: signals to `record` at every moment, a stderr that takes nothing. CMD's status is kept anyway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attaching import attached

# A background job of a shell without job control starts with SIGINT ignored, and what it starts too.
DEFAULT_SIGINT = ["env", "--default-signal=INT"]
RECORD = [sys.executable, "-m", "otel_perfbuf", "record", "--lines", "1"]
SLEEPER = ["sh", "-c", "echo ready; exec sleep 60"]
WAIT_S = 60


def test_a_second_ctrl_c_does_not_take_the_dump() -> None:
    """The terminal's SIGINT ends CMD; another one, while the dump is made, ends nothing."""
    with subprocess.Popen(
        [*DEFAULT_SIGINT, *RECORD, "--", *SLEEPER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        while process.poll() is None and children(process.pid):
            time.sleep(0.001)
        for _ in range(20):  # CMD is gone: these meet the dump being made
            if process.poll() is not None:
                break
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.02)  # no event tells that CMD is gone and the dump is not made yet
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGINT
    assert "killed by SIGINT" in said.splitlines()[0]
    assert "+++ killed by SIGINT +++" in said


def test_ctrl_c_at_any_moment_ends_an_attached_recording_with_its_dump(tmp_path: Path) -> None:
    """From the moment at which the trigger socket is there: the first asks for the dump, others change nothing."""
    with subprocess.Popen(SLEEPER, stdout=subprocess.PIPE, text=True) as target:
        try:
            assert target.stdout is not None
            assert target.stdout.readline() == "ready\n"
            with attached(("-p", str(target.pid), "-o", tmp_path / "dump", "--format", "text")) as recorder:
                while recorder.poll() is None:
                    recorder.send_signal(signal.SIGINT)
                    time.sleep(0.002)  # no event tells which step of its end it is at
                _, said = recorder.communicate(timeout=WAIT_S)
            assert recorder.returncode == 0, said
        finally:
            target.kill()
    assert "<unfinished ...>" in (tmp_path / "dump").read_text()


@pytest.mark.parametrize("after_s", [0.2, 0.5, 0.8])
def test_an_early_end_leaves_nothing_behind(tmp_path: Path, after_s: float) -> None:
    """SIGTERM while it starts: no traceback, no directory of a socket."""
    with subprocess.Popen(
        [*RECORD, "--", "true"], stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as process:
        time.sleep(after_s)
        process.terminate()
        _, said = process.communicate(timeout=WAIT_S)
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_a_stderr_that_takes_nothing_does_not_change_the_status(stream: str) -> None:
    """Closed or full: 3 stays 3."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {stream}', "sh", *RECORD, "--", "sh", "-c", "exit 3"], timeout=WAIT_S, check=False
    )
    assert done.returncode == 3


def test_a_long_tmpdir_is_no_obstacle(tmp_path: Path) -> None:
    """A socket's path is at most 107 bytes: the trigger socket is elsewhere then."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    done = subprocess.run(
        [*RECORD, "--", "sh", "-c", 'test -S "$OTEL_PERFBUF_TRIGGER_SOCKET"'],
        capture_output=True,
        env={**os.environ, "TMPDIR": str(long)},
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def children(pid: int) -> list[str]:
    """The ids of a process's children."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
