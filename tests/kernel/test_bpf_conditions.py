# SPDX-License-Identifier: Apache-2.0
"""Triggers that the kernel decides: an errno, a slow call, in flight and at its end; and how often one may wake."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bpf_recording import Recording, Target, wait_until

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.bpf.syscalls import AlertRules, SyscallProgram
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records import build_plan, syscall_rules
from otel_perfbuf.rings import PerfReader, Sample

pytestmark = pytest.mark.kernel


@contextmanager
def _watched(alerts: AlertRules, **rules: Any) -> Iterator[Recording]:
    with (
        SyscallProgram(syscall_rules=syscall_rules(**rules), filter_targets=True, alerts=alerts) as program,
        PerfReader(program.alerts_map, per_cpu_bytes=1 << 16, wakeup_events=1) as reader,
    ):
        program.attach()
        yield Recording(program, None, reader)


def _parsed(data: bytes) -> Any:
    alert = ffi.new("struct pb_alert *")
    ffi.memmove(alert, data, ffi.sizeof("struct pb_alert"))
    return alert


def _alerts(recorded: Recording) -> list[Any]:
    assert recorded.alerts is not None
    found = [_parsed(bytes(sample.data)) for sample in recorded.alerts.read(timeout=1.0) if isinstance(sample, Sample)]
    return sorted(found, key=lambda alert: alert.time_ns)


def _run(recorded: Recording, code: str) -> int:
    """Runs Python code in a recorded process that waits for its start; gives its pid."""
    with Target(sys.executable, "-c", f"import os, socket, time, sys; sys.stdin.buffer.read(1); {code}") as target:
        recorded.program.follow(target.pid)
        assert target.run() == 0
        return target.pid


def test_an_errno_of_a_watched_call_wakes() -> None:
    """The chosen errno of the chosen call, and neither another errno nor another call."""
    code = (
        "socket.socket().connect_ex(('127.0.0.1', 1)); os.path.exists('/nope');"
        "socket.socket(socket.AF_UNIX).connect_ex('/nope/sock')"
    )
    with _watched(AlertRules(errnos=[errno.ECONNREFUSED]), error_syscalls=["connect", "openat"]) as recorded:
        pid = _run(recorded, code)
        (alert,) = _alerts(recorded)
    assert (alert.kind, alert.tgid, alert.result) == (lib.PB_ALERT_SYSCALL_ERROR, pid, -errno.ECONNREFUSED)
    assert build_plan().syscall_name(alert.number) == "connect"
    assert ffi.string(ffi.cast("char *", alert.comm)).decode().startswith("python")


def test_a_storm_of_errors_wakes_a_hundred_times_a_second_at_most() -> None:
    """What was not sent is told by the next that is: nothing is uncounted."""
    code = (
        "end = time.monotonic() + 0.3; n = 0\n"
        "while n < 3000 or time.monotonic() < end:\n"
        "    n += 1\n"
        "    try: os.stat('/nope')\n"
        "    except OSError: pass\n"
        "time.sleep(0.05)\n"
        "try: os.stat('/nope')\n"
        "except OSError: pass\n"
        "open(sys.argv[1], 'w').write(str(n + 1))"
    )
    path = f"/tmp/otel-perfbuf-storm-{os.getpid()}"
    with _watched(AlertRules(errnos=[errno.ENOENT]), error_syscalls=["stat", "newfstatat"]) as recorded:
        code = f"import os, sys, time; os.write(1, b'r'); sys.stdin.buffer.read(1)\n{code}"
        with Target(sys.executable, "-c", code, path, stdout=subprocess.PIPE) as target:
            assert target.process.stdout is not None
            target.process.stdout.read(1)  # Python's own start is over
            target.process.stdout.close()
            recorded.program.follow(target.pid)
            begin = time.monotonic()
            assert target.run() == 0
            seconds = time.monotonic() - begin
        alerts = _alerts(recorded)
    with open(path) as file:
        made = int(file.read())
    os.unlink(path)
    assert len(alerts) + sum(alert.suppressed for alert in alerts) == made
    assert len(alerts) <= 100 * seconds + 2


def test_a_call_that_took_too_long_wakes_at_its_end() -> None:
    """nanosleep of 300 ms with a limit of 200 ms; one of 10 ms is quiet."""
    names = ["clock_nanosleep"]
    with _watched(AlertRules(slow_ns=200_000_000), slow_syscalls=names) as recorded:
        pid = _run(recorded, "time.sleep(0.01); time.sleep(0.3)")
        (alert,) = _alerts(recorded)
    assert (alert.kind, alert.tgid, alert.flags) == (lib.PB_ALERT_SYSCALL_LATENCY, pid, 0)
    assert alert.duration_ns >= 300_000_000


def test_a_call_in_flight_is_seen_by_the_look() -> None:
    """It has not ended, and is told with its age; a call that waits by design is not watched unless it is named."""
    with _watched(AlertRules(slow_ns=50_000_000), slow_syscalls=["flock"]) as recorded:
        code = (
            "import fcntl, os, sys; sys.stdin.buffer.read(1)\n"
            "a, b = os.open('/tmp', os.O_RDONLY), os.open('/tmp', os.O_RDONLY)\n"
            "fcntl.flock(a, fcntl.LOCK_EX); fcntl.flock(b, fcntl.LOCK_EX)"
        )
        with Target(sys.executable, "-c", code) as target:
            recorded.program.follow(target.pid)
            target.go()
            wait_until(lambda: bool(recorded.program.slow_calls()), "the slow call")
            alert = _parsed(recorded.program.slow_calls())
            assert (alert.tgid, alert.flags) == (target.pid, lib.PB_ALERT_IN_FLIGHT)
            assert alert.duration_ns > 50_000_000
            assert build_plan().syscall_name(alert.number) == "flock"
        assert recorded.program.slow_calls() == b""


def test_what_is_not_recorded_cannot_be_watched() -> None:
    """A trigger on a call that the filter leaves out is a mistake; said before anything is loaded."""
    with pytest.raises(ConfigError, match="none of connect is recorded"):
        syscall_rules(include=["openat"], error_syscalls=["connect"])
