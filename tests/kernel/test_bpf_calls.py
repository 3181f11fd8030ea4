# SPDX-License-Identifier: Apache-2.0
"""The flight recorder's calls on a real kernel: sequences, filter, calls in flight, exits without enter, captures."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path

import pytest
from bpf_recording import Target, compile_targets, recording, state_of, wait_until
from machine import SLOWNESS, heavy

from otel_perfbuf._core._core import lib


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program to be recorded."""
    return compile_targets(tmp_path_factory.mktemp("targets"))


def test_every_call_of_a_thread_is_there_once_in_order(targets: Path) -> None:
    """1,000 calls of a process that was blocked in read when recording began: no gap from that read to exit_group."""
    with Target(targets, "calls", "1000") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        assert target.run() == 0
        events = recorded.events(target.pid)
    assert [event.name for event in events] == ["read", *["getppid"] * 1000, "exit_group", "<exit>"]
    assert {event.result for event in events[1:1001]} == {os.getpid()}
    assert {event.flags for event in events[1:1001]} == {0}
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    first, last = events[0], events[-2]
    assert (first.flags, first.result, first.args[0], first.body.duration_ns) == (lib.PB_FLAG_BEGAN_BEFORE, 1, 0, 0)
    assert (last.flags, last.args) == (lib.PB_FLAG_NO_RETURN, [0])


def test_records_are_collected_and_sent_by_the_page(targets: Path) -> None:
    """20 calls without arguments fit a page: 1,000 of them make some 50 samples, whose counts add up to `stats`."""
    with Target(targets, "calls", "1000") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        samples, stats = recorded.samples(), recorded.program.stats()
    assert 50 <= len(samples) <= 53
    assert sum(stats.ring_records_by_cpu.values()) == 1003
    assert stats.lost == 0


def test_a_call_in_flight_is_on_its_threads_page(targets: Path) -> None:
    """A thread that blocks in its second read: the call with its arguments, and the one before it, without any ring."""
    with Target(targets, "block") as target, recording(rings=False) as recorded:
        recorded.program.follow(target.pid)
        target.go()
        wait_until(lambda: recorded.page(target.pid).open_call is not None, "the second read")
        page = recorded.page(target.pid)
    assert page.open_call is not None
    assert (page.open_call.name, page.open_call.args[0], page.open_call.args[2]) == ("read", 0, 1)
    assert page.open_call.sequence == page.last_sequence == 2
    assert [record.name for record in page.records] == ["read"]


def test_who_is_no_target_has_no_page_and_no_record(targets: Path) -> None:
    """Two processes run; one is followed: nothing of the other, nor of this one, is anywhere."""
    with Target(targets, "calls", "50") as other, Target(targets, "calls", "50") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        other.run()
        target.run()
        assert {record.tgid for record in recorded.records()} == {target.pid}
        assert {tgid for tgid, _ in recorded.program.processes()} == {target.pid}


def test_the_whole_host_is_recorded_but_the_agent(targets: Path) -> None:
    """Without a filter a process that nobody named is recorded from its first call on, and this process is not.

    The rings are large, since whatever else runs on the host is in them too.
    """
    with (
        recording(filter_targets=False, per_cpu_bytes=16 << 20) as recorded,
        Target(targets, "calls", "50") as target,
    ):
        target.run()
        events = recorded.events(target.pid)
        assert os.getpid() not in {record.tgid for record in recorded.records()}
    assert [event.name for event in events].count("getppid") == 50
    assert "<exec>" in [event.name for event in events]


def test_excluded_names_are_not_recorded(targets: Path) -> None:
    """exclude_comms holds for a process of that name although the whole host is recorded."""
    with (
        recording(filter_targets=False, exclude_comms=["targets"]) as recorded,
        Target(targets, "calls", "50") as target,
    ):
        target.run()
        names = {record.name for record in recorded.records() if record.tgid == target.pid}
    assert "getppid" not in names


