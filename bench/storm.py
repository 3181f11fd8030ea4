# SPDX-License-Identifier: Apache-2.0
"""What a storm of firings costs a whole agent: its CPU time (/proc/PID/stat) over wall time, and what became of each.

usage: storm.py [PER_SECOND [SECONDS]]. As root: the agent records one process by name, which fails PER_SECOND times a
second and tells it by datagrams, then by OTLP in requests of 100 spans, of 512 (an SDK's batch) and of one. The first
one's dump is made before. What a datagram's sender cannot get rid of (the socket's queue is full) it drops, as SDKs do;
OTLP's senders wait for each answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SENDER = r"""
import json, os, socket, sys, time
way, where, per_second, seconds, size, words = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6]
number = dropped = 0

def requests(count):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    for turn in range(count):
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        pairs = {"service.name": "shop", "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry",
                 "telemetry.sdk.version": "1.30.0", "deployment.environment": "production", "host.arch": "amd64"}
        for key, value in pairs.items():
            resource.resource.attributes.add(key=key).value.string_value = value
        resource.resource.attributes.add(key="process.pid").value.int_value = os.getpid()
        scope = resource.scope_spans.add()
        scope.scope.name = "app"
        for index in range(size):
            span = scope.spans.add(trace_id=os.urandom(16), span_id=os.urandom(8), parent_span_id=os.urandom(8))
            span.name, span.kind = "POST /pay", 2
            span.end_time_unix_nano = time.time_ns()
            span.start_time_unix_nano = span.end_time_unix_nano - 31_000_000
            for key in ("http.request.method", "url.path", "http.route", "server.address", "client.address"):
                span.attributes.add(key=key).value.string_value = "a value of some words"
            what = f"timeout after {index} ms" if words == "same" else "user " + os.urandom(6).hex(":") + " not found"
            event = span.events.add(name="exception", time_unix_nano=span.end_time_unix_nano)
            for key, value in (("type", "TimeoutError"), ("message", what), ("stacktrace", "  File ...\n" * 20)):
                event.attributes.add(key="exception." + key).value.string_value = value
            span.status.code, span.status.message = 2, what
        yield request.SerializeToString()

def datagrams():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(where); s.setblocking(False)
    def send():
        global dropped
        try: s.send(json.dumps({"v": 1, "kind": "span_error", "trace_id": f"{number + 1:032x}",
                                "span_id": f"{number + 1:016x}", "tid": os.getpid(),
                                "reason": f"timeout after {number} ms"}).encode())
        except BlockingIOError: dropped += 1
    return send

