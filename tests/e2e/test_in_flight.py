# SPDX-License-Identifier: Apache-2.0
"""Calls that had not ended at the dump: their arguments, with the strings that they point to, and their age."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from attaching import attached
from recording import Record, parse_lines

CHECKOUT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
WAIT_S = 60


def test_blocked_opens_show_their_paths(tmp_path: Path) -> None:
    """One blocked since before recording (no age is known), one since later (its age is); both with their path."""
    early, late = tmp_path / "early", tmp_path / "late"
    os.mkfifo(early)
    os.mkfifo(late)
    program = subprocess.Popen(
        [sys.executable, PROGRAMS / "blocked_opens.py", early, late],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    path = tmp_path / "dump"
    try:
        before = blocked_tid(program.stdout.readline())
        with attached(("-p", str(program.pid), "-o", path, "--format", "otlp_json")) as recorder:
            begin_ns = time.monotonic_ns()
            program.stdin.write("\n")
            program.stdin.flush()
            later = blocked_tid(program.stdout.readline())
            recorder.send_signal(signal.SIGINT)
            _, errors = recorder.communicate(timeout=WAIT_S)
            end_ns = time.monotonic_ns()
        assert recorder.returncode == 0, errors
    finally:
        program.kill()  # its threads wait in open() for ever
        program.communicate()
    dump = parse_lines(path.read_text())
    calls = {item.attributes["thread.id"]: item for item in dump.history if item.body.endswith("<unfinished ...>")}

    old = calls[before]
    assert_in_flight(old, f'openat(AT_FDCWD, "{early}", O_WRONLY|O_CLOEXEC <unfinished ...>')
    assert "perfbuf.duration_ns" not in old.attributes
    new = calls[later]
    assert_in_flight(new, f'openat(AT_FDCWD, "{late}", O_WRONLY|O_CLOEXEC <unfinished ...>')
    age_ns = new.attributes["perfbuf.duration_ns"]
    assert isinstance(age_ns, int)
    assert 0 < age_ns < end_ns - begin_ns
    main = calls[program.pid]
    assert main.attributes["perfbuf.syscall.name"] == "read"
    assert dump.header["perfbuf.dump.records"] == len(dump.history)


def blocked_tid(line: str) -> int:
    """The thread's id of a line "blocked TID"."""
    word, tid = line.split()
    assert word == "blocked"
    return int(tid)


def assert_in_flight(item: Record, body: str) -> None:
    """An open call without a result."""
    # With file descriptors by name AT_FDCWD is followed by the working directory, as strace -y prints it.
    assert item.body.replace(f"AT_FDCWD<{Path.cwd()}>", "AT_FDCWD") == body
    assert item.attributes["perfbuf.syscall.state"] == "in_flight"
    assert "perfbuf.syscall.return_value" not in item.attributes
    assert "error.type" not in item.attributes
    assert item.proto.severity_text == "INFO"


def test_attached_recording_ends_with_its_process(tmp_path: Path) -> None:
    """-p: when the process ends the dump is made, with its end; 0, whatever the process's status was."""
    target = subprocess.Popen(["sh", "-c", "read line; exit 8"], stdin=subprocess.PIPE)
    path = tmp_path / "dump"
    with attached(("-p", str(target.pid), "-o", path, "--format", "otlp_json")) as recorder:
        target.communicate(b"\n", timeout=WAIT_S)
        _, errors = recorder.communicate(timeout=WAIT_S)
    assert target.returncode == 8
    assert recorder.returncode == 0, errors
    dump = parse_lines(path.read_text())
    assert dump.header["perfbuf.dump.trigger"] == "manual"
    assert dump.bodies()[-1] == "+++ exited with 8 +++"


def test_failing_span_of_a_busy_program_shows_who_waits(tmp_path: Path) -> None:
    """A datagram of the program itself makes the dump while another thread of it waits: its call is in flight there."""
    script = """
import json, os, socket, threading
reading, writing = os.pipe()
thread = threading.Thread(target=os.read, args=(reading, 4711), daemon=True)
thread.start()
while open(f"/proc/self/task/{thread.native_id}/syscall").read().split()[0] not in ("0", "63"):
    pass
span = {"v": 1, "kind": "span_error", "trace_id": "11" * 16, "span_id": "22" * 8, "tid": threading.get_native_id(),
        "service_name": "busy", "reason": "it failed"}
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
    to.sendto(json.dumps(span).encode(), os.environ["OTEL_PERFBUF_TRIGGER_SOCKET"])
for _ in range(5_000):
    os.getppid()
input()  # until the dump is there
os._exit(0)
"""
    path = tmp_path / "dump"
    recorder = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "otel_perfbuf",
            "record",
            "-o",
            path,
            "--format",
            "otlp_json",
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while not path.exists():  # two seconds after the datagram, while the program lives
            assert recorder.poll() is None
            assert time.monotonic() < deadline, "no dump was made"
            time.sleep(0.05)
    finally:
        _, errors = recorder.communicate("\n", timeout=WAIT_S)
    assert recorder.returncode == 0, errors
    dump = parse_lines(path.read_text())
    assert dump.header["perfbuf.dump.trigger"] == "span_error"
    assert {item.proto.trace_id.hex() for item in dump.records} == {"11" * 16}
    waiting = [item for item in dump.history if item.body.startswith("read(") and ", 4711 <unf" in item.body]
    assert len(waiting) == 1
    assert waiting[0].attributes["perfbuf.syscall.state"] == "in_flight"
    assert waiting[0].attributes["perfbuf.duration_ns"] > 1_000_000_000
