# SPDX-License-Identifier: Apache-2.0
"""Exact spans, both real sides: a process that registers over the trigger socket, and the kernel that stamps its calls.

The oracle is each call's own path, in which the process says which span it had published.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bpf_recording import Recording, recording, wait_until
from otel_perfbuf.bpf._libbpf import lib as libbpf

from otel_perfbuf.bpf import map_from_fd
from otel_perfbuf.triggers.socket import SocketOptions, SocketTrigger
from otel_perfbuf.triggers.spans import SpanRegistry

pytestmark = pytest.mark.kernel

PROGRAM = Path(__file__).parent / "programs" / "registers.py"


@contextmanager
def _agent(recorded: Recording, path: Path) -> Iterator[SpanRegistry]:
    """The agent's two ends: the trigger socket and the registry behind it."""
    registry = SpanRegistry(recorded.program.spans)
    trigger = SocketTrigger(SocketOptions(path=str(path)), register=registry.register)
    registry.start()
    trigger.start(lambda _: None)
    try:
        yield registry
    finally:
        trigger.stop()
        registry.stop()


class _Process:
    """registers.py in a mode, recorded from the moment at which it has registered."""

    def __init__(self, recorded: Recording, path: Path, mode: str, *prefix: str, pid: int | None = None) -> None:
        self.recorded = recorded
        command = [*prefix, sys.executable, str(PROGRAM), str(path), mode]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ready()
        recorded.program.follow(self.process.pid)

    def ready(self) -> None:
        """Waits until it waits."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def go(self) -> None:
        """Lets it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        """To its end, which is a good one."""
        self.go()
        assert self.process.wait(60) == 0

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout):
            assert file is not None
            file.close()


def _probes(recorded: Recording) -> list[tuple[str, str]]:
    """(what the probe's path says, what the kernel stamped), by thread and sequence."""
    found = []
    for record in recorded.records():
        for capture in record.captures:
            path = capture.data.decode()
            if path.startswith("/probe/"):
                found.append((path.split("/")[2], record.span or "none"))
    return found


@pytest.fixture
def recorded() -> Iterator[Recording]:
    """Calls that look at a file's access, and fork's, exec's."""
    with recording(include=["access", "faccessat", "faccessat2", "execve"], path_bytes=4096) as made:
        yield made


def _check(recorded: Recording, least: int) -> None:
    probes = _probes(recorded)
    assert [said for said, _ in probes] == [stamped for _, stamped in probes]
    assert len(probes) >= least


def test_each_call_has_the_span_that_was_published_then(recorded: Recording, tmp_path: Path) -> None:
    """No span, one, another, more than a page, a record larger than a page; half written is none."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path), _Process(recorded, path, "simple") as process:
        process.go()
        process.ready()
        _check(recorded, 37)
        process.finish()
    _check(recorded, 37)


def test_a_call_in_flight_and_the_process_that_ends_free_everything(recorded: Recording, tmp_path: Path) -> None:
    """After the process's end the registry holds nothing of it, and neither map has its key."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path) as registry:
        with _Process(recorded, path, "simple") as process:
            assert registry.registered == 1
            process.process.kill()
            process.process.wait()
            wait_until(lambda: registry.registered == 0, "forgetting the process")
        wait_until(lambda: recorded.program.spans.bytes == 0, "no map being left")
        maps = recorded.program._object.maps
        wait_until(lambda: not list(maps["span_gates"].items()), "an empty gate")


def test_exec_closes_the_gate(recorded: Recording, tmp_path: Path) -> None:
    """What the old program had published is not the new one's."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path) as registry, _Process(recorded, path, "exec") as process:
        process.go()
        process.ready()
        wait_until(lambda: registry.registered == 0, "the registry to notice the exec")
        process.finish()
    _check(recorded, 2)


def test_a_forked_child_has_no_span_of_its_parent(recorded: Recording, tmp_path: Path) -> None:
    """Until it registers itself."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path), _Process(recorded, path, "forks") as process:
        process.go()
        process.ready()
        process.finish()
    _check(recorded, 3)


def test_a_thread_that_ends_leaves_no_slot(recorded: Recording, tmp_path: Path) -> None:
    """The kernel frees it: a later thread with the same id finds nothing stale."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path), _Process(recorded, path, "ended") as process:
        process.go()
        process.ready()
        process.finish()
    _check(recorded, 1)


def test_an_agent_that_restarts_is_asked_again(recorded: Recording, tmp_path: Path) -> None:
    """While it is away nothing is stamped; the next one gives a new map."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path):
        process = _Process(recorded, path, "restart")
        process.go()
        process.ready()
    with process, _agent(recorded, path):
        process.go()
        process.ready()
        process.finish()
    _check(recorded, 3)


