# SPDX-License-Identifier: Apache-2.0
"""How deep the history is: without a gap up to the last call, told to the record where it is not, and never without
the last calls of a thread that waits. The records are counted by protobuf's parser, the calls by the programs.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attaching import attached
from compiling import Compile, compiled
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from recording import Arrived, Record, attributes, parse_lines, record

__all__ = ["compiled"]

CALLS = 200_000


@contextmanager
def on_cpu(cpu: int) -> Iterator[None]:
    """This process, and what it starts, on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def dumped(path: Path, program: Path, *arguments: str, form: str = "otlp_proto") -> Arrived:
    """The dump of a program that ends with 1, all that small rings still hold."""
    options = ("--per-cpu-bytes", "1MiB", "--window", "all", "-o", path, "--format", form)
    done = record(*options, command=[program, *arguments])
    assert done.returncode == 1, done.stderr
    return parse_lines(path.read_text()) if form == "otlp_json" else parse_frames(path.read_bytes())


def parse_frames(data: bytes) -> Arrived:
    """The Collector file exporter's proto form: a length of 4 bytes, big-endian, in front of each message."""
    records, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        message = ExportLogsServiceRequest.FromString(data[at + 4 : at + 4 + size])
        at += 4 + size
        for entry in message.resource_logs:
            resource = attributes(entry.resource.attributes)
            records += [Record(item, resource) for scope in entry.scope_logs for item in scope.log_records]
    assert at == len(data)
    return Arrived(records, [])


def sequence(item: Record) -> int:
    """perfbuf.sequence."""
    return next(pair.value.int_value for pair in item.proto.attributes if pair.key == "perfbuf.sequence")


def own_records(dump: Arrived) -> list[Record]:
    """What was recorded of the only thread, in its order: without the notes about what is missing."""
    found = [item for item in dump.history if item.name != "perfbuf.lost"]
    assert len({item.attributes["perfbuf.thread.instance"] for item in found}) == 1
    assert [sequence(item) for item in found] == sorted(sequence(item) for item in found)
    return found


def count(dump: Arrived, name: str) -> int:
    """A count of the header."""
    value = dump.header[f"perfbuf.dump.{name}"]
    assert isinstance(value, int)
    return value


def assert_accounted(dump: Arrived) -> None:
    """Every sequence number that was ever given is here or counted under one of the words."""
    last = max(sequence(item) for item in own_records(dump))
    assert sum(count(dump, name) for name in ("records", "overwritten", "lost", "dropped")) == last


def assert_ends_with_the_process(found: list[Record]) -> None:
    """The last call and the end of the process are the newest records."""
    assert [item.body for item in found[-2:]] == ["exit_group(1) = ?", "+++ exited with 1 +++"]


def assert_no_gap(found: list[Record]) -> None:
    """Each record is the one after the one before it."""
    numbers = [sequence(item) for item in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_pinned_program_has_its_newest_calls_without_a_gap(tmp_path: Path, compiled: Compile) -> None:
    """200,000 calls on one CPU in a ring of 1 MiB: the newest, gapless to the very last; the others are counted."""
    with on_cpu(max(os.sched_getaffinity(0))):
        dump = dumped(tmp_path / "dump", compiled("burst"), str(CALLS), form="otlp_json")
    found = own_records(dump)
    assert_ends_with_the_process(found)
    assert_no_gap(found)
    assert not [item for item in dump.history if item.name == "perfbuf.lost"]
    assert sequence(found[-1]) > CALLS
    # A record of getppid takes 48 bytes and its part of a sample's header: 1 MiB holds well over 15,000.
    assert 15_000 < len(found) < 25_000
    assert_accounted(dump)
    assert count(dump, "overwritten") == count(dump, "scope_overwritten") == sequence(found[0]) - 1
    complete_since = count(dump, "complete_since_unix_nano")
    assert found[0].proto.time_unix_nano <= complete_since < found[40].proto.time_unix_nano


def test_records_are_accounted_when_the_program_pins_itself(tmp_path: Path, compiled: Compile) -> None:
    """Its first calls lie in another CPU's ring for ever: the gap behind them is one perfbuf.lost, counted exactly."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    with on_cpu(cpus[0]):
        # The affinity is inherited; the program moves itself.
        dump = dumped(tmp_path / "dump", compiled("burst"), str(CALLS), str(cpus[1]))
    found = own_records(dump)
    assert_ends_with_the_process(found)
    assert sequence(found[0]) == 1
    assert found[0].body.startswith("execve(")
    assert_gaps_are_told(dump)
    assert_accounted(dump)


def test_migrated_program_has_no_gap_since_complete_since(tmp_path: Path, compiled: Compile) -> None:
    """Records of both CPUs' rings: none is missing from complete_since on, older ones are shown, gaps are told."""
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2]]
    dump = dumped(tmp_path / "dump", compiled("burst"), str(CALLS), *cpus, *cpus)
    assert_whole_since_complete_since(dump, at_least=10_000)
    assert_gaps_are_told(dump)
    assert len([item for item in dump.history if item.name == "perfbuf.lost"]) >= 1


