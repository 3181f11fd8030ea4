# SPDX-License-Identifier: Apache-2.0
"""An application that knows nothing of otel-perfbuf: its request fails, and its spans and logs go out by plain OTLP.

Prints its failed span and its parent as JSON. Who it is says the SDK's environment (OTEL_SERVICE_NAME and the like).
usage: plain_otlp.py spans|logs
"""

import json
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode

SPANS = sys.argv[1] == "spans"
traces, logs = TracerProvider(), LoggerProvider()
traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
tracer = traces.get_tracer("checkout")

with tracer.start_as_current_span("request") as parent, tracer.start_as_current_span("POST /pay") as span:
    try:
        open("/nonexistent/payments.json").close()
    except OSError:
        if SPANS:
            span.set_status(Status(StatusCode.ERROR, "payment failed"))
        else:
            from opentelemetry._logs import SeverityNumber

            logs.get_logger("checkout").emit(severity_number=SeverityNumber.ERROR, body="payment failed")
ids = {
    name: trace.format_span_id(each.get_span_context().span_id)
    for name, each in (("span_id", span), ("parent", parent))
}
sys.stdout.write(json.dumps({"trace_id": trace.format_trace_id(span.get_span_context().trace_id), **ids}) + "\n")
traces.shutdown()
logs.shutdown()
