# SPDX-License-Identifier: Apache-2.0
"""Alerts of the kernel: which fire, in whose words."""

from __future__ import annotations

import errno
import signal
from typing import Any

import pytest

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.triggers.alerts import AlertJudge
from otel_perfbuf.triggers.firing import SpanContext
from otel_perfbuf.triggers.manners import hold_off_key
from otel_perfbuf.triggers.process_exit import ProcessExitOptions


def _judge(exits: ProcessExitOptions | None = None) -> AlertJudge:
    return AlertJudge(exits or ProcessExitOptions(), {42: "connect"}.__getitem__, errno.errorcode.__getitem__)


def _alert(kind: int = lib.PB_ALERT_EXIT, comm: bytes = b"worker", **fields: Any) -> bytes:
    alert = ffi.new("struct pb_alert *", {"time_ns": 5_000, "tgid": 4711, "tid": 4712, "kind": kind, **fields})
    alert.comm = comm
    return bytes(ffi.buffer(alert))


def test_an_alert_becomes_a_firing() -> None:
    """The firing has the kernel's time in unix time, the process, and a reason that begins with its command."""
    firing = _judge().firing(_alert(status=signal.SIGKILL) + b"pad padd", 1_000_000)
    assert firing is not None
    assert (firing.kind, firing.pid, firing.tid, firing.unix_ns) == ("process_exit", 4711, 4712, 1_005_000)
    assert (firing.reason, firing.span) == ("worker was killed by SIGKILL (pid 4711)", None)
    assert _judge().firing(_alert(status=0), 0) is None


def test_the_span_that_ran_is_the_firings() -> None:
    """A call that failed within a span makes a dump in that span's trace."""
    ids = {"trace_id": bytes(range(16)), "span_id": b"spanspan"}
    data = _alert(lib.PB_ALERT_SYSCALL_ERROR, number=42, result=-errno.ECONNREFUSED, flags=lib.PB_ALERT_SPAN, span=ids)
    firing = _judge().firing(data, 0)
    assert firing is not None
    assert (firing.kind, firing.reason) == ("syscall_error", "worker got ECONNREFUSED from connect (pid 4711)")
    assert firing.span == SpanContext(bytes(range(16)), b"spanspan")


def test_a_slow_call_is_told_once() -> None:
    """In flight, at the first look; neither at the next nor at its end; another call is another one."""
    judge = _judge()
    call = {"number": 42, "duration_ns": 3_021_000_000, "instance": 7, "sequence": 9}
    first = judge.firing(_alert(lib.PB_ALERT_SYSCALL_LATENCY, flags=lib.PB_ALERT_IN_FLIGHT, **call), 0)
    assert first is not None
    assert (first.kind, first.reason) == (
        "syscall_latency", "worker has been waiting 3.021 s for connect (pid 4711)",
    )  # fmt: skip
    assert judge.firing(_alert(lib.PB_ALERT_SYSCALL_LATENCY, flags=lib.PB_ALERT_IN_FLIGHT, **call), 0) is None
    assert judge.firing(_alert(lib.PB_ALERT_SYSCALL_LATENCY, **call), 0) is None
    other = judge.firing(_alert(lib.PB_ALERT_SYSCALL_LATENCY, **{**call, "sequence": 10}, suppressed=3), 0)
    assert other is not None
    assert (other.reason, other.repeats) == ("worker waited 3.021 s for connect (pid 4711)", 3)
    assert hold_off_key(other)[0] == ""


def test_an_oom_kill_fires() -> None:
    """Whoever it is."""
    firing = _judge().firing(_alert(lib.PB_ALERT_OOM_KILL), 0)
    assert firing is not None
    assert (firing.kind, firing.reason) == ("oom_kill", "worker was chosen by the OOM killer (pid 4711)")


def test_a_commands_name_cannot_move_a_terminals_cursor() -> None:
    """A comm of control characters and broken UTF-8 is shown replaced; one of 16 bytes without a NUL is whole."""
    firing = _judge().firing(_alert(comm=b"a\x1b\xff" + b"b" * 13, status=11), 0)
    assert firing is not None
    assert firing.reason.startswith("a\ufffd\ufffd" + "b" * 13 + " was")


@pytest.mark.parametrize("data", [_alert(status=11)[:-1], _alert(99), b""])
def test_what_is_no_alert_is_malformed(data: bytes) -> None:
    """Too few bytes or an unknown kind are an error that the caller counts."""
    with pytest.raises(ValueError, match="malformed"):
        _judge().firing(data, 0)


def test_an_iterators_output_is_split() -> None:
    """One alert behind the other, without padding."""
    alerts = [_alert(status=number) for number in (6, 11)]
    assert _judge().split(b"".join(alerts)) == alerts
    assert _judge().split(b"") == []
