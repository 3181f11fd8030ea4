# SPDX-License-Identifier: Apache-2.0
"""Real backends for tests: VictoriaLogs and Jaeger, built once from their Go modules, on free loopback ports.

Run as a script it builds both where they are not cached yet. What it is not: it reads nothing with our code; what a
backend answers is read with json. Source: FACTS 37; https://docs.victoriametrics.com/victorialogs/querying/,
Jaeger's /api/v3 (jaeger-idl, query_service.proto).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from collector import Server, cached_binary, eventually, free_ports, go_build, go_command

DOWNLOAD_S = 900
VICTORIA_LOGS = ("github.com/VictoriaMetrics/VictoriaLogs", "v1.52.1", "./app/victoria-logs")
JAEGER = ("github.com/jaegertracing/jaeger", "v1.76.0", "./cmd/jaeger")


def binary(module: tuple[str, str, str]) -> Path:
    """The cached program of a module; builds it first (VictoriaLogs some 11 s, Jaeger 3 minutes)."""
    path, version, package = module

    def build(target: Path) -> None:
        # In the module's own folder: its go.mod may have replacements, which `go install` refuses.
        done = subprocess.run(
            [go_command(), "mod", "download", "-json", f"{path}@{version}"],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
            check=False,
            cwd="/",
        )
        if done.returncode:
            raise RuntimeError(f"downloading {path} {version} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
        go_build(Path(json.loads(done.stdout)["Dir"]), package, target)

    return cached_binary(f"{package.rpartition('/')[2]}-{version}", build)


class Backend(Server):
    """A running backend; ``url`` is its HTTP API."""

    def __init__(self, name: str, command: list[str | Path], directory: Path, url: str, ready: str) -> None:
        self.url = url
        super().__init__(name, command, directory, directory / f"{name}.log", ready)

    def get(self, path: str, **query: str) -> str:
        """The text of a GET, "" where there is nothing yet (404)."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as fault:
            if fault.code == 404:
                return ""
            raise

    def wait_for(self, condition: Callable[[Backend], bool], timeout_s: float = 60) -> None:
        """Returns when it holds; a backend may take a second to show what it has taken."""
        assert eventually(lambda: condition(self), timeout_s), f"not seen in {timeout_s} s: {self.log_text()[-3000:]}"


@contextlib.contextmanager
def victoria_logs(directory: Path) -> Iterator[Backend]:
    """VictoriaLogs: OTLP at /insert/opentelemetry/v1/logs, queries at /select/logsql/query, a page at /select/vmui."""
    [port] = free_ports(1)
    command: list[str | Path] = [
        binary(VICTORIA_LOGS),
        f"-storageDataPath={directory / 'victoria-logs'}",
        f"-httpListenAddr=127.0.0.1:{port}",
    ]
    url = f"http://127.0.0.1:{port}"
    yield from _running(Backend("victoria-logs", command, directory, url, f"{url}/health"))


@contextlib.contextmanager
def jaeger(directory: Path) -> Iterator[tuple[Backend, str]]:
    """Jaeger with a store in memory, and its OTLP/gRPC endpoint; traces at /api/v3/traces/ID."""
    grpc, query, query_grpc, health = free_ports(4)
    config: dict[str, Any] = {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query", "healthcheckv2"],
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
        },
        "extensions": {
            "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 1000}}}},
            "jaeger_query": {
                "storage": {"traces": "memory"},
                "http": {"endpoint": f"127.0.0.1:{query}"},
                "grpc": {"endpoint": f"127.0.0.1:{query_grpc}"},
            },
            "healthcheckv2": {"use_v2": True, "http": {"endpoint": f"127.0.0.1:{health}"}},
        },
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{grpc}"}}}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
    }
    path = directory / "jaeger.json"  # JSON is YAML
    path.write_text(json.dumps(config), encoding="utf-8")
    backend = Backend(
        "jaeger",
        [binary(JAEGER), "--config", path],
        directory,
        f"http://127.0.0.1:{query}",
        f"http://127.0.0.1:{query}/api/v3/services",
    )
    for started in _running(backend):
        yield started, f"127.0.0.1:{grpc}"


def _running(backend: Backend) -> Iterator[Backend]:
    try:
        backend.wait_ready()
        yield backend
    finally:
        backend.stop()


if __name__ == "__main__":
    os.nice(5)
    for each in (VICTORIA_LOGS, JAEGER):
        sys.stdout.write(f"{binary(each)}\n")
