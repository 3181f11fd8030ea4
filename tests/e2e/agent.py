# SPDX-License-Identifier: Apache-2.0
"""Starts `otel-perfbuf run` for tests, on sockets of its own, and ends it by pid."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Agent", "running_agent"]

READY_S = 30
STOP_S = 15


class Agent:
    """A running agent; ``log`` holds what it has said on stderr."""

    def __init__(
        self,
        directory: Path,
        config: dict[str, Any],
        environment: dict[str, str] | None = None,
        prefix: Sequence[str | Path] = (),
    ) -> None:
        """``environment`` is added to this process's own; ``prefix`` is a command that executes the agent."""
        self.directory = directory
        self.trigger = directory / "trigger.sock"
        self.control = directory / "control.sock"
        self._config = directory / "agent.json"  # JSON is YAML
        self._config.write_text(json.dumps(config), encoding="utf-8")
        self.log = ""
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "otel_perfbuf", "run", "--config", self._config],
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid

    def wait_for_line(self, text: str, timeout_s: float = READY_S) -> None:
        """Reads stderr until ``text`` was said; AssertionError when the agent ends or says nothing for too long."""
        assert self._process.stderr is not None
        deadline = time.monotonic() + timeout_s
        while text not in self.log:
            ready, _, _ = select.select([self._process.stderr], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self._process.stderr.fileno(), 65536) if ready else b""
            assert data, f"the agent did not say {text!r}: {self.log}"
            self.log += data.decode()

    def read_log(self, seconds: float) -> None:
        """Takes what it says within this time."""
        assert self._process.stderr is not None
        if select.select([self._process.stderr], [], [], seconds)[0]:
            self.log += os.read(self._process.stderr.fileno(), 65536).decode()

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`otel-perfbuf WORDS --control SOCKET`."""
        return subprocess.run(
            [sys.executable, "-m", "otel_perfbuf", *words, "--control", str(self.control)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def send(self, number: int) -> None:
        """A signal."""
        self._process.send_signal(number)

    def reload(self, config: dict[str, Any]) -> None:
        """Another configuration, and SIGHUP."""
        self._config.write_text(json.dumps(config), encoding="utf-8")
        self.send(signal.SIGHUP)

    def wait(self) -> int:
        """Its exit code when it ends by itself; keeps its words."""
        self.log += self._process.communicate(timeout=READY_S)[1].decode()
        return self._process.returncode

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends it by a signal; gives its exit code and keeps the rest of its words. A second time is fine."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        assert self._process.stderr is not None
        if not self._process.stderr.closed:
            try:
                self.log += self._process.communicate(timeout=STOP_S)[1].decode()
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
        return self._process.returncode


def agent_config(directory: Path, endpoint: str, comms: list[str], **flight_recorder: Any) -> dict[str, Any]:
    """The default file's shape: history of processes named ``comms``, dumps to ``endpoint`` by gRPC."""
    return {
        "receivers": {"perf_buffer/syscalls": {"program": "syscalls", "targets": {"comms": comms}}},
        "connectors": {
            "flight_recorder": {
                "history": ["perf_buffer/syscalls"],
                "triggers": {"process_exit": {}, "socket": {"path": str(directory / "trigger.sock")}},
                "hold_off": "0s",
                **flight_recorder,
            }
        },
        "exporters": {"otlp_grpc": {"endpoint": endpoint, "tls": {"insecure": True}}},
        "extensions": {"control": {"path": str(directory / "control.sock")}},
        "service": {
            "extensions": ["control"],
            "pipelines": {
                "logs/dumps": {"receivers": ["flight_recorder"], "exporters": ["otlp_grpc"]},
                "traces/dumps": {"receivers": ["flight_recorder"], "exporters": ["otlp_grpc"]},
            },
        },
    }


@contextlib.contextmanager
def running_agent(directory: Path, config: dict[str, Any], prefix: Sequence[str | Path] = ()) -> Iterator[Agent]:
    """An agent that records; it is stopped at the end."""
    agent = Agent(directory, config, prefix=prefix)
    try:
        agent.wait_for_line("recording; pid")
        yield agent
    finally:
        agent.stop()
