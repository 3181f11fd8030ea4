# SPDX-License-Identifier: Apache-2.0
"""The agent with its spool, a real Collector and whatever can go wrong between them: every count must come out even.

Dumps made = dumps delivered whole + dumps counted as dropped. A record is known by dump id, thread instance and
sequence: it may arrive twice, it may not be missing. Made are the dumps that `otel-perfbuf dump` has answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import Agent, agent_config
from busy import Dumps, busy_process, read_dumps
from collector import Collector, collector_binary, free_ports

PROGRAMS = Path(__file__).parent / "programs"
WAIT_S = 90
pytestmark = pytest.mark.timeout(600)  # agents and Collectors start and end several times


class Site:
    """One place with an agent's configuration, a spool, and Collectors that come and go at one endpoint."""

    def __init__(self, directory: Path, pid: int, **queue: Any) -> None:
        self.directory = directory
        self.pid = pid
        self.spool = directory / "spool"
        self.output = directory / "arrived.jsonl"
        self.endpoint = f"127.0.0.1:{free_ports(1)[0]}"
        self.config = agent_config(directory, self.endpoint, ["pbbusy"], window={"before": "1h"})
        self.config["exporters"]["otlp_grpc"] |= {
            "timeout": "5s",
            "retry_on_failure": {"initial_interval": "100ms", "max_interval": "500ms"},
            "sending_queue": {"storage": "file_storage", **queue},
        }
        self.config["extensions"]["file_storage"] = {"directory": str(self.spool)}
        self.config["service"]["extensions"].append("file_storage")
        self._collectors = 0

    @contextlib.contextmanager
    def collector(self, extra: dict[str, Any] | None = None) -> Iterator[Collector]:
        """A Collector at the endpoint that appends to the one output; what it acknowledged is in the file."""
        self._collectors += 1
        directory = self.directory / f"collector{self._collectors}"
        directory.mkdir()
        own: dict[str, Any] = {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.endpoint}}}},
            # With a rotation the exporter writes without a buffer: SIGKILL takes nothing that was acknowledged
            "exporters": {"file": {"path": str(self.output), "rotation": {"max_megabytes": 10_000}}},
        }
        for key, value in (extra or {}).items():
            own[key] = {**own.get(key, {}), **value}
        collector = Collector(collector_binary(), directory, own)
        try:
            collector.wait_ready()
            yield collector
        finally:
            collector.stop()

    @contextlib.contextmanager
    def agent(self, **environment: str) -> Iterator[Agent]:
        """The agent, running; ended by SIGTERM if it still runs."""
        agent = Agent(self.directory, self.config, environment)
        try:
            agent.wait_for_line("recording; pid")
            yield agent
        finally:
            agent.stop()

    def dump(self, agent: Agent) -> tuple[str, int]:
        """(id, records) of a dump by hand that counts as made."""
        done = agent.command("dump", "--pid", str(self.pid))
        assert done.returncode == 0, done.stderr
        found = re.match(r"([0-9a-f]{32}) records=(\d+)", done.stdout)
        assert found, done.stdout
        return found[1], int(found[2])

    def arrived(self) -> Dumps:
        """Everything that any Collector has taken."""
        return read_dumps(self.output)

    def wait_delivered(self, agent: Agent) -> dict[str, Any]:
        """Returns the status when the spool is empty."""
        deadline = time.monotonic() + WAIT_S
        while True:
            status: dict[str, Any] = json.loads(agent.command("status", "--json").stdout)
            if not status["spools"]["file_storage"]["dumps"] and not status["exporters"]["otlp_grpc"]["queue_size"]:
                return status
            assert time.monotonic() < deadline, status
            time.sleep(0.2)


def check(site: Site, made: dict[str, int]) -> Dumps:
    """Every dump that was made has arrived whole, the header first, and none that arrived is in pieces."""
    dumps = site.arrived()
    assert set(made) <= set(dumps.headers)
    for dump_id, records in made.items():
        assert dumps.headers[dump_id] == records
    assert all(dumps.whole(dump_id) for dump_id in dumps.headers), {
        dump_id: (dumps.headers[dump_id], len(dumps.records[dump_id])) for dump_id in dumps.headers
    }
    assert set(dumps.records) <= set(dumps.headers)
    assert set(dumps.first.values()) == {"perfbuf.dump"}
    return dumps


