# SPDX-License-Identifier: Apache-2.0
"""Ends of processes: which fire, in whose words."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from pydantic import ValidationError

from otel_perfbuf.triggers.process_exit import CORE_SIGNALS, ProcessExitOptions, reason_to_fire, signal_name


def test_a_real_childs_status_is_understood() -> None:
    """The wait status of a process that really was killed reads as strace would write it."""
    child = subprocess.Popen(["sleep", "60"])
    child.send_signal(signal.SIGSEGV)
    _, status = os.waitpid(child.pid, 0)
    child.returncode = 0
    assert reason_to_fire(status, ProcessExitOptions()) == "was killed by SIGSEGV"


@pytest.mark.parametrize("name", sorted(CORE_SIGNALS))
def test_core_signals_fire_by_default(name: str) -> None:
    """Signals that dump core, and KILL, fire; with and without a core."""
    number = signal.Signals[f"SIG{name}"]
    assert reason_to_fire(number, ProcessExitOptions()) == f"was killed by SIG{name}"
    assert reason_to_fire(number | 0x80, ProcessExitOptions()) == f"was killed by SIG{name}"


@pytest.mark.parametrize("status", [0, 1 << 8, 255 << 8, signal.SIGTERM, signal.SIGPIPE, 40])
def test_other_ends_are_quiet_by_default(status: int) -> None:
    """Exit codes and other signals fire only when asked for."""
    assert reason_to_fire(status, ProcessExitOptions()) is None


def test_signals_have_one_name_each() -> None:
    """A signal's second name is taken for it; real-time signals, which the kernel's filter does not know, are not."""
    options = ProcessExitOptions(signals=("IOT", "sigterm"))
    assert options.signals == ("ABRT", "TERM")
    assert reason_to_fire(signal.SIGIOT, options) == "was killed by SIGABRT"
    with pytest.raises(ValidationError, match="real-time"):
        ProcessExitOptions(signals=("RTMAX",))
    assert reason_to_fire(signal.SIGRTMAX, ProcessExitOptions(signals="all")) == "was killed by SIGRT_32"


def test_exit_codes() -> None:
    """none, nonzero or a list of codes."""
    assert reason_to_fire(7 << 8, ProcessExitOptions(exit_codes="nonzero")) == "exited with 7"
    assert reason_to_fire(0, ProcessExitOptions(exit_codes="nonzero")) is None
    assert reason_to_fire(7 << 8, ProcessExitOptions(exit_codes=(7,))) == "exited with 7"
    assert reason_to_fire(8 << 8, ProcessExitOptions(exit_codes=(7,))) is None


def test_signals() -> None:
    """none, all, or a list of names with or without SIG."""
    assert reason_to_fire(signal.SIGSEGV, ProcessExitOptions(signals="none")) is None
    assert reason_to_fire(40, ProcessExitOptions(signals="all")) == "was killed by SIGRT_8"
    chosen = ProcessExitOptions.model_validate({"signals": ["SIGTERM", "hup"]})
    assert reason_to_fire(signal.SIGTERM, chosen) == "was killed by SIGTERM"
    assert reason_to_fire(signal.SIGHUP, chosen) == "was killed by SIGHUP"
    assert reason_to_fire(signal.SIGSEGV, chosen) is None


@pytest.mark.parametrize(
    "wrong", [{"exit_codes": [0]}, {"exit_codes": [True]}, {"exit_codes": "7"}, {"signals": ["NOPE"]}, {"signals": 9}]
)
def test_wrong_options(wrong: dict[str, object]) -> None:
    """A code or signal that cannot be is an error of one sentence, without pydantic's union branches."""
    with pytest.raises(ValidationError) as found:
        ProcessExitOptions.model_validate(wrong)
    assert len(found.value.errors()) == 1


def test_signal_names_are_straces() -> None:
    """Real-time signals are SIGRT_n, numbers that are none are shown."""
    assert [signal_name(number) for number in (9, 32, 64)] == ["SIGKILL", "SIGRT_0", "SIGRT_32"]
