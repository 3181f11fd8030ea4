# SPDX-License-Identifier: Apache-2.0
"""The flight recorder on one ring for all CPUs: order, exact counts, whole history, dumps; and where it is refused."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from bpf_recording import Record, Target, compile_targets, parse_pages, parse_sample, recording, state_of, wait_until
from machine import heavy
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import ConfigError, NotSupported
from otel_perfbuf.recorder.capture import Capture
from otel_perfbuf.recorder.dump import Dump, DumpOptions
from otel_perfbuf.recorder.edges import ring_edges
from otel_perfbuf.recorder.history_rings import AUTO_CPUS_MAX, plan_rings
from otel_perfbuf.recorder.recorder import FlightRecorder
from otel_perfbuf.recorder.source import HistorySource, SourceOptions
from otel_perfbuf.rings.cpus import online_cpus
from otel_perfbuf.rings.probe import probe_host
from otel_perfbuf.triggers.firing import Firing, SpanContext

_log = logging.getLogger(__name__)

PAGE = os.sysconf("SC_PAGESIZE")
ENDLESS = str(1 << 40)
CAPTURES = heavy(50, least=5)  # dumps under writers at full speed

shared_only = pytest.mark.needs("overwritable ring buffer")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program to be recorded."""
    return compile_targets(tmp_path_factory.mktemp("targets"))


@contextmanager
def shared_source(per_cpu_bytes: int = 1 << 20) -> Iterator[HistorySource]:
    """An attached source on the shared ring; whom it follows is the caller's choice."""
    options = SourceOptions(ring="shared", per_cpu_bytes=per_cpu_bytes, whole_host=False)
    with HistorySource(options) as source:
        source.attach()
        yield source


def headers(capture: Capture) -> list[Any]:
    """struct pb_sample of each sample in the ring, in its order."""
    found = []
    for data in capture.batch.data():
        header = ffi.new("struct pb_sample *")
        ffi.memmove(header, data, 64)
        found.append(header)
    return found


def test_ring_shared_is_refused_where_the_kernel_lacks_it() -> None:
    """By trying, never by a version: NotSupported names feature and first version; `auto` takes what there is."""
    has = next(finding.ok for finding in probe_host() if finding.name == "overwritable ring buffer")
    if has:
        with HistorySource(SourceOptions(ring="shared", per_cpu_bytes=PAGE)) as source:
            assert (source.rings.shared, source.rings.count) == (True, 1)
    else:
        with pytest.raises(NotSupported, match=r"Linux 6\.19") as caught:
            HistorySource(SourceOptions(ring="shared"))
        assert (caught.value.feature, caught.value.first_kernel) == ("BPF_F_RB_OVERWRITE", "6.19")
    assert plan_rings("auto", 4 << 20).shared == (has and len(online_cpus()) <= AUTO_CPUS_MAX)


def test_auto_takes_rings_for_each_cpu_where_they_are_better() -> None:
    """Small ones, which a writer that lost its CPU would stop, and those that a dump swaps."""
    for rings in (plan_rings("auto", 64 << 10), plan_rings("auto", 4 << 20, swap=True), plan_rings("per_cpu", 4 << 20)):
        assert (rings.shared, rings.count) == (False, len(online_cpus()))


@shared_only
def test_max_total_bytes_counts_one_ring_and_its_copy() -> None:
    """per_cpu_bytes times the CPUs, rounded down to a power of two; twice that is allowed, a byte less is not."""
    rings = plan_rings("shared", PAGE)
    assert rings.bytes == rings.each_bytes == 1 << (PAGE * len(online_cpus())).bit_length() - 1
    rings.check_total(2 * rings.bytes)
    with pytest.raises(ConfigError, match="shared ring of"):
        rings.check_total(2 * rings.bytes - 1)


@shared_only
def test_every_call_of_a_thread_is_there_once_in_order(targets: Path) -> None:
    """As on perf rings: 1,000 calls, no gap from the read before them to the end."""
    with Target(targets, "calls", "1000") as target, recording(shared_history_bytes=1 << 20) as recorded:
        recorded.program.follow(target.pid)
        assert target.run() == 0
        events = recorded.events(target.pid)
        stats = recorded.program.stats()
    assert [event.name for event in events] == ["read", *["getppid"] * 1000, "exit_group", "<exit>"]
    assert (sum(stats.ring_records_by_cpu.values()), stats.lost) == (1003, 0)


