# SPDX-License-Identifier: Apache-2.0
"""The otlp receiver in the agent's graph: what `validate` refuses, and requests that become firings and counts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from otlp_requests import log_request, trace_request
from played_parts import PlayedParts, usual_tree

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.service.config import parse, render
from otel_perfbuf.service.graph import build_graph
from otel_perfbuf.service.running import Running
from otel_perfbuf.service.telemetry import Telemetry

HERE = {"process.pid": 4711, "service.name": "checkout"}


def tree(directory: Path, **triggers: Any) -> dict[str, Any]:
    """Spans and log records from an otlp receiver on a free port to the flight recorder."""
    found = usual_tree(directory)
    found["receivers"]["otlp"] = {"protocols": {"http": {"endpoint": "127.0.0.1:0"}}}
    found["connectors"]["flight_recorder"]["triggers"] |= triggers or {"span_error": None, "log_severity": None}
    pipelines = found["service"]["pipelines"]
    for signal in ("traces", "logs"):
        pipelines[f"{signal}/triggers"] = {"receivers": ["otlp"], "exporters": ["flight_recorder"]}
    return found


@pytest.fixture
def running(tmp_path: Path, parts: PlayedParts, telemetry: Telemetry) -> Iterator[Running]:
    """Everything, started."""
    running = Running(parse(tree(tmp_path)), parts, telemetry)
    running.start()
    yield running
    running.stop()


def send(running: Running, path: str, body: bytes) -> int:
    """The status of a POST to the running receiver."""
    url = f"http://{running._receivers['otlp'].endpoints['http']}{path}"
    with urllib3.PoolManager(retries=False, timeout=20) as client:
        return client.request("POST", url, body=body, headers={"Content-Type": "application/x-protobuf"}).status


def test_requests_become_firings_and_counts(running: Running, parts: PlayedParts, telemetry: Telemetry) -> None:
    """Each signal fires its trigger; accepted is what was looked at, refused triggers are counted by cause."""
    assert send(running, "/v1/traces", trace_request("a", "b", message="x", attributes=HERE).SerializeToString()) == 200
    assert send(running, "/v1/logs", log_request("y", attributes=HERE).SerializeToString()) == 200
    assert send(running, "/v1/logs", log_request("z", "zz").SerializeToString()) == 200
    assert send(running, "/v1/traces", b"\x0a\xff") == 400
    running.stop()
    # Span b is held off as span a's kind and reason are its own.
    assert [(each.kind, each.pid) for each in parts.recorders[0].firings] == [
        ("span_error", 4711),
        ("log_severity", 4711),
    ]
    lines = telemetry.render().splitlines()
    for line in (
        'otelcol_receiver_accepted_spans{receiver="otlp"} 2',
        'otelcol_receiver_refused_spans{receiver="otlp"} 0',
        'otelcol_receiver_accepted_log_records{receiver="otlp"} 3',
        'perfbuf_triggers_refused{cause="no_process"} 2',
        'perfbuf_triggers_refused{cause="otlp_malformed"} 1',
        'perfbuf_dumps{trigger="span_error",outcome="suppressed"} 1',
    ):
        assert line in lines


def test_a_trigger_that_is_off_does_not_fire(tmp_path: Path, parts: PlayedParts, telemetry: Telemetry) -> None:
    """Without span_error, failed spans are only counted; slow ones fire where span_latency is on."""
    running = Running(parse(tree(tmp_path, span_latency={"longer_than": "1us", "names": ["b"]})), parts, telemetry)
    running.start()
    send(running, "/v1/traces", trace_request("a", "b", attributes=HERE).SerializeToString())
    send(running, "/v1/logs", log_request("y", attributes=HERE).SerializeToString())
    running.stop()
    assert [(each.kind, each.span_name) for each in parts.recorders[0].firings] == [("span_latency", "b")]


def test_a_taken_port_ends_the_start(tmp_path: Path, running: Running, telemetry: Telemetry) -> None:
    """The second agent on the endpoint says so and leaves nothing."""
    again = copy.deepcopy(tree(tmp_path / "second"))
    (tmp_path / "second").mkdir()
    again["receivers"]["otlp"]["protocols"]["http"]["endpoint"] = running._receivers["otlp"].endpoints["http"]
    second = PlayedParts()
    with pytest.raises(PerfbufError, match="OTLP/HTTP receiver"):
        Running(parse(again), second, telemetry).start()
    assert second.log[-1] == "detached"


def test_the_graph_of_triggers(tmp_path: Path) -> None:
    """Which recorders each signal of a receiver ends in; a signal without a pipeline is not served."""
    given = tree(tmp_path)
    del given["service"]["pipelines"]["logs/triggers"]
    assert build_graph(parse(given)).triggers == {"otlp": {"traces": ("flight_recorder",)}}


def test_what_validate_refuses(tmp_path: Path) -> None:
    """Passing telemetry on, keys that mean nothing here, endpoints that are none; each at its key."""
    given = tree(tmp_path)
    given["service"]["pipelines"]["traces/triggers"]["exporters"].append("file")
    given["receivers"]["otlp"]["protocols"]["http"] |= {"cors": {"allowed_origins": ["*"]}}
    given["receivers"]["otlp/2"] = {"protocols": {"grpc": {"endpoint": "nowhere"}}}
    with pytest.raises(ConfigError) as found:
        parse(given)
    problems = dict(found.value.problems)
    assert "only triggers" in problems["service.pipelines.traces/triggers.receivers.0"]
    assert "Collector" in problems["receivers.otlp.protocols.http.cors"]
    assert any("HOST:PORT" in sentence for path, sentence in problems.items() if path.startswith("receivers.otlp/2"))


def test_print_config_is_loadable(tmp_path: Path) -> None:
    """The effective configuration with a receiver in it is one."""
    import yaml

    configuration = parse(tree(tmp_path))
    assert parse(yaml.safe_load(render(configuration))) == configuration