@pytest.fixture
def pid(tmp_path: Path) -> Iterator[int]:
    """A process with a growing history."""
    with busy_process(tmp_path) as found:
        yield found


def wait_lines(path: Path, lines: int) -> None:
    """Returns when the file has at least so many whole lines."""
    deadline = time.monotonic() + WAIT_S
    found = 0
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    with path.open("rb") as file:
        while found < lines:
            assert time.monotonic() < deadline
            part = file.read(1 << 20)
            found += part.count(b"\n")
            if not part:
                time.sleep(0.002)


def test_collector_is_killed_in_the_middle_of_a_dump(tmp_path: Path, pid: int) -> None:
    """SIGKILL when part of a dump is in its file; the next Collector gets the rest, and nothing is missing."""
    site = Site(tmp_path, pid, num_consumers=1)
    site.config["exporters"]["otlp_grpc"]["compression"] = "none"
    made: dict[str, int] = {}
    with site.agent() as agent:
        time.sleep(4)  # some 40,000 records: ten chunks
        with site.collector() as first:
            dump = subprocess.Popen(
                [sys.executable, "-m", "otel_perfbuf", "dump", "--pid", str(pid), "--control", str(agent.control)],
                stdout=subprocess.PIPE,
                text=True,
            )
            wait_lines(site.output, 4)  # header, span, two chunks of the history
            os.kill(first.pid, signal.SIGKILL)
            words, _ = dump.communicate(timeout=60)
        dump_id, records = words.split()[0], int(words.split()[1].removeprefix("records="))
        made[dump_id] = records
        partly = site.arrived()
        assert 0 < len(partly.records[dump_id]) < records
        # A line that the kill has cut is no line for its readers
        text = site.output.read_bytes()
        site.output.write_bytes(text[: text.rfind(b"\n") + 1])
        made |= [site.dump(agent)]
        with site.collector():
            status = site.wait_delivered(agent)
    dumps = check(site, made)
    assert set(dumps.headers) == set(made)
    assert status["exporters"]["otlp_grpc"]["failed"] == status["exporters"]["otlp_grpc"]["dropped"] == 0
    assert len(dumps.headers) == 2


def test_memory_limiter_refuses_for_a_while(tmp_path: Path, pid: int) -> None:
    """A real memory_limiter that always refuses: retried, not failed; with room again all of it arrives once."""
    site = Site(tmp_path, pid)
    limited = {
        "processors": {"memory_limiter": {"check_interval": "50ms", "limit_mib": 1, "spike_limit_mib": 0}},
        "service": {
            "pipelines": {
                signal: {"receivers": ["otlp"], "processors": ["memory_limiter"], "exporters": ["file"]}
                for signal in ("logs", "traces")
            }
        },
    }
    made: dict[str, int] = {}
    with site.agent() as agent:
        with site.collector(limited):
            time.sleep(1)
            made |= [site.dump(agent)]
            agent.wait_for_line("kept in the spool and tried again")
            time.sleep(3)
        with site.collector():
            status = site.wait_delivered(agent)
    assert "UNAVAILABLE" in agent.log
    assert "memory" in agent.log
    check(site, made)
    assert status["exporters"]["otlp_grpc"]["failed"] == 0


@pytest.mark.timeout(600)
def test_agent_is_killed_at_ten_random_moments(tmp_path: Path, pid: int) -> None:
    """SIGKILL within a dump's making, writing and sending; the last agent delivers what the others left.

    Every answered dump arrives whole. A dump whose answer the kill has cut off arrives whole or not at all, and a file
    that was being written is counted, never sent.
    """
    site = Site(tmp_path, pid, num_consumers=2)
    randomness = random.Random(os.environ.get("OTEL_PERFBUF_CHAOS_SEED", "2026"))
    made: dict[str, int] = {}
    malformed = 0
    with site.collector():
        for turn in range(10):
            agent = Agent(site.directory, site.config)
            agent.wait_for_line("recording; pid")
            malformed += agent.log.count("is malformed and deleted")
            time.sleep(1)
            command = [sys.executable, "-m", "otel_perfbuf", "dump", "--pid", str(pid), "--control", str(agent.control)]
            dump = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if turn % 3 == 0:  # anywhere, mostly while it is being made
                time.sleep(randomness.uniform(0.3, 2.5))
            elif turn % 3 == 1:  # its file has appeared: it is being written
                _wait_for_dump_file(site.spool, dump)
                time.sleep(randomness.uniform(0, 0.03))
            else:  # it is made: it is being sent
                dump.wait(60)
                time.sleep(randomness.uniform(0, 0.3))
            agent.stop(signal.SIGKILL)
            words, _ = dump.communicate(timeout=60)
            if dump.returncode == 0:
                made[words.split()[0]] = int(words.split()[1].removeprefix("records="))
        with site.agent() as agent:
            malformed += agent.log.count("is malformed and deleted")
            made |= [site.dump(agent)]
            status = site.wait_delivered(agent)
    dumps = check(site, made)
    assert status["spools"]["file_storage"]["waiting"] == {}
    assert not list(site.spool.glob("*.dump"))
    sys.stderr.write(
        f"answered {len(made)}, arrived {len(dumps.headers)}, torn files {malformed}, records sent twice "
        f"{sum(count - 1 for each in dumps.records.values() for count in each.values())}\n"
    )