@shared_only
def test_samples_come_in_one_order_over_all_cpus(targets: Path) -> None:
    """Processes that run one after the other on alternating CPUs lie in the ring in that order, each with its CPU."""
    cpus = online_cpus()
    turns = [cpus[turn % len(cpus)] for turn in range(12)]
    ran = []
    with ExitStack() as running, shared_source() as source:
        for cpu in turns:
            target = running.enter_context(Target(targets, "calls", "30"))
            os.sched_setaffinity(target.pid, {cpu})
            source.program.follow(target.pid)
            assert target.run() == 0
            ran.append((target.pid, cpu))
        capture = source.capture()
    records = [
        (record, header)
        for data, header in zip(capture.batch.data(), headers(capture), strict=True)
        for record in parse_sample(data)
    ]
    ends = [(record.tgid, int(header.cpu)) for record, header in records if record.name == "<exit>"]
    assert ends == ran
    order = [pid for pid, _ in itertools.groupby(record.tgid for record, _ in records)]
    assert order == [pid for pid, _ in ran]


@contextmanager
def busy_cpus(targets: Path, source: HistorySource) -> Iterator[list[Target]]:
    """A recorded process on each CPU that calls getppid as fast as it can; stopped at the end."""
    with ExitStack() as running:
        writers = []
        for cpu in online_cpus()[-2:]:
            writer = running.enter_context(Target(targets, "calls", ENDLESS))
            os.sched_setaffinity(writer.pid, {cpu})
            source.program.follow(writer.pid)
            writers.append(writer)
        for writer in writers:
            writer.go()
        yield writers


def assert_continuous(capture: Capture) -> int:
    """Each CPU's samples go on where its last one ended; every record is whole. Gives how many records there are."""
    ends: dict[int, int] = {}
    records = 0
    for header, data in zip(headers(capture), capture.batch.data(), strict=True):
        assert ends.get(header.cpu, header.ring_records) == header.ring_records
        ends[header.cpu] = header.ring_records + header.records
        parse_sample(data)
        records += header.records
    assert (capture.batch.malformed, capture.batch.lost) == (0, 0)
    return records


@shared_only
def test_sent_is_what_a_dump_holds_and_what_was_overwritten_exactly(targets: Path) -> None:
    """Dumps while two CPUs write at full speed into a small ring, then one when they are stopped: no record is missing.

    A writer that loses its CPU within an output stops the others when they have filled the ring: counted as lost,
    exactly too.
    """
    overwritten = lost = held = taken = 0
    with shared_source(per_cpu_bytes=4 * PAGE) as source, busy_cpus(targets, source) as writers:
        while taken < CAPTURES or overwritten < 10 * held:
            capture = source.capture()
            held = assert_continuous(capture)
            losses = source.losses([capture])
            lost, overwritten, taken = lost + losses.lost, overwritten + losses.overwritten, taken + 1
        for writer in writers:
            os.kill(writer.pid, signal.SIGSTOP)
        wait_until(lambda: {state_of(writer.pid) for writer in writers} == {"T"}, "the writers' stop", 60)
        capture = source.capture()
        held = assert_continuous(capture)
        losses = source.losses([capture])
        lost, overwritten = lost + losses.lost, overwritten + losses.overwritten
        sent = sum(source.program.stats().ring_records_by_cpu.values())
    assert sent == held + overwritten
    pages = {page.tid: page for page in parse_pages(capture.pages)}  # the last of a thread's two is its page
    assert set(pages) == {writer.pid for writer in writers}
    on_pages = sum(record.kind != lib.PB_RECORD_ENTRY for page in pages.values() for record in page.records)
    in_flight = sum(page.open_call is not None for page in pages.values())
    assert sum(page.last_sequence for page in pages.values()) == sent + lost + on_pages + in_flight
    _log.info("%d dumps: %d sent = %d held + %d overwritten; %d lost", taken, sent, held, overwritten, lost)


def events_of(capture: Capture) -> dict[int, list[Record]]:
    """By instance, each record once: those of the ring and of the pages."""
    unique: dict[int, dict[int, Record]] = defaultdict(dict)
    pages = parse_pages(capture.pages)
    found = [record for page in pages for record in page.records]
    found += [record for data in capture.batch.data() for record in parse_sample(data)]
    for record in found:
        if record.kind != lib.PB_RECORD_ENTRY:
            unique[record.instance][record.sequence] = record
    return {instance: [rows[key] for key in sorted(rows)] for instance, rows in unique.items()}


