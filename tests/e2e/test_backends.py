# SPDX-License-Identifier: Apache-2.0
"""The whole way into real backends: application, Collector, agent, the same Collector, VictoriaLogs and Jaeger.

What is there is asked from their own query APIs; the picture of VictoriaLogs' page is made by Chromium. With
OTEL_PERFBUF_WRITE_DOCS=1 it is written to docs/images.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from backends import Backend, jaeger, victoria_logs
from recording import Arrived
from test_beside_a_collector import ROOT, arrived, both, run_application
from test_beside_a_collector import named_python as named_python  # a fixture

PICTURE = ROOT / "docs/images/victorialogs-trace.png"
CHROMIUM_S = 120


@dataclass(frozen=True)
class Told:
    """What the application and the Collector's file exporter say of the one failure."""

    ids: dict[str, str]
    dump: Arrived


@contextmanager
def failure_in(directory: Path, python: Path, signal: str, exporter: dict[str, Any]) -> Iterator[Told]:
    """One failed request whose telemetry and dump the Collector sends to a backend, too."""
    [name] = exporter
    pipelines = {signal: {"exporters": ["file", "forward", name]}}
    extra = {"exporters": exporter, "service": {"pipelines": pipelines}}
    with both(directory, collector_extra=extra) as (collector, _):
        ids = run_application(python, collector, "spans", OTEL_SERVICE_NAME="checkout")
        yield Told(ids, arrived(collector))


@pytest.mark.timeout(900)  # the first run builds it
def test_records_are_found_in_victorialogs(tmp_path: Path, named_python: Path) -> None:
    """By the trace's id: every record of the dump, with its fields, and on VictoriaLogs' own page."""
    with victoria_logs(tmp_path) as logs:
        exporter = {"otlp_http/logs": {"logs_endpoint": f"{logs.url}/insert/opentelemetry/v1/logs"}}
        with failure_in(tmp_path, named_python, "logs", exporter) as told:
            trace_id, records = told.ids["trace_id"], told.dump.header["perfbuf.dump.records"]
            logs.wait_for(lambda backend: len(lines_of(backend, trace_id)) > records)
        found = lines_of(logs, trace_id)
        picture = page_of(logs, trace_id, tmp_path)
    assert len(found) == records + 1
    assert {line["perfbuf.dump.id"] for line in found} == {told.dump.header["perfbuf.dump.id"]}
    assert sorted(line["_msg"] for line in found) == sorted(item.body for item in told.dump.records)
    cause = [line for line in found if '"/nonexistent/payments.json"' in line["_msg"]]
    assert [line["error.type"] for line in cause] == ["ENOENT"]
    assert {line["service.name"] for line in found} == {"checkout"}
    if os.environ.get("OTEL_PERFBUF_WRITE_DOCS") == "1":
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, PICTURE)


@pytest.mark.timeout(1800)  # the first run builds it
def test_the_trace_is_whole_in_jaeger(tmp_path: Path, named_python: Path) -> None:
    """The application's spans, with the dump's span under the failed one."""
    with jaeger(tmp_path) as (traces, endpoint):
        exporter = {"otlp_grpc/jaeger": {"endpoint": endpoint, "tls": {"insecure": True}}}
        with failure_in(tmp_path, named_python, "traces", exporter) as told:
            trace_id = told.ids["trace_id"]
            traces.wait_for(lambda backend: "perfbuf.dump" in spans_of(backend, trace_id))
        spans = spans_of(traces, trace_id)
    assert set(spans) == {"request", "POST /pay", "perfbuf.dump"}
    assert spans["perfbuf.dump"]["parentSpanId"] == spans["POST /pay"]["spanId"] == told.ids["span_id"]
    assert spans["POST /pay"]["parentSpanId"] == told.ids["parent"]


def lines_of(backend: Backend, trace_id: str) -> list[dict[str, str]]:
    """VictoriaLogs' records of a trace."""
    text = backend.get("/select/logsql/query", query=f'trace_id:="{trace_id}"', limit="200000")
    return [json.loads(line) for line in text.split("\n") if line]


def spans_of(backend: Backend, trace_id: str) -> dict[str, dict[str, Any]]:
    """Jaeger's spans of a trace, by name."""
    found: dict[str, dict[str, Any]] = {}
    text = backend.get(f"/api/v3/traces/{trace_id}")
    for resource in json.loads(text)["result"]["resourceSpans"] if text else ():
        for scope in resource["scopeSpans"]:
            found |= {span["name"]: span for span in scope["spans"]}
    return found


def page_of(backend: Backend, trace_id: str, directory: Path) -> Path:
    """A picture of VictoriaLogs' own page with the failed calls of that trace, once the page shows them."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium: scripts/system-packages.sh test")
    query = f'trace_id:="{trace_id}" error.type:=ENOENT | sort by (_time desc)'
    where = urllib.parse.urlencode({"query": query, "g0.range_input": "1h", "limit": "50", "view": "group"})
    page, picture = f"{backend.url}/select/vmui/#/?{where}", directory / "page.png"
    shown = browse(chromium, directory, page, "--dump-dom")
    assert "payments.json" in shown, shown[-3000:]
    browse(chromium, directory, page, f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000  # an empty page has some 5,000
    return picture


def browse(chromium: str, directory: Path, page: str, what: str) -> str:
    """What Chromium says of a page after ten seconds of the page's own time."""
    done = subprocess.run(
        [
            chromium,
            "--headless=new",
            "--no-sandbox",  # tests are root
            "--disable-gpu",
            f"--user-data-dir={directory / 'chromium'}",
            "--window-size=1500,1000",
            "--hide-scrollbars",
            "--virtual-time-budget=10000",
            what,
            page,
        ],
        capture_output=True,
        text=True,
        timeout=CHROMIUM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