def _wait_for_dump_file(spool: Path, dump: subprocess.Popen[str]) -> None:
    before = set(spool.glob("*.dump"))
    while dump.poll() is None and not set(spool.glob("*.dump")) - before:
        time.sleep(0.0005)


def test_spool_on_a_full_disk(tmp_path: Path, pid: int) -> None:
    """A tmpfs of 256 KiB: what fits is spooled; what does not is counted, said, sent from memory, and arrives."""
    site = Site(tmp_path, pid)
    site.spool.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", site.spool], check=True)
    try:
        made: dict[str, int] = {}
        with site.agent() as agent, site.collector():
            time.sleep(1.5)
            made |= [site.dump(agent)]
            status = site.wait_delivered(agent)
            metrics = _metrics(agent)
        assert "No space left on device; it is sent from memory" in agent.log
        assert status["spools"]["file_storage"]["failed"] == 1
        assert 'perfbuf_dumps{trigger="manual",outcome="exported"} 1' in metrics
        assert 'outcome="spooled"' not in metrics
        check(site, made)
        assert not list(site.spool.glob("*.dump"))
    finally:
        subprocess.run(["umount", site.spool], check=True)


def _metrics(agent: Agent) -> str:
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(agent.control))
        control.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return b"".join(iter(lambda: control.recv(65536), b"")).decode()


def test_the_clock_is_stepped_by_an_hour(tmp_path: Path, pid: int) -> None:
    """Forward and back while the Collector is away: order, back-off and the spool do not follow the wall clock."""
    shim = tmp_path / "stepped_clock.so"
    source = PROGRAMS / "stepped_clock.c"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", shim, source], check=True)
    step = tmp_path / "step"
    step.write_bytes(struct.pack("l", 0))

    def stepped(seconds: int) -> None:
        with step.open("r+b") as file:  # in place: the agent has it mapped
            file.write(struct.pack("l", seconds))

    site = Site(tmp_path, pid, num_consumers=1)
    preload = ":".join(filter(None, (os.environ.get("OTEL_PERFBUF_TEST_PRELOAD", ""), str(shim))))
    made: dict[str, int] = {}
    with site.agent(LD_PRELOAD=preload, STEPPED_CLOCK=str(step)) as agent:
        for seconds in (0, 3600, -3600):
            stepped(seconds)
            time.sleep(0.5)
            made |= [site.dump(agent)]
        with site.collector():
            site.wait_delivered(agent)
    dumps = check(site, made)
    assert list(dumps.headers) == list(made)


def test_agent_ends_and_begins_while_the_collector_is_away(tmp_path: Path, pid: int) -> None:
    """SIGTERM with a backend that is away keeps its time, says what stays, and the next agent delivers it."""
    site = Site(tmp_path, pid)
    made: dict[str, int] = {}
    with site.agent() as agent:
        time.sleep(0.5)
        made |= [site.dump(agent)]
        began = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began < 15
    assert "1 dump stays in the spool for the next start" in agent.log
    assert re.search(r"dropped", agent.log) is None
    with site.agent() as agent, site.collector():
        site.wait_delivered(agent)
        shown = agent.command("status").stdout
    assert "file_storage bytes=0 dumps=0 dropped=0 malformed=0 failed=0" in shown
    check(site, made)
