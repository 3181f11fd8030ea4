# SPDX-License-Identifier: Apache-2.0
"""Other ways of reading, through the real service: swapped rings, a reader of somebody else's, CPUs that come back.

What it is not: no CPU is taken offline here, the list of them is played (the kernel matrix does it for real).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent import Agent, agent_config, running_agent
from recording import Arrived, Record, parse_lines

from otel_perfbuf.bpf.process import ProcessProgram
from otel_perfbuf.cli import main
from otel_perfbuf.rings import PerfReader
from otel_perfbuf.rings import ring_set as ring_set_module
from otel_perfbuf.service.assembly import KernelParts
from otel_perfbuf.service.config import parse
from otel_perfbuf.service.running import Running
from otel_perfbuf.service.telemetry import Telemetry

ROOT = Path(__file__).parents[2]
CALLS = "import os\nfor n in range({count}):\n    os.access(f'/pb-{{n}}', 0)\nos.kill(os.getpid(), 11)\n"


def config_to_file(directory: Path, **receiver: Any) -> dict[str, Any]:
    """The agent of the other tests, whose dumps go to a file, with all that is held: a loaded machine is slow."""
    config = agent_config(directory, "127.0.0.1:9", ["pbtarget"], window={"before": "1h"})
    config["receivers"]["perf_buffer/syscalls"].update(receiver)
    config["exporters"] = {"file": {"path": str(directory / "dumps.jsonl")}}
    for pipeline in config["service"]["pipelines"].values():
        pipeline["exporters"] = ["file"]
    return config


def eventually(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for another thread or process."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def written(path: Path) -> Arrived:
    """What the file exporter has written."""
    return parse_lines(path.read_text()) if path.exists() else Arrived([], [])


def paths_of(found: Arrived, pid: int) -> list[int]:
    """The numbers of the access("/pb-N") calls of one process, in their order, each dump's."""
    bodies = [item.body for item in found.records if item.resource.get("process.pid") == pid]
    return [int(body.split('"/pb-')[1].split('"')[0]) for body in bodies if '"/pb-' in body]


def crash_after(python: Path, calls: int, cpu: int) -> int:
    """A process that makes numbered calls on one CPU and dies; its pid."""
    with subprocess.Popen(
        [python, "-c", CALLS.format(count=calls)], preexec_fn=lambda: os.sched_setaffinity(0, {cpu})
    ) as process:
        assert process.wait(60) == -signal.SIGSEGV
        return process.pid


@pytest.fixture
def named_python(tmp_path: Path) -> Path:
    """An interpreter whose processes have a name of their own, so that only they are recorded."""
    path = tmp_path / "pbtarget"
    path.symlink_to(sys.executable)
    return path


def test_dumps_of_swapped_rings_have_each_call_once(tmp_path: Path, named_python: Path) -> None:
    """`snapshot: swap`: dump after dump from alternating rings, each with all numbered calls in order, no gap."""
    config = config_to_file(tmp_path, snapshot="swap")
    cpu = min(os.sched_getaffinity(0))
    pids = []
    with running_agent(tmp_path, config) as agent:
        for turn in range(3):
            pids.append(crash_after(named_python, 300, cpu))
            eventually(lambda count=turn: agent_dumps(tmp_path) == count + 1)  # type: ignore[misc]
        # By hand, over everything that three snapshots have read before.
        assert agent.command("dump", "--all").returncode == 0
        eventually(lambda: agent_dumps(tmp_path) == 4)
    found = written(tmp_path / "dumps.jsonl")
    headers = [item for item in found.records if item.name == "perfbuf.dump"]
    for header, pid in zip(headers[:3], pids, strict=True):
        assert paths_of(of_dump(found, header), pid) == list(range(300))
    for pid in pids:
        assert paths_of(of_dump(found, headers[3]), pid) == list(range(300))


def of_dump(found: Arrived, header: Record) -> Arrived:
    """One dump's records."""
    own = [item for item in found.records if item.attributes["perfbuf.dump.id"] == header.attributes["perfbuf.dump.id"]]
    return Arrived(own, [])


def agent_dumps(directory: Path) -> int:
    """How many dumps are whole in the file: all records that the header counts, and the span."""
    found = written(directory / "dumps.jsonl")
    headers = [item for item in found.records if item.name == "perfbuf.dump"]
    whole = [len(of_dump(found, item).records) == item.attributes["perfbuf.dump.records"] + 1 for item in headers]
    return min(sum(whole), len(found.spans))


