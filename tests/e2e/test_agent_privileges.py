# SPDX-License-Identifier: Apache-2.0
"""What the running agent may still do, as the kernel tells it, and that it is enough; what systemd hears of it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent import running_agent
from test_agent_readers import agent_dumps, config_to_file, crash_after, eventually, named_python, paths_of, written

__all__ = ["named_python"]

# capabilities(7): DAC_READ_SEARCH, SYS_PTRACE, PERFMON, BPF
FOUR = 1 << 2 | 1 << 19 | 1 << 38 | 1 << 39
IPC_LOCK, SYS_RESOURCE = 1 << 14, 1 << 24
DAC_OVERRIDE, NET_BIND_SERVICE, KILL = 1 << 1, 1 << 10, 1 << 5
NOBODY = 65534
OPENAT = ("257", "56")  # x86-64, arm64


def capabilities(pid: int) -> set[tuple[str, ...]]:
    """(permitted, effective, bounding, no_new_privs) of each of its threads."""
    found = set()
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        found.add(tuple(fields[name].strip() for name in ("CapPrm", "CapEff", "CapBnd", "NoNewPrivs")))
    return found


def base() -> int:
    """The four; a host that lets nobody raise the limit of locked memory (no CAP_SYS_RESOURCE) needs one more."""
    mine = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    raised = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY
    return FOUR if raised or int(mine.split()[1], 16) & SYS_RESOURCE else FOUR | IPC_LOCK


def only(wanted: int) -> set[tuple[str, ...]]:
    """All threads have these and can never get more."""
    word = f"{wanted:016x}"
    return {(word, word, word, "1")}


def test_four_capabilities_are_left_and_do_everything(tmp_path: Path, named_python: Path) -> None:
    """In every thread, after the start as after a reload: dumps of a crash and by hand, of another user's process too,
    with what its call in flight points to; a reload that opens new rings.
    """
    config = config_to_file(tmp_path)
    with running_agent(tmp_path, config) as agent:
        assert capabilities(agent.pid) == only(base())
        pid = crash_after(named_python, 20, min(os.sched_getaffinity(0)))
        eventually(lambda: agent_dumps(tmp_path) == 1)
        assert paths_of(written(tmp_path / "dumps.jsonl"), pid) == list(range(20))

        config["receivers"]["perf_buffer/syscalls"]["per_cpu_bytes"] = "2MiB"
        config["connectors"]["flight_recorder"]["triggers"]["process_exit"] = {"exit_codes": [7]}
        agent.reload(config)
        agent.wait_for_line("reload: the new configuration runs")
        with of_nobody() as (waiting, fifo):
            eventually(lambda: Path(f"/proc/{waiting.pid}/syscall").read_text().split()[0] in OPENAT)
            done = agent.command("dump", "--pid", str(waiting.pid))
        assert done.returncode == 0, done.stderr
        eventually(lambda: agent_dumps(tmp_path) == 2)
        assert capabilities(agent.pid) == only(base())
    mine = [
        item for item in written(tmp_path / "dumps.jsonl").records if item.resource.get("process.pid") == waiting.pid
    ]
    assert mine[-1].body.startswith("openat(AT_FDCWD")
    assert mine[-1].body.endswith(f', "{fifo}", O_RDONLY <unfinished ...>')
    assert {item.resource["service.name"] for item in mine} == {"of-nobody"}


@contextlib.contextmanager
def of_nobody() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Another user's process, recorded by its name, that waits in the open of a FIFO."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.copy("/bin/cat", place / "pbtarget")
        os.mkfifo(place / "fifo")
        (place / "fifo").chmod(0o666)
        environment = {"OTEL_SERVICE_NAME": "of-nobody"}
        with subprocess.Popen([place / "pbtarget", place / "fifo"], user=NOBODY, env=environment) as process:
            try:
                yield process, place / "fifo"
            finally:
                process.terminate()


def test_what_a_configuration_needs_is_kept_and_said(tmp_path: Path) -> None:
    """A file in another user's directory needs CAP_DAC_OVERRIDE: it is kept, the log says for what, and it works."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, NOBODY, NOBODY)
    config = config_to_file(tmp_path)
    config["exporters"]["file"]["path"] = str(theirs / "dumps.jsonl")
    with running_agent(tmp_path, config) as agent:
        assert f"CAP_DAC_OVERRIDE is kept: {theirs} belongs to another user" in agent.log
        assert capabilities(agent.pid) == only(base() | DAC_OVERRIDE)
        assert agent.command("dump", "--all").returncode == 0
        eventually((theirs / "dumps.jsonl").exists)


