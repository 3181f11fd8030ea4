# SPDX-License-Identifier: Apache-2.0
"""Who is below whom, who a process is, and what its resource says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf.recorder.first_sight import FirstSight
from otel_perfbuf.recorder.processes import Process, process_from_proc, process_resource, start_of, started_at
from otel_perfbuf.recorder.scope import descendants, newest


def table(*rows: tuple[int, int, int]) -> dict[tuple[int, int], Process]:
    """Processes from (pid, start, parent pid)."""
    return {(pid, start): Process(pid=pid, start_ns=start, parent_pid=parent) for pid, start, parent in rows}


def test_descendants_are_followed_through_the_dead() -> None:
    """A grandchild whose parent is gone is still in scope: the table outlives the process."""
    processes = table((1, 10, 0), (2, 20, 1), (3, 30, 2), (9, 15, 0))
    assert descendants((1, 10), processes) == {(1, 10), (2, 20), (3, 30)}


def test_a_reused_pid_brings_no_strangers_in() -> None:
    """A child belongs to the process that had its parent's pid when it was forked."""
    processes = table((2, 20, 1), (3, 30, 2), (2, 40, 9), (4, 50, 2))
    assert descendants((2, 20), processes) == {(2, 20), (3, 30)}
    assert descendants((2, 40), processes) == {(2, 40), (4, 50)}
    assert newest(2, processes) == (2, 40)
    assert newest(5, processes) is None


def test_a_firings_process_is_the_one_that_lived_then() -> None:
    """The pid of a process that crashed may be another's before the dump is made."""
    processes = table((2, 20, 1), (2, 40, 9))
    assert newest(2, processes, before_ns=39) == (2, 20)
    assert newest(2, processes, before_ns=40) == (2, 40)
    assert newest(2, processes, before_ns=1) == (2, 40)  # no other: its start is a rounded one


def test_the_environment_of_a_process_from_before_is_known_when_it_is_dead() -> None:
    """What it said in OTEL_* is read when recording begins, also for the children that it forks; not for strangers."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    environment = {**os.environ, "OTEL_SERVICE_NAME": "from-before"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"  # it has executed its program
        start_ns, known = start_of(child.pid), process_from_proc(child.pid)
        sight = FirstSight()
        child.communicate(b"\n")
    assert start_ns is not None
    assert known is not None
    bare = replace(known, start_ns=start_ns + 1_000_000, environment={})
    assert sight.completed(bare).environment["OTEL_SERVICE_NAME"] == "from-before"
    forked = replace(bare, pid=1 << 22, parent_pid=child.pid, start_ns=start_ns + 10**9)
    assert sight.completed(forked).environment["OTEL_SERVICE_NAME"] == "from-before"
    for stranger in (
        replace(bare, start_ns=start_ns + 10**9),  # the pid was reused
        replace(bare, executable="/usr/bin/other"),  # it executed another program
        replace(forked, start_ns=start_ns - 10**9),
    ):
        assert sight.completed(stranger).environment.get("OTEL_SERVICE_NAME") != "from-before"
    assert sight.completed(replace(bare, environment={"A": "b"})).environment == {"A": "b"}


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(0, 6)), max_size=30))
def test_any_table_ends(rows: list[tuple[int, int, int]]) -> None:
    """Whatever parents a table names, cycles and itself included, the walk ends and holds its root."""
    processes = table(*rows)
    for key in processes:
        assert key in descendants(key, processes) <= set(processes)


def test_this_process_is_read_from_proc() -> None:
    """What /proc says of this process is what Python knows of it."""
    found = process_from_proc(os.getpid())
    assert found is not None
    assert (found.parent_pid, found.executable) == (os.getppid(), os.path.realpath(f"/proc/{os.getpid()}/exe"))
    assert process_from_proc(2**22 + 1) is None


def test_a_pid_is_told_from_its_reuse() -> None:
    """The start time that belongs to this process's pid is now or before, never a day ago."""
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])  # noqa: SIM115
    suspended = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    start_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - suspended
    assert started_at(os.getpid(), start_ns)
    assert not started_at(os.getpid(), start_ns - 10**9)


def test_resource_takes_the_environment_and_the_trigger_wins() -> None:
    """service.name: the trigger's, else OTEL_SERVICE_NAME, else OTEL_RESOURCE_ATTRIBUTES, else the executable's."""

    def names(process: Process, given_name: str | None = None) -> dict[str, str]:
        return {item.key: item.value.string_value for item in process_resource(process, given_name).attributes}

    environment = {"OTEL_SERVICE_NAME": "own", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,team=a%20b,=x,junk"}
    process = Process(pid=5, executable="/usr/bin/python3", environment=environment, cgroup="/x/" + "ab" * 32)
    assert names(process)["service.name"] == "own"
    assert names(process)["team"] == "a b"
    assert names(process, "checkout")["service.name"] == "checkout"
    assert names(Process(pid=5, executable="/usr/bin/python3"))["service.name"] == "python3"
    assert names(process)["container.id"] == "ab" * 32
    assert names(process)["process.executable.name"] == "python3"
