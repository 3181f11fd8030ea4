# SPDX-License-Identifier: Apache-2.0
"""Errors that no span tells, and the ways in without a line of code; each case is a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_perfbuf.triggers.datagram import Datagram, parse_datagram


class _Agent:
    """A datagram socket where the agent's would be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def run(self, *command: str | Path, **env: str) -> tuple[int, list[Datagram]]:
        """A program's exit code, and what it reported."""
        environment = {**os.environ, "OTEL_PERFBUF_TRIGGER_SOCKET": str(self.path), **env}
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environment)
        found = []
        while True:
            try:
                datagram = parse_datagram(self.socket.recv(65536))
            except BlockingIOError:
                break
            assert isinstance(datagram, Datagram), datagram
            if datagram.kind != "register":
                found.append(datagram)
        self.stderr = done.stderr
        return done.returncode, found


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[_Agent]:
    """The socket, closed at the end."""
    made = _Agent(tmp_path / "trigger.sock")
    yield made
    made.socket.close()


UNCAUGHT = "from otel_perfbuf.sdk import report_uncaught; report_uncaught(service_name='shop')\n"


@pytest.mark.parametrize(
    ("code", "reason", "exit_code"),
    [
        ("raise ValueError('no such order')", "ValueError: no such order", 1),
        ("import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
         "ZeroDivisionError: division by zero", 0),
        ("import asyncio\n"
         "async def main():\n"
         "    asyncio.get_running_loop().call_soon(lambda: {}['key'])\n"
         "    await asyncio.sleep(0.01)\n"
         "asyncio.run(main())", "KeyError: 'key'", 0),
        ("import sys; sys.exit(3)", None, 3),
        ("raise KeyboardInterrupt", None, 130),
    ],
)  # fmt: skip
def test_exceptions_that_nobody_catches(agent: _Agent, code: str, reason: str | None, exit_code: int) -> None:
    """In the main thread, another one, a loop's callback; what is no error is none. Python's own words still come."""
    status, found = agent.run(sys.executable, "-c", UNCAUGHT + code)
    assert status in (exit_code, -2)
    assert [datagram.reason for datagram in found] == ([reason] if reason else [])
    assert all((datagram.kind, datagram.service_name) == ("log_severity", "shop") for datagram in found)
    if reason:
        assert "Traceback" in agent.stderr


def test_logging_records_of_an_error(agent: _Agent) -> None:
    """ERROR and worse, with the exception and the span that is active; a message that cannot be formatted as well."""
    code = (
        "import logging\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from otel_perfbuf.sdk import FlightRecorderHandler\n"
        "logging.raiseExceptions = False\n"
        "log = logging.getLogger('app'); log.addHandler(FlightRecorderHandler(service_name='shop'))\n"
        "log.warning('quiet')\n"
        "with TracerProvider(shutdown_on_exit=False).get_tracer('t').start_as_current_span('s'):\n"
        "    try: open('/nope')\n"
        "    except OSError: log.exception('reading %s', 'it')\n"
        "log.critical('%d', 'no number')\n"
    )
    status, found = agent.run(sys.executable, "-c", code)
    assert status == 0, agent.stderr
    first, second = found
    assert first.reason == "reading it: FileNotFoundError: [Errno 2] No such file or directory: '/nope'"
    assert first.span is not None
    assert (second.reason, second.span) == ("%d", None)


APPLICATION = """
from opentelemetry import trace
with trace.get_tracer("app").start_as_current_span("POST /pay") as span:
    span.set_status(trace.Status(trace.StatusCode.ERROR, "payment failed"))
raise RuntimeError("over")
"""


def test_zero_code(agent: _Agent, tmp_path: Path) -> None:
    """`opentelemetry-instrument python app.py`: its failed span and its end are reported, and nothing twice."""
    program = tmp_path / "app.py"
    program.write_text(APPLICATION)
    status, found = agent.run(
        Path(sys.executable).parent / "opentelemetry-instrument", sys.executable, program,
        OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none",
        OTEL_SERVICE_NAME="checkout",
    )  # fmt: skip
    assert status == 1, agent.stderr
    reported = [(datagram.kind, datagram.reason, datagram.service_name) for datagram in found]
    assert reported == [
        ("span_error", "payment failed", "checkout"), ("log_severity", "RuntimeError: over", "checkout"),
    ]  # fmt: skip


def test_the_declarative_file(agent: _Agent, tmp_path: Path) -> None:
    """`instrumentation/development: {python: {perfbuf: {...}}}` with its options."""
    program, file = tmp_path / "app.py", tmp_path / "otel.yaml"
    program.write_text(APPLICATION)
    file.write_text(
        "file_format: '1.0'\n"
        "tracer_provider: {processors: [{simple: {exporter: {console: {}}}}]}\n"
        "instrumentation/development: {python: {perfbuf: {uncaught: false, exact: false}}}\n"
    )
    status, found = agent.run(
        Path(sys.executable).parent / "opentelemetry-instrument", sys.executable, program,
        OTEL_CONFIG_FILE=str(file), OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="*",
    )  # fmt: skip
    assert status == 1, agent.stderr
    assert [(datagram.kind, datagram.reason) for datagram in found] == [("span_error", "payment failed")], agent.stderr
