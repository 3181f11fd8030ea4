# SPDX-License-Identifier: Apache-2.0
"""PerfReader's arguments, the list of CPUs, and the gate that closes a reader."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from otel_perfbuf.errors import ConfigError, ReaderClosed
from otel_perfbuf.rings.cpus import online_cpus, parse_cpu_list
from otel_perfbuf.rings.gate import Gate
from otel_perfbuf.rings.options import capacity_for, event_options, slack_for

DEFAULTS: dict[str, Any] = {
    "per_cpu_bytes": 1 << 20,
    "overwritable": False,
    "watermark_bytes": None,
    "wakeup_events": None,
    "sample_type": (),
    "clock": None,
}


@pytest.mark.parametrize(
    ("given", "rounded"), [(1, 4096), (4096, 4096), (4097, 8192), (8193, 16384), (65537, 131072), (1 << 20, 1 << 20)]
)
def test_per_cpu_bytes_is_rounded_up_to_a_power_of_two_of_pages(given: int, rounded: int) -> None:
    """cilium/ebpf TestPerfEventRing: 8193 and 65537 round up; a buffer of 1 byte is a page."""
    assert capacity_for(given) == rounded


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"per_cpu_bytes": 0}, "per_cpu_bytes is 0"),
        ({"per_cpu_bytes": 1 << 60}, "per_cpu_bytes is"),
        ({"watermark_bytes": 1, "wakeup_events": 1}, "exclude each other"),
        ({"watermark_bytes": 1 << 20}, "less than the ring's 1048576 bytes"),
        ({"watermark_bytes": 0}, "watermark_bytes is 0"),
        ({"wakeup_events": 0}, "wakeup_events is 0"),
        ({"overwritable": True, "wakeup_events": 1}, "never wakes"),
        ({"sample_type": ("ip",)}, "known are time, tid, cpu"),
        ({"clock": "monotonic"}, "no 'time'"),
        ({"clock": "sundial", "sample_type": ("time",)}, "known are monotonic"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_possible(wrong: dict[str, Any], sentence: str) -> None:
    """One ConfigError with the argument, its value, and the way out."""
    with pytest.raises(ConfigError, match=sentence):
        event_options(**{**DEFAULTS, **wrong})


def test_defaults_of_both_modes() -> None:
    """Live rings wake at a quarter (FACTS 23), history rings practically never; time is monotonic unless said."""
    forward = event_options(**DEFAULTS)
    assert (forward.watermark_bytes, forward.wakeup_events, forward.clock_id) == (1 << 18, 0, None)
    history = event_options(**{**DEFAULTS, "overwritable": True, "sample_type": ("time", "time", "tid")})
    assert history.watermark_bytes == (1 << 31) - 1
    assert (history.sample_type, history.clock_id) == (1024 | 4 | 2, 1)


def test_slack_is_a_largest_reservation_for_each_level_of_nesting() -> None:
    """Header, metadata, padded raw data, and a LOST record in the same reservation."""
    assert slack_for(180, 1024, 4096) == 3 * (24 + 8 + 184)
    assert slack_for(181, 1024 | 4 | 2, 4096) == 3 * (24 + 8 + 16 + 192)
    assert slack_for(None, 1024, 4096) == 3 * (24 + 8 + 65520)


@pytest.mark.parametrize(("largest", "sentence"), [(0, "has 1 to 65516"), (65517, "has 1 to 65516"), (8192, "larger")])
def test_a_largest_sample_that_cannot_be_is_refused(largest: int, sentence: str) -> None:
    """None, more than perf can send, or more than the ring could ever give while it is written."""
    with pytest.raises(ConfigError, match=sentence):
        slack_for(largest, 1024, 4096)


@pytest.mark.parametrize(
    ("text", "cpus"), [("0\n", (0,)), ("0-3\n", (0, 1, 2, 3)), ("0,2-3,7", (0, 2, 3, 7)), ("4-4,1", (1, 4))]
)
def test_cpu_lists_may_have_holes(text: str, cpus: tuple[int, ...]) -> None:
    """The kernel's list form; the map key is the CPU's number (FACTS 13)."""
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2"])
def test_what_is_no_cpu_list_is_refused(text: str) -> None:
    """No guess about CPUs."""
    with pytest.raises(ValueError, match="no list of CPUs"):
        parse_cpu_list(text)


def test_this_host_has_a_cpu() -> None:
    """Sysfs is read as it is."""
    assert online_cpus()


class Inside(threading.Thread):
    """A thread inside a gate until it is woken."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(daemon=True)
        self.gate = gate
        self.entered, self.leave = threading.Event(), threading.Event()
        self.closed = False
        self.start()
        assert self.entered.wait(10)

    def run(self) -> None:
        """Waits inside."""
        try:
            with self.gate:
                self.entered.set()
                self.leave.wait(10)
                self.gate.check()
        except ReaderClosed:
            self.closed = True


def test_close_waits_for_who_is_inside_and_releases_once() -> None:
    """Those inside are woken, the last one out releases, later ones are refused, a second close is fine."""
    events: list[str] = []
    inside: list[Inside] = []

    def wake() -> None:
        events.append("wake")
        for thread in inside:
            thread.leave.set()

    gate = Gate(wake, lambda: events.append("release"))
    inside += [Inside(gate), Inside(gate)]
    gate.close()
    assert events == ["wake", "release"]
    for thread in inside:
        thread.join(10)
        assert thread.closed
    gate.close()
    with pytest.raises(ReaderClosed), gate:
        pass
    assert events == ["wake", "release"]


def test_close_from_inside_releases_when_it_comes_out() -> None:
    """As from a signal handler: it does not wait for its own thread."""
    events: list[str] = []
    gate = Gate(lambda: events.append("wake"), lambda: events.append("release"))
    with gate:
        gate.close()
        assert events == ["wake"]
        with pytest.raises(ReaderClosed):
            gate.check()
    assert events == ["wake", "release"]


def test_a_forked_child_uses_nothing_and_releases_nothing() -> None:
    """Fds are shared with the parent, mappings are not copied: the child's close must not touch the parent's rings."""
    released: list[int] = []
    gate = Gate(lambda: None, lambda: released.append(1))
    child = os.fork()
    if not child:
        try:
            gate.close()
            with gate:
                os._exit(2)
        except ReaderClosed:
            os._exit(3 if released else 0)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with gate:
        assert not gate.closed


def test_two_threads_close_at_once_and_both_return_after_the_release() -> None:
    """Neither returns before everything is given back."""
    started, go, released = threading.Event(), threading.Event(), threading.Event()

    def release() -> None:
        started.set()
        assert go.wait(10)
        released.set()

    gate = Gate(lambda: None, release)
    seen: list[bool] = []
    threads = [threading.Thread(target=lambda: (gate.close(), seen.append(released.is_set()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
    assert seen == [True, True]
