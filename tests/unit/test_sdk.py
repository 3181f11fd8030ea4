# SPDX-License-Identifier: Apache-2.0
"""The application side, against the OpenTelemetry SDK itself."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Status, StatusCode, Tracer

from otel_perfbuf.sdk import FlightRecorderLogRecordProcessor, FlightRecorderSpanProcessor
from otel_perfbuf.sdk.datagram import DATAGRAM_MAX_BYTES, TriggerSender, encode_trigger
from otel_perfbuf.sdk.threads import OpenSpans
from otel_perfbuf.triggers.datagram import Datagram, parse_datagram


class _Agent:
    """A datagram socket where the agent's would be."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.setblocking(False)

    def datagrams(self) -> list[Datagram]:
        """All that has arrived, as the agent reads it."""
        found: list[Datagram] = []
        while True:
            try:
                data = self.socket.recv(65536)
            except BlockingIOError:
                return found
            datagram = parse_datagram(data)
            assert isinstance(datagram, Datagram), datagram
            if datagram.kind != "register":  # exact spans: test_sdk_exact.py
                found.append(datagram)

    def close(self) -> None:
        self.socket.close()
        os.unlink(self.path)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[_Agent]:
    """A socket where the processors send to."""
    agent = _Agent(str(tmp_path / "trigger.sock"))
    yield agent
    if agent.socket.fileno() >= 0:
        agent.close()


@pytest.fixture
def tracer(agent: _Agent) -> Iterator[Tracer]:
    """A tracer of the service checkout whose failed spans reach the agent."""
    provider = TracerProvider(resource=Resource({"service.name": "checkout"}), shutdown_on_exit=False)
    provider.add_span_processor(FlightRecorderSpanProcessor(agent.path))
    yield provider.get_tracer("app")
    provider.shutdown()


def test_a_failed_span_sends_one_datagram(agent: _Agent, tracer: Tracer) -> None:
    """It carries the span's ids, times, thread, service, name and exception."""
    with pytest.raises(ConnectionRefusedError), tracer.start_as_current_span("POST /pay") as span:
        raise ConnectionRefusedError("nobody listens")
    (datagram,) = agent.datagrams()
    context = span.get_span_context()
    assert datagram.trace_id == context.trace_id.to_bytes(16)
    assert datagram.span_id == context.span_id.to_bytes(8)
    assert datagram.tid == threading.get_native_id()
    assert 0 < datagram.start_unix_nano <= datagram.end_unix_nano
    assert (datagram.kind, datagram.service_name, datagram.name) == ("span_error", "checkout", "POST /pay")
    assert datagram.reason == "ConnectionRefusedError: nobody listens"
    assert not datagram.interleaved


def test_good_spans_and_own_spans_send_nothing(agent: _Agent, tracer: Tracer) -> None:
    """Neither a span without an error nor a failed one of the scope otel_perfbuf triggers."""
    with tracer.start_as_current_span("fine"):
        pass
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(FlightRecorderSpanProcessor(agent.path))
    with provider.get_tracer("otel_perfbuf").start_as_current_span("perfbuf.dump") as span:
        span.set_status(Status(StatusCode.ERROR, "own"))
    assert agent.datagrams() == []


def test_the_status_description_is_a_reason_too(agent: _Agent, tracer: Tracer) -> None:
    """A span that failed without an exception gives its status's words."""
    with tracer.start_as_current_span("job") as span:
        span.set_status(Status(StatusCode.ERROR, "no stock"))
    assert [datagram.reason for datagram in agent.datagrams()] == ["no stock"]


def _fail(tracer: Tracer, name: str) -> trace.Span:
    span = tracer.start_span(name)
    span.set_status(Status(StatusCode.ERROR))
    return span


def test_a_child_on_the_same_thread_is_the_spans_own_work(agent: _Agent, tracer: Tracer) -> None:
    """Nested descendants do not make a span interleaved."""
    with tracer.start_as_current_span("outer") as span, tracer.start_as_current_span("inner"):
        with tracer.start_as_current_span("innermost"):
            pass
        span.set_status(Status(StatusCode.ERROR))
    assert [datagram.interleaved for datagram in agent.datagrams()] == [False]


def test_an_unrelated_span_on_the_same_thread_interleaves_both(agent: _Agent, tracer: Tracer) -> None:
    """Two spans that overlap on a thread and do not descend from one another may not claim the thread."""
    first = _fail(tracer, "first")
    second = _fail(tracer, "second")
    first.end()
    second.end()
    assert [datagram.interleaved for datagram in agent.datagrams()] == [True, True]


def test_a_span_that_ends_on_another_thread_is_interleaved(agent: _Agent, tracer: Tracer) -> None:
    """Its thread is not known, so no thread may be claimed."""
    span = _fail(tracer, "moved")
    thread = threading.Thread(target=span.end)
    thread.start()
    thread.join()
    assert [datagram.interleaved for datagram in agent.datagrams()] == [True]


def test_spans_of_an_event_loop_are_interleaved(agent: _Agent, tracer: Tracer) -> None:
    """A running asyncio loop may switch tasks within the span."""

    async def handle() -> None:
        _fail(tracer, "task").end()

    asyncio.run(handle())
    assert [datagram.interleaved for datagram in agent.datagrams()] == [True]


