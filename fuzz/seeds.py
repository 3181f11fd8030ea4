# SPDX-License-Identifier: Apache-2.0
"""Writes the seed corpora: rings that RingWriter and RingbufWriter made, samples and pages of the unit tests' writer,
OTLP requests of protobuf.

What it is not: a fuzzer. usage: seeds.py DIR  (makes DIR/rings, DIR/decode and DIR/otlp_scan)
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from samples import SampleWriter, string

from otel_perfbuf._core._core import ffi
from otel_perfbuf.testing import RingbufWriter, RingWriter

METADATA: list[tuple[str, ...]] = [(), ("time",), ("tid", "time", "cpu"), ("cpu",)]


def choices(what: int, capacity: int, metadata: int, flags: int) -> bytes:
    """The target's first 8 bytes."""
    return struct.pack("<5B3x", what, (capacity // 8).bit_length() - 1, metadata, flags, 0)


def data_of(address: int, size: int) -> bytes:
    """Memory as bytes."""
    return bytes(ffi.buffer(ffi.cast("uint8_t *", address), size))


def ring_seeds() -> list[bytes]:
    """Both directions, all metadata, wrapped and not, with losses, unknown types and junk; both ring buffers."""
    seeds = []
    for metadata, names in enumerate(METADATA):
        for backward in (False, True):
            writer = RingWriter(1024, backward=backward, sample_type=names)
            for number in range(4 if metadata % 2 else 30):
                if number == 2:
                    writer.lose(3)
                writer.sample(bytes([number]) * number, time_ns=number, pid=1, tid=2)
            if backward or metadata % 2:
                writer.record(42, bytes(16))
            data = data_of(writer.mapped.data, 1024)
            seeds.append(choices(0, 1024, metadata, 3 if backward else 0) + data)
            words = struct.pack("<QQQ", writer.head, writer.tail, 0)
            seeds.append(choices(1, 1024, metadata, 0 if backward else 1) + words + data)
    for overwritable in (False, True):
        ring = RingbufWriter(1024, overwritable=overwritable)
        for number in range(40):
            reservation = ring.reserve(number)
            if reservation is not None and number % 7:
                reservation.submit(bytes([number]) * number)
            elif reservation is not None:
                reservation.discard()
        words = struct.pack("<4Q", ring.producer_pos, 0, ring.overwrite_pos, ring.consumer_pos)
        seeds.append(choices(2, 1024, 0, 2 if overwritable else 1) + words + data_of(ring.mapped.data, 1024))
    return seeds


def decode_seeds() -> list[bytes]:
    """Records of every kind: calls of every argument kind with strings and words, signals, ends, losses."""
    seeds = []
    for kind in range(32):
        writer = SampleWriter()
        for sequence in (1, 2, 4):
            writer.syscall(
                sequence, sequence, kind, [1, 2, 3, 4, 5, 1 << 40], -2, 10, [string(kind % 6, b"/etc/hosts")]
            )
        writer.signal(5, 9, 11, 1, bytes(16)).exec(6, 10, b"/bin/true").fork(7, 11, 3, 4).exit(8, 12, 139)
        sample = writer.sample()
        seeds.append(b"\0" + struct.pack("<H", len(sample)) + sample)
    return seeds


def scan_seeds() -> list[bytes]:
    """A request of each signal with everything that the scan looks at, for each choice of rules."""
    traces, logs = ExportTraceServiceRequest(), ExportLogsServiceRequest()
    pair = {"key": "thread.id", "value": {"int_value": 4711}}
    for scope in ("app", "otel_perfbuf"):
        resource_spans, resource_logs = traces.resource_spans.add(), logs.resource_logs.add()
        resource_spans.resource.attributes.add(**pair)
        resource_logs.resource.attributes.add(**pair)
        scope_spans, scope_logs = resource_spans.scope_spans.add(), resource_logs.scope_logs.add()
        scope_spans.scope.name = scope_logs.scope.name = scope
        span = scope_spans.spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="GET /", flags=1, attributes=[pair])
        span.start_time_unix_nano, span.end_time_unix_nano = 1, 5
        span.status.code, span.status.message = 2, "failed"
        record = scope_logs.log_records.add(severity_number=17, trace_id=b"t" * 16, span_id=b"s" * 8, attributes=[pair])
        record.time_unix_nano, record.event_name, record.body.string_value = 1, "event", "failed"
    seeds = []
    for rules in range(8):
        seeds.append(bytes([rules << 1]) + traces.SerializeToString())
        seeds.append(bytes([rules << 1 | 1]) + logs.SerializeToString())
    return seeds


def main() -> None:
    """Writes them."""
    for name, seeds in (("rings", ring_seeds()), ("decode", decode_seeds()), ("otlp_scan", scan_seeds())):
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            (folder / f"seed{number:02}").write_bytes(seed)


if __name__ == "__main__":
    main()
