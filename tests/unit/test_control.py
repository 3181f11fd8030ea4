# SPDX-License-Identifier: Apache-2.0
"""The control socket: endpoints, bad requests, bounds; and the client that the commands use."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.service.control import Control, ControlBackend, DumpRequest, DumpSummary, parse_dump_request
from otel_perfbuf.service.control_client import ControlClient, control_path
from otel_perfbuf.service.health import HealthCheck
from otel_perfbuf.service.http import HttpServer, Request, json_response
from otel_perfbuf.service.options import ControlOptions, HealthCheckOptions


class _Backend:
    """Remembers what was asked for."""

    def __init__(self) -> None:
        self.requests: list[DumpRequest] = []
        self.fault: Exception | None = None

    def dump(self, request: DumpRequest) -> DumpSummary:
        """Makes up a dump, or raises ``fault``."""
        self.requests.append(request)
        if self.fault is not None:
            raise self.fault
        return DumpSummary("ab" * 16, records=3, lost=2, overwritten=1)


@pytest.fixture
def backend() -> _Backend:
    """What the control socket asks."""
    return _Backend()


@pytest.fixture
def path(tmp_path: Path, backend: _Backend) -> Iterator[str]:
    """The path of a served control socket."""
    path = str(tmp_path / "control.sock")
    control = Control(
        ControlOptions(path=path), ControlBackend(backend.dump, lambda: {"pid": 7}, lambda: "perfbuf_dumps 1\n")
    )
    control.start()
    yield path
    control.stop()
    control.stop()
    assert not os.path.exists(path)


def _talk(path: str, request: bytes) -> tuple[int, bytes]:
    """Sends raw bytes and gives the answer's status and body."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(path)
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def _post(path: str, body: bytes) -> tuple[int, Any]:
    status, answer = _talk(
        path, b"POST /v1/dump HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return status, json.loads(answer)


def test_only_the_owner_may_connect(path: str) -> None:
    """The socket's mode is 0600."""
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_dump_is_asked_for_and_answered(path: str, backend: _Backend) -> None:
    """POST /v1/dump passes the request on and answers id and counts."""
    assert ControlClient(path).dump({"pid": 4711, "reason": "why"}) == {
        "id": "ab" * 16,
        "records": 3,
        "lost": 2,
        "overwritten": 1,
        "dropped": 0,
    }
    ControlClient(path).dump({"cgroup": "/system.slice"})
    ControlClient(path).dump({"all": True, "pid": None})
    assert backend.requests == [
        DumpRequest("why", pid=4711),
        DumpRequest("asked for by hand", cgroup="/system.slice"),
        DumpRequest("asked for by hand"),
    ]


def test_status_metrics_and_health(path: str) -> None:
    """The other endpoints answer what the backend says."""
    assert ControlClient(path).status() == {"pid": 7}
    assert _talk(path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") == (200, b"perfbuf_dumps 1\n")
    assert _talk(path, b"GET /healthz?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        b'{"pid": 0}',
        b'{"pid": "1"}',
        b'{"pid": true}',
        b'{"pid": 1.5}',
        b'{"pid": 1, "all": true}',
        b'{"all": 1}',
        b'{"all": false}',
        b'{"cgroup": "relative"}',
        b'{"cgroup": 7}',
        b'{"pid": 1, "reason": 7}',
        b'{"pid": 1, "why": "x"}',
        b"[" * 50000,
    ],
)
def test_wrong_dump_requests(path: str, backend: _Backend, body: bytes) -> None:
    """Each gets 400 and a sentence, and no dump is made."""
    status, answer = _post(path, body)
    assert status == 400
    assert answer["error"]
    assert backend.requests == []


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"DELETE /v1/dump HTTP/1.1\r\n\r\n", 405),
        (b"GET /v1/dump HTTP/1.1\r\n\r\n", 405),
        (b"BREW /v1/status HTTP/1.1\r\n\r\n", 501),
        (b"nonsense\r\n\r\n", 400),
        (b"\x00\x01\x02\xff\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"POST /v1/dump HTTP/1.1\r\n\r\n{}", 411),
        (b"POST /v1/dump HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/dump HTTP/1.1\r\nContent-Length: 65537\r\n\r\n", 413),
        (b"POST /v1/dump HTTP/1.1\r\nContent-Length: 99\r\n\r\n{}", 400),
        (b"POST /v1/dump HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    ],
)
def test_wrong_http(path: str, request_bytes: bytes, status: int) -> None:
    """What is no good request gets an error as JSON, and the next request is answered."""
    found, body = _talk(path, request_bytes)
    assert found == status
    assert json.loads(body)["error"]
    assert ControlClient(path).status() == {"pid": 7}


def test_a_dump_that_fails_is_a_sentence(path: str, backend: _Backend) -> None:
    """The client raises what the agent said; a bug in the agent is a 500, not a hung caller."""
    backend.fault = PerfbufError("making a dump: no rings")
    with pytest.raises(PerfbufError, match="making a dump: no rings"):
        ControlClient(path).dump({"pid": 1})
    backend.fault = RuntimeError("bug")
    with pytest.raises(PerfbufError, match="RuntimeError: bug"):
        ControlClient(path).dump({"pid": 1})


def test_a_request_that_never_ends_is_cut_off() -> None:
    """A caller that keeps a connection open without finishing its request loses it at the deadline."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    server = HttpServer(listening, {}, name="test", request_s=0.05)
    server.start()
    with socket.create_connection(listening.getsockname(), timeout=10) as slow:
        slow.sendall(b"GET / HT")
        assert slow.recv(1) == b""
    server.stop()
    listening.close()


def test_connections_are_bounded() -> None:
    """The seventeenth connection at a time is closed at once; the others are still answered."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    listening.setblocking(False)
    server = HttpServer(listening, {"/": {"GET": lambda _: json_response(200, "ok")}}, name="test")
    server.start()
    held = [socket.create_connection(listening.getsockname(), timeout=10) for _ in range(16)]
    extra = socket.create_connection(listening.getsockname(), timeout=10)
    assert extra.recv(1) == b""
    for connection in held:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()
    extra.close()
    server.stop()
    listening.close()


def test_stop_ends_open_connections() -> None:
    """A caller in the middle of a request does not hold up the end."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    reached, release = threading.Event(), threading.Event()

    def route(_: Request) -> Any:
        reached.set()
        release.wait(10)
        return json_response(200, "late")

    server = HttpServer(listening, {"/": {"GET": route}}, name="test")
    server.start()
    with socket.create_connection(listening.getsockname(), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert reached.wait(10)
        server.stop()
        assert connection.recv(1) == b""
        release.set()
    listening.close()


def test_the_health_check_answers_everywhere() -> None:
    """Any path answers 200, other methods 405."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    health = HealthCheck(HealthCheckOptions(endpoint=f"127.0.0.1:{port}"))
    with pytest.raises(PerfbufError, match="Address already in use"):
        health.start()
    taken.close()
    health.start()
    for request, status in ((b"GET /any HTTP/1.1\r\n\r\n", b"200"), (b"POST / HTTP/1.1\r\n\r\n", b"405")):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(request)
            assert connection.recv(12)[9:] == status
    health.stop()
    health.stop()


def test_without_an_agent_the_client_says_so(tmp_path: Path) -> None:
    """No socket, a stale socket, and a socket that speaks something else: one sentence each."""
    path = str(tmp_path / "none")
    with pytest.raises(PerfbufError, match="no agent listens there"):
        ControlClient(path).status()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        with pytest.raises(PerfbufError, match="no agent listens there"):
            ControlClient(path).status()
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            connection.recv(4096)
            connection.sendall(b"220 mail ready\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PerfbufError, match="no HTTP"):
            ControlClient(path).status()
        thread.join()
        with pytest.raises(PerfbufError, match="did not answer within"):
            ControlClient(path, timeout_s=0.05).status()


def test_the_control_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, then the variable, then the default."""
    monkeypatch.delenv("OTEL_PERFBUF_CONTROL_SOCKET", raising=False)
    assert control_path(None) == "/run/otel-perfbuf/control.sock"
    monkeypatch.setenv("OTEL_PERFBUF_CONTROL_SOCKET", "/x")
    assert (control_path(None), control_path("/y")) == ("/x", "/y")


@given(
    st.binary(max_size=200)
    | st.dictionaries(st.text(max_size=6), st.integers() | st.text()).map(json.dumps).map(str.encode)
)
def test_no_body_raises_anything_else(body: bytes) -> None:
    """Whatever arrives is a request or one sentence."""
    try:
        assert isinstance(parse_dump_request(body), DumpRequest)
    except ConfigError as fault:
        assert str(fault)
