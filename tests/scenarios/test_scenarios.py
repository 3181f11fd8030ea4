# SPDX-License-Identifier: Apache-2.0
"""Failures as people meet them, each a small program, and what the dump must say of it; on the real kernel.

What it is not: no unit test of the rules (tests/unit/test_reading.py). Programs are in programs/.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from attaching import attached
from recording import Arrived, Record, parse_lines, record

PROGRAMS = Path(__file__).parent / "programs"


class Told:
    """A dump as it arrived, with its reading."""

    def __init__(self, dump: Arrived) -> None:
        self.dump = dump
        reading: object = dump.header.get("perfbuf.dump.reading")
        self.reading = [value.string_value for value in getattr(reading, "values", ())]
        self.bodies = dump.bodies()

    @property
    def causes(self) -> list[str]:
        """The candidates, the likeliest first."""
        return [line.partition(": ")[2] for line in self.reading if line.startswith(("likely cause: ", "or: "))]

    def lines(self, pattern: str) -> list[Record]:
        """Records whose body matches, in their order."""
        return [item for item in self.dump.history if re.search(pattern, item.body)]


def told(tmp_path: Path, status: int, command: Sequence[str | Path], *options: str) -> Told:
    """The dump of a program that ends with ``status`` under `record`."""
    path = tmp_path / "dump.jsonl"
    done = record("--on", "exit", "-o", path, "--format", "otlp_json", *options, command=command, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    return Told(parse_lines(path.read_text()))


def program(name: str, *arguments: str | Path) -> list[str | Path]:
    """A program's command; without site packages, whose search would only make the dump longer."""
    return [sys.executable, "-S", "-E", PROGRAMS / f"{name}.py", *arguments]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of loopback on which nobody listens, and nobody can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_config_path_missing_behind_a_caught_exception(tmp_path: Path) -> None:
    """The message says "bad configuration"; the first candidate is the path."""
    found = told(tmp_path, 1, program("config_missing"))
    assert found.causes[0].startswith("a file that was needed is missing: openat(AT_FDCWD")
    assert '"/srv/no-such-app/config.json"' in found.causes[0]


def test_a_result_written_to_one_file_and_another_one_read(tmp_path: Path) -> None:
    """sh, awk and cat, all dead at the dump: who wrote what, and who looked where."""
    script = "awk 'BEGIN { print 42 > \"result.txt\" }'; cat results.txt"
    found = told(tmp_path, 1, ["/bin/sh", "-c", script])
    written = found.lines(r'openat\(.*"result\.txt", O_WRONLY\|O_CREAT')
    missed = found.lines(r'openat\(.*"results\.txt", O_RDONLY\) = -1 ENOENT')
    assert [str(item.resource["process.executable.name"]) for item in missed] == ["cat"]
    assert "awk" in str(written[0].resource["process.executable.name"])
    assert written[0].proto.time_unix_nano < missed[0].proto.time_unix_nano
    assert '"results.txt"' in found.causes[0]


def test_an_fd_leak_to_emfile(tmp_path: Path) -> None:
    """The limit is reached, and what is open is named."""
    (tmp_path / "leaked.log").write_text("x")
    found = told(tmp_path, 2, program("fd_leak", tmp_path / "leaked.log"))
    assert found.causes[0].startswith("no file descriptor was left: openat(")
    assert len(found.lines(rf"= \d+<{tmp_path}/leaked\.log>$")) > 50


def test_a_connect_that_does_not_wait_is_refused(tmp_path: Path, closed_port: int) -> None:
    """The cause is what getsockopt read, with the address of the connect before it."""
    found = told(tmp_path, 1, program("connect_refused", str(closed_port)))
    assert found.causes[0].startswith("a connection that was under way failed: getsockopt(")
    assert f"->127.0.0.1:{closed_port}]>, SOL_SOCKET, SO_ERROR, [ECONNREFUSED]" in found.causes[0]