@shared_only
def test_history_is_whole_since_complete_since(targets: Path) -> None:
    """While two CPUs write: from that time on no thread's sequence has a gap, but for what found no room."""
    with shared_source(per_cpu_bytes=4 * PAGE) as source, busy_cpus(targets, source):
        time.sleep(0.2)
        for _ in range(CAPTURES):
            capture = source.capture()
            (since_ns,) = {edge.since_ns for edge in ring_edges([capture], source.started_ns).values()}
            assert source.started_ns < since_ns < capture.taken_ns
            holes = 0
            for events in events_of(capture).values():
                numbers = [event.sequence for event in events if event.time_ns >= since_ns]
                holes += numbers[-1] + 1 - numbers[0] - len(numbers) if numbers else 0
            assert holes <= source.program.stats().lost


def dump_of(source: HistorySource, firing: Firing, root_pid: int) -> Dump:
    """The dump that this firing makes."""
    made: list[Dump] = []
    recorder = FlightRecorder(source, DumpOptions(root_pid=root_pid, before_s=None), made.append)
    recorder.start()
    future = recorder.fire(firing)
    assert recorder.stop(60)
    assert future is not None
    return future.result()


@shared_only
def test_a_crash_is_dumped_in_the_failed_spans_trace(targets: Path) -> None:
    """Protobuf's parser reads it: the fatal signal under the span's own id, the dump span a child with a link."""
    begun_ns = time.time_ns()
    with Target(targets, "segv") as target, shared_source() as source:
        source.program.follow(target.pid)
        assert target.run() == -signal.SIGSEGV
        span = SpanContext(bytes(range(16)), bytes(range(8, 16)))
        firing = Firing(
            "span_error", "it crashed", time.time_ns(), pid=target.pid, tid=target.pid, span=span,
            start_unix_ns=begun_ns, end_unix_ns=time.time_ns(),
        )  # fmt: skip
        dump = dump_of(source, firing, target.pid)
    assert source.rings.shared
    records, spans = [], []
    for chunk in dump.payload.chunks:
        if chunk.signal == "logs":
            for entry in ExportLogsServiceRequest.FromString(chunk.body).resource_logs:
                records += [record for scope in entry.scope_logs for record in scope.log_records]
        else:
            for resource in ExportTraceServiceRequest.FromString(chunk.body).resource_spans:
                spans += [each for scope in resource.scope_spans for each in scope.spans]
    (made,) = spans
    assert (made.trace_id, made.parent_span_id) == (span.trace_id, span.span_id)
    assert [(link.trace_id, link.span_id) for link in made.links] == [(span.trace_id, span.span_id)]
    assert {record.trace_id for record in records} == {span.trace_id}
    (killed,) = [record for record in records if record.body.string_value.startswith("+++ killed by SIGSEGV")]
    (fatal,) = [record for record in records if record.body.string_value.startswith("--- SIGSEGV")]
    assert killed.span_id == fatal.span_id == span.span_id
    header = dump.header
    assert (header.lost, header.overwritten, header.scope_overwritten, header.malformed) == (0, 0, 0, 0)
    assert (header.truncated, header.records) == (0, len(records) - 1)
    assert header.complete_since_unix_ns <= header.window_end_unix_ns


@shared_only
def test_record_runs_on_the_shared_ring(tmp_path: Path) -> None:
    """`otel-perfbuf record` on a command that fails and crashes: its status, its failed call, its signal, its rings."""
    command = ["sh", "-c", "cat /nonexistent-on-the-shared-ring; kill -SEGV $$"]
    file, saved = tmp_path / "dump.jsonl", tmp_path / "rings"
    options = ["-o", str(file), "--format", "otlp_json", "--window", "all", "--save-rings", str(saved)]
    done = subprocess.run(
        [sys.executable, "-m", "otel_perfbuf", "record", *options, "--", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    records = [
        record for line in lines for entry in line.get("resourceLogs", ())
        for scope in entry["scopeLogs"] for record in scope["logRecords"]
    ]  # fmt: skip
    bodies = [record["body"]["stringValue"] for record in records]
    assert any("/nonexistent-on-the-shared-ring" in body and "ENOENT" in body for body in bodies)
    assert any(body.startswith("--- SIGSEGV") for body in bodies)
    header = {pair["key"]: pair["value"] for pair in records[0]["attributes"]}
    assert int(header["perfbuf.dump.records"]["intValue"]) == len(records) - 1
    assert [ring["file"] for ring in json.loads((saved / "rings.json").read_text())["rings"]] == ["cpu0-0.ring"]
