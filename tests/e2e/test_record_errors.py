# SPDX-License-Identifier: Apache-2.0
"""What `record` does when it is asked for odd things or when the world is unkind: exit codes and sentences of CONTRACT
section 1. No traceback, nothing that hangs, nothing left attached.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from recording import parse_lines, record

CHECKOUT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "otel_perfbuf"]
WAIT_S = 60


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
    ],
)
def test_exits_with_the_commands_own_status(command: list[str], status: int) -> None:
    """As a shell tells it; what succeeded has nothing to dump and says so."""
    done = record(command=command)
    assert done.returncode == status, done.stderr
    lines = done.stderr.splitlines()
    if status:
        assert lines[0].startswith("# dump ")
        assert "process_exit" in lines[0]
        assert any("+++" in line for line in lines)
    else:
        assert lines == ["# nothing to dump: CMD exited with 0 and reported no error"]


def test_a_command_that_is_nowhere_is_127(tmp_path: Path) -> None:
    """By name and by path."""
    for name in ("perfbuf-no-such-command", tmp_path / "nothing"):
        assert_sentence(record(command=[name]), 127, str(name), "not found")


def test_what_cannot_be_executed_is_126(tmp_path: Path) -> None:
    """A file without the x bit, a folder, a file that is no program, one that -u's user may not run."""
    plain = tmp_path / "plain"
    plain.write_text("data")
    assert_sentence(record(command=[plain]), 126, str(plain), "executable")
    assert_sentence(record(command=[tmp_path]), 126, str(tmp_path), "executable")
    plain.chmod(0o755)
    assert_sentence(record(command=[plain]), 126, str(plain), "Exec format error")
    plain.write_text("#!/bin/sh\n")
    plain.chmod(0o700)
    assert_sentence(record("-u", "nobody", command=[plain]), 126, str(plain), "Permission denied")


