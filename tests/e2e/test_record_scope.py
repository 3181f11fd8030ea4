# SPDX-License-Identifier: Apache-2.0
"""Whose records a dump holds, and under whose name: daemonised children, processes from before, filtered calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from recording import TIMEOUT_S, Arrived, parse_lines, record

pytestmark = pytest.mark.e2e

DAEMON = """
import os, sys
ended, held = os.pipe()
os.set_inheritable(held, True)
if not os.fork():
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        pass
    os.execv("/bin/ls", ["ls", "/nonexistent-daemon"])
os.wait()
os.close(held)
os.read(ended, 1)
sys.exit(3)
"""


@contextmanager
def waiting_process(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has executed its program and waits in a read of its standard input."""
    command = [sys.executable, "-c", "import os; os.write(1, b'.'); os.read(0, 1)"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        try:
            yield process
        finally:
            process.communicate(b"\n")


def recorded_while_it_waits(pid: int, output: Path, *arguments: str) -> Arrived:
    """What `record -p` says of the process: begun, ended by SIGINT once it records."""
    command = [sys.executable, "-m", "otel_perfbuf", "record", *arguments, "-p", str(pid)]
    with subprocess.Popen(
        [*command, "--format", "otlp_json", "-o", str(output)], stderr=subprocess.PIPE, text=True
    ) as recorder:
        # It records when it has a handler for SIGINT of its own, which it waits with.
        while not _waits_for_its_end(recorder):
            assert recorder.poll() is None, recorder.communicate()[1]
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(TIMEOUT_S) == 0
    return parse_lines(output.read_text())


def _waits_for_its_end(recorder: subprocess.Popen[str]) -> bool:
    try:
        links = [os.readlink(f"/proc/{recorder.pid}/fd/{name}") for name in os.listdir(f"/proc/{recorder.pid}/fd")]
    except OSError:
        return False
    return any("pidfd" in link for link in links) and sum("pipe:" in link for link in links) >= 2


def test_a_grandchild_that_lost_its_parent_stays_in_scope(tmp_path: Path) -> None:
    """A daemon that its parent left behind executes a program later: its calls are CMD's story all the same."""
    output = tmp_path / "dump.jsonl"
    record("--window", "all", "--format", "otlp_json", "-o", output, command=[sys.executable, "-c", DAEMON])
    bodies = parse_lines(output.read_text()).bodies()
    assert any("/nonexistent-daemon" in body and "ENOENT" in body for body in bodies)


def test_a_process_from_before_has_its_service_name(tmp_path: Path) -> None:
    """OTEL_SERVICE_NAME is known though its exec was not recorded."""
    with waiting_process({"OTEL_SERVICE_NAME": "from-before"}) as process:
        dump = recorded_while_it_waits(process.pid, tmp_path / "dump.jsonl")
    assert {item.resource["service.name"] for item in dump.records} == {"from-before"}
    assert [item.attributes["perfbuf.syscall.name"] for item in dump.history] == ["read"]


def test_a_call_that_is_filtered_out_is_not_shown_because_it_blocks(tmp_path: Path) -> None:
    """With -e trace=openat a thread that waits in read since before recording has nothing to tell."""
    with waiting_process({}) as process:
        dump = recorded_while_it_waits(process.pid, tmp_path / "dump.jsonl", "-e", "trace=openat")
    assert dump.history == []


def test_an_error_of_a_stranger_makes_no_dump() -> None:
    """The trigger socket is open to all users; only what CMD and its children report is CMD's."""
    report = """
import json, os, socket, sys
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.connect(sys.argv[1])
sender.send(json.dumps({"v": 1, "kind": "span_error", "reason": sys.argv[2]}).encode())
"""
    command = [sys.executable, "-m", "otel_perfbuf", "record", "--", "sh", "-c"]
    command += [
        f"echo $OTEL_PERFBUF_TRIGGER_SOCKET; read go; {sys.executable} -c '{report}' $OTEL_PERFBUF_TRIGGER_SOCKET own"
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as recorder:
        assert recorder.stdout is not None
        path = recorder.stdout.readline().strip()
        subprocess.run([sys.executable, "-c", report, path, "strange"], check=True, timeout=TIMEOUT_S)
        _, said = recorder.communicate("go\n", timeout=TIMEOUT_S)
    assert "span_error: own" in said
    assert "strange" not in said
