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
