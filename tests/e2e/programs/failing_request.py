# SPDX-License-Identifier: Apache-2.0
"""A traced program whose request fails for a reason that its message does not tell; sends its spans over OTLP too.

Prints the failed span's trace id, span id, start, end and thread id as JSON. usage: failing_request.py [OTLP_ENDPOINT]
"""

import json
import sys
import threading

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Status, StatusCode

from otel_perfbuf.sdk import FlightRecorderSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": "checkout"}))
provider.add_span_processor(FlightRecorderSpanProcessor())
if len(sys.argv) > 1:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1], insecure=True)))
tracer = provider.get_tracer("checkout")

with tracer.start_as_current_span("POST /pay") as span:
    try:
        open("/nonexistent/payments.json").close()
    except OSError:
        span.set_status(Status(StatusCode.ERROR, "payment failed"))
context = span.get_span_context()
sys.stdout.write(
    json.dumps(
        {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
            "start": span.start_time,
            "end": span.end_time,
            "tid": threading.get_native_id(),
        }
    )
    + "\n"
)
sys.stdout.flush()
provider.shutdown()
sys.exit(3)
