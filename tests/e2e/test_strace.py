# SPDX-License-Identifier: Apache-2.0
"""Strace and the recorder side by side in one run of ordinary programs: each thread did the same by both.

In one run, as two runs of one program are not alike: strace is recorded together with what it traces, and left out.
Where the two may differ stands in DIFFERENCES, and nowhere else.
"""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest
from compiling import Compile, compiled
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from recording import Arrived, Record, attributes, record
from strace_log import Event, Recorded, read_records, read_strace

__all__ = ["compiled"]

PROGRAMS = Path(__file__).parent / "programs"
STRACE = ["strace", "-f", "-a1", "-s", "32"]
RECORD = ["--no-fd-names", "--on", "always", "--window", "all", "--per-cpu-bytes", "16MiB", "--format", "otlp_proto"]
AS_STRACE = ["--no-fd-names", "-s", "32", "--buffers", "content"]

# What may differ, and why. Each is applied by the function that stands beside it.
DIFFERENCES = {
    "the recorder alone has strace": "it is recorded as any other program (_without_own_of_strace)",
    "the recorder alone has CMD's thread before its execve": "until then it is a fork of strace (_from_execve)",
    "the recorder alone has exec and fork records": "they are no lines of strace's (strace_log.read_records)",
    "one end for each process": "strace prints +++ for each thread, the recorder one record a process (_ends)",
    "the recorder alone has SIGKILL's delivery": "a tracer is not told of it (_without_sigkill)",
    "a call that a thread's end cut short": "strace is told no result any more and prints ?; the recorder has the"
    " kernel's: ERESTART*, what the call still did, or ENOSYS where strace held it at its entry (_cut_short)",
    "strace alone has `--- stopped by`": "its word for a stop without a delivery (strace_log.read_strace)",
    "exec from a thread that is not the first": "strace goes over to the process's id with the execve's return; to the"
    " recorder it is one thread, under its last id (strace_log.read_strace)",
}

