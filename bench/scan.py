# SPDX-License-Identifier: Apache-2.0
"""The scan of OTLP requests for error spans, in C, beside protobuf's parser and a loop in Python over the same bytes.

Both run in turn in one process; the least of each is compared, since a loaded machine only adds. usage: scan.py [SPANS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from otel_perfbuf.triggers.otlp_scan import Scanner, ScanRules

ROUNDS = 30


def request_of(spans: int) -> bytes:
    """Spans with eight attributes each; one in a thousand failed."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for number in range(10):
        resource.resource.attributes.add(key=f"resource.attribute.{number}").value.string_value = "value of it"
    scope = resource.scope_spans.add()
    scope.scope.name = "app"
    for number in range(spans):
        identity = (number + 1).to_bytes(8, "big")
        span = scope.spans.add(
            trace_id=identity * 2, span_id=identity, parent_span_id=identity, name="GET /cart", kind=2
        )
        span.start_time_unix_nano, span.end_time_unix_nano = 1_700_000_000_000_000_000, 1_700_000_000_001_000_000
        for index in range(8):
            span.attributes.add(key=f"http.attribute.{index}").value.string_value = "a value of a few words"
        if number % 1000 == 0:
            span.status.code = Status.STATUS_CODE_ERROR
    return request.SerializeToString()


def parsed(body: bytes) -> int:
    """How many spans failed, by protobuf."""
    return sum(
        span.status.code == Status.STATUS_CODE_ERROR
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """(seconds, result)."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def main() -> None:
    """Prints both and their ratio."""
    spans = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    body, scanner = request_of(spans), Scanner(ScanRules(errors=True))
    pairs = [(timed(lambda: scanner.scan("traces", body).hits), timed(lambda: parsed(body))) for _ in range(ROUNDS)]
    assert len({result for pair in pairs for _, result in pair}) == 1
    ours, theirs = (min(pair[index][0] for pair in pairs) / spans * 1e9 for index in (0, 1))
    print(
        f"scan: {spans:,} spans of {len(body) / spans:.0f} bytes: {ours:.0f} ns a span, hits as Python values included;"
    )
    print(f"scan: protobuf's parser and a loop in Python {theirs:.0f} ns: {ours / theirs:.3f} of it")


if __name__ == "__main__":
    main()