def test_a_process_in_a_pid_namespace_is_found_by_its_own_ids(recorded: Recording, tmp_path: Path) -> None:
    """Its thread ids are not the host's."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path), _Process(recorded, path, "simple", "unshare", "--pid", "--fork") as process:
        process.go()
        process.ready()
        process.finish()
    _check(recorded, 37)


def test_a_map_grows_for_many_threads(recorded: Recording, tmp_path: Path) -> None:
    """1,500 threads that live at the same time have a slot each: the first map has room for 128."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path) as registry, _Process(recorded, path, "threads1500") as process:
        process.go()
        process.ready()
        assert registry.refused == {}
        process.finish()
    _check(recorded, 1501)


@pytest.fixture
def bpffs(tmp_path: Path) -> Iterator[Path]:
    """A bpf file system of this test's own."""
    folder = tmp_path / "bpf"
    folder.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_the_map_that_obi_pins_is_read(bpffs: Path) -> None:
    """Its entry for the thread is the call's span, from when it is there until it is gone; zeroes are none."""
    path = bpffs / "traces_ctx_v1"
    fd = int(libbpf.pb_shim_map_create(9, b"traces_ctx_v1", 8, 24, 64, 0))
    made = map_from_fd(fd)
    try:
        made.pin(path)
        code = (
            "import os, sys\n"
            "for name in ('none', '0000000000000009', 'none', 'none'):\n"
            "    os.write(1, b'ready\\n'); sys.stdin.buffer.readline(); os.access('/probe/' + name, 0)\n"
            "os.write(1, b'ready\\n'); sys.stdin.buffer.readline()"
        )
        with recording(include=["access", "faccessat", "faccessat2"], obi_map=str(path)) as recorded:
            process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdin is not None
            assert process.stdout is not None
            key = struct.pack("=Q", process.pid << 32 | process.pid)
            with process:
                for value in (None, b"\x77" * 16 + (9).to_bytes(8, "big"), bytes(24), None):
                    assert process.stdout.readline() == b"ready\n"
                    recorded.program.follow(process.pid)
                    if value is not None:
                        made.update(key, value)
                    else:
                        made.delete(key)
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                assert process.stdout.readline() == b"ready\n"
                process.stdin.close()
            _check(recorded, 4)
        path.unlink()
    finally:
        os.close(fd)


def test_a_pinned_map_of_another_form_is_left_alone(bpffs: Path) -> None:
    """Recording goes on without it."""
    path = bpffs / "traces_ctx_v1"
    fd = int(libbpf.pb_shim_map_create(2, b"traces_ctx_v1", 4, 8, 1, 0))
    try:
        map_from_fd(fd).pin(path)
        with recording(rings=False, obi_map=str(path)) as recorded:
            assert recorded.program.spans.bytes == 0
        path.unlink()
    finally:
        os.close(fd)


@pytest.mark.parametrize("request_", [b"nonsense", b"[]", b'{"buckets": 16}', b'{"buckets": -1}', b'{"buckets": "8"}'])
def test_a_process_that_asks_for_nonsense_loses_its_map(recorded: Recording, tmp_path: Path, request_: bytes) -> None:
    """It is forgotten and counted; the others' maps stay."""
    path = tmp_path / "trigger.sock"
    with _agent(recorded, path) as registry:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, _Process(recorded, path, "simple"):
            sender.connect(str(path))
            socket.send_fds(sender, [b'{"v": 1, "kind": "register"}'], [theirs.fileno()])
            theirs.close()
            answer, descriptors, _, _ = socket.recv_fds(ours, 4096, 4)
            assert json.loads(answer)["slots"] == 8
            for descriptor in descriptors:
                os.close(descriptor)
            assert registry.registered == 2
            ours.send(request_)
            assert ours.recv(1) == b""
            wait_until(lambda: registry.registered == 1, "only the other one being left")
        assert registry.refused == {"request": 1}


@pytest.mark.parametrize("passed", [0, 2])
def test_a_registration_without_its_socket_is_refused(recorded: Recording, tmp_path: Path, passed: int) -> None:
    """No descriptor, two, or a file: counted, and none is kept open."""
    registry = SpanRegistry(recorded.program.spans)
    trigger = SocketTrigger(SocketOptions(path=str(tmp_path / "t.sock")), register=registry.register)
    registry.start()
    trigger.start(lambda _: None)
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(trigger.path)
        with open("/dev/null") as file:
            socket.send_fds(sender, [b'{"v": 1, "kind": "register"}'], [file.fileno()] * passed)
            socket.send_fds(sender, [b'{"v": 1, "kind": "register"}'], [file.fileno()])
    wait_until(lambda: trigger.refused["field"] == 2, "two refusals")
    assert len(os.listdir("/proc/self/fd")) == before
    trigger.stop()
    registry.stop()
    assert registry.registered == 0


def test_a_pinned_map_that_cannot_be_opened_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under another user than root it cannot: the recorder starts without, and says so."""
    (tmp_path / "traces_ctx_v1").write_text("no map")
    with recording(rings=False, obi_map=str(tmp_path / "traces_ctx_v1")) as recorded:
        recorded.program.read_pages()
    assert "the spans of what it instruments are not taken" in caplog.text
