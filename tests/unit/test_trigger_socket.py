# SPDX-License-Identifier: Apache-2.0
"""The trigger socket: who may fire, what is refused, and that nothing stops it."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.triggers.bound import bind_unix
from otel_perfbuf.triggers.datagram import Datagram, build_datagram
from otel_perfbuf.triggers.firing import Firing
from otel_perfbuf.triggers.namespaces import host_pid, host_tid
from otel_perfbuf.triggers.socket import SocketOptions, SocketTrigger

_AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root: it changes users or namespaces")


class _Armed:
    """A started trigger, and the firings it made."""

    def __init__(self, path: str) -> None:
        self.firings: queue.Queue[Firing] = queue.Queue()
        self.trigger = SocketTrigger(SocketOptions(path=path), clock=lambda: 99)
        self.trigger.start(self.firings.put)
        self.sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sender.connect(path)

    def send(self, data: bytes | Datagram) -> None:
        self.sender.send(build_datagram(data) if isinstance(data, Datagram) else data)

    def next(self) -> Firing:
        return self.firings.get(timeout=10)

    def refused(self) -> dict[str, int]:
        """Counts after everything that was sent has been looked at."""
        self.send(Datagram(kind="manual", reason="the last"))
        while self.next().reason != "the last":
            pass
        return dict(self.trigger.refused)


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[_Armed]:
    """A trigger that listens in a directory of the test's own."""
    tmp_path.chmod(0o755)
    armed = _Armed(str(tmp_path / "trigger.sock"))
    yield armed
    armed.sender.close()
    armed.trigger.stop()


def test_a_datagram_becomes_a_firing(armed: _Armed) -> None:
    """Kind, span, times, names and thread arrive; the pid is the kernel's word."""
    armed.send(
        Datagram(
            kind="span_error",
            trace_id=b"t" * 16,
            span_id=b"s" * 8,
            tid=threading.get_native_id(),
            start_unix_nano=5,
            end_unix_nano=7,
            service_name="checkout",
            name="POST /pay",
            reason="it broke",
        )
    )
    firing = armed.next()
    assert (firing.kind, firing.reason, firing.unix_ns) == ("span_error", "it broke", 99)
    assert (firing.pid, firing.tid) == (os.getpid(), threading.get_native_id())
    assert firing.span is not None
    assert (firing.span.trace_id, firing.span.span_id) == (b"t" * 16, b"s" * 8)
    assert (firing.start_unix_ns, firing.end_unix_ns) == (5, 7)
    assert (firing.service_name, firing.span_name, firing.interleaved) == ("checkout", "POST /pay", False)


def test_a_firing_without_a_thread_claims_none(armed: _Armed) -> None:
    """Without a tid the firing counts as interleaved, so that no thread_window can be claimed."""
    armed.send(Datagram(kind="span_error"))
    firing = armed.next()
    assert firing.tid is None
    assert firing.interleaved
    assert firing.reason == f"span_error reported by process {os.getpid()}"


def test_refused_datagrams_are_counted_and_stop_nothing(armed: _Armed) -> None:
    """Malformed, oversized, unknown and unavailable datagrams are counted by cause; the next good one fires."""
    armed.send(b"\xff")
    armed.send(b"{}")
    armed.send(b'{"v":1,"kind":"nonsense"}')
    armed.send(b'{"v":1,"kind":"manual","tid":"x"}')
    armed.send(b'{"v":1,"kind":"register"}')
    armed.send(b" " * 9000)
    armed.send(b"")
    assert armed.refused() == {"malformed": 2, "version": 1, "kind": 1, "field": 1, "unavailable": 1, "oversized": 1}


