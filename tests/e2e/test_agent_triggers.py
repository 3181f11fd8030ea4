# SPDX-License-Identifier: Apache-2.0
"""Triggers that the kernel decides and slow spans, through a whole agent: which fire, in whose trace, how often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent import agent_config, running_agent
from recording import Arrived, parse_lines

TRACED = """
import json, os, socket, sys, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_perfbuf.sdk import FlightRecorderSpanProcessor
provider = TracerProvider(shutdown_on_exit=False)
processor = FlightRecorderSpanProcessor()
provider.add_span_processor(processor)
for _ in range(500):
    processor._registration.look()
    if processor._registration.map: break
    time.sleep(0.01)
tracer = provider.get_tracer("t")
def span(name):
    return tracer.start_as_current_span(name)
"""


@pytest.fixture
def named_python(tmp_path: Path) -> Path:
    """An interpreter whose processes have a name of their own, so that only they are recorded."""
    path = tmp_path / "pbtarget"
    path.symlink_to(sys.executable)
    return path


def _config(directory: Path, triggers: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Dumps into a file; the socket trigger is always on."""
    config = agent_config(directory, "127.0.0.1:1", ["pbtarget"], **options)
    config["connectors"]["flight_recorder"]["triggers"] = {
        "socket": {"path": str(directory / "trigger.sock")}, **triggers,
    }  # fmt: skip
    config["exporters"] = {"file": {"path": str(directory / "dumps.jsonl")}}
    for pipeline in config["service"]["pipelines"].values():
        pipeline["exporters"] = ["file"]
    return config


def _run(python: Path, code: str, directory: Path) -> subprocess.Popen[bytes]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OTEL_PERFBUF_TRIGGER_SOCKET": str(directory / "trigger.sock"),
    }
    return subprocess.Popen([python, "-c", code], env=env, stdin=subprocess.PIPE)


def _dumps(directory: Path, enough: Callable[[Arrived], bool]) -> Arrived:
    """What is in the file as soon as it is enough."""
    path = directory / "dumps.jsonl"
    end = time.monotonic() + 60
    while True:
        found = parse_lines(path.read_text()) if path.exists() else Arrived([], [])
        if enough(found):
            return found
        assert time.monotonic() < end, f"{len(found.records)} records, {len(found.spans)} spans in the file"
        time.sleep(0.1)


def _whole(found: Arrived) -> bool:
    headers = [item for item in found.records if item.name == "perfbuf.dump"]
    return bool(headers and found.spans) and len(found.history) >= headers[0].attributes["perfbuf.dump.records"]


def test_an_errno_within_a_span_dumps_in_its_trace(tmp_path: Path, named_python: Path) -> None:
    """The span itself ends well: the kernel saw the refusal, and knew whose it was."""
    triggers = {"syscall_error": {"syscalls": ["connect"], "errnos": ["ECONNREFUSED"]}}
    code = TRACED + "with span('pay'): socket.socket().connect_ex(('127.0.0.1', 1))\n"
    with running_agent(tmp_path, _config(tmp_path, triggers)):
        assert _run(named_python, code, tmp_path).wait(60) == 0
        dump = _dumps(tmp_path, _whole)
    assert dump.header["perfbuf.dump.trigger"] == "syscall_error"
    assert dump.header["perfbuf.dump.reason"].startswith("pbtarget got ECONNREFUSED from connect (pid ")
    refused = [item for item in dump.history if item.attributes.get("error.type") == "ECONNREFUSED"]
    assert [item.attributes["perfbuf.correlation"] for item in refused] == ["exact"]
    assert dump.dump_span().parent_span_id == refused[0].proto.span_id
    assert dump.dump_span().trace_id == refused[0].proto.trace_id


def test_a_call_that_hangs_is_dumped_while_it_hangs(tmp_path: Path, named_python: Path) -> None:
    """It is in the dump, in flight, with its age."""
    triggers = {"syscall_latency": {"longer_than": "300ms", "syscalls": ["flock"]}}
    code = (
        "import fcntl, os\n"
        "a, b = os.open('/tmp', os.O_RDONLY), os.open('/tmp', os.O_RDONLY)\n"
        "fcntl.flock(a, fcntl.LOCK_EX); fcntl.flock(b, fcntl.LOCK_EX)"
    )
    with running_agent(tmp_path, _config(tmp_path, triggers)):
        process = _run(named_python, code, tmp_path)
        try:
            dump = _dumps(tmp_path, _whole)
        finally:
            process.kill()
            process.wait()
    assert dump.header["perfbuf.dump.trigger"] == "syscall_latency"
    assert "s for flock" in dump.header["perfbuf.dump.reason"]
    (hanging,) = [item for item in dump.history if item.body.startswith("flock(4")]
    assert hanging.attributes["perfbuf.syscall.state"] == "in_flight"
    assert hanging.attributes["perfbuf.duration_ns"] > 300_000_000


