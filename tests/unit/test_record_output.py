# SPDX-License-Identifier: Apache-2.0
"""What `record --otlp` says at its end of exports: failures that stayed, and nothing of those that were made good."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from export_samples import logs_request, traces_chunk

from otel_perfbuf.cli.record_output import Output
from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.recorder.dump import Dump


def said(capsys: pytest.CaptureFixture[str], answer: Callable[[int], int]) -> str:
    """Everything on stderr after one dump went to a receiver that answers its requests so, by their number."""
    requests = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal requests
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(answer(requests))
            requests += 1
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    chunk = Chunk("logs", logs_request(3, header=True).SerializeToString(), 4)
    dump = cast(Dump, SimpleNamespace(payload=Payload((chunk, traces_chunk()), "ab" * 16)))
    try:
        with Output(None, "text", f"http://127.0.0.1:{server.server_port}", 10) as output:
            output.start()
            output.take(dump)
            output.finish("CMD exited with 1")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    return capsys.readouterr().err


def test_an_export_that_worked_at_last_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The receiver is busy once: the dump arrives, and no line says that it failed."""
    shown = said(capsys, lambda number: 503 if number == 0 else 200)
    assert "otel-perfbuf: record:" not in shown
    assert shown.startswith("# ")


def test_an_export_that_failed_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused for good: one sentence, with the receiver's status."""
    shown = said(capsys, lambda _: 400)
    problems = [line for line in shown.splitlines() if line.startswith("otel-perfbuf: record:")]
    assert [("HTTP 400" in problem) for problem in problems] == [True, True]
    assert "4 log records" in problems[0]
    assert "1 span" in problems[1]


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """/dev/full: the sentence names it."""
    chunk = Chunk("logs", logs_request(3, header=True).SerializeToString(), 4)
    with Output(Path("/dev/full"), "otlp_json", None, 10) as output:
        output.start()
        output.take(cast(Dump, SimpleNamespace(payload=Payload((chunk,), "ab" * 16))))
        output.finish("CMD exited with 1")
    assert "writing 4 log records to /dev/full failed: No space left on device" in capsys.readouterr().err