def test_a_silent_death_by_sigpipe(tmp_path: Path) -> None:
    """The signal and the write that brought it."""
    found = told(tmp_path, 128 + signal.SIGPIPE, program("sigpipe"))
    assert any("nobody reads any more" in cause for cause in found.causes)
    (write,) = found.lines(r"write\(\d+<pipe>, .* = -1 EPIPE")
    (fatal,) = found.lines(r"--- SIGPIPE")
    assert write.attributes["thread.id"] == fatal.attributes["thread.id"]
    assert found.bodies[-1] == "+++ killed by SIGPIPE +++"


def test_a_crash_after_a_bad_read_shows_what_was_read(tmp_path: Path) -> None:
    """The content of the last read and the fault's address are the same."""
    (tmp_path / "address").write_text("0x1234")
    found = told(tmp_path, 128 + signal.SIGSEGV, program("bad_read", tmp_path / "address"), "--buffers", "content")
    assert found.causes[0].startswith("a fatal signal ended it: --- SIGSEGV")
    assert "si_addr=0x1234" in found.causes[0]
    assert found.lines(rf'read\(3<{tmp_path}/address>, "0x1234", 64\) = 6')


def test_a_dns_timeout_shows_the_name_and_both_waits(tmp_path: Path) -> None:
    """libc's resolver asks a server that does not answer: the query's name, two polls of a second."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.9.9.9\noptions timeout:1 attempts:2\n")
    script = f"mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec getent ahostsv4 db.perfbuf.test"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.9.9.9", 53))
        options = ("--buffers", "content", "-s", "64")
        found = told(tmp_path, 2, ["unshare", "-m", "/bin/sh", "-c", script], *options)
    assert found.lines(r"send\w+\(\d+<UDP:\[.*->127\.9\.9\.9:53\]>, .*\\2?db\\7perfbuf\\4test|perfbuf")
    waits = found.lines(r"poll\(\[\{fd=\d+.*POLLIN.*, 1, \d+\) = 0 \(Timeout\)")
    assert len(waits) == 2
    assert all(900e6 < int(str(item.attributes["perfbuf.duration_ns"])) < 2000e6 for item in waits)


def test_a_full_disk_is_told_with_the_path(tmp_path: Path) -> None:
    """ENOSPC at a write: fd and path."""
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "perfbuf-test", full], check=True)
    try:
        found = told(tmp_path, 4, program("disk_full", full / "report"))
    finally:
        subprocess.run(["umount", full], check=True)
    assert found.causes[0].startswith("the disk is full: write(3<")
    assert f"{full}/report>" in found.causes[0]


def test_access_denied_after_setuid(tmp_path: Path) -> None:
    """The open, and the call that gave the rights away before it."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755)
    found = told(tmp_path, 5, program("access_denied", secret))
    assert found.causes[0].startswith("access was denied: openat(")
    (denied,) = found.lines(r'secret".* = -1 EACCES')
    (given,) = found.lines(r"^setuid\(65534\) = 0")
    assert given.proto.time_unix_nano < denied.proto.time_unix_nano