def test_a_readers_samples_become_log_records(tmp_path: Path, register_readers: Callable[..., Path]) -> None:
    """`mode: datagrams`, the reader of examples/: real samples of another place's kernel arrive as log records.

    A datagram that is no sample is counted as malformed, and the stream goes on.
    """
    installed = register_readers(datagrams="custom_reader:DatagramReader")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    config = {
        "receivers": {"perf_buffer/far": {"mode": "datagrams", "map": f"127.0.0.1:{port}", "per_cpu_bytes": "1MiB"}},
        "exporters": {"file": {"path": str(tmp_path / "live.jsonl")}},
        "extensions": {"control": {"path": str(tmp_path / "control.sock")}},
        "service": {
            "extensions": ["control"],
            "pipelines": {"logs/live": {"receivers": ["perf_buffer/far"], "exporters": ["file"]}},
        },
    }
    places = os.pathsep.join([str(installed), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", places)
        agent_running = running_agent(tmp_path, config)
        with agent_running as agent, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"no sample at all", ("127.0.0.1", port))
            ended = send_a_process(lambda data: sender.sendto(data, ("127.0.0.1", port)))
            eventually(lambda: "perfbuf.process.exit" in names_of(tmp_path / "live.jsonl", ended))
            status = agent.command("status", "--json").stdout
    assert names_of(tmp_path / "live.jsonl", ended) == ["perfbuf.process.exec", "perfbuf.process.exit"]
    receiver = json.loads(status)["receivers"]["perf_buffer/far"]
    assert (receiver["mode"], receiver["malformed"], receiver["lost"]) == ("datagrams", 1, 0)


def send_a_process(send: Callable[[bytes], object]) -> int:
    """Runs /bin/true under the process program and sends on what its rings get; the pid."""
    with (
        contextlib.closing(ProcessProgram()) as program,
        PerfReader(program.events_map, per_cpu_bytes=1 << 18) as reader,
    ):
        program.attach()
        process = subprocess.Popen(["/bin/true"])
        process.wait(60)
        for data in reader.flush().data():
            send(data)
    return process.pid


def names_of(path: Path, pid: int) -> list[str]:
    """The events of one process."""
    return [item.name for item in written(path).records if item.resource.get("process.pid") == pid]


def test_a_reader_that_cannot_be_opened_is_one_sentence(tmp_path: Path, register_readers: Callable[..., Path]) -> None:
    """A registered reader that raises: the agent ends with 2 and says which reader and why."""
    installed = register_readers(broken="json:loads")
    config = {
        "receivers": {"perf_buffer/x": {"mode": "broken", "map": "there"}},
        "exporters": {"debug": {}},
        "service": {"pipelines": {"logs/live": {"receivers": ["perf_buffer/x"], "exporters": ["debug"]}}},
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")]))
        agent = Agent(tmp_path, config)
    assert agent.wait() == 2
    assert "opening the reader broken: TypeError" in agent.log


class PlayedCpus:
    """The online CPUs as the readers see them: at first without ``away``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all = ring_set_module.online_cpus()
        if len(self.all) < 2:
            pytest.skip("needs two CPUs")
        self.away = max(os.sched_getaffinity(0))
        self.now = tuple(cpu for cpu in self.all if cpu != self.away)
        monkeypatch.setattr(ring_set_module, "online_cpus", lambda: self.now)

    def come_back(self) -> None:
        """The kernel sends what one writes there: the event of a CPU that came."""
        self.now = self.all
        Path(f"/sys/devices/system/cpu/cpu{self.away}/uevent").write_text("online", encoding="ascii")


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> PlayedCpus:
    """One CPU is said to be offline."""
    return PlayedCpus(monkeypatch)


@pytest.mark.parametrize("snapshot", ["copy", "swap"])
def test_the_agent_records_a_cpu_that_comes_back(
    tmp_path: Path, named_python: Path, cpus: PlayedCpus, snapshot: str
) -> None:
    """What runs there before is lost and counted; what runs there afterwards is in the dump; no thread stays behind."""
    threads = threading.active_count()
    running = Running(parse(config_to_file(tmp_path, snapshot=snapshot)), KernelParts(), Telemetry())
    running.start()
    try:
        crash_after(named_python, 300, cpus.away)
        eventually(lambda: running.status()["receivers"]["perf_buffer/syscalls"]["lost"] > 250)
        cpus.come_back()
        eventually(lambda: running.status()["receivers"]["perf_buffer/syscalls"]["cpus"] == len(cpus.all))
        before = agent_dumps(tmp_path)
        pid = crash_after(named_python, 300, cpus.away)
        eventually(lambda: agent_dumps(tmp_path) > before and len(paths_of(written(tmp_path / "dumps.jsonl"), pid)) > 0)
    finally:
        running.stop()
    assert paths_of(written(tmp_path / "dumps.jsonl"), pid) == list(range(300))
    assert threading.active_count() == threads


def test_record_records_a_cpu_that_comes_back(tmp_path: Path) -> None:
    """`record`: the rings of the CPU that came are there as soon as the kernel says so, and hold CMD's calls.

    In a process of its own, since `record` gives up its capabilities.
    """
    output = tmp_path / "dump.jsonl"
    program = (
        f"import sys\nsys.path[:0] = {sys.path!r}\nimport test_agent_readers as t\nt.play_and_record({str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 3, done.stderr
    found = written(output)
    assert paths_of(found, int(str(found.history[-1].resource["process.pid"]))) == list(range(300))


def play_and_record(directory: str) -> None:
    """Runs `record` while a CPU is away; brings it back when CMD runs, and lets CMD make its calls there then."""
    ready, go = Path(directory, "ready"), Path(directory, "go")
    with pytest.MonkeyPatch.context() as patch:
        cpus = PlayedCpus(patch)
        program = (
            f"import os, time\nos.sched_setaffinity(0, {{{cpus.away}}})\nopen({str(ready)!r}, 'w').close()\n"
            f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
            "for n in range(300): os.access(f'/pb-{n}', 0)\nraise SystemExit(3)\n"
        )

        def play() -> None:
            eventually(ready.exists)
            before = ring_mappings()
            cpus.come_back()
            with contextlib.suppress(AssertionError):  # then the calls are not in the dump, and the test says so
                eventually(lambda: ring_mappings() >= before + 2)  # history and alerts
            go.touch()

        threading.Timer(0.5, play).start()
        output = str(Path(directory, "dump.jsonl"))
        sys.exit(main(["record", "-o", output, "--format", "otlp_json", "--", sys.executable, "-c", program]))


def ring_mappings() -> int:
    """How many perf rings this process has mapped."""
    return Path("/proc/self/maps").read_text().count("anon_inode:[perf_event]")
