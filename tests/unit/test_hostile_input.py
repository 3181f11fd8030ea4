# SPDX-License-Identifier: Apache-2.0
"""Input from strangers and by mistake: what configuration, requests, saved files and answers must not do to us."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from otel_perfbuf.cli.main import main
from otel_perfbuf.cli.spawn import Child
from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.exporters.components import exporter_for_endpoint
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.service.config import load
from otel_perfbuf.service.control import parse_dump_request
from otel_perfbuf.triggers.bound import bind_unix, path_fault

CONFIG = Path(__file__).parents[2] / "config" / "flight-recorder.yaml"


def problems(*sets: str, files: tuple[str, ...] = (str(CONFIG),)) -> dict[str, str]:
    """The faults of the shipped configuration with these settings, by key path."""
    with pytest.raises(ConfigError) as caught:
        load(files, sets)
    return dict(caught.value.problems)


@pytest.mark.parametrize("path", ["", "/tmp/a\0b", "/tmp/" + "x" * 103, "é" * 54])
def test_paths_that_no_socket_can_have_are_faults_of_their_keys(path: str) -> None:
    """Validate says it, rather than the agent when it starts: empty, with a NUL, longer than 107 bytes."""
    found = problems(
        f"extensions.control.path={json.dumps(path)}",
        f"connectors.flight_recorder.triggers.socket.path={json.dumps(path)}",
    )
    assert set(found) == {"extensions.control.path", "connectors.flight_recorder.triggers.socket.path"}
    with pytest.raises(PerfbufError):
        bind_unix(path, socket.SOCK_DGRAM, 0o600, "trigger socket")
    assert path_fault("/tmp/" + "x" * 102) is None


def test_two_sockets_on_one_path_are_a_fault() -> None:
    """The second to start could only fail, or take the first one's."""
    found = problems("extensions.control.path=/run/otel-perfbuf/trigger.sock")
    assert list(found) == ["connectors.flight_recorder.triggers.socket.path"]
    assert "extensions.control.path" in found["connectors.flight_recorder.triggers.socket.path"]


def test_what_this_host_cannot_record_is_a_fault_of_its_key() -> None:
    """Unknown system calls, rings that are more than max_total_bytes, names longer than a thread's can be."""
    receiver = "receivers.perf_buffer/syscalls"
    found = problems(f"{receiver}.syscalls.include=[openat, nosuchcall, '%nope']")
    assert list(found) == [f"{receiver}.syscalls.include"]
    assert "nosuchcall" in found[f"{receiver}.syscalls.include"]
    assert "%nope" in found[f"{receiver}.syscalls.include"]
    assert list(problems(f"{receiver}.max_total_bytes=1MiB")) == [f"{receiver}.max_total_bytes"]
    assert list(problems(f"{receiver}.targets.comms=[éééééééé]")) == [f"{receiver}.targets.comms.0"]
    load([str(CONFIG)], [f"{receiver}.syscalls.include=[openat, '%network', '!sendto']"])


def test_keys_that_are_no_text_hide_no_other_fault(tmp_path: Path) -> None:
    """Each is named by its path, beside what else is wrong."""
    file = tmp_path / "keys.yaml"
    file.write_text("receivers: {5: x, nope: {}}\n~: 1\n2020-01-01: 2\n")
    found = problems(files=(str(file),))
    assert {"receivers.5", "receivers.nope", "None", "2020-01-01", "service.pipelines"} == set(found)


@pytest.mark.parametrize("text", ["2020-13-45", "9" * 5000, "[", "\x1b[31m"])
def test_a_setting_that_is_no_yaml_is_text(text: str) -> None:
    """Also where YAML's own parser raises something else: an impossible date, a number of 5,000 digits."""
    assert list(problems(f"receivers.perf_buffer/syscalls.per_cpu_bytes={text}")) == [
        "receivers.perf_buffer/syscalls.per_cpu_bytes"
    ]


@pytest.mark.parametrize("body", ['{"pid": 0}', '{"pid": false, "cgroup": 0}', '{"pid": 0.0}'])
def test_a_wrong_pid_is_not_taken_for_a_missing_one(body: str) -> None:
    """0 and 0.0 are equal to False in Python."""
    with pytest.raises(ConfigError, match=r"pid is no integer|cgroup is no path"):
        parse_dump_request(body.encode())


def test_show_escapes_what_could_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a file that is shown as text too, and in the name of a file that cannot be read."""
    file = tmp_path / "dump.txt"
    file.write_bytes(b"a\x1b[31m\tb\xc2\x9bc\xff\n")
    assert main(["show", str(file)]) == 0
    assert capsys.readouterr().out == "a\\x1b[31m\tb\\x9bc\ufffd\n"
    assert main(["show", "/no\x1b[31m\udcff"]) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "No such file" in said


def test_show_takes_empty_messages_for_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of zero bytes is frames of length 0: nothing to show is said, not shown as success."""
    file = tmp_path / "zeros"
    file.write_bytes(bytes(4096))
    assert main(["show", str(file)]) == 1
    assert "holds no log record" in capsys.readouterr().err


def test_standard_streams_that_are_closed_are_no_ones_ring(tmp_path: Path) -> None:
    """What is opened next does not become stderr, and the exit code is kept when nothing can be said."""
    closed = [sys.executable, "-m", "otel_perfbuf", "show", str(tmp_path / "nothing")]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *closed], check=False)
    assert done.returncode == 1
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>/dev/full', "sh", *closed], check=False)
    assert done.returncode == 1


def test_no_signal_goes_to_a_pid_that_may_be_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """After CMD was waited for, forwarding ends."""
    child = Child.hold("/bin/true", ["true"], {})
    assert child.release() == 0
    child.wait()
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    child.send(15)
    assert sent == []


class _Backend(http.server.BaseHTTPRequestHandler):
    """Takes everything and answers what ``answer`` says: headers and body."""

    answer: ClassVar[tuple[dict[str, str], bytes]] = ({}, b"")
    requests: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        """200 with the answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append(self.path)
        self.send_response(200)
        headers, body = self.answer
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def backend() -> Iterator[str]:
    """An endpoint on loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Backend)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    _Backend.requests.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_accepted_request_is_not_sent_again_for_its_answers_body(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A body that cannot be decompressed is still behind a 200; and what a partial success says is passed on."""
    chunk = Chunk("logs", b"", 7)
    exporter = exporter_for_endpoint(backend)
    exporter.start()
    try:
        _Backend.answer = ({"Content-Encoding": "gzip", "Content-Type": "application/x-protobuf"}, b"\x1f\x8bjunk")
        assert exporter.send(chunk, 5.0) == 0
        body = json.dumps({"partialSuccess": {"rejectedLogRecords": "3", "errorMessage": "too old\x1b[31m"}}).encode()
        _Backend.answer = ({"Content-Type": "application/json"}, body)
        assert exporter.send(chunk, 5.0) == 3
    finally:
        exporter.stop()
    assert _Backend.requests == ["/v1/logs", "/v1/logs"]
    assert "too old" in caplog.text
    assert "\x1b" not in caplog.text
