# SPDX-License-Identifier: Apache-2.0
"""A span processor that asks the agent for a dump when a span fails.

What it is not: an exporter; spans are neither kept nor changed. Source: CONTRACT section 5; OpenTelemetry SDK
specification, span processor.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode

from otel_perfbuf.sdk.datagram import TriggerSender, encode_trigger, trigger_socket_path
from otel_perfbuf.sdk.hooks import install
from otel_perfbuf.sdk.threads import OpenSpans

__all__ = ["OWN_SCOPE", "FlightRecorderSpanProcessor", "service_name"]

OWN_SCOPE = "otel_perfbuf"


class FlightRecorderSpanProcessor(SpanProcessor):
    """Sends one datagram for each span that ends with status ERROR.

    ``socket_path``: where the agent listens; by default OTEL_PERFBUF_TRIGGER_SOCKET, else the default path. No method
    waits for anything or raises; without an agent the datagrams are dropped and counted in ``sender.dropped``.
    ``exact``: the agent's kernel part is told which span each thread runs, so that each call is put to its own span;
    this hooks OpenTelemetry's contexts, asyncio's steps, thread pools and threads of this process, for good.
    """

    def __init__(self, socket_path: str | None = None, *, exact: bool = True) -> None:
        self.sender = TriggerSender(socket_path)
        self._spans = OpenSpans()
        try:
            publisher = install(socket_path or trigger_socket_path()) if exact else None
        except Exception:  # noqa: BLE001 - an application must start although its recorder cannot
            publisher = None
        self._registration = publisher.registration if publisher is not None else None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the signature is the SDK's
        """Remembers the thread that runs the span."""
        try:
            context = span.get_span_context()
            if self._registration is not None:
                self._registration.look()
            if context is not None:
                self._spans.begin(context.span_id, span.parent.span_id if span.parent else 0)
        except Exception:  # noqa: BLE001 - an application's request must not fail because its recorder did
            return

    def on_end(self, span: ReadableSpan) -> None:
        """Sends the datagram when the span failed."""
        try:
            context = span.get_span_context()
            if context is None:
                return
            tid, interleaved = self._spans.end(context.span_id)
            failed = span.status.status_code is StatusCode.ERROR
            if not context.is_valid or not (failed or self._is_slow(span)):
                return
            if span.instrumentation_scope is not None and span.instrumentation_scope.name == OWN_SCOPE:
                return
            fields: dict[str, object] = {
                "kind": "span_error" if failed else "span_latency",
                "trace_id": f"{context.trace_id:032x}",
                "span_id": f"{context.span_id:016x}",
                "trace_flags": int(context.trace_flags),
                "tid": tid,
                "start_unix_nano": span.start_time,
                "end_unix_nano": span.end_time,
                "service_name": service_name(span.resource),
                "name": span.name,
                "interleaved": interleaved,
                "reason": _reason(span) if failed else f"span {span.name} took {_duration_ns(span) / 1e9:.3f} s",
            }
            self.sender.send(encode_trigger(fields))
        except Exception:  # noqa: BLE001 - as above
            return

    def _is_slow(self, span: ReadableSpan) -> bool:
        """Whether the agent wants to hear of a span that took so long."""
        wanted = self._registration.conditions.get("span_latency") if self._registration is not None else None
        if not wanted or _duration_ns(span) <= wanted["longer_than_ns"]:
            return False
        return not wanted["names"] or span.name in wanted["names"]

    def shutdown(self) -> None:
        """Closes the socket; spans that fail later are dropped."""
        self.sender.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the signature is the SDK's
        """True: a datagram is sent or dropped when its span ends, so nothing is ever left to flush."""
        return True


def _duration_ns(span: ReadableSpan) -> int:
    return (span.end_time or 0) - (span.start_time or 0)


def service_name(resource: object) -> str | None:
    """The resource's service.name, unless it is the SDK's own placeholder."""
    attributes = getattr(resource, "attributes", None) or {}
    name = attributes.get("service.name")
    return name if isinstance(name, str) and not name.startswith("unknown_service") else None


def _reason(span: ReadableSpan) -> str:
    for event in reversed(span.events):
        if event.name == "exception" and event.attributes:
            kind, message = event.attributes.get("exception.type"), event.attributes.get("exception.message")
            return ": ".join(str(part) for part in (kind, message) if part) or "exception"
    return span.status.description or f"span {span.name} ended with status ERROR"
