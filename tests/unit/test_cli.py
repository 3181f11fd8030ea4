# SPDX-License-Identifier: Apache-2.0
"""The command line's own parts: options, finding and starting CMD, errors as sentences."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from otel_perfbuf.cli.main import main
from otel_perfbuf.cli.record_options import trace_lists
from otel_perfbuf.cli.spawn import NOT_EXECUTABLE, NOT_FOUND, Child, find_command


def test_trace_lists_reads_straces_expressions() -> None:
    """Names, classes, trace= and both places of the exclamation mark."""
    assert trace_lists(["open,close", "trace=%file"]) == (["open", "close", "%file"], [])
    assert trace_lists(["!futex,poll"]) == ([], ["futex", "poll"])
    assert trace_lists(["trace=!futex"]) == ([], ["futex"])
    assert trace_lists(["all"]) == ([], [])


def test_commands_are_found_as_a_shell_finds_them(tmp_path: Path) -> None:
    """127 for what is not there, 126 for what cannot be executed."""
    plain = tmp_path / "plain"
    plain.write_text("")
    assert find_command("sh", {"PATH": "/bin"}) == ("/bin/sh", 0)
    assert find_command("no-such-command", {"PATH": "/bin"}) == ("", NOT_FOUND)
    assert find_command(str(tmp_path / "gone"), {}) == ("", NOT_FOUND)
    assert find_command(str(plain), {}) == ("", NOT_EXECUTABLE)
    assert find_command(str(tmp_path), {}) == ("", NOT_EXECUTABLE)


def test_a_held_child_runs_when_it_is_released() -> None:
    """Until then it has executed nothing; its status is its own."""
    child = Child.hold("/bin/sh", ["sh", "-c", "exit 7"], {})
    assert os.readlink(f"/proc/{child.pid}/exe") == os.path.realpath(sys.executable)
    assert child.release() == 0
    assert os.WEXITSTATUS(child.wait()) == 7


def test_a_held_child_can_be_abandoned() -> None:
    """A recorder that cannot start leaves no process behind."""
    child = Child.hold("/bin/sh", ["sh"], {})
    child.abandon()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    child.send(signal.SIGTERM)  # no error


def test_a_failing_execve_gives_its_errno(tmp_path: Path) -> None:
    """A file that is executable and no program: ENOEXEC, and no process is left."""
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x7fELFjunk")
    junk.chmod(0o755)
    child = Child.hold(str(junk), ["junk"], {})
    assert child.release() == 8
    child.wait()


def test_errors_are_one_sentence_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback reaches a user: usage errors end with 2."""
    assert main(["record"]) == 2
    assert main(["record", "-p", "4194305"]) == 2
    assert main(["show", "/nonexistent/dump"]) in (1, 2)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 3
    assert "Traceback" not in said


def test_command_not_found_is_a_shells_status(capsys: pytest.CaptureFixture[str]) -> None:
    """127 and 126, before anything is loaded."""
    assert main(["record", "--", "no-such-command"]) == 127
    assert main(["record", "--", "/etc/passwd"]) == 126
    assert capsys.readouterr().err.count("\n") == 2


def test_a_defect_is_a_sentence_and_a_traceback_only_with_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody expected ends with 1 and says what to do; --debug shows where it came from."""

    def broken(_args: object) -> int:
        raise ValueError("40 is not a valid Signals")

    monkeypatch.setattr("otel_perfbuf.cli.components.run", broken)
    assert main(["components"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("otel-perfbuf: components: ValueError: 40 is not a valid Signals; this is a defect")
    assert len(said.splitlines()) == 1
    with pytest.raises(ValueError, match="40"):
        main(["--debug", "components"])
