# SPDX-License-Identifier: Apache-2.0
"""The live stream of processes on a real kernel: exec, fork and end of every process, each sent at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from bpf_recording import Record, parse_sample

from otel_perfbuf._core._core import lib
from otel_perfbuf.bpf.process import ProcessProgram
from otel_perfbuf.rings import Batch, PerfReader, Sample


@pytest.fixture
def stream() -> Iterator[tuple[ProcessProgram, PerfReader]]:
    """The attached program and its forward reader."""
    program = ProcessProgram()
    try:
        with PerfReader(program.events_map, per_cpu_bytes=1 << 18, wakeup_events=1) as reader:
            program.attach()
            yield program, reader
    finally:
        program.close()


def _until_end_of(reader: PerfReader, pid: int) -> list[Record]:
    """All events of the host up to a process's end, by time: forward rings come CPU by CPU."""
    found: list[Record] = []
    end = time.monotonic() + 10

    def take(batch: Batch) -> None:
        for sample in batch:
            assert isinstance(sample, Sample)
            found.extend(parse_sample(bytes(sample.data)))

    while not [event for event in found if event.tgid == pid and event.name == "<exit>"]:
        assert time.monotonic() < end, "the process's end did not come"
        take(reader.read(timeout=1.0))
    take(reader.flush())  # a ring that was read before this one may hold what happened before
    return sorted(found, key=lambda event: event.time_ns)


def test_exec_fork_and_end_come_in_order(stream: tuple[ProcessProgram, PerfReader]) -> None:
    """A shell that runs a program and ends with 3: exec, fork, exit of it; exec and exit of the child."""
    program, reader = stream
    with subprocess.Popen(["sh", "-c", "/bin/true; exit 3"]) as shell:
        shell.wait()
    events = _until_end_of(reader, shell.pid)
    of_shell = [event for event in events if event.tgid == shell.pid]
    assert [event.name for event in of_shell] == ["<exec>", "<fork>", "<exit>"]
    assert [event.sequence for event in of_shell] == [1, 2, 3]
    assert {event.sample_kind for event in events} == {lib.PB_SAMPLE_SINGLE}
    assert of_shell[0].captures[0].data in (b"/bin/sh", b"/usr/bin/sh")
    assert os.waitstatus_to_exitcode(of_shell[-1].body.status) == 3
    child = int(of_shell[1].body.child_tgid)
    assert [event.name for event in events if event.tgid == child] == ["<exec>", "<exit>"]
    assert len({event.instance for event in of_shell}) == 1
    entries = {tgid: entry for (tgid, _), entry in program.processes().items()}
    assert entries[child].parent_tgid == shell.pid
    assert entries[child].executable.endswith("/true")
    assert entries[shell.pid].exit_ns > 0


def test_a_killed_process_ends_with_its_signal(stream: tuple[ProcessProgram, PerfReader]) -> None:
    """SIGKILL: the wait status of the end says so."""
    _, reader = stream
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        sleeper.kill()
        sleeper.wait()
    last = [event for event in _until_end_of(reader, sleeper.pid) if event.tgid == sleeper.pid][-1]
    assert last.body.status == signal.SIGKILL


def test_threads_are_no_processes(stream: tuple[ProcessProgram, PerfReader]) -> None:
    """A process with four threads: one exec, one end, no fork."""
    _, reader = stream
    code = "import threading\nfor _ in range(4): t = threading.Thread(target=int); t.start(); t.join()"
    with subprocess.Popen([sys.executable, "-S", "-c", code]) as process:
        process.wait()
    names = [event.name for event in _until_end_of(reader, process.pid) if event.tgid == process.pid]
    assert names == ["<exec>", "<exit>"]


def test_this_process_is_left_out(stream: tuple[ProcessProgram, PerfReader]) -> None:
    """Our own forks are no events, though the children's ends are."""
    _, reader = stream
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()
    assert os.getpid() not in {event.tgid for event in _until_end_of(reader, child.pid)}
