# SPDX-License-Identifier: Apache-2.0
"""What CMD inherits of its recorder: its signals are as they would be without one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from recording import TIMEOUT_S, record

STATUS = ["grep", "SigIgn", "/proc/self/status"]


@pytest.mark.parametrize("ignored", [[], [signal.SIGHUP], [signal.SIGINT, signal.SIGHUP]])
def test_ignored_signals_are_the_callers(ignored: list[signal.Signals]) -> None:
    """nohup reaches CMD, and what Python ignores for itself (SIGPIPE, SIGXFSZ) does not."""

    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    plain = subprocess.run(STATUS, capture_output=True, text=True, preexec_fn=ignore, timeout=TIMEOUT_S, check=True)
    command = [sys.executable, "-m", "otel_perfbuf", "record", "--", *STATUS]
    recorded = subprocess.run(command, capture_output=True, text=True, preexec_fn=ignore, timeout=TIMEOUT_S, check=True)
    assert recorded.stdout == plain.stdout


def test_a_realtime_signals_death_is_told() -> None:
    """128 + N and strace's name, though Python has no name for it."""
    done = record(command=["sh", "-c", "kill -40 $$"])
    assert done.returncode == 128 + 40
    assert "CMD was killed by SIGRT_8" in done.stderr
