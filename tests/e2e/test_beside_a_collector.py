# SPDX-License-Identifier: Apache-2.0
"""The files of config/beside-a-collector with a real Collector: an application without our SDK part fails.

It sends plain OTLP to the Collector, which copies what failed to the agent; the dump comes back through the same
Collector. What arrived is read from its file exporter.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent import Agent, running_agent
from collector import Collector, free_ports, merged, running_collector
from recording import Arrived, parse_lines

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config/beside-a-collector"
PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.timeout(600)
COMM = f"pb{os.getpid()}"  # of this run alone: another one on this host has processes that fail, too


@pytest.fixture
def named_python(tmp_path: Path) -> Path:
    """An interpreter whose processes have a name of their own, so that only they are recorded."""
    path = tmp_path / COMM
    path.symlink_to(sys.executable)
    return path


@contextmanager
def both(directory: Path, collector_extra: dict[str, Any] | None = None) -> Iterator[tuple[Collector, Agent]]:
    """The Collector and the agent with the files as they are, but for ports, sockets, and whom to record."""
    [port] = free_ports(1)
    with running_collector(directory, collector_extra, base=collector_config(directory, port)) as collector:
        config = yaml.safe_load((CONFIG / "otel-perfbuf.yaml").read_text())
        config = merged(
            config,
            {
                "receivers": {
                    "perf_buffer/syscalls": {"targets": {"comms": [COMM]}, "per_cpu_bytes": "4MiB"},
                    "otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}},
                },
                "connectors": {
                    "flight_recorder": {
                        "triggers": {"socket": {"path": str(directory / "trigger.sock")}},
                        "hold_off": "0s",
                    }
                },
                "exporters": {"otlp_grpc": {"endpoint": collector.grpc}},
                "extensions": {"control": {"path": str(directory / "control.sock")}},
            },
        )
        with running_agent(directory, config) as agent:
            yield collector, agent


def collector_config(directory: Path, port: int) -> dict[str, Any]:
    """The Collector's file with a file exporter in the place of the backend."""
    config = yaml.safe_load((CONFIG / "collector.yaml").read_text())
    config["exporters"]["otlp_http/flight_recorder"]["endpoint"] = f"http://127.0.0.1:{port}"
    del config["exporters"]["otlp_grpc/backend"]
    for pipeline in config["service"]["pipelines"].values():
        pipeline["exporters"] = ["file" if name == "otlp_grpc/backend" else name for name in pipeline["exporters"]]
    return dict(config)


def arrived(collector: Collector) -> Arrived:
    """What the Collector's file exporter has when the first dump is whole; parsed once: it has thousands of records."""

    def whole(peer: Collector) -> bool:
        text = peer.output.read_text() if peer.output.exists() else ""
        text = text[: text.rfind("\n") + 1]  # a line that is being written is read by nobody
        records = re.search(r'"perfbuf\.dump\.records","value":\{"intValue":"(\d+)"', text)
        spans = '"name":"perfbuf.dump"' in text
        return bool(records and spans and text.count('"eventName":"perfbuf.') > int(records[1]))

    collector.wait_for(whole, 60)
    return parse_lines(collector.output.read_text())


def run_application(
    python: Path, collector: Collector, what: str, *, within: tuple[str, ...] = (), **environment: str
) -> dict[str, str]:
    """Runs the application (by the command ``within``) to its end; its failed span's ids."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}",
        **environment,
    }
    done = subprocess.run(
        [*within, python, PROGRAMS / "plain_otlp.py", what],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ids: dict[str, str] = json.loads(done.stdout.splitlines()[0])
    return ids


@pytest.mark.parametrize(
    ("by", "environment"),
    [
        ("service.name", {"OTEL_SERVICE_NAME": "checkout"}),
        ("process.pid", {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process"}),
        (
            "service.instance.id",
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=checkout,service.instance.id=checkout-17"},
        ),
    ],
)
def test_a_failed_span_of_any_application_gets_its_history(
    tmp_path: Path, named_python: Path, by: str, environment: dict[str, str]
) -> None:
    """Its trace has the dump under the failed span, though the process has ended and knew nothing of us."""
    with both(tmp_path) as (collector, _):
        ids = run_application(named_python, collector, "spans", **environment)
        dump = arrived(collector)
    assert_dump_of(dump, ids, by, "span_error")
    span = dump.dump_span()
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (ids["trace_id"], ids["span_id"])
    names = {each.name: each for each in dump.spans if each.trace_id.hex() == ids["trace_id"]}
    assert set(names) == {"request", "POST /pay", "perfbuf.dump"}
    assert names["POST /pay"].span_id.hex() == ids["span_id"]


def test_a_pid_of_another_namespace(tmp_path: Path, named_python: Path) -> None:
    """The application calls itself 1, as every container does: its service's name tells which 1 it is."""
    with both(tmp_path) as (collector, _):
        environment = {"OTEL_SERVICE_NAME": "checkout", "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process"}
        within = ("unshare", "--pid", "--fork", "--mount-proc")
        ids = run_application(named_python, collector, "spans", within=within, **environment)
        dump = arrived(collector)
    assert_dump_of(dump, ids, "process.pid", "span_error")
    assert {item.resource["perfbuf.process.namespace_pid"] for item in dump.history} == {1}


