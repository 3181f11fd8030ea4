# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf run` beside a real Collector: triggers, dumps by hand, the live stream, and its ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent import Agent, agent_config, running_agent
from collector import Collector
from recording import Arrived, parse_lines
from test_main_job import arrived

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def named_python(tmp_path: Path) -> Path:
    """An interpreter whose processes have a name of their own, so that only they are recorded."""
    path = tmp_path / "pbtarget"
    path.symlink_to(sys.executable)
    return path


def run_named(python: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program under the named interpreter, in the venv of this one."""
    env = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run([python, *words], capture_output=True, text=True, timeout=60, env=env, check=False)


def test_failed_span_of_any_process_is_dumped(tmp_path: Path, collector: Collector, named_python: Path) -> None:
    """The datagram of the SDK's processor reaches the agent, and the dump the Collector, in the span's trace."""
    config = agent_config(tmp_path, collector.grpc, ["pbtarget"])
    with running_agent(tmp_path, config) as agent:
        done = run_named(named_python, PROGRAMS / "failing_request.py", OTEL_PERFBUF_TRIGGER_SOCKET=str(agent.trigger))
        span = json.loads(done.stdout.splitlines()[0])
        dump = arrived(collector)
    assert dump.header["perfbuf.dump.trigger"] == "span_error"
    assert {item.proto.trace_id.hex() for item in dump.records} == {span["trace_id"]}
    cause = next(item for item in dump.history if '"/nonexistent/payments.json"' in item.body)
    assert cause.attributes["perfbuf.correlation"] == "exact"
    assert cause.resource["service.name"] == "checkout"


def test_crash_is_dumped_without_the_application(tmp_path: Path, collector: Collector, named_python: Path) -> None:
    """The kernel tells the crash: no SDK, no parent, no socket is needed, and the dump is a trace of its own."""
    with running_agent(tmp_path, agent_config(tmp_path, collector.grpc, ["pbtarget"])):
        done = run_named(named_python, PROGRAMS / "dies_by_signal.py", "SEGV", OTEL_SERVICE_NAME="payments")
        assert done.returncode == -signal.SIGSEGV
        dump = arrived(collector)
    assert dump.header["perfbuf.dump.trigger"] == "process_exit"
    assert dump.bodies()[-1].startswith("+++ killed by SIGSEGV")
    assert dump.history[-1].resource["service.name"] == "payments"
    assert not dump.dump_span().parent_span_id
    assert {item.proto.trace_id for item in dump.records} == {dump.dump_span().trace_id}


def test_dump_by_hand_shows_the_call_in_flight(tmp_path: Path, collector: Collector, named_python: Path) -> None:
    """`otel-perfbuf dump --pid` of a process that waits: the call with its arguments and age."""
    with running_agent(tmp_path, agent_config(tmp_path, collector.grpc, ["pbtarget"])) as agent:
        program = "import os; r, w = os.pipe(); print('waits', flush=True); os.read(r, 4711)"
        waiting = subprocess.Popen([named_python, "-c", program], stdout=subprocess.PIPE, text=True)
        try:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waits\n"
            _wait_in_read(waiting.pid)
            done = agent.command("dump", "--pid", str(waiting.pid), "--reason", "it hangs")
        finally:
            waiting.terminate()  # KILL would fire process_exit
            waiting.wait()
        assert done.returncode == 0, done.stderr
        dump = arrived(collector)
        status = agent.command("status", "--json")
    assert done.stdout.split()[0] == dump.header["perfbuf.dump.id"]
    assert f"records={len(dump.history)} " in done.stdout
    assert dump.header["perfbuf.dump.trigger"] == "manual"
    assert dump.header["perfbuf.dump.reason"] == "it hangs"
    flying = [item for item in dump.history if item.attributes.get("perfbuf.syscall.state") == "in_flight"]
    assert [item.body.endswith(", 4711 <unfinished ...>") for item in flying] == [True]
    assert flying[0].attributes["perfbuf.duration_ns"] > 0
    assert status.returncode == 0
    assert json.loads(status.stdout)


def _wait_in_read(pid: int) -> None:
    while Path(f"/proc/{pid}/syscall").read_text().split()[0] not in ("0", "63"):
        time.sleep(0.001)


def test_live_stream_of_processes(tmp_path: Path, collector: Collector) -> None:
    """Exec and exit of a process arrive as they happen, without trace and dump ids."""
    marker = tmp_path / "pb-live-marker"
    shutil.copy("/bin/false", marker)
    config = {
        "receivers": {"perf_buffer/process": {"program": "process", "mode": "forward", "per_cpu_bytes": "256KiB"}},
        "exporters": {"otlp_grpc": {"endpoint": collector.grpc, "tls": {"insecure": True}}},
        "service": {"pipelines": {"logs/live": {"receivers": ["perf_buffer/process"], "exporters": ["otlp_grpc"]}}},
    }

    def of_marker(found: Arrived) -> list[str]:
        return [item.name for item in found.records if item.resource.get("process.executable.path") == str(marker)]

    with running_agent(tmp_path, config):
        assert subprocess.run([marker], check=False).returncode == 1
        collector.wait_for(
            lambda peer: (
                peer.output.exists() and "perfbuf.process.exit" in of_marker(parse_lines(peer.output.read_text()))
            )
        )
    found = parse_lines(collector.output.read_text())
    mine = [item for item in found.records if item.resource.get("process.executable.path") == str(marker)]
    assert [item.name for item in mine][-2:] == ["perfbuf.process.exec", "perfbuf.process.exit"]
    assert mine[-1].attributes["process.exit.code"] == 1
    assert all(not item.proto.trace_id and not item.proto.span_id for item in mine)
    assert all("perfbuf.dump.id" not in item.attributes for item in mine)


def test_second_agent_is_refused(tmp_path: Path, collector: Collector) -> None:
    """Two agents on one socket: the second says so in one sentence and ends with 1; the first goes on."""
    config = agent_config(tmp_path, collector.grpc, ["pbtarget"])
    with running_agent(tmp_path, config) as first:
        second = Agent(tmp_path, config)
        assert second.stop(signal.SIGCONT) == 1
        assert len(second.log.strip().splitlines()) == 1, second.log
        assert "sock" in second.log
        assert first.command("status").returncode == 0


def test_sigterm_with_unreachable_backend_counts_what_is_left(tmp_path: Path, named_python: Path) -> None:
    """Nobody listens: the dump is kept and retried, and SIGTERM ends the agent in time with one sentence of counts."""
    with running_agent(tmp_path, agent_config(tmp_path, "127.0.0.1:9", ["pbtarget"])) as agent:
        run_named(named_python, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
        agent.wait_for_line("127.0.0.1:9")
        begin = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - begin < 10
    dropped = [line for line in agent.log.splitlines() if "dropped" in line]
    assert len(dropped) == 1, agent.log
