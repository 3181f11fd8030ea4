# SPDX-License-Identifier: Apache-2.0
"""The agent's own metrics, as a real Collector gets them by OTLP and as Prometheus would scrape them."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from agent import running_agent
from collector import running_collector
from test_agent_readers import agent_dumps, config_to_file, crash_after, eventually, named_python

from otel_perfbuf.service.telemetry import METRICS

__all__ = ["named_python"]


def scraped(port: int) -> dict[str, float]:
    """Each line of /metrics by its name and labels."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def pushed(path: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """The newest value of each metric in the Collector's file, named as Prometheus does, and their resource."""
    found: dict[str, float] = {}
    resource: dict[str, Any] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        for part in json.loads(line).get("resourceMetrics", []):
            resource = {item["key"]: next(iter(item["value"].values())) for item in part["resource"]["attributes"]}
            for metric in part["scopeMetrics"][0]["metrics"]:
                kind = next(key for key in ("sum", "gauge", "histogram") if key in metric)
                for point in metric[kind]["dataPoints"]:
                    labels = ",".join(f'{a["key"]}="{a["value"]["stringValue"]}"' for a in point.get("attributes", []))
                    shown = f"{{{labels}}}" if labels else ""
                    if kind == "histogram":
                        found[f"{metric['name']}_sum{shown}"] = float(point["sum"])
                        found[f"{metric['name']}_count{shown}"] = float(point["count"])
                    else:
                        found[f"{metric['name']}{shown}"] = float(point.get("asInt", point.get("asDouble", 0)))
    return found, resource


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_gets_what_prometheus_scrapes(tmp_path: Path, named_python: Path, protocol: str) -> None:
    """Every count by name, labels and value, under the agent's own resource; the last push is at the agent's end."""
    output = tmp_path / "metrics.jsonl"
    (tmp_path / "collector").mkdir()
    extra = {
        "exporters": {"file/metrics": {"path": str(output), "flush_interval": "50ms"}},
        "service": {"pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["file/metrics"]}}},
    }
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    config = config_to_file(tmp_path)
    with running_collector(tmp_path / "collector", extra) as collector:
        endpoint = f"http://{collector.grpc}" if protocol == "grpc" else collector.http
        config["service"]["telemetry"] = {
            "metrics": {
                "readers": [
                    {"periodic": {"interval": 500, "exporter": {"otlp": {"protocol": protocol, "endpoint": endpoint}}}},
                    {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": port}}}},
                ]
            }
        }
        with running_agent(tmp_path, config) as agent:
            eventually(lambda: "perfbuf_spool_bytes" in pushed(output)[0])
            crash_after(named_python, 20, min(os.sched_getaffinity(0)))
            eventually(lambda: agent_dumps(tmp_path) == 1)
            eventually(lambda: scraped(port).get('perfbuf_dumps{trigger="process_exit",outcome="exported"}') == 1)
            expected = scraped(port)
            assert agent.stop() == 0
        eventually(lambda: pushed(output)[0].get('perfbuf_dumps{trigger="process_exit",outcome="exported"}') == 1)
        got, resource = pushed(output)
    assert set(got) == set(expected)
    # Those that go on while the agent stops.
    moving = ("perfbuf_ring_", "perfbuf_history_seconds")
    for name, value in expected.items():
        if not name.startswith(moving):
            assert got[name] == pytest.approx(value), name
    assert {name.split("{")[0].removesuffix("_sum").removesuffix("_count") for name in got} <= set(METRICS)
    assert resource["service.name"] == "otel-perfbuf"
    assert resource["host.name"] == socket.gethostname()


def test_a_peer_that_is_away_does_not_hold_the_end_up(tmp_path: Path) -> None:
    """Nobody listens: the agent says so, goes on, and ends in time."""
    config = config_to_file(tmp_path)
    reader = {"periodic": {"interval": 200, "exporter": {"otlp": {"endpoint": "http://127.0.0.1:9"}}}}
    config["service"]["telemetry"] = {"metrics": {"readers": [reader]}}
    with running_agent(tmp_path, config) as agent:
        agent.wait_for_line("127.0.0.1")
        assert agent.command("status").returncode == 0
        assert agent.stop() == 0
