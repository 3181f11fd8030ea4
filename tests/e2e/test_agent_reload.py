# SPDX-License-Identifier: Apache-2.0
"""SIGHUP on the real agent: history of before the reload is in the dump after it; nothing that fires is lost."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from agent import running_agent
from test_agent_readers import agent_dumps, config_to_file, eventually, named_python, paths_of, written

from otel_perfbuf.triggers.datagram import Datagram, build_datagram

__all__ = ["named_python"]

# Makes a numbered call for each line, and dies at the end of its input.
NUMBERED = (
    "import os, sys\n"
    "for n, _ in enumerate(sys.stdin):\n    os.access(f'/pb-{n}', 0)\n    print(n, flush=True)\n"
    "os.kill(os.getpid(), 11)\n"
)


def test_history_goes_on_over_reloads(tmp_path: Path, named_python: Path) -> None:
    """Another file, another hold-off, a configuration that is wrong and one that cannot start: the process's calls of
    before, between and after are all in its dump, in order, and in the new file.
    """
    config = config_to_file(tmp_path)
    with running_agent(tmp_path, config) as agent:
        process = subprocess.Popen(
            [named_python, "-c", NUMBERED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
        )
        assert process.stdin is not None
        assert process.stdout is not None

        def calls(count: int) -> None:
            for _ in range(count):
                process.stdin.write("\n")
                process.stdin.flush()
                process.stdout.readline()

        calls(100)
        config["exporters"]["file"]["path"] = str(tmp_path / "new" / "dumps.jsonl")
        (tmp_path / "new").mkdir()
        config["connectors"]["flight_recorder"]["hold_off"] = "1ms"
        agent.reload(config)
        agent.wait_for_line("left running: extensions.control, receivers.perf_buffer/syscalls\n")
        calls(100)
        wrong = json.loads(json.dumps(config))
        wrong["receivers"]["perf_buffer/syscalls"]["per_cpu_bites"] = 1
        agent.reload(wrong)
        agent.wait_for_line("is wrong; the old one goes on")
        assert "receivers.perf_buffer/syscalls.per_cpu_bites: there is no such key" in agent.log
        calls(100)
        unstartable = json.loads(json.dumps(config))
        unstartable["extensions"]["control"]["path"] = str(tmp_path / "missing" / "control.sock")
        agent.reload(unstartable)
        agent.wait_for_line("the old configuration runs again")
        calls(100)
        process.stdin.close()
        assert process.wait(60) == -signal.SIGSEGV
        process.stdout.close()
        eventually(lambda: agent_dumps(tmp_path / "new") == 1)
    assert paths_of(written(tmp_path / "new" / "dumps.jsonl"), process.pid) == list(range(400))
    assert not (tmp_path / "dumps.jsonl").exists()


def test_no_trigger_is_lost_while_reloading(tmp_path: Path) -> None:
    """Datagrams are sent all the time, by one that never waits; each is a firing or counted as suppressed or joined."""
    config = config_to_file(tmp_path)
    config["connectors"]["flight_recorder"]["max_dumps"] = {"per": "1h", "count": 3}
    sent = 0
    with running_agent(tmp_path, config) as agent, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(agent.trigger))
        for turn in range(5):
            config["exporters"]["file"]["path"] = str(tmp_path / f"dumps-{turn}.jsonl")
            agent.reload(config)
            before = agent.log.count("the new configuration runs")
            while agent.log.count("the new configuration runs") == before:
                sent += 1
                sender.send(build_datagram(Datagram("span_error", sent.to_bytes(16, "big"), bytes(7) + b"1")))
                agent.read_log(0.02)
        eventually(lambda: fired(agent.command("status", "--json").stdout) == sent)
    assert sent > 5


def test_otlp_requests_are_answered_over_reloads(tmp_path: Path) -> None:
    """A client that sends spans all the time gets 200 for each, whatever is reloaded behind the receiver."""
    config = config_to_file(tmp_path)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    config["receivers"]["otlp"] = {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}
    config["connectors"]["flight_recorder"]["triggers"]["span_error"] = {}
    config["service"]["pipelines"]["traces/in"] = {"receivers": ["otlp"], "exporters": ["flight_recorder"]}
    span = {"traceId": "11" * 16, "spanId": "22" * 8, "name": "a", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    sent = 0
    with running_agent(tmp_path, config) as agent:
        for turn in range(3):
            # The second time round the flight recorder itself begins anew.
            config["exporters"]["file"]["path"] = str(tmp_path / f"dumps-{turn}.jsonl")
            config["connectors"]["flight_recorder"]["hold_off"] = f"{turn // 2 + 1}s"
            agent.reload(config)
            before = agent.log.count("the new configuration runs")
            while agent.log.count("the new configuration runs") == before:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("POST", "/v1/traces", body, {"Content-Type": "application/json"})
                assert connection.getresponse().status == 200
                connection.close()
                sent += 1
                agent.read_log(0.02)
        assert "left running: " in agent.log
        assert "receivers.otlp" in agent.log
        with unix_connection(agent.control) as control:
            control.request("GET", "/metrics")
            metrics = control.getresponse().read().decode()
    assert f'otelcol_receiver_accepted_spans{{receiver="otlp"}} {sent}\n' in metrics


@contextlib.contextmanager
def unix_connection(path: Path) -> Iterator[http.client.HTTPConnection]:
    """HTTP over the control socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    try:
        yield connection
    finally:
        connection.close()


def fired(status: str) -> int:
    """How many datagrams the recorder has taken as firings."""
    return int(json.loads(status)["connectors"]["flight_recorder"]["fired"].get("span_error", 0))
