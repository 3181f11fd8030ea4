# SPDX-License-Identifier: Apache-2.0
"""Exact correlation: what the kernel stamped is what the program says was active, for every call of a mixed load.

The oracle is the program itself: each of its probes opens a path that names the span that OpenTelemetry's own API calls
the current one at that moment.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from recording import Record, parse_lines, record

PROGRAMS = Path(__file__).parent / "programs"


def stamped(item: Record) -> str:
    """The span that a record claims as its own, or none."""
    correlation = item.attributes["perfbuf.correlation"]
    if correlation == "other":
        return str(item.attributes["perfbuf.other.span_id"])
    return item.proto.span_id.hex() if correlation == "exact" else "none"


def test_no_call_has_a_span_that_is_not_its_own(tmp_path: Path) -> None:
    """asyncio, pools, threads, a fork, children, 20 concurrent spans: 0 wrong, and the failed span's own are exact."""
    output = tmp_path / "dump.jsonl"
    done = record(
        "-o", output, "--format", "otlp_json", "--per-cpu-bytes", "16MiB",
        command=[sys.executable, PROGRAMS / "mixed_load.py"],
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    said = json.loads(done.stdout)
    dump = parse_lines(output.read_text())

    found: Counter[tuple[str, bool]] = Counter()
    for item in dump.history:
        if '"/probe/' in item.body:
            span = item.body.split('"')[1].removeprefix("/probe/")
            assert stamped(item) in (span, "none"), item.body
            found[span, stamped(item) == span] += 1
    own = found[said["failed"], True]
    assert own + found[said["failed"], False] == said["probes"][said["failed"]]
    assert own / (own + found[said["failed"], False]) >= 0.95
    everything = sum(count for (span, _), count in found.items() if span != "none")
    assert sum(count for (span, exact), count in found.items() if exact and span != "none") >= 0.9 * everything
    assert {item.attributes["perfbuf.correlation"] for item in dump.history} >= {"exact", "other", "dump"}


def test_without_the_hooks_times_alone_decide(tmp_path: Path) -> None:
    """A processor that is told not to be exact: the thread's calls within the span are thread_window."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from otel_perfbuf.sdk import FlightRecorderSpanProcessor\n"
        "provider = TracerProvider(shutdown_on_exit=False)\n"
        "provider.add_span_processor(FlightRecorderSpanProcessor(exact=False))\n"
        "with provider.get_tracer('t').start_as_current_span('s') as span:\n"
        "    os.access('/probe', 0)\n"
        "    span.set_status(trace.Status(trace.StatusCode.ERROR))\n"
        "sys.exit(3)\n"
    )
    output = tmp_path / "dump.jsonl"
    done = record("-o", output, "--format", "otlp_json", command=[sys.executable, program])
    assert done.returncode == 3, done.stderr
    probes = [item for item in parse_lines(output.read_text()).history if '"/probe"' in item.body]
    assert [item.attributes["perfbuf.correlation"] for item in probes] == ["thread_window"]
