# SPDX-License-Identifier: Apache-2.0
"""The live stream on a real kernel: whose name its records carry."""

from __future__ import annotations

import queue
import subprocess

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.bpf.process import ProcessProgram
from otel_perfbuf.exporters.payload import Payload
from otel_perfbuf.recorder import LiveStream
from otel_perfbuf.records import build_plan

WAIT_S = 20


def events_of(payloads: queue.Queue[Payload], pid: int, until: str) -> list[tuple[str, str]]:
    """(executable's name, event) of one process, until an event of this name has come."""
    found: list[tuple[str, str]] = []
    while until not in [event for _, event in found]:
        for chunk in payloads.get(timeout=WAIT_S).chunks:
            for entry in ExportLogsServiceRequest.FromString(chunk.body).resource_logs:
                resource = {item.key: item.value for item in entry.resource.attributes}
                if resource["process.pid"].int_value == pid:
                    name = resource["process.executable.name"].string_value
                    found += [(name, record.event_name) for scope in entry.scope_logs for record in scope.log_records]
    return found


def test_a_process_that_executes_another_program_has_its_name_from_then_on() -> None:
    """A process is asked for anew with each batch: what it was when it was first seen is not what it is."""
    payloads: queue.Queue[Payload] = queue.Queue()
    live = LiveStream(ProcessProgram(), build_plan(), payloads.put, per_cpu_bytes=1 << 18)
    live.start()
    try:
        command = ["bash", "-c", "read line; exec sleep 0"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            first = events_of(payloads, process.pid, "perfbuf.process.exec")
            process.communicate(b"\n")
            then = events_of(payloads, process.pid, "perfbuf.process.exit")
    finally:
        live.stop()
    assert first[-1] == ("bash", "perfbuf.process.exec")
    assert then == [("sleep", "perfbuf.process.exec"), ("sleep", "perfbuf.process.exit")]


def test_what_the_rings_hold_at_the_end_is_sent() -> None:
    """More than one batch of ended processes, none of which the stream's thread has looked at."""
    payloads: queue.Queue[Payload] = queue.Queue()
    live = LiveStream(ProcessProgram(), build_plan(), payloads.put, per_cpu_bytes=1 << 20, watermark_bytes=1 << 19)
    live.start()
    script = "i=0; while [ $i -lt 1500 ]; do (:); i=$((i+1)); done"
    shell = subprocess.Popen(["sh", "-c", script])
    shell.wait()
    live.stop()
    ends = 0
    while not payloads.empty():
        for chunk in payloads.get().chunks:
            for entry in ExportLogsServiceRequest.FromString(chunk.body).resource_logs:
                parents = [a.value.int_value for a in entry.resource.attributes if a.key == "process.parent_pid"]
                if parents == [shell.pid]:
                    records = [record for scope in entry.scope_logs for record in scope.log_records]
                    ends += sum(record.event_name == "perfbuf.process.exit" for record in records)
    assert ends == 1500
