# SPDX-License-Identifier: Apache-2.0
"""The systemd unit's confinement is enough: what the agent does, as strace sees it, is what the unit allows.

What it is not: systemd itself, which is not PID 1 here. User and capabilities are set by setpriv as the unit says,
memory that is written and executed is denied by the kernel (PR_SET_MDWE, Linux 6.3); system calls and address families
are compared with systemd-analyze's own lists.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from agent import running_agent
from test_agent_privileges import IPC_LOCK, NOBODY, base, capabilities, only
from test_agent_readers import agent_dumps, config_to_file, crash_after, eventually, named_python, paths_of, written

__all__ = ["named_python"]

UNIT = Path(__file__).parents[2] / "config" / "systemd" / "otel-perfbuf.service"


DENY_WRITE_EXECUTE = (
    "import ctypes, os, sys\n"
    "assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0\n"  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)


def directives(name: str) -> list[str]:
    """Every word of one of the unit's keys."""
    return " ".join(re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)).split()


def expanded(names: list[str]) -> set[str]:
    """The system calls of a filter, its groups as systemd knows them."""
    found: set[str] = set()
    for name in names:
        if name.startswith("@"):
            done = subprocess.run(
                ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
            )
            lines = [line.strip() for line in done.stdout.splitlines()[1:]]
            found |= expanded([line for line in lines if line and not line.startswith("#")])
        else:
            found.add(name)
    return found


def test_the_unit_allows_what_the_agent_does(tmp_path: Path, named_python: Path) -> None:
    """As an ordinary user with the unit's capabilities: start, a crash's dump into spool and file, a dump by hand, OTLP
    in, a reload, the end.
    """
    os.chown(tmp_path, NOBODY, NOBODY)
    log = tmp_path / "strace.log"
    config = config_to_file(tmp_path)
    config["extensions"]["file_storage"] = {"directory": str(tmp_path / "spool")}
    config["extensions"]["health_check"] = {"endpoint": f"unix://{tmp_path}/health.sock"}
    config["service"]["extensions"] += ["file_storage", "health_check"]
    config["exporters"]["otlp_grpc"] = {
        "endpoint": "127.0.0.1:9",
        "tls": {"insecure": True},
        "sending_queue": {"storage": "file_storage"},
    }
    config["service"]["pipelines"]["logs/dumps"]["exporters"].append("otlp_grpc")
    config["receivers"]["otlp"] = {
        "protocols": {
            "grpc": {"endpoint": f"{tmp_path}/grpc.sock", "transport": "unix"},
            "http": {"endpoint": f"{tmp_path}/http.sock", "transport": "unix"},
        }
    }
    config["connectors"]["flight_recorder"]["triggers"]["span_error"] = {}
    config["service"]["pipelines"]["traces/in"] = {"receivers": ["otlp"], "exporters": ["flight_recorder"]}
    granted = [name.lower().removeprefix("cap_") for name in directives("AmbientCapabilities")]
    if base() & IPC_LOCK:  # LimitMEMLOCK=infinity cannot be had here
        granted.append("ipc_lock")
    caps = ",".join(f"+{name}" for name in granted)
    become = [
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs",
        "--bounding-set=-all," + caps, "--inh-caps=-all," + caps, "--ambient-caps=-all," + caps,
    ]  # fmt: skip
    trace = ["strace", "-D", "-f", "-qq", "-o", log]
    deny = [sys.executable, "-c", DENY_WRITE_EXECUTE]
    with running_agent(tmp_path, config, [*trace, *become, *deny]) as agent:
        assert capabilities(agent.pid) == only(base())
        pid = crash_after(named_python, 20, min(os.sched_getaffinity(0)))
        eventually(lambda: agent_dumps(tmp_path) == 1)
        assert paths_of(written(tmp_path / "dumps.jsonl"), pid) == list(range(20))
        assert agent.command("dump", "--all").returncode == 0
        config["receivers"]["perf_buffer/syscalls"]["snapshot"] = "swap"
        config["receivers"]["perf_buffer/syscalls"]["per_cpu_bytes"] = "1MiB"
        agent.reload(config)
        agent.wait_for_line("the new configuration runs")
        assert agent.command("dump", "--all").returncode == 0
        assert agent.stop(signal.SIGTERM) == 0
    lines = log.read_text().splitlines()
    # From python's own start on: setpriv is not the unit's.
    begin = max(index for index, line in enumerate(lines) if "execve(" in line and "otel_perfbuf" in line) + 1
    assert any("PR_SET_MDWE" in line or "prctl(0x41" in line for line in lines[:begin])
    own = lines[begin:]
    used = set(re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed)", "\n".join(own), re.MULTILINE))
    assert {"bpf", "perf_event_open", "membarrier", "capset"} <= used
    assert used <= expanded(directives("SystemCallFilter")), used - expanded(directives("SystemCallFilter"))
    families = {found for line in own if (found := "".join(re.findall(r"\bsocket\((AF_\w+)", line)))}
    assert families <= set(directives("RestrictAddressFamilies"))
    # MemoryDenyWriteExecute=: nothing asks for such memory but PCRE2's just-in-time compiler, which goes without it.
    executable = [line for line in own if "PROT_EXEC" in line and ("mprotect(" in line or "PROT_WRITE" in line)]
    assert all("= -1 EACCES" in line and "mmap(NULL, " in line for line in executable), executable[:3]
