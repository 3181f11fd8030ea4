# SPDX-License-Identifier: Apache-2.0
"""Without a line of code: `opentelemetry-instrument python app.py`, or `perfbuf:` in the declarative file.

What it is not: it makes no provider; both ways have made them before it is called. Source: the entry point group
`opentelemetry_instrumentor` (opentelemetry-instrumentation, opentelemetry-configuration), whose interface is
`instrument` and, for options from the file, a dataclass `configuration`. Neither package is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from opentelemetry import _logs, trace

from otel_perfbuf.sdk.logs import FlightRecorderLogRecordProcessor
from otel_perfbuf.sdk.reports import report_uncaught
from otel_perfbuf.sdk.spans import FlightRecorderSpanProcessor, service_name

__all__ = ["InstrumentorOptions", "PerfbufInstrumentor"]

_MARK = "perfbuf_instrumented"


@dataclass
class InstrumentorOptions:
    """`instrumentation/development: {python: {perfbuf: {...}}}`; what is left out has the defaults of `instrument`."""

    socket_path: str | None = None
    exact: bool | None = None
    uncaught: bool | None = None


class PerfbufInstrumentor:
    """Adds the processors to the providers that are there, and reports exceptions that nobody catches."""

    configuration: ClassVar[type[InstrumentorOptions]] = InstrumentorOptions

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether this was done already for the current tracer provider."""
        return hasattr(trace.get_tracer_provider(), _MARK)

    def instrument(
        self, *, socket_path: str | None = None, exact: bool = True, uncaught: bool = True, **_: Any
    ) -> None:
        """Does it, once; a provider that takes no processors (the API's own) is left alone."""
        provider: Any = trace.get_tracer_provider()
        if self.is_instrumented_by_opentelemetry or not hasattr(provider, "add_span_processor"):
            return
        provider.add_span_processor(FlightRecorderSpanProcessor(socket_path, exact=exact))
        setattr(provider, _MARK, True)
        loggers: Any = _logs.get_logger_provider()
        if hasattr(loggers, "add_log_record_processor"):
            loggers.add_log_record_processor(FlightRecorderLogRecordProcessor(socket_path))
        if uncaught:
            report_uncaught(socket_path, service_name(getattr(provider, "resource", None)))

    def uninstrument(self, **_: Any) -> None:
        """Providers cannot give processors back: what was added ends with their shutdown."""