def test_without_an_agent_nothing_is_raised(tmp_path: Path) -> None:
    """Datagrams are dropped and counted, and the next connect is not tried at once."""
    now = [0.0]
    sender = TriggerSender(str(tmp_path / "trigger.sock"), clock=lambda: now[0])
    assert not sender.send(b"{}")
    agent = _Agent(str(tmp_path / "trigger.sock"))
    assert not sender.send(b"{}"), "within a second of a failure no connect is tried"
    now[0] = 1.0
    assert sender.send(encode_trigger({"kind": "manual"}))
    assert (sender.sent, sender.dropped) == (1, 2)
    assert [datagram.kind for datagram in agent.datagrams()] == ["manual"]
    agent.close()


def test_a_restarted_agent_gets_the_next_datagram(agent: _Agent) -> None:
    """The socket of the old agent is thrown away, the new one's is connected in the same send."""
    sender = TriggerSender(agent.path)
    assert sender.send(encode_trigger({"kind": "manual"}))
    agent.close()
    restarted = _Agent(agent.path)
    assert sender.send(encode_trigger({"kind": "manual"}))
    assert len(restarted.datagrams()) == 1
    restarted.close()


def test_a_full_queue_drops_and_does_not_block(agent: _Agent) -> None:
    """When the agent does not read, sends fail at once and later ones work again."""
    sender = TriggerSender(agent.path)
    datagram = encode_trigger({"kind": "manual"})
    while sender.send(datagram):
        pass
    assert sender.dropped == 1
    agent.datagrams()
    assert sender.send(datagram)


def test_a_forked_child_sends_by_itself(agent: _Agent, tracer: Tracer) -> None:
    """A child opens a socket of its own, even when the parent held the lock at the fork, and its datagram arrives."""
    sender = TriggerSender(agent.path)
    assert sender.send(encode_trigger({"kind": "manual"}))
    with sender._lock:
        pid = os.fork()
        if pid == 0:
            sent = sender.send(encode_trigger({"kind": "manual", "reason": "child"}))
            os._exit(0 if sent else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [datagram.reason for datagram in agent.datagrams()] == [None, "child"]


def test_after_shutdown_nothing_is_sent(agent: _Agent) -> None:
    """A processor that was shut down drops, without an error."""
    processor = FlightRecorderSpanProcessor(agent.path)
    processor.shutdown()
    processor.shutdown()
    assert processor.force_flush()
    assert not processor.sender.send(b"{}")


@given(st.text(max_size=5000), st.text(max_size=5000), st.text(max_size=5000))
def test_every_text_fits_and_is_understood(service: str, name: str, reason: str) -> None:
    """Whatever an application's texts are, the datagram is small enough and the agent's parser takes it."""
    datagram = encode_trigger({"kind": "span_error", "service_name": service, "name": name, "reason": reason})
    assert len(datagram) <= DATAGRAM_MAX_BYTES
    assert isinstance(parse_datagram(datagram), Datagram)


def test_texts_are_cut_between_characters() -> None:
    """A reason of many-byte characters is cut without a broken one."""
    reason = json.loads(encode_trigger({"kind": "span_error", "reason": "ü\ud800" + "😀" * 2000}))["reason"]
    assert reason.startswith("ü?😀")
    assert reason.endswith("😀…")
    assert len(reason.encode()) <= 1024


def test_an_error_log_sends_one_datagram(agent: _Agent) -> None:
    """Severity ERROR and worse triggers, with the trace and span of the record; less does not."""
    provider = LoggerProvider(resource=Resource({"service.name": "checkout"}), shutdown_on_exit=False)
    provider.add_log_record_processor(FlightRecorderLogRecordProcessor(agent.path))
    logger = provider.get_logger("app")
    span = trace.NonRecordingSpan(trace.SpanContext(7, 8, False, trace.TraceFlags(1)))
    context = trace.set_span_in_context(span)
    logger.emit(LogRecord(severity_number=SeverityNumber.WARN, body="nearly", context=context))
    logger.emit(LogRecord(severity_number=SeverityNumber.ERROR, body="payment failed", context=context))
    provider.get_logger("otel_perfbuf").emit(LogRecord(severity_number=SeverityNumber.FATAL, body="own"))
    (datagram,) = agent.datagrams()
    assert (datagram.kind, datagram.reason, datagram.service_name) == ("log_severity", "payment failed", "checkout")
    assert datagram.span is not None
    assert (datagram.span.trace_id, datagram.span.span_id) == ((7).to_bytes(16), (8).to_bytes(8))


def test_open_spans_are_bounded() -> None:
    """Spans that never end are forgotten at a bound; one that ends after all is interleaved."""
    spans = OpenSpans()
    for span_id in range(1, 100_102):
        spans.begin(span_id, 0)
    assert spans.end(1) == (threading.get_native_id(), True)
    assert len(spans._open) == 100_000


def test_importing_needs_nothing_else_of_the_package() -> None:
    """The sdk imports the standard library and opentelemetry only: no C core, no pydantic, no grpc."""
    code = (
        "import sys, otel_perfbuf.sdk\n"
        "own = {name for name in sys.modules if name.startswith('otel_perfbuf')}\n"
        "assert own <= {'otel_perfbuf', 'otel_perfbuf.sdk'} | {f'otel_perfbuf.sdk.{name}' for name in"
        " ('datagram', 'hooks', 'logs', 'publish', 'reports', 'spanmap', 'spans', 'threads')}, own\n"
        "foreign = {'pydantic', 'grpc', 'cffi', '_cffi_backend', 'yaml', 'urllib3'} & set(sys.modules)\n"
        "assert not foreign, foreign\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