def test_a_span_that_took_too_long(tmp_path: Path, named_python: Path) -> None:
    """The application is told the limit when it registers; a quick one and one of another name are quiet."""
    triggers = {"span_latency": {"longer_than": "200ms", "names": ["slow"]}}
    code = TRACED + (
        "with span('other'): time.sleep(0.3)\n"
        "with span('slow'): pass\n"
        "with span('slow'): time.sleep(0.3)\n"
    )  # fmt: skip
    with running_agent(tmp_path, _config(tmp_path, triggers)):
        assert _run(named_python, code, tmp_path).wait(60) == 0
        dump = _dumps(tmp_path, _whole)
    assert dump.header["perfbuf.dump.trigger"] == "span_latency"
    assert dump.header["perfbuf.dump.reason"].startswith("span slow took 0.")
    slept = [item for item in dump.history if "nanosleep" in item.body and "= 0" in item.body]
    assert slept[-1].attributes["perfbuf.correlation"] == "exact"
    assert slept[-1].proto.span_id == dump.dump_span().parent_span_id


def test_firings_within_the_hold_off_are_counted_in_the_next_header(tmp_path: Path, named_python: Path) -> None:
    """Five refusals, one dump; the dump by hand that follows says four were suppressed, and so do the metrics."""
    triggers = {"syscall_error": {"syscalls": ["connect"], "errnos": ["ECONNREFUSED"]}}
    code = (
        "import socket, sys, time\n"
        "for _ in range(5):\n"
        "    socket.socket().connect_ex(('127.0.0.1', 1)); time.sleep(0.1)\n"
        "sys.stdin.read()"
    )
    with running_agent(tmp_path, _config(tmp_path, triggers, hold_off="30s")) as agent:
        process = _run(named_python, code, tmp_path)
        try:
            _dumps(tmp_path, _whole)
            end = time.monotonic() + 30
            while '"syscall_error": 4' not in agent.command("status", "--json").stdout:
                assert time.monotonic() < end, agent.command("status", "--json").stdout
                time.sleep(0.2)
            done = agent.command("dump", "--pid", str(process.pid))
            assert done.returncode == 0, done.stderr
            found = _dumps(
                tmp_path, lambda found: len([item for item in found.records if item.name == "perfbuf.dump"]) == 2
            )
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
    headers = [item.attributes for item in found.records if item.name == "perfbuf.dump"]
    assert [header["perfbuf.dump.trigger"] for header in headers] == ["syscall_error", "manual"]
    assert [header["perfbuf.dump.suppressed"] for header in headers][1] == 4


def test_a_crash_in_the_warm_up_is_counted_and_one_after_it_is_dumped(tmp_path: Path) -> None:
    """The first crash begins no hold-off; the dump of the second one says that one was suppressed."""
    shell = tmp_path / "pbtarget"
    shell.symlink_to("/bin/sh")
    crash = [shell, "-c", "kill -SEGV $$"]
    with running_agent(tmp_path, _config(tmp_path, {"process_exit": {}}, hold_off="1h", warm_up="15s")) as agent:
        agent.wait_for_line("warm-up: firings of the next")
        assert subprocess.run(crash, check=False).returncode < 0

        def recorder() -> Any:
            return json.loads(agent.command("status", "--json").stdout)["connectors"]["flight_recorder"]

        end = time.monotonic() + 60
        while (status := recorder())["suppressed"] != {"process_exit": 1} or status["warm_up_left_s"]:
            assert time.monotonic() < end, status
            time.sleep(0.2)
        assert status["dumps"]["made"] == 0
        assert not (tmp_path / "dumps.jsonl").exists()
        assert subprocess.run(crash, check=False).returncode < 0
        dump = _dumps(tmp_path, _whole)
        assert recorder()["suppressed"] == {"process_exit": 1}
    assert dump.header["perfbuf.dump.trigger"] == "process_exit"
    assert dump.header["perfbuf.dump.suppressed"] == 1
