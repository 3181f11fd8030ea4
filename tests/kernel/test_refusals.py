# SPDX-License-Identifier: Apache-2.0
"""What a kernel forbids is one sentence and exit 77: unprivileged use, too little locked memory, lockdown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from machine import SLOWNESS

NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
FULL_CAPS = "+bpf,+perfmon,+sys_ptrace,+dac_read_search"
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
LOCKDOWN = Path("/sys/kernel/security/lockdown")


def record(*prefix: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`record -- echo` behind other words."""
    words = ["record", "--on", "always", *options, "--", "echo", "it ran"]
    command = [*prefix, sys.executable, "-m", "otel_perfbuf", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300 * SLOWNESS, check=False, cwd=Path(__file__).parents[2]
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr; CMD was not run."""
    assert (done.returncode, done.stdout) == (77, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("otel-perfbuf: ")
    return line


@pytest.mark.needs("disposable kernel")
def test_an_ordinary_user_is_told_the_capabilities() -> None:
    """With the strictest settings: BPF for the privileged only, and perf events too."""
    for name, value in (("unprivileged_bpf_disabled", "2"), ("perf_event_paranoid", "3")):
        assert Path("/proc/sys/kernel", name).read_text().strip() == value
    words = sentence(record(*NOBODY))
    assert "CAP_BPF" in words
    assert "CAP_PERFMON" in words


@pytest.mark.needs("disposable kernel")
def test_too_little_locked_memory_is_told() -> None:
    """All capabilities for BPF, none for locked memory, and a limit of nothing: the sentence names the limit."""
    privileged = [*NOBODY, f"--inh-caps={FULL_CAPS}", f"--ambient-caps={FULL_CAPS}"]
    before = PARANOID.read_text()
    PARANOID.write_text("2")  # above, Debian's kernels refuse the ring itself without CAP_SYS_ADMIN
    try:
        # too small for the shared ring, which is no locked memory; too large for what perf_event_mlock_kb allows
        options = ("--per-cpu-bytes", "1MiB")
        words = sentence(record("prlimit", "--memlock=0:0", *privileged, options=options))
    finally:
        PARANOID.write_text(before)
    assert "RLIMIT_MEMLOCK" in words


@pytest.mark.needs("disposable kernel")
def test_a_distributions_strictest_perf_setting_is_told() -> None:
    """CAP_PERFMON is not enough for Debian's level 3: the sentence says which level is."""
    assert PARANOID.read_text().strip() == "3"
    words = sentence(record(*NOBODY, f"--inh-caps={FULL_CAPS}", f"--ambient-caps={FULL_CAPS}"))
    assert "perf_event_paranoid is 3" in words
    assert "set it to 2" in words


@pytest.mark.needs("disposable kernel")
@pytest.mark.irreversible
def test_lockdown_is_told() -> None:
    """confidentiality forbids BPF to read kernel memory: record says so, and check too."""
    LOCKDOWN.write_text("confidentiality")
    assert "[confidentiality]" in LOCKDOWN.read_text()
    assert "lockdown=confidentiality" in sentence(record())
    check = subprocess.run(
        [sys.executable, "-m", "otel_perfbuf", "check"],
        capture_output=True,
        text=True,
        timeout=300 * SLOWNESS,
        check=False,
    )
    assert check.returncode == 1
    assert "NO  lockdown: " in check.stdout