def test_passed_descriptors_are_closed(armed: _Armed) -> None:
    """File descriptors that come along are not kept."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        socket.send_fds(armed.sender, [b'{"v":1,"kind":"register"}'], [0, 1, 2])
    assert armed.refused() == {"unavailable": 20}
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_thread_of_another_process_is_refused(armed: _Armed) -> None:
    """A tid that belongs to another process is not believed."""
    armed.send(Datagram(kind="span_error", tid=os.getppid()))
    assert armed.refused() == {"permission": 1}


def test_a_fire_that_raises_is_counted(tmp_path: Path) -> None:
    """Whatever goes wrong behind the trigger, it goes on listening."""
    seen = queue.Queue[Firing]()

    def fire(firing: Firing) -> None:
        seen.put(firing)
        if firing.reason == "bad":
            raise RuntimeError("bug")

    trigger = SocketTrigger(SocketOptions(path=str(tmp_path / "t")))
    trigger.start(fire)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(trigger.path)
        for reason in ("bad", "good"):
            sender.send(build_datagram(Datagram(kind="manual", reason=reason)))
        assert [seen.get(timeout=10).reason for _ in range(2)] == ["bad", "good"]
    trigger.stop()
    assert trigger.refused == {"failed": 1}


def test_stop_takes_what_has_arrived(tmp_path: Path) -> None:
    """Datagrams that were sent before the stop still fire, then the socket's file is gone; stop twice is fine."""
    fired: list[Firing] = []
    trigger = SocketTrigger(SocketOptions(path=str(tmp_path / "t")))
    trigger.start(fired.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(trigger.path)
        for _ in range(5):
            sender.send(build_datagram(Datagram(kind="manual")))
    trigger.stop()
    trigger.stop()
    assert len(fired) == 5
    assert not os.path.exists(trigger.path)


_SEND = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect(sys.argv[1])
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))
s.send(sys.argv[2].encode())
sys.stdin.read()  # alive until it was looked at
"""


@_AS_ROOT
def test_an_unprivileged_process_fires_for_itself_only(armed: _Armed) -> None:
    """Named pid of another process: refused and counted for uid 65534, taken for root."""
    datagram = build_datagram(Datagram(kind="manual", pid=os.getpid(), reason="for another")).decode()
    command = [sys.executable, "-S", "-c", _SEND, armed.trigger.path, datagram]
    with (
        subprocess.Popen([*command, "65534"], stdin=subprocess.PIPE),
        subprocess.Popen(command, stdin=subprocess.PIPE) as as_root,
    ):
        firing = armed.next()
        assert (firing.pid, firing.reason) == (os.getpid(), "for another")
        assert as_root.stdin is not None
        as_root.stdin.close()
        as_root.wait()
        while not armed.trigger.refused:
            armed.refused()  # the other one may not have begun yet
        assert armed.trigger.refused == {"permission": 1}


@_AS_ROOT
def test_a_tid_of_a_container_is_mapped(armed: _Armed) -> None:
    """In a pid namespace of its own, the sender's tid 1 is the host's id of that thread."""
    datagram = build_datagram(Datagram(kind="manual", tid=1)).decode()
    child = subprocess.Popen(
        ["unshare", "--pid", "--fork", sys.executable, "-S", "-c", _SEND, armed.trigger.path, datagram],
        stdin=subprocess.PIPE,
    )
    try:
        firing = armed.next()
    finally:
        child.communicate(b"")
    assert firing.tid == firing.pid
    assert firing.pid not in (1, os.getpid())


def test_the_mode_is_0666_whatever_the_umask(tmp_path: Path) -> None:
    """Every application can send, and the control socket is the owner's alone."""
    before = os.umask(0o077)
    try:
        with_all = bind_unix(str(tmp_path / "a"), socket.SOCK_DGRAM, 0o666, "trigger socket")
        with_owner = bind_unix(str(tmp_path / "b"), socket.SOCK_STREAM, 0o600, "control socket")
    finally:
        os.umask(before)
    assert os.stat(with_all.path).st_mode & 0o777 == 0o666
    assert os.stat(with_owner.path).st_mode & 0o777 == 0o600
    with_all.close()
    with_owner.close()


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path, kind: socket.SocketKind) -> None:
    """The file of an agent that was killed is no obstacle; a second agent is told that there is a first."""
    path = str(tmp_path / "s")
    killed = bind_unix(path, kind, 0o600, "socket")
    with pytest.raises(PerfbufError, match="another program listens there, perhaps an agent"):
        bind_unix(path, kind, 0o600, "socket")
    killed.socket.close()
    assert os.path.exists(path)
    second = bind_unix(path, kind, 0o600, "socket")
    second.close()
    second.close()
    assert not os.path.exists(path)