def http():
    host, port = where.rsplit(":", 1)
    bodies = [b"POST /v1/traces HTTP/1.1\r\nHost: agent\r\nUser-Agent: OTel-OTLP-Exporter-Python/1.30.0\r\n"
              b"Content-Type: application/x-protobuf\r\nContent-Length: %d\r\n\r\n" % len(body) + body
              for body in requests(64)]
    s = socket.create_connection((host, int(port)))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    def send():
        s.sendall(bodies[number // size % 64])
        got = s.recv(65536)
        assert got.startswith(b"HTTP/1.1 200"), got
    return send

def grpc():
    import grpc
    call = grpc.insecure_channel(where).unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
    bodies = list(requests(64))
    return lambda: call(bodies[number // size % 64])

send = {"socket": datagrams, "http": http, "grpc": grpc}[way]()
send()
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
while (now := time.monotonic() - begin) < seconds:
    while number < now * per_second and time.monotonic() - begin < seconds:
        number += size
        send()
    time.sleep(0.001)
print(number, dropped, flush=True)
sys.stdin.readline()
"""

CASES = (
    ("datagrams of one process", "socket", 1, "same"),
    ("OTLP/HTTP, 100 spans a request", "http", 100, "same"),
    ("OTLP/gRPC, 100 spans a request", "grpc", 100, "same"),
    ("OTLP/HTTP, 512 spans a request", "http", 512, "same"),
    ("OTLP/HTTP, 100 spans of as many reasons a request", "http", 100, "other"),
    ("OTLP/HTTP, 1 span a request", "http", 1, "same"),
    ("OTLP/gRPC, 1 span a request", "grpc", 1, "same"),
)


def configuration(directory: Path) -> dict[str, Any]:
    """An agent beside the one that may run here, its dumps into a file."""
    return {
        "receivers": {
            "perf_buffer": {"program": "syscalls", "targets": {"comms": ["pbstorm"]}, "per_cpu_bytes": "1MiB"},
            "otlp": {"protocols": {"grpc": {"endpoint": "127.0.0.1:0"}, "http": {"endpoint": "127.0.0.1:0"}}},
        },
        "connectors": {
            "flight_recorder": {
                "history": ["perf_buffer"],
                "triggers": {"span_error": {}, "socket": {"path": f"{directory}/trigger.sock"}},
            }
        },
        "exporters": {"file": {"path": f"{directory}/dumps", "format": "otlp_proto"}},
        "extensions": {"control": {"path": f"{directory}/control.sock"}},
        "service": {
            "extensions": ["control"],
            "pipelines": {
                "traces/triggers": {"receivers": ["otlp"], "exporters": ["flight_recorder"]},
                "logs/dumps": {"receivers": ["flight_recorder"], "exporters": ["file"]},
            },
        },
    }


def cpu_s(pid: int) -> float:
    """User and system time of all threads. Source: proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(directory: Path) -> dict[str, Any]:
    """The flight recorder's counts."""
    done = subprocess.run(
        [sys.executable, "-m", "otel_perfbuf", "status", "--json", "--control", f"{directory}/control.sock"],
        capture_output=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)["connectors"]["flight_recorder"]
    return found


def storm(case: tuple[str, str, int, str], per_second: int, seconds: int) -> str:
    """One case with an agent of its own, as a line."""
    title, way, size, words = case
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "agent.json").write_text(json.dumps(configuration(directory)), encoding="utf-8")
        sender_python = directory / "pbstorm"
        sender_python.symlink_to(sys.executable)
        log = (directory / "log").open("w+")
        agent = subprocess.Popen(
            [sys.executable, "-m", "otel_perfbuf", "run", "--config", directory / "agent.json"], stderr=log
        )
        try:
            said = ""
            while "recording; pid" not in said:
                assert agent.poll() is None, said
                time.sleep(0.1)
                said = (directory / "log").read_text(encoding="utf-8")
            where = {
                protocol: said.split(f"otlp: {protocol} at ", 1)[1].split()[0] for protocol in ("grpc", "http")
            } | {"socket": f"{directory}/trigger.sock"}
            sender = subprocess.Popen(
                [sender_python, "-c", SENDER, way, where[way], str(per_second), str(seconds), str(size), words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            assert sender.stdin is not None
            assert sender.stdout is not None
            sender.stdout.readline()
            time.sleep(1.5)  # the first request's dump is made, which is not what is asked for
            before, begin = cpu_s(agent.pid), time.monotonic()
            sender.stdin.write("\n")
            sender.stdin.flush()
            sent, dropped = map(int, sender.stdout.readline().split())
            wall, used = time.monotonic() - begin, cpu_s(agent.pid) - before
            time.sleep(1.5)  # what the socket skipped is told when its second is over
            counts = status(directory)
            sender.communicate("\n", timeout=30)
        finally:
            agent.terminate()
            agent.wait(30)
            log.close()
    fired, suppressed = (sum(counts[key].values()) for key in ("fired", "suppressed"))
    made, refused = counts["dumps"]["made"], sum(counts["refused"].values())
    return (
        f"{title}: {sent / wall:,.0f} firings/s, {100 * used / wall:.1f} % of a core, "
        f"{1e6 * used / max(sent / size, 1):.0f} us a request; of {sent - dropped:,} received {made} dumps made, "
        f"{suppressed:,} suppressed of {fired:,} fired, {refused:,} refused; the sender dropped {dropped:,}"
    )


def main() -> None:
    """Prints a line a case."""
    per_second = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    for case in CASES:
        print(storm(case, per_second, seconds), flush=True)


if __name__ == "__main__":
    main()
