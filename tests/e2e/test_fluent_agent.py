# SPDX-License-Identifier: Apache-2.0
"""The agent with Fluent on both sides: fluent-logger fires, a Collector's fluent_forward receiver gets the dump."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent import Agent, agent_config, running_agent
from busy import busy_process
from collector import Collector, attribute, free_ports, running_collector
from fluent import sender
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from test_exporters import by_protobuf, filled
from test_fluent_export import fluent_collector, of_collector, of_request, ordered

CONFIG = Path(__file__).parents[2] / "config"
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
pytestmark = pytest.mark.timeout(600)  # agents and Collectors start and end several times


@pytest.fixture
def pid(tmp_path: Path) -> Iterator[int]:
    """A process with a growing history."""
    with busy_process(tmp_path) as found:
        yield found


def dump_config(directory: Path, exporters: dict[str, Any], **flight_recorder: Any) -> dict[str, Any]:
    """An agent whose dumps go to all of these exporters."""
    config = agent_config(directory, "127.0.0.1:1", ["pbbusy"], **flight_recorder)
    config["exporters"] = exporters
    traces = [name for name in exporters if name != "fluent_forward"]
    config["service"]["pipelines"] = {
        "logs/dumps": {"receivers": ["flight_recorder"], "exporters": list(exporters)},
        **({"traces/dumps": {"receivers": ["flight_recorder"], "exporters": traces}} if traces else {}),
    }
    return config


def wait_sent(agent: Agent, exporters: int) -> None:
    """Returns when every exporter has sent the dump."""
    deadline = time.monotonic() + 60
    while True:
        status = json.loads(agent.command("status", "--json").stdout)["exporters"]
        if sum(each["sent"] > 0 and not each["queue_size"] for each in status.values()) == exporters:
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.2)


def records_of(collector: Collector) -> list[Any]:
    """All log records that a Collector wrote, as protobuf messages with their resource."""
    return [by_protobuf(line, ExportLogsServiceRequest) for line in collector.lines() if "resourceLogs" in line]


def test_one_real_dump_by_four_ways_has_the_same_records(tmp_path: Path, pid: int) -> None:
    """gRPC, HTTP, file and Fluent at once: the same records field by field, compared with protobuf's parser."""
    places = {name: tmp_path / name for name in ("grpc", "http", "fluent")}
    for place in places.values():
        place.mkdir()
    ours = tmp_path / "ours.jsonl"
    with contextlib.ExitStack() as stack:
        by_grpc = stack.enter_context(running_collector(places["grpc"]))
        by_http = stack.enter_context(running_collector(places["http"]))
        by_fluent, endpoint = stack.enter_context(fluent_collector(places["fluent"]))
        exporters = {
            "otlp_grpc": {"endpoint": by_grpc.grpc, "tls": {"insecure": True}},
            "otlp_http": {"endpoint": by_http.http, "compression": "zstd"},
            "fluent_forward": {"endpoint": endpoint, "compression": "gzip"},
            "file": {"path": str(ours)},
        }
        config = dump_config(tmp_path, exporters, max_records=2000)
        with running_agent(tmp_path, config) as agent:
            time.sleep(0.5)
            done = agent.command("dump", "--pid", str(pid))
            assert done.returncode == 0, done.stderr
            count = int(done.stdout.split()[1].removeprefix("records=")) + 1
            wait_sent(agent, 4)
        for collector in (by_grpc, by_http, by_fluent):
            collector.wait_for_records(count)
            collector.stop()
    assert count > 500
    file = [json.loads(line) for line in ours.read_bytes().splitlines()]
    ways = {
        "otlp_grpc": records_of(by_grpc),
        "otlp_http": records_of(by_http),
        "file": [filled(by_protobuf(line, ExportLogsServiceRequest)) for line in file if "resourceLogs" in line],
    }
    wanted = ordered([record for message in ways["otlp_grpc"] for record in of_request(message)])
    assert len(wanted) >= count
    for way, messages in ways.items():
        assert ordered([record for message in messages for record in of_request(message)]) == wanted, way
    fluent = [
        of_collector(record)
        for message in records_of(by_fluent)
        for each in message.resource_logs
        for scope in each.scope_logs
        for record in scope.log_records
    ]
    assert ordered(fluent) == wanted