def test_a_named_comm_is_a_target_from_its_exec_on(targets: Path) -> None:
    """comms: the process is recorded from the exec that gave it the name."""
    with recording(comms=["targets"]) as recorded, Target(targets, "calls", "50") as target:
        target.run()
        events = recorded.events(target.pid)
    assert events[0].name == "<exec>"
    assert [event.name for event in events].count("getppid") == 50


def test_calls_that_rules_leave_out_have_no_sequence(targets: Path) -> None:
    """include=[read]: only reads, numbered without gaps, although 1,000 other calls lie between."""
    with Target(targets, "calls", "1000") as target, recording(include=["read"]) as recorded:
        recorded.program.follow(target.pid)
        target.run()
        events = recorded.events(target.pid)
    assert [event.name for event in events] == ["read", "<exit>"]


def test_a_denied_call_is_exit_only_with_its_arguments(targets: Path) -> None:
    """seccomp denies getppid: sys_exit comes without sys_enter, once, with the error (FACTS 17)."""
    with Target(targets, "denied") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        (denied,) = [event for event in recorded.events(target.pid) if event.name == "getppid"]
    assert (denied.flags, denied.result, denied.body.duration_ns) == (lib.PB_FLAG_EXIT_ONLY, -1, 0)


def test_sigreturn_is_known_by_its_enter(targets: Path) -> None:
    """After a handler the registers' number is -1 (FACTS 46): the record is rt_sigreturn, and no other is made up."""
    with Target(targets, "handled") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        names = [event.name for event in recorded.events(target.pid)]
    at = names.index("<signal>")
    assert names[at + 1 : at + 3] == ["rt_sigreturn", "exit_group"]
    assert names[at - 1] in ("tgkill", "tkill")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 is x86's")
def test_a_32_bit_call_is_of_another_table(targets: Path) -> None:
    """int 0x80 number 20 is getpid there and writev here: flagged, with its own arguments (FACTS 46)."""
    with Target(targets, "int80") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        (call,) = [event for event in recorded.events(target.pid) if event.flags & lib.PB_FLAG_COMPAT]
    assert (call.body.number, call.result, call.args[:2]) == (20, target.pid, [0x11, 0x12])


def test_strings_and_addresses_are_captured(targets: Path, tmp_path: Path) -> None:
    """Paths at exit, a bad pointer as a fault, connect's address already at enter, and its zero pad."""
    path = str(tmp_path / "missing")
    with Target(targets, "captured", path) as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        events = recorded.events(target.pid)
        records = recorded.records()
    first, second = [event for event in events if event.name == "openat"]
    assert (first.capture(1).data, first.result) == (path.encode(), -2)
    assert (second.capture(1).data, second.capture(1).flags, second.result) == (b"", lib.PB_CAPTURE_FAULT, -14)
    (connect,) = [event for event in events if event.name == "connect"]
    found = [r for r in records if r.sequence == connect.sequence and r.instance == connect.instance and r.captures]
    address = found[0].capture(1)
    assert address.kind == lib.PB_CAPTURE_SOCKADDR
    assert address.extent == len(address.data) == 110
    assert address.data[2:18] == b"/nowhere/at/all\0"


def test_an_empty_path_is_no_fault(targets: Path) -> None:
    """Kernels up to 6.12 count no NUL of an empty string."""
    with Target(targets, "captured", "") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        first = next(event for event in recorded.events(target.pid) if event.name == "openat")
    assert (first.capture(1).data, first.capture(1).flags, first.result) == (b"", 0, -2)


def test_buffers_are_captured_by_their_true_length(targets: Path) -> None:
    """buffers=content: ten bytes of a write, and a capture of length 0 for an empty one."""
    with Target(targets, "captured", "x") as target, recording(buffers="content") as recorded:
        recorded.program.follow(target.pid)
        target.run()
        full, empty = [event for event in recorded.events(target.pid) if event.name == "write"]
    assert (full.capture(1).data, full.capture(1).extent, full.capture(1).flags) == (b"0123456789", 10, 0)
    assert (empty.capture(1).data, empty.capture(1).extent) == (b"", 0)