def test_a_missing_interpreter_in_a_child(tmp_path: Path) -> None:
    """Told apart from a missing script."""
    script = tmp_path / "job"
    script.write_text("#!/opt/no-such/python\n")
    script.chmod(0o755)
    found = told(tmp_path, 6, program("child_script", script))
    assert found.causes[0].startswith(f'the script\'s interpreter is missing: execve("{script}"')
    gone = told(tmp_path, 6, program("child_script", tmp_path / "no-such-job"))
    assert gone.causes[0].startswith("a program could not be executed: execve(")


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A cgroup with little memory and no swap."""
    root, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not root.exists():  # cgroup v2
        root, limit = Path("/sys/fs/cgroup"), "memory.max"
        (root / "cgroup.subtree_control").write_text("+memory")
    folder = root / f"perfbuf-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / limit).write_text(str(limit_bytes))
        with contextlib.suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
        yield folder
    finally:
        folder.rmdir()


def test_an_oom_kill_in_a_small_cgroup(tmp_path: Path) -> None:
    """No call fails: the kill itself is the cause, with its victim and its cgroup."""
    with memory_cgroup(64 << 20) as folder:
        found = told(tmp_path, 128 + signal.SIGKILL, program("out_of_memory", folder))
    assert found.causes[0].startswith("the kernel killed a process because memory ran out: oom kill ")
    (kill,) = [item for item in found.dump.history if item.name == "perfbuf.oom_kill"]
    assert kill.attributes["perfbuf.victim_pid"] == found.dump.header_resource["process.pid"]
    assert kill.proto.severity_number == 21


def test_two_processes_deadlocked_on_lock_files(tmp_path: Path) -> None:
    """Asked for by a person: both calls in flight, with the paths and their age."""
    one, other = tmp_path / "one.lock", tmp_path / "other.lock"
    one.touch()
    other.touch()
    locked = subprocess.Popen(program("deadlock", one, other), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert locked.stdin
    assert locked.stdout
    path = tmp_path / "dump.jsonl"
    child = int(locked.stdout.readline())
    try:
        with attached(("-p", str(locked.pid), "-o", path, "--format", "otlp_json")) as recorder:
            locked.stdin.write("\n")
            locked.stdin.flush()
            _wait_for_call(locked.pid, 73)
            _wait_for_call(child, 73)
            time.sleep(0.05)  # a wait of less than a millisecond gets no sentence
            recorder.send_signal(signal.SIGINT)
            _, errors = recorder.communicate(timeout=60)
        assert recorder.returncode == 0, errors
    finally:
        for pid in (child, locked.pid):
            os.kill(pid, signal.SIGKILL)
        locked.communicate()
    found = Told(parse_lines(path.read_text()))
    waiting = {int(str(item.attributes["thread.id"])): item for item in found.lines(r"^flock\(.*<unfinished \.\.\.>$")}
    assert f"<{other}>, LOCK_EX" in waiting[locked.pid].body
    assert f"<{one}>, LOCK_EX" in waiting[child].body
    assert all(int(str(item.attributes["perfbuf.duration_ns"])) > 0 for item in waiting.values())
    assert any(line.startswith("under way ") and "flock(" in line for line in found.reading)


def _wait_for_call(pid: int, number: int) -> None:
    """Until the process is in that call (proc_pid_syscall(5)); the test's own time limit ends it."""
    while Path(f"/proc/{pid}/syscall").read_text().split()[0] != str(number):
        os.sched_yield()


def test_a_reset_by_the_peer_shows_both_threads_in_order(tmp_path: Path) -> None:
    """The server's close before the client's failed receive."""
    found = told(tmp_path, 7, program("peer_reset"))
    assert found.causes[0].startswith("the other side has closed the connection: recvfrom(")
    (reset,) = found.lines(r"^recvfrom\(.* = -1 ECONNRESET")
    closing = [
        item
        for item in found.lines(r"^close\(\d+<TCP:\[")
        if item.attributes["thread.id"] != reset.attributes["thread.id"]
    ]
    ended = reset.proto.time_unix_nano + int(str(reset.attributes["perfbuf.duration_ns"]))
    assert closing[0].proto.time_unix_nano < ended


def test_a_process_limit(tmp_path: Path) -> None:
    """EAGAIN of a clone is no call to be tried again."""
    found = told(tmp_path, 8, program("process_limit"))
    assert found.causes[0].startswith("no further process or thread was allowed: ")
    assert "EAGAIN" in found.causes[0]


def test_a_seccomp_denial(tmp_path: Path) -> None:
    """The call never began: exit_only, and so it is told."""
    found = told(tmp_path, 9, program("seccomp_denial", tmp_path / "made"))
    assert found.causes[0].startswith("denied before entry: seccomp or ptrace: mkdir(")
    (denied,) = found.lines(r"^mkdir\(.* = -1 EPERM")
    assert denied.attributes["perfbuf.syscall.state"] == "exit_only"


def test_a_retry_storm_after_one_decisive_error(tmp_path: Path, closed_port: int) -> None:
    """10,000 refused connects do not hide the file that was missing before them."""
    found = told(tmp_path, 1, program("retry_storm", str(closed_port)), "--window", "all", "--per-cpu-bytes", "16MiB")
    assert any('"/srv/no-such-app/port"' in cause for cause in found.causes[:2])
    assert any("nobody listens there" in cause and "10,000 times" in cause for cause in found.causes[:2])