def assert_sentence(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """One line on stderr, begun with the program's name, with the words in it."""
    assert done.returncode == status, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("otel-perfbuf: ")
    assert not [word for word in words if word not in lines[0]], lines[0]


def recorded(*arguments: str | Path, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
    """`otel-perfbuf record ARGUMENTS`, whatever they are."""
    return subprocess.run(
        [*COMMAND, "record", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "-p PID"),
        (["-p", "1", "--", "true"], "-p PID"),
        (["-p", "4194305"], "4194305"),
        (["-u", "perfbuf-nobody", "--", "true"], "perfbuf-nobody"),
        (["-e", "perfbuf_call", "--", "true"], "perfbuf_call"),
        (["-e", "%perfbuf", "--", "true"], "%perfbuf"),
        (["--otlp", "ftp://127.0.0.1:1", "--", "true"], "ftp://127.0.0.1:1"),
        (["-o", "/perfbuf-no-such-folder/dump", "--", "true"], "/perfbuf-no-such-folder/dump"),
        (["--per-cpu-bytes", "1TiB", "--", "true"], "per_cpu_bytes"),
        (["-s", "0", "--", "true"], "record: argument -s/--string-bytes"),
    ],
)
def test_wrong_arguments_are_2_and_one_sentence(arguments: list[str], word: str) -> None:
    """What cannot be meant is said in a sentence that names it."""
    assert_sentence(recorded(*arguments), 2, word)


def test_a_threads_id_is_no_process() -> None:
    """-p with the id of a thread names the process that it is of."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert_sentence(recorded("-p", str(thread.native_id)), 2, f"-p {os.getpid()}")
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--window", "soon"], "--window"),
        (["--per-cpu-bytes", "much"], "--per-cpu-bytes"),
        (["--on", "monday"], "--on"),
        (["--format", "xml"], "--format"),
        (["--lines", "few"], "--lines"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_values_are_2_and_name_their_option(arguments: list[str], word: str) -> None:
    """argparse's form: usage, then the sentence."""
    done = recorded(*arguments, "--", "true")
    assert done.returncode == 2
    assert word in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_on_always_dumps_a_success(tmp_path: Path) -> None:
    """One dump, though nothing failed."""
    path = tmp_path / "dump"
    done = record("--on", "always", "-o", path, "--format", "otlp_json", command=["true"])
    assert done.returncode == 0
    dump = parse_lines(path.read_text())
    assert dump.header["perfbuf.dump.trigger"] == "manual"
    assert dump.bodies()[-1] == "+++ exited with 0 +++"
    assert dump.bodies()[0].startswith("execve(")


@pytest.mark.parametrize(("when", "status"), [("error", 3), ("exit", 0)])
def test_on_leaves_out_what_was_not_asked_for(tmp_path: Path, when: str, status: int) -> None:
    """--on error dumps no failed exit, --on exit no success; the file is not made."""
    path = tmp_path / "dump"
    done = record("--on", when, "-o", path, command=["sh", "-c", f"exit {status}"])
    assert done.returncode == status
    assert done.stderr == f"# nothing to dump: CMD exited with {status} and reported no error\n"
    assert not path.exists()


def test_trace_lists_choose_calls(tmp_path: Path) -> None:
    """-e trace=LIST records these only, -e '!LIST' all but these; exec, exit and signals are no calls."""
    calls = {}
    for name, option in (("only", "trace=openat,%process"), ("not", "!openat")):
        path = tmp_path / name
        done = record("-e", option, "--on", "always", "-o", path, "--format", "otlp_json", command=["cat", "/dev/null"])
        assert done.returncode == 0, done.stderr
        dump = parse_lines(path.read_text())
        calls[name] = {
            item.attributes["perfbuf.syscall.name"] for item in dump.history if item.name == "perfbuf.syscall"
        }
        assert dump.bodies()[-1] == "+++ exited with 0 +++"
    assert calls["only"] == {"execve", "openat", "exit_group"}
    assert {"execve", "read", "close"} < calls["not"]
    assert "openat" not in calls["not"]


def test_user_runs_the_command_as_that_user() -> None:
    """-u: ids and groups are the user's; the trigger socket can be reached by it."""
    script = "import os, socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
    script += "s.connect(os.environ['OTEL_PERFBUF_TRIGGER_SOCKET']); print(os.getresuid(), os.getgroups())"
    done = record("-u", "nobody", command=["/usr/bin/python3", "-c", script])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(65534, 65534, 65534) [65534]\n"


@pytest.mark.parametrize("form", ["text", "otlp_json", "otlp_proto"])
def test_every_form_of_a_file_can_be_shown(tmp_path: Path, form: str) -> None:
    """`show` gives the same records, whatever the form."""
    path = tmp_path / "dump"
    done = record("-o", path, "--format", form, command=["sh", "-c", "exit 4"])
    assert done.returncode == 4
    assert all(line.startswith("#") for line in done.stderr.splitlines())
    shown = subprocess.run([*COMMAND, "show", path], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    lines = shown.splitlines()
    assert lines[0].startswith("# dump ")
    records = [line for line in lines if not line.startswith("#")]
    assert "execve(" in records[0]
    assert "exit_group(4) = ?" in records[-2]
    assert records[-1].endswith("+++ exited with 4 +++")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("form", ["text", "otlp_json", "otlp_proto"])
def test_full_disk_is_a_sentence(full_disk: Path, form: str) -> None:
    """The dump does not fit: said with the file's name and the cause; CMD's status is kept."""
    path = full_disk / "dump"
    loop = "import os, sys\nfor _ in range(2000): os.getppid()\nsys.exit(4)"
    done = record("-o", path, "--format", form, command=["/usr/bin/python3", "-c", loop])
    assert done.returncode == 4
    problems = [line for line in done.stderr.splitlines() if not line.startswith("#")]
    assert len(problems) == 1, done.stderr
    assert problems[0].startswith("otel-perfbuf: record: writing ")
    assert str(path) in problems[0]
    assert "No space left on device" in problems[0]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_unreachable_endpoint_is_a_sentence(scheme: str) -> None:
    """Nobody listens: it ends in time, with one sentence that counts what is dropped, and CMD's status."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can listen there meanwhile
        endpoint = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        done = record("--otlp", endpoint, command=["sh", "-c", "exit 5"])
        took_s = time.monotonic() - begin
    assert done.returncode == 5
    assert took_s < 30  # 10 s of trying; loading and a busy machine besides
    problems = [line for line in done.stderr.splitlines() if not line.startswith("#")]
    assert len(problems) == 1, done.stderr
    assert problems[0].startswith(f"otel-perfbuf: record: stopping {endpoint}: ")
    assert "refused" in problems[0]


def started(*arguments: str, command: Sequence[str]) -> subprocess.Popen[str]:
    """A recorder beside the test."""
    return subprocess.Popen(
        [*COMMAND, "record", *arguments, "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )


def test_sigterm_is_forwarded(tmp_path: Path) -> None:
    """The command decides what it means; its status is the recorder's."""
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    recorder = started("--lines", "all", command=["sh", "-c", script])
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "ready\n"
    recorder.send_signal(signal.SIGTERM)
    _, errors = recorder.communicate(timeout=WAIT_S)
    assert recorder.returncode == 9, errors
    assert "si_signo=SIGTERM" in errors


def test_sigint_is_the_commands_business() -> None:
    """The recorder ignores it, as it comes from a terminal to both; CMD here survives it too."""
    script = "trap '' INT; echo ready; read line; exit 6"
    recorder = subprocess.Popen(
        [*COMMAND, "record", "--", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "ready\n"
    recorder.send_signal(signal.SIGINT)
    _, errors = recorder.communicate("go on\n", timeout=WAIT_S)
    assert recorder.returncode == 6, errors
    assert errors.startswith("# dump ")


WITHOUT_CAPABILITIES = {
    "root without capabilities": ["setpriv", "--bounding-set=-all", "--inh-caps=-all"],
    "nobody": ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"],
}


@pytest.mark.parametrize("who", WITHOUT_CAPABILITIES)
@pytest.mark.parametrize("command", ["record", "record -p", "run"])
def test_without_capabilities_is_77(who: str, command: str) -> None:
    """One sentence that names what is missing; CMD is not run."""
    prefix = WITHOUT_CAPABILITIES[who]
    if who == "nobody" and subprocess.run([*prefix, *COMMAND, "--help"], capture_output=True, check=False).returncode:
        prefix = WITHOUT_CAPABILITIES["root without capabilities"]  # this interpreter is not for others to read
    arguments = {
        "record": ["record", "--", "echo", "it ran"],
        "record -p": ["record", "-p", str(os.getpid())],
        "run": ["run", "--config", str(CHECKOUT / "config" / "flight-recorder.yaml")],
    }[command]
    done = subprocess.run(
        [*prefix, *COMMAND, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=CHECKOUT
    )
    assert_sentence(done, 77, "CAP_BPF", "CAP_PERFMON")
    assert done.stdout == ""


def programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds open: its fds, as /proc tells them."""
    found = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        for line in entry.read_text().splitlines():
            if line.startswith("prog_id:"):
                found.add(int(line.split()[1]))
    return found


def loaded_programs() -> set[int]:
    """Ids of all BPF programs of the host."""
    text = subprocess.run(["bpftool", "prog", "list", "-j"], capture_output=True, text=True, check=True).stdout
    return {row["id"] for row in json.loads(text)}


def loaded_links() -> set[int]:
    """Ids of the programs that some BPF link holds attached."""
    text = subprocess.run(["bpftool", "link", "list", "-j"], capture_output=True, text=True, check=True).stdout
    return {row["prog_id"] for row in json.loads(text)}


def test_kill_9_leaves_nothing_attached() -> None:
    """The kernel frees the recorder's programs and links with its descriptors; CMD goes on."""
    recorder = subprocess.Popen(
        [*COMMAND, "record", "--", "sh", "-c", "echo ready; read line; echo $line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=CHECKOUT,
    )
    assert recorder.stdin is not None
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == "ready\n"
    own = programs_of(recorder.pid)
    assert own
    assert own <= loaded_programs()
    assert own & loaded_links()
    recorder.kill()
    recorder.wait(timeout=WAIT_S)
    deadline = time.monotonic() + WAIT_S
    # Freed after RCU grace periods, which nobody can wait for from here: the list is read until it is so.
    while own & (loaded_programs() | loaded_links()):
        assert time.monotonic() < deadline, f"still there: {own & loaded_programs()}"
    recorder.stdin.write("it lives\n")
    recorder.stdin.flush()
    assert recorder.stdout.readline() == "it lives\n"
    recorder.stdin.close()
    recorder.stdout.close()
