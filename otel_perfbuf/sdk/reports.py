# SPDX-License-Identifier: Apache-2.0
"""Errors that no span and no OpenTelemetry log record tells: exceptions that nobody catches, and `logging` records.

What it is not: it swallows nothing; what was there before is called as before. Source: Python's sys.excepthook,
threading.excepthook, asyncio's loop.call_exception_handler, logging.Handler; CONTRACT section 5 (`log_severity`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from types import TracebackType
from typing import Any

from opentelemetry import trace

from otel_perfbuf.sdk.datagram import TriggerSender, encode_trigger
from otel_perfbuf.sdk.threads import loop_on_this_thread

__all__ = ["FlightRecorderHandler", "report_uncaught"]


def _report(sender: TriggerSender, reason: str, service: str | None) -> None:
    """One datagram of kind log_severity, with the span that is active now; never raises."""
    try:
        fields: dict[str, object] = {
            "kind": "log_severity",
            "tid": threading.get_native_id(),
            "service_name": service,
            "interleaved": loop_on_this_thread(),
            "reason": reason,
        }
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            fields["trace_id"] = trace.format_trace_id(context.trace_id)
            fields["span_id"] = trace.format_span_id(context.span_id)
            fields["trace_flags"] = int(context.trace_flags)
        sender.send(encode_trigger(fields))
    except Exception:  # noqa: BLE001 - an application's error must not become another one
        return


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class FlightRecorderHandler(logging.Handler):
    """A `logging` handler: each record of ``level`` or worse asks the agent for a dump.

    ``socket_path`` as in FlightRecorderSpanProcessor, ``service_name`` as the resource's. Of no use beside
    FlightRecorderLogRecordProcessor, which sees the same records.
    """

    def __init__(
        self, level: int = logging.ERROR, *, socket_path: str | None = None, service_name: str | None = None
    ) -> None:
        super().__init__(level)
        self.sender = TriggerSender(socket_path)
        self._service = service_name

    def emit(self, record: logging.LogRecord) -> None:
        """Sends the datagram."""
        try:
            reason = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                reason = f"{reason}: {_named(record.exc_info[1])}"
        except Exception:  # noqa: BLE001 - a message whose arguments do not fit is logging's to tell
            reason = str(record.msg)
        _report(self.sender, reason, self._service)

    def close(self) -> None:
        """Closes the socket."""
        self.sender.close()
        super().close()


def report_uncaught(socket_path: str | None = None, service_name: str | None = None) -> TriggerSender:
    """From now on each exception that nobody catches, in any thread or asyncio loop, asks the agent for a dump.

    The hooks that were there are called after. Gives the sender, whose ``close`` ends the reports.
    """
    sender = TriggerSender(socket_path)
    before, thread_before = sys.excepthook, threading.excepthook

    def uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if issubclass(kind, Exception):
            _report(sender, _named(error), service_name)
        before(kind, error, where)

    def in_thread(arguments: Any) -> None:
        if arguments.exc_value is not None and isinstance(arguments.exc_value, Exception):
            _report(sender, _named(arguments.exc_value), service_name)
        thread_before(arguments)

    sys.excepthook = uncaught
    threading.excepthook = in_thread
    _hook_loops(sender, service_name)
    return sender


def _hook_loops(sender: TriggerSender, service: str | None) -> None:
    original = asyncio.BaseEventLoop.call_exception_handler

    @functools.wraps(original)
    def call(loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, Exception):
            _report(sender, _named(error) if error is not None else str(context.get("message")), service)
        original(loop, context)

    setattr(asyncio.BaseEventLoop, "call_exception_handler", call)  # noqa: B010 - the type checker forbids the plain form