def test_a_reload_that_needs_more_fails_and_the_old_goes_on(tmp_path: Path) -> None:
    """Port 81 cannot be opened any more: one sentence, and the agent still makes dumps."""
    config = config_to_file(tmp_path)
    with running_agent(tmp_path, config) as agent:
        config["extensions"]["health_check"] = {"endpoint": "127.0.0.1:81"}
        config["service"]["extensions"].append("health_check")
        agent.reload(config)
        agent.wait_for_line("reload: the old configuration runs again")
        assert "127.0.0.1:81" in agent.log
        assert agent.command("dump", "--all").returncode == 0


def test_a_cpu_that_comes_back_needs_no_more(tmp_path: Path, named_python: Path) -> None:
    """Rings are opened and mapped with the four capabilities alone, in a process that has dropped the others."""
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
import pytest
from pathlib import Path
from otel_perfbuf.service.config import parse
from otel_perfbuf.service.restriction import restrict
from test_agent_readers import PlayedCpus, config_to_file, eventually
from otel_perfbuf.service.assembly import KernelParts
from otel_perfbuf.service.running import Running
from otel_perfbuf.service.telemetry import Telemetry
configuration = parse(config_to_file(Path({str(tmp_path)!r}), per_cpu_bytes="16MiB"))
cpus = PlayedCpus(pytest.MonkeyPatch())
restrict(configuration)
running = Running(configuration, KernelParts(), Telemetry())
running.start()
try:
    cpus.come_back()
    eventually(lambda: running.status()["receivers"]["perf_buffer/syscalls"]["cpus"] == len(cpus.all))
finally:
    running.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_record_drops_them_once_the_command_runs(tmp_path: Path) -> None:
    """The recorder keeps four, and CAP_KILL to pass signals on; CMD has the caller's own, limits too."""
    output = tmp_path / "dump.txt"
    program = "grep -E 'Cap(Prm|Bnd)|NoNew' /proc/$PPID/status /proc/self/status; ulimit -l; exit 1"
    ours = "; ".join(["grep -E 'Cap(Prm|Bnd)|NoNew' /proc/self/status", "ulimit -l"])
    before = subprocess.run(["sh", "-c", ours], capture_output=True, text=True, check=True).stdout.splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "otel_perfbuf", "record", "-o", output, "--", "sh", "-c", "sleep 0.5; " + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    recorder = [line.split(":", 1)[1] for line in lines[:3]]
    command = [line.split(":", 1)[1] for line in lines[3:6]] + lines[6:]
    word = f"{base() | KILL:016x}"
    assert recorder == [f"CapPrm:\t{word}", f"CapBnd:\t{word}", "NoNewPrivs:\t1"]
    assert command == before
    assert "sleep" in output.read_text()


class Systemd:
    """The socket that systemd would listen on."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(30)

    def next(self) -> list[str]:
        """One message's lines."""
        return self.socket.recv(4096).decode().splitlines()

    def next_but(self, word: str) -> list[str]:
        """The next one that does not begin with this."""
        while (message := self.next())[0] == word:
            pass
        return message


def test_systemd_is_told(tmp_path: Path) -> None:
    """READY when it records, WATCHDOG while it lives, RELOADING with a time until READY, STOPPING at the end."""
    systemd = Systemd(tmp_path / "notify")
    config = config_to_file(tmp_path)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        environment.setenv("WATCHDOG_USEC", "200000")
        with running_agent(tmp_path, config) as agent:
            assert systemd.next() == ["READY=1", f"STATUS=recording; pid {agent.pid}"]
            assert systemd.next() == ["WATCHDOG=1"]
            assert systemd.next() == ["WATCHDOG=1"]
            agent.send(signal.SIGHUP)
            reloading = systemd.next_but("WATCHDOG=1")
            assert reloading[0] == "RELOADING=1"
            assert reloading[1].startswith("MONOTONIC_USEC=")
            assert systemd.next_but("WATCHDOG=1")[0] == "READY=1"
    assert systemd.next_but("WATCHDOG=1")[0] == "STOPPING=1"
    systemd.socket.close()