def test_a_closed_socket_leaves_its_successors_file(tmp_path: Path) -> None:
    """Only the file that this socket made is removed."""
    path = str(tmp_path / "s")
    first = bind_unix(path, socket.SOCK_DGRAM, 0o600, "socket")
    os.unlink(path)
    second = bind_unix(path, socket.SOCK_DGRAM, 0o600, "socket")
    first.close()
    assert os.path.exists(path)
    second.close()


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    """A missing directory, a file in the way, a path that is too long: one sentence each, and the file stays."""
    with pytest.raises(PerfbufError, match=r"the directory .*missing is missing"):
        bind_unix(str(tmp_path / "missing" / "s"), socket.SOCK_DGRAM, 0o600, "trigger socket")
    (tmp_path / "file").write_text("precious")
    with pytest.raises(PerfbufError, match="a file that is no socket is there"):
        bind_unix(str(tmp_path / "file"), socket.SOCK_DGRAM, 0o600, "trigger socket")
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(PerfbufError, match="107 bytes"):
        bind_unix(str(tmp_path / ("x" * 200)), socket.SOCK_DGRAM, 0o600, "trigger socket")


class _Proc:
    """A /proc of made-up processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, pid: int, tid: int, namespace_ids: list[int], namespace: str = "pid:[1]") -> None:
        words = "\t".join(str(number) for number in namespace_ids)
        status = f"Name:\tx\nTgid:\t{pid}\nPid:\t{tid}\nNSpid:\t{words}\n"
        places = [self.path / str(pid) / "task" / str(tid), self.path / str(tid)]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
            (place / "status").write_text(status)
        (self.path / str(pid) / "ns").mkdir(exist_ok=True)
        if not (self.path / str(pid) / "ns" / "pid").is_symlink():
            (self.path / str(pid) / "ns" / "pid").symlink_to(namespace)


def test_threads_are_mapped_through_nspid(tmp_path: Path) -> None:
    """In a nested namespace a thread is found by the last column of its NSpid; in ours its number is its own."""
    proc = _Proc(tmp_path)
    proc.add(500, 500, [500, 1], "pid:[2]")
    proc.add(500, 507, [507, 8], "pid:[2]")
    proc.add(600, 600, [600])
    proc.add(600, 601, [601])
    path = str(tmp_path)
    assert [host_tid(500, tid, path) for tid in (1, 8, 9)] == [500, 507, None]
    assert [host_tid(600, tid, path) for tid in (600, 601)] == [600, 601]
    assert host_tid(600, 650, path) == 650, "a thread that has ended since is believed"
    with pytest.raises(PermissionError):
        host_tid(600, 507, path)
    assert host_tid(700, 700, path) == 700, "a single-threaded process that has ended"
    assert host_tid(700, 5, path) is None


def test_processes_are_mapped_through_nspid(tmp_path: Path) -> None:
    """A pid is looked up in the sender's namespace, never in another that has the same number."""
    proc = _Proc(tmp_path)
    proc.add(500, 500, [500, 1], "pid:[2]")
    proc.add(510, 510, [510, 2], "pid:[2]")
    proc.add(520, 520, [520, 3], "pid:[3]")
    proc.add(600, 600, [600])
    proc.add(600, 601, [601])
    path = str(tmp_path)
    assert [host_pid(500, pid, path) for pid in (1, 2, 3, 600)] == [500, 510, None, None]
    assert [host_pid(600, pid, path) for pid in (600, 500, 601, 999)] == [600, 500, None, None]