def test_a_path_longer_than_its_bound_is_cut_and_says_so(targets: Path) -> None:
    """A path of 3,000 bytes: the first 512, flagged; it goes through the page like any other record."""
    path = "/" + "a" * 2999
    with Target(targets, "captured", path) as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        first = next(event for event in recorded.events(target.pid) if event.name == "openat")
    assert (first.capture(1).data, first.capture(1).flags) == (path[:512].encode(), lib.PB_CAPTURE_CUT)


def test_a_record_larger_than_a_page_goes_alone(targets: Path) -> None:
    """A captured path of 3,000 bytes: a sample of its own, in its place of the sequence."""
    path = "/" + "a" * 2999
    with Target(targets, "captured", path) as target, recording(path_bytes=4096) as recorded:
        recorded.program.follow(target.pid)
        target.run()
        events = recorded.events(target.pid)
    (alone,) = [event for event in events if event.sample_kind == lib.PB_SAMPLE_SINGLE]
    assert (alone.name, alone.capture(1).data, alone.capture(1).flags) == ("openat", path.encode(), 0)


def test_exec_is_captured_at_enter_with_argv_and_the_count_of_the_environment() -> None:
    """execve's arguments are gone at its exit: an ENTRY record has path, argv and how many envp."""
    with recording(comms=["sh"]) as recorded:
        env = {"A": "1", "B": "2"}
        # the shell's own arguments: a constant of its program may lie in a page that is not resident
        with Target(Path("/bin/sh"), "-c", 'read a; exec /bin/true one "$1"', "sh", "", env=env) as target:
            target.go(b"go\n")
            target.process.wait(10 * SLOWNESS)
        records = [record for record in recorded.records() if record.tgid == target.pid]
    (entry,) = [record for record in records if record.name == "<entry>" and record.captures[0].data == b"/bin/true"]
    (call,) = [r for r in records if r.sequence == entry.sequence and r.name == "execve"]
    assert call.result == 0
    assert (entry.capture(1).data, entry.capture(1).extent, entry.capture(1).flags) == (b"/bin/true\0one\0\0", 3, 0)
    assert (entry.capture(2).kind, entry.capture(2).extent) == (lib.PB_CAPTURE_COUNT, 3)


def test_forward_mode_sends_each_record_at_once(targets: Path) -> None:
    """forward: one sample a record, before the thread does anything else."""
    with Target(targets, "block") as target, recording(forward=True) as recorded:
        recorded.program.follow(target.pid)
        target.go()
        wait_until(lambda: state_of(target.pid) == "S" and len(recorded.samples()) == 1, "the first read's sample")
        assert recorded.page(target.pid).records == []


def test_records_without_a_ring_are_counted(targets: Path) -> None:
    """No ring in the map: every record of a page that could not be sent is in `no_ring`, none is silently gone."""
    with Target(targets, "calls", "1000") as target, recording(rings=False) as recorded:
        recorded.program.follow(target.pid)
        target.run()
        stats = recorded.program.stats()
    assert (stats.no_ring, stats.lost, sum(stats.ring_records_by_cpu.values())) == (1003, 1003, 0)


@pytest.mark.race
def test_pages_read_under_full_speed_are_never_torn(targets: Path) -> None:
    """Copies of a page that is written: each page's records are whole and its sequences are consecutive."""
    with Target(targets, "calls", "100000000") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.go()
        torn = seen = 0
        copies = heavy(500)
        for _ in range(copies):
            page = recorded.page(target.pid)
            torn += bool(page.flags & lib.PB_PAGE_TORN)
            numbers = [record.sequence for record in [*page.sent, *page.records]]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
            if page.open_call is not None and numbers:
                assert page.open_call.sequence == numbers[-1] + 1 == page.last_sequence
            seen += len(numbers)
        target.process.send_signal(signal.SIGKILL)
    assert seen > copies
    # How often a write lasts for all of a reader's tries is the machine's (a virtual CPU loses its turn in its midst).
    assert torn < copies