def assert_dump_of(dump: Arrived, ids: dict[str, str], by: str, trigger: str) -> None:
    """The dump's records are the application's, in its trace, and show why it failed."""
    assert dump.header["perfbuf.dump.trigger"] == trigger
    assert dump.header["perfbuf.dump.reason"] == "payment failed"
    assert dump.header["perfbuf.dump.matched_by"] == by
    assert dump.header["perfbuf.dump.candidates"] == 1
    mine = [item for item in dump.records if "perfbuf.dump.id" in item.attributes]
    assert {item.proto.trace_id.hex() for item in mine} == {ids["trace_id"]}
    cause = [item for item in dump.history if '"/nonexistent/payments.json"' in item.body]
    assert [item.attributes["error.type"] for item in cause] == ["ENOENT"]
    # OTLP tells no kernel thread: no record is said to be the failed span's.
    assert {item.attributes["perfbuf.correlation"] for item in mine} == {"dump"}


def test_an_error_log_gets_its_history(tmp_path: Path, named_python: Path) -> None:
    """A severe log record of a span: the dump is in its trace, under its span."""
    with both(tmp_path) as (collector, _):
        ids = run_application(named_python, collector, "logs", OTEL_SERVICE_NAME="checkout")
        dump = arrived(collector)
    dump = Arrived([item for item in dump.records if item.name.startswith("perfbuf.")], dump.spans)
    assert_dump_of(dump, ids, "service.name", "log_severity")
    assert dump.dump_span().parent_span_id.hex() == ids["span_id"]


def test_dumps_do_not_trigger_dumps(tmp_path: Path, named_python: Path) -> None:
    """A crash's records are severe and come back through the Collector: there is one dump, and no second one."""
    with both(tmp_path) as (collector, agent):
        crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
        subprocess.run([named_python, "-c", crash], check=False, env={**os.environ, "OTEL_SERVICE_NAME": "checkout"})
        dump = arrived(collector)
        assert any(item.proto.severity_number >= 17 for item in dump.history)
        # A marker through the same way: what came before it has been looked at.
        run_application(named_python, collector, "spans", OTEL_SERVICE_NAME="marker")
        collector.wait_for(lambda peer: len([s for s in peer.spans() if s["name"] == "perfbuf.dump"]) == 2)
        status = json.loads(agent.command("status", "--json").stdout)
    assert status["connectors"]["flight_recorder"]["fired"] == {"process_exit": 1, "span_error": 1}


def test_telemetry_of_nobody_is_told_once(tmp_path: Path, named_python: Path) -> None:
    """No attribute leads to a recorded process: no dump, a count, and a line that says what was missing."""
    with both(tmp_path) as (collector, agent):
        run_application(Path(sys.executable), collector, "spans", OTEL_SERVICE_NAME="unrecorded")
        agent.wait_for_line("no dump for span_error POST /pay of service unrecorded: it has no process.pid")
        metrics = scrape(agent)
    assert 'perfbuf_triggers_refused{cause="no_process"} 1' in metrics
    assert 'otelcol_receiver_accepted_spans{receiver="otlp"} 1' in metrics
    assert not [span for span in collector.spans() if span["name"] == "perfbuf.dump"]


def scrape(agent: Agent) -> str:
    """/metrics of the agent's control socket."""
    import http.client
    import socket

    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(agent.control))
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def test_several_processes_of_one_name_are_all_in_the_dump(tmp_path: Path, named_python: Path) -> None:
    """Two workers that the service's name cannot tell apart: both histories, said in the header and the reason."""
    environment = {**os.environ, "OTEL_SERVICE_NAME": "checkout"}
    program = "import os, sys; print('waits', flush=True); open('/nonexistent/other') if 0 else sys.stdin.read()"
    with both(tmp_path) as (collector, _):
        other = subprocess.Popen(
            [named_python, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "waits\n"
            run_application(named_python, collector, "spans", OTEL_SERVICE_NAME="checkout")
            dump = arrived(collector)
        finally:
            other.communicate()
    assert dump.header["perfbuf.dump.matched_by"] == "service.name"
    assert dump.header["perfbuf.dump.candidates"] == 2
    assert "one of 2 processes that service.name leads to" in str(dump.header["perfbuf.dump.reason"])
    assert other.pid in {item.resource["process.pid"] for item in dump.history}
    assert len({item.resource["process.pid"] for item in dump.history}) == 2


def test_the_config_is_valid() -> None:
    """The file itself, with nothing changed."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_perfbuf", "validate", "--config", CONFIG / "otel-perfbuf.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
