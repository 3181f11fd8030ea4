# SPDX-License-Identifier: Apache-2.0
"""The application side: a failed span or an error log asks the agent for a dump.

What it is not: it imports nothing else of this package, needs no privileges, no agent and no compiler.
Source: CONTRACT sections 5 and 6.

>>> from otel_perfbuf.sdk import FlightRecorderSpanProcessor
>>> provider.add_span_processor(FlightRecorderSpanProcessor())      # doctest: +SKIP
"""

from otel_perfbuf.sdk.logs import FlightRecorderLogRecordProcessor
from otel_perfbuf.sdk.reports import FlightRecorderHandler, report_uncaught
from otel_perfbuf.sdk.spans import FlightRecorderSpanProcessor

__all__ = [
    "FlightRecorderHandler",
    "FlightRecorderLogRecordProcessor",
    "FlightRecorderSpanProcessor",
    "report_uncaught",
]