@pytest.mark.parametrize("how", ["level", "match"])
def test_fluent_logger_makes_a_dump(tmp_path: Path, collector: Collector, pid: int, how: str) -> None:
    """A log of level error, or one that matches: a dump of the process that it names, in the log's own trace."""
    port = free_ports(1)[0]
    config = dump_config(
        tmp_path,
        {"otlp_grpc": {"endpoint": collector.grpc, "tls": {"insecure": True}}},
        triggers={"log_severity": {}},
        hold_off="1h",
    )
    config["receivers"]["fluent_forward"] = {
        "endpoint": f"127.0.0.1:{port}",
        "match": [{"pattern": "(?i)payment .* timed out"}],
    }
    config["service"]["pipelines"]["logs/triggers"] = {
        "receivers": ["fluent_forward"],
        "exporters": ["flight_recorder"],
    }
    record = {"pid": pid, "message": "Payment gateway timed out", "trace_id": TRACE_ID, "span_id": SPAN_ID}
    with running_agent(tmp_path, config) as agent:
        time.sleep(0.5)
        logger = sender.FluentSender("shop", host="127.0.0.1", port=port, nanosecond_precision=True)
        assert logger.emit("web", {**record, "message": "fine", "level": "info"})
        assert logger.emit("web", {**record, "level": "error" if how == "level" else "info"})
        # The agent's own words, and a process that is not there, make none
        assert logger.emit("web", {"level": "fatal", "message": "own", "pid": agent.pid})
        assert logger.emit("web", {"level": "error", "message": "whose?"})
        logger.close()
        collector.wait_for(lambda peer: any(span["name"] == "perfbuf.dump" for span in peer.spans()))
        status = json.loads(agent.command("status", "--json").stdout)
    collector.stop()
    headers = [found for found in collector.log_records() if found.get("eventName") == "perfbuf.dump"]
    assert [attribute(header, "perfbuf.dump.trigger") for header in headers] == ["log_severity"]
    assert "Payment gateway timed out" in attribute(headers[0], "perfbuf.dump.reason")
    assert headers[0]["traceId"] == TRACE_ID
    spans = [span for span in collector.spans() if span["name"] == "perfbuf.dump"]
    assert [(span["traceId"], span["parentSpanId"]) for span in spans] == [(TRACE_ID, SPAN_ID)]
    assert status["connectors"]["flight_recorder"]["dumps"]["made"] == 1


def test_the_configuration_file_works(tmp_path: Path, pid: int) -> None:
    """config/fluent/otel-perfbuf-forward.yaml with other paths and ports: an error log becomes a dump in Fluent."""
    config = yaml.safe_load((CONFIG / "fluent" / "otel-perfbuf-forward.yaml").read_text())
    port = free_ports(1)[0]
    config["receivers"]["perf_buffer/syscalls"] |= {"targets": {"comms": ["pbbusy"]}, "per_cpu_bytes": "1MiB"}
    config["receivers"]["fluent_forward"]["endpoint"] = f"127.0.0.1:{port}"
    config["connectors"]["flight_recorder"]["triggers"]["socket"]["path"] = str(tmp_path / "trigger.sock")
    config["extensions"]["control"]["path"] = str(tmp_path / "control.sock")
    config["extensions"]["file_storage"]["directory"] = str(tmp_path / "spool")
    place = tmp_path / "fluent"
    place.mkdir()
    with fluent_collector(place) as (collector, endpoint):
        config["exporters"]["fluent_forward"]["endpoint"] = endpoint
        with running_agent(tmp_path, config) as agent:
            time.sleep(0.5)
            logger = sender.FluentSender("app", host="127.0.0.1", port=port)
            assert logger.emit("web", {"level": "info", "message": "kernel panic: not syncing", "pid": pid})
            logger.close()
            wait_sent(agent, 1)
            assert not list((tmp_path / "spool").glob("*.dump"))
        collector.stop()
    records = collector.log_records()
    headers = [record for record in records if attribute(record, "event_name") == "perfbuf.dump"]
    assert len(headers) == 1
    assert "kernel panic" in headers[0]["body"]["stringValue"]
    assert len(records) > 100
