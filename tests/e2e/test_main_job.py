# SPDX-License-Identifier: Apache-2.0
"""The main job: a process fails, and its last system calls arrive in the failed span's trace, in a real Collector."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from collector import Collector
from recording import Arrived, parse_lines, record

PROGRAMS = Path(__file__).parent / "programs"


def arrived(collector: Collector) -> Arrived:
    """What the Collector's file exporter has written when the dump is whole."""

    def whole(peer: Collector) -> bool:
        found = parse_lines(peer.output.read_text()) if peer.output.exists() else Arrived([], [])
        headers = [item for item in found.records if item.name == "perfbuf.dump"]
        spans = [span for span in found.spans if span.name == "perfbuf.dump"]
        return bool(headers and spans) and len(found.history) >= headers[0].attributes["perfbuf.dump.records"]

    collector.wait_for(whole)
    return parse_lines(collector.output.read_text())


@pytest.mark.parametrize("wire", ["grpc", "http"])
def test_failed_span_gets_its_history(collector: Collector, wire: str) -> None:
    """Every record of the dump is in the failed span's trace, and the dump span links to that span."""
    endpoint = f"grpc://{collector.grpc}" if wire == "grpc" else collector.http
    done = record("--otlp", endpoint, command=[sys.executable, PROGRAMS / "failing_request.py", collector.grpc])
    assert done.returncode == 3, done.stderr
    span = json.loads(done.stdout.splitlines()[0])
    dump = arrived(collector)

    assert dump.records[0].name == "perfbuf.dump"
    assert dump.header["perfbuf.dump.trigger"] == "span_error"
    assert dump.header["perfbuf.dump.records"] == len(dump.history)
    assert {item.proto.trace_id.hex() for item in dump.records} == {span["trace_id"]}
    assert {item.attributes["perfbuf.dump.id"] for item in dump.records} == {dump.header["perfbuf.dump.id"]}
    dump_span = dump.dump_span()
    assert dump_span.trace_id.hex() == span["trace_id"]
    assert dump_span.parent_span_id.hex() == span["span_id"]
    assert span["span_id"] in {link.span_id.hex() for link in dump_span.links}

    for item in dump.history:
        inside = span["start"] <= item.proto.time_unix_nano <= span["end"]
        own = inside and item.attributes["thread.id"] == span["tid"]
        assert (item.attributes["perfbuf.correlation"] in ("exact", "thread_window")) == own, item.body
        assert item.proto.span_id.hex() == (span["span_id"] if own else dump_span.span_id.hex())
    cause = [item for item in dump.history if '"/nonexistent/payments.json"' in item.body]
    assert cause, dump.bodies()[-50:]
    assert cause[0].attributes["perfbuf.correlation"] == "exact"
    assert cause[0].attributes["error.type"] == "ENOENT"
    assert cause[0].attributes["perfbuf.syscall.return_value"] == -2
    assert cause[0].resource["service.name"] == "checkout"
    _assert_ordered(dump)


def _assert_ordered(dump: Arrived) -> None:
    """Times ascend inside each process of each request, and sequences are gapless for each thread instance."""
    sequences: dict[object, list[int]] = {}
    for item in sorted(dump.history, key=lambda item: item.attributes["perfbuf.sequence"]):
        sequences.setdefault(item.attributes["perfbuf.thread.instance"], []).append(item.attributes["perfbuf.sequence"])
    for instance, found in sequences.items():
        assert found == list(range(found[0], found[0] + len(found))), f"thread instance {instance}"


def test_times_ascend_inside_each_process(collector: Collector) -> None:
    """In the order of arrival, a process's records never go back in time."""
    command = ["sh", "-c", "ls / | cat | wc -l; exit 1"]
    done = record("--window", "all", "--otlp", f"grpc://{collector.grpc}", command=command)
    assert done.returncode == 1, done.stderr
    dump = arrived(collector)
    last: dict[object, int] = {}
    for item in dump.history:
        pid = item.resource["process.pid"]
        assert item.proto.time_unix_nano >= last.get(pid, 0), item.body
        last[pid] = item.proto.time_unix_nano
    assert len(last) == 4  # sh and its three children


def test_segfault_is_told_after_the_process_is_gone(collector: Collector) -> None:
    """The signal with its fault address and the process's end are in the dump."""
    command = [sys.executable, PROGRAMS / "dies_by_signal.py", "SEGV"]
    done = record("--otlp", f"grpc://{collector.grpc}", command=command)
    assert done.returncode == 128 + signal.SIGSEGV
    dump = arrived(collector)
    assert dump.header["perfbuf.dump.trigger"] == "process_exit"
    fault = next(item for item in dump.history if item.name == "perfbuf.signal")
    assert fault.body == "--- SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=NULL} ---"
    assert fault.attributes["perfbuf.signal.name"] == "SIGSEGV"
    assert dump.bodies()[-1].startswith("+++ killed by SIGSEGV")
    assert dump.history[-1].attributes["perfbuf.signal.name"] == "SIGSEGV"


def test_kill_while_blocked_shows_the_blocked_call(collector: Collector) -> None:
    """A process killed in a read: the read with its arguments, the signal with its sender, the end."""
    command = [sys.executable, PROGRAMS / "dies_by_signal.py", "KILL"]
    done = record("--otlp", f"grpc://{collector.grpc}", command=command)
    assert done.returncode == 128 + signal.SIGKILL
    dump = arrived(collector)
    blocked = [item for item in dump.history if item.body.startswith("read(") and ", 4711) = ?" in item.body]
    assert len(blocked) == 1
    assert blocked[0].attributes["perfbuf.syscall.return_value"] == -512
    assert blocked[0].attributes["error.type"] == "ERESTARTSYS"
    pid = blocked[0].resource["process.pid"]
    kills = [item for item in dump.history if item.name == "perfbuf.signal" and item.resource["process.pid"] == pid]
    assert kills[-1].attributes["perfbuf.signal.name"] == "SIGKILL"
    assert kills[-1].attributes["perfbuf.signal.sender_pid"] not in (0, pid)
    assert [item.body for item in dump.history if item.resource["process.pid"] == pid][
        -1
    ] == "+++ killed by SIGKILL +++"