# Lines that may differ by letter (their key is the same): what strace's line matches, and why. Nothing else may.
LETTERS = {
    r"if_nametoindex\(": "strace asks the host for an interface's name; the recorder knows its number only",
    r"sin6_scope_id": "likewise",
    r"/\* \d{4}-\d\d-\d\dT": "strace writes local time, the recorder UTC",
    r"<unfinished \.\.\.>\) += \?|\) += \? *$": "a call that a thread's end cut short (DIFFERENCES)",
    r"^(rt_sigreturn|restart_syscall)\(": "a signal frame that is gone; strace names the call that goes on",
    r"^execve\(.*\.\.\.": "the recorder keeps the first 512 bytes of argv",
    r"^(sendmmsg|recvmmsg)\(": "of more than two messages the first two are captured",
    r"^(readv|writev|sendmsg|recvmsg)\((.*, \.\.\.|(.*iov_base){16})": "of many buffers the first sixteen are captured",
    r"^getdents(64)?\(.* entries": "more than 1,024 entries in one call are not counted",
    r"-----BEGIN [A-Z ]*PRIVATE KEY": "a secret, which the recorder redacts",
    r"nlmsg_len=|nl_pid=": "netlink messages are shown as bytes",
    r"^bpf\(|^perf_event_open\(|^ioctl\(": "docs/decoders.md: kinds that are not covered whole",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Address of a web server on loopback that has one small file."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "page.txt").write_text("a page\n" * 1000)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def repository(tmp_path: Path, environment: dict[str, str]) -> Path:
    """A git repository with a changed, a new and an ignored file."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name, text in {"changed": "old\n", ".gitignore": "ignored\n", "ignored": "", "sub/file": "text\n"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=folder, env=environment, check=True)
    (folder / "changed").write_text("new\n")
    (folder / "untracked").write_text("new\n")
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No configuration of the user's, no proxy, messages in English."""
    nowhere = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", **nowhere}


def _without_own_of_strace(dump: Arrived) -> list[Record]:
    """strace's threads; what is left must have been traced."""
    return [item for item in dump.history if item.resource["process.executable.name"] != "strace"]


def _from_execve(events: list[Event]) -> list[Event]:
    """CMD's first thread, from its execve on."""
    return events[[event.name for event in events].index("execve") :]


def _without_sigkill(events: list[Event]) -> list[Event]:
    return [event for event in events if (event.kind, event.name) != ("signal", "SIGKILL")]


def _cut_short(traced: Event, recorded: Event, after: Event | None) -> bool:
    ended = after is not None and after.kind == "end"
    return ended and (traced.name, traced.result) == (recorded.name, "?")


def _ends(traced: dict[int, list[Event]], recorded: dict[int, Recorded]) -> None:
    """Each process has one end, the last record of its thread, with the words that strace has for the process."""
    ends: dict[int, list[int | str]] = {thread.process: [] for thread in recorded.values()}
    for number, thread in recorded.items():
        found = [event.result for event in thread.events if event.kind == "end"]
        assert not found or thread.events[-1].kind == "end", f"thread {number} went on after its process's end"
        ends[thread.process] += found
    assert ends == {process: [traced[process][-1].result] for process in ends}


def _without_ends(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind != "end"]


def read_chunks(data: bytes) -> Arrived:
    """The Collector's framed protobuf: tens of thousands of records, most of them strace's own, in a moment."""
    records: list[Record] = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        logs = ExportLogsServiceRequest.FromString(data[at + 4 : end])
        for entry in logs.resource_logs:
            resource = attributes(entry.resource.attributes)
            records += [Record(item, resource) for scope in entry.scope_logs for item in scope.log_records]
        at = end
    return Arrived(records, [])


def compare(dump: Arrived, traced: dict[int, list[Event]]) -> tuple[int, int]:
    """Asserts that each thread did the same by both, up to DIFFERENCES; calls compared, and those equal by letter."""
    recorded = read_records(_without_own_of_strace(dump))
    assert set(traced) == set(recorded), "threads of one side only"
    first = next(iter(traced))
    recorded[first] = Recorded(first, _from_execve(recorded[first].events))
    _ends(traced, recorded)
    compared = equal = 0
    for number, events in traced.items():
        followed_by = dict(zip(map(id, events), events[1:], strict=False))
        ours = _without_sigkill(_without_ends(recorded[number].events))
        for at, (their, our) in enumerate(zip_longest(_without_ends(events), ours)):
            place = f"thread {number}, event {at}: strace {their}, recorder {our}"
            assert their, place
            assert our, place
            assert their.key == our.key or _cut_short(their, our, followed_by.get(id(their))), place
            if their.kind == "call":
                compared += 1
                equal += their.text == our.text
                assert their.text == our.text or any(re.search(text, their.text) for text in LETTERS), place
    return compared, equal


def calls_of_both(dump: Arrived, traced: dict[int, list[Event]]) -> Iterator[tuple[str, str]]:
    """(strace's line, the recorder's) of each call that both have, by thread and order."""
    recorded = read_records(_without_own_of_strace(dump))
    first = next(iter(traced))
    recorded[first] = Recorded(first, _from_execve(recorded[first].events))
    for number, events in traced.items():
        theirs = [event for event in events if event.kind == "call"]
        ours = [event for event in recorded[number].events if event.kind == "call"]
        for their, our in zip(theirs, ours, strict=False):
            assert their.name == our.name, (their, our)
            yield their.text, our.text


def run(tmp_path: Path, environment: dict[str, str], command: list[str | Path], status: int) -> None:
    """Runs the command under strace under the recorder, compares, and prints how many lines are equal by letter."""
    for program in ("strace", str(command[0])):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    output, dump_file = tmp_path / "strace.txt", tmp_path / "dump.binpb"
    under_strace = [*STRACE, "-o", output, *command]
    done = record(*RECORD, *AS_STRACE, "-o", dump_file, command=under_strace, env=environment, cwd=tmp_path)
    assert done.returncode == status and dump_file.exists(), done.stderr
    dump = read_chunks(dump_file.read_bytes())
    missing = {name: dump.header[f"perfbuf.dump.{name}"] for name in ("lost", "dropped", "overwritten", "malformed")}
    assert set(missing.values()) == {0}, missing
    traced = read_strace(output.read_text(errors="replace"))
    compared, equal = compare(dump, traced)
    assert compared > 20
    # T201: a figure for people, shown by pytest -s
    print(f"{Path(command[0]).name}: {len(traced)} threads, {compared} calls, {equal / compared:.1%} equal by letter")  # noqa: T201


SSL = (
    "openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=localhost 2>/dev/null;"
    " openssl s_server -accept 127.0.0.1:0 -key k.pem -cert c.pem -naccept 1 -quiet >served 2>&1 & sleep 2;"
    " openssl s_client -connect 127.0.0.1:1 </dev/null >/dev/null 2>&1; kill $!; wait; true"
)
# (name, command, exit status): ordinary programs with deterministic inputs.
COMMANDS: list[tuple[str, list[str], int]] = [
    ("true", ["true"], 0),
    ("false", ["false"], 1),
    ("many_calls", [sys.executable, str(PROGRAMS / "many_calls.py")], 0),
    ("find", ["find", "/etc/apt", "-type", "f", "-newer", "/etc/hostname"], 0),
    ("grep", ["grep", "-r", "nothing-like-it", "/etc/apt"], 1),
    ("sed", ["sed", "-n", "s/root/toor/p", "/etc/passwd"], 0),
    ("awk", ["awk", "-F:", "{ n += $3 } END { print n }", "/etc/passwd"], 0),
    ("sort", ["sort", "-t:", "-k3n", "/etc/passwd"], 0),
    ("uniq", ["uniq", "-c", "/etc/passwd"], 0),
    ("wc", ["wc", "/etc/passwd", "/etc/group"], 0),
    ("head", ["head", "-c", "100", "/etc/passwd"], 0),
    ("tail", ["tail", "-n", "2", "/etc/passwd"], 0),
    ("cut", ["cut", "-d:", "-f1", "/etc/passwd"], 0),
    ("stat", ["stat", "/", "/dev/null", "/etc/passwd", "/nowhere"], 1),
    ("df", ["df", "/", "/dev/shm"], 0),
    ("du", ["du", "-s", "/etc/apt"], 0),
    ("cp", ["cp", "-a", "/etc/apt", "copied"], 0),
    ("mkdir", ["mkdir", "-p", "-m", "0750", "a/b/c"], 0),
    ("ln", ["ln", "-s", "/etc/passwd", "link"], 0),
    ("readlink", ["readlink", "-f", "/proc/self/exe"], 0),
    ("touch", ["touch", "-d", "2001-02-03 04:05:06", "touched"], 0),
    ("chmod", ["chmod", "4755", "/nowhere"], 1),
    ("chown", ["chown", "0:0", "/nowhere"], 1),
    ("mktemp", ["mktemp", "-d", "-p", "."], 0),
    ("date", ["date", "-u", "+%s"], 0),
    ("uname", ["uname", "-a"], 0),
    ("id", ["id"], 0),
    ("env", ["env", "A=b", "sh", "-c", "echo $A"], 0),
    ("sleep", ["sleep", "0.05"], 0),
    ("timeout", ["timeout", "0.2", "sleep", "5"], 124),
    ("xargs", ["sh", "-c", "seq 5 | xargs -n 2 echo"], 0),
    ("tee", ["sh", "-c", "echo text | tee one two"], 0),
    ("diff", ["diff", "/etc/passwd", "/etc/group"], 1),
    ("md5sum", ["md5sum", "/etc/passwd"], 0),
    ("od", ["od", "-c", "/etc/hostname"], 0),
    ("gzip", ["sh", "-c", "gzip -c /etc/passwd | gzip -d | cmp - /etc/passwd"], 0),
    ("getent", ["getent", "hosts", "localhost"], 0),
    ("ps", ["ps", "-p", "1"], 0),
    ("nproc", ["nproc"], 0),
    ("git_log", ["git", "-C", "/nowhere", "log"], 128),
    ("perl_hash", ["perl", "-e", "open(F, '<', '/etc/passwd'); my %h = map { $_ => 1 } <F>; print scalar keys %h"], 0),
    ("node", ["node", "-e", "require('fs').readFile('/etc/passwd', () => console.log('read'))"], 0),
    ("java", ["java", "-Xint", "-XX:+UseSerialGC", "-version"], 0),
    ("openssl", ["sh", "-c", SSL], 0),
]


@pytest.mark.parametrize(("command", "status"), [one[1:] for one in COMMANDS], ids=[one[0] for one in COMMANDS])
def test_ordinary_programs(tmp_path: Path, environment: dict[str, str], command: list[str], status: int) -> None:
    """The same calls with the same text, up to DIFFERENCES and LETTERS."""
    run(tmp_path, environment, list(command), status)


def test_ls(tmp_path: Path, environment: dict[str, str]) -> None:
    """A long listing, and a path that is missing."""
    run(tmp_path, environment, ["ls", "-l", "/etc", "/nowhere"], 2)


def test_cat(tmp_path: Path, environment: dict[str, str]) -> None:
    """Two files, one of them missing."""
    run(tmp_path, environment, ["cat", "/etc/passwd", "/nowhere"], 1)


def test_git_status(tmp_path: Path, environment: dict[str, str], repository: Path) -> None:
    """The status of a repository with changes."""
    run(tmp_path, environment, ["git", "-C", repository, "status"], 0)


def test_python_thread_pool(tmp_path: Path, environment: dict[str, str]) -> None:
    """Five threads at once."""
    run(tmp_path, environment, [sys.executable, PROGRAMS / "thread_pool.py"], 0)


def test_shell_pipelines(tmp_path: Path, environment: dict[str, str]) -> None:
    """Processes side by side, one of them ended by SIGPIPE, SIGCHLD among the shell's own calls."""
    script = "cat /etc/passwd | sort | head -n 2 | wc -l; cat /dev/zero | head -c 100000 >copy; ls /nowhere; exec false"
    run(tmp_path, environment, ["sh", "-c", script], 1)


def test_tar(tmp_path: Path, environment: dict[str, str], repository: Path) -> None:
    """A compressed archive of a tree: tar and gzip."""
    run(tmp_path, environment, ["tar", "-czf", tmp_path / "archive.tar.gz", "-C", repository, "."], 0)


def test_curl(tmp_path: Path, environment: dict[str, str], site: str) -> None:
    """A page of a server on loopback, and one that is missing."""
    urls = [f"{site}/page.txt", f"{site}/nowhere"]
    run(tmp_path, environment, ["curl", "-sSf", "--noproxy", "*", "-o", os.devnull, "-o", os.devnull, *urls], 22)


def test_sqlite(tmp_path: Path, environment: dict[str, str]) -> None:
    """A table in a new database: locks, a journal, fsync."""
    statements = "create table t(a); insert into t values (1), (2); select count(*) from t; select * from nowhere"
    run(tmp_path, environment, ["sqlite3", tmp_path / "new.db", statements], 1)


def test_perl(tmp_path: Path, environment: dict[str, str]) -> None:
    """A child, a signal of its own, a select that a timer interrupts, and an end by SIGTERM."""
    script = (
        "print `echo hello`; $SIG{USR1} = sub {}; kill 'USR1', $$; "
        "$SIG{ALRM} = sub {}; alarm 1; select(undef, undef, undef, 30); system('exit 3'); kill 'TERM', $$; sleep 30"
    )
    run(tmp_path, environment, ["perl", "-e", script], 128 + 15)


def test_dd(tmp_path: Path, environment: dict[str, str]) -> None:
    """Two hundred blocks."""
    words = ["dd", "if=/dev/zero", f"of={tmp_path / 'blocks'}", "bs=4k", "count=200", "conv=fsync", "status=none"]
    run(tmp_path, environment, list(words), 0)


def test_threads_that_are_cut_short(tmp_path: Path, environment: dict[str, str]) -> None:
    """Blocked threads ended by their process's end, by SIGKILL, by SIGSEGV and by another thread's exec."""
    run(tmp_path, environment, [sys.executable, PROGRAMS / "cut_short.py"], 0)


def test_many_messages_in_one_call(tmp_path: Path, environment: dict[str, str], compiled: Compile) -> None:
    """sendmmsg and recvmmsg: as many messages as strace shows, and of what came no byte more."""
    run(tmp_path, environment, [compiled("many_messages")], 0)