def test_unpinned_program_has_no_gap_since_complete_since(tmp_path: Path, compiled: Compile) -> None:
    """The same wherever the scheduler puts it."""
    dump = dumped(tmp_path / "dump", compiled("burst"), str(CALLS))
    assert_whole_since_complete_since(dump, at_least=1)
    assert_gaps_are_told(dump)


def assert_whole_since_complete_since(dump: Arrived, *, at_least: int) -> None:
    """No gap from complete_since on; what is older is there too."""
    found = own_records(dump)
    assert_ends_with_the_process(found)
    since = count(dump, "complete_since_unix_nano")
    whole = [item for item in found if item.proto.time_unix_nano >= since]
    assert len(whole) >= at_least
    assert_no_gap(whole)
    assert len(found) > len(whole)
    assert_accounted(dump)


def assert_gaps_are_told(dump: Arrived) -> None:
    """Each gap between two records is one perfbuf.lost record, with its first missing number and its length."""
    found = own_records(dump)
    missing = {
        sequence(before) + 1: sequence(after) - sequence(before) - 1
        for before, after in itertools.pairwise(found)
        if sequence(after) != sequence(before) + 1
    }
    told = [item for item in dump.history if item.name == "perfbuf.lost"]
    assert {sequence(item): item.attributes["perfbuf.lost.count"] for item in told} == missing
    assert {item.attributes["perfbuf.lost.reason"] for item in told} <= {"overwritten"}
    assert sum(missing.values()) + sequence(found[0]) - 1 == count(dump, "scope_overwritten")


WAIT_S = 10.5
"""Longer than the default window, which must have passed the waiting thread's last calls."""
MARKERS = [f'access("/marker-{number}", R_OK) = -1 ENOENT (No such file or directory)' for number in range(10)]


def assert_waited(dump: Arrived) -> Record:
    """The ten marked calls of the waiting thread, in their order, and then its read; gives that."""
    read = next(item for item in dump.history if item.body.startswith("read(") and ", 4711" in item.body)
    tid = read.attributes["thread.id"]
    own = [item for item in dump.history if item.attributes["thread.id"] == tid and item.name != "perfbuf.lost"]
    at = own.index(read)
    assert [item.body for item in own[at - 10 : at]] == MARKERS
    assert_no_gap(own)
    assert read.attributes["perfbuf.syscall.name"] == "read"
    assert read.attributes["perfbuf.duration_ns"] >= WAIT_S * 0.95e9
    assert read.proto.time_unix_nano < count(dump, "window_start_unix_nano")
    return read


def assert_lapped(dump: Arrived) -> None:
    """The busy thread has pushed everything else out of the rings many times over."""
    assert count(dump, "overwritten") > 20 * count(dump, "records")


SMALL = ("--per-cpu-bytes", "128KiB")


def test_waiting_thread_is_shown_while_it_waits(tmp_path: Path, compiled: Compile) -> None:
    """Its call in flight, with arguments and age, and its ten last calls, though the rings have lost them long ago."""
    path = tmp_path / "dump"
    program = subprocess.Popen(
        [compiled("noisy_neighbour"), str(WAIT_S), "hold", "go"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        options = ("-p", str(program.pid), *SMALL, "-o", path, "--format", "otlp_proto")
        with attached(options) as recorder:
            program.stdin.write("go\n")
            program.stdin.flush()
            assert program.stdout.readline() == "lapped\n"
            recorder.send_signal(signal.SIGINT)
            _, errors = recorder.communicate(timeout=60)
        assert recorder.returncode == 0, errors
    finally:
        program.communicate(timeout=60)
    dump = parse_frames(path.read_bytes())
    read = assert_waited(dump)
    assert read.attributes["perfbuf.syscall.state"] == "in_flight"
    assert read.body.endswith(", 4711 <unfinished ...>")
    assert [pair for pair in read.attributes["perfbuf.syscall.arguments"].items() if pair[0] == "count"] == [
        ("count", 4711)
    ]
    assert_lapped(dump)


def test_waiting_thread_is_shown_when_its_process_has_ended(tmp_path: Path, compiled: Compile) -> None:
    """The same when the busy thread ends the process: the read was cut, its age is its duration."""
    path = tmp_path / "dump"
    options = (*SMALL, "-o", path, "--format", "otlp_proto")
    done = record(*options, command=[compiled("noisy_neighbour"), str(WAIT_S), "exit"])
    assert done.returncode == 1, done.stderr
    dump = parse_frames(path.read_bytes())
    read = assert_waited(dump)
    assert read.attributes["error.type"] == "ERESTARTSYS"
    assert_lapped(dump)
    assert dump.bodies().count("+++ exited with 1 +++") == 1
