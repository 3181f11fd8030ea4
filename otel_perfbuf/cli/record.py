# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf record`: a command under the flight recorder, without any configuration. Source: CONTRACT section 1.

Order, and why: the program is attached, then the command is forked and held, then followed, then let go: so the first
record is its own execve. Threads start after the fork. At the end: the trigger socket is emptied before the command's
end fires, so that a failed span makes the dump and the end joins it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.recorder.dump import DumpOptions
from otel_perfbuf.recorder.recorder import FlightRecorder
from otel_perfbuf.recorder.source import HistorySource, SourceOptions
from otel_perfbuf.rings.saved import save_rings
from otel_perfbuf.service.privileges import (
    CAP_IPC_LOCK,
    CAP_KILL,
    drop_capabilities,
    raise_limits,
    writing_needs,
)
from otel_perfbuf.triggers.bound import path_fault
from otel_perfbuf.triggers.datagram import printable
from otel_perfbuf.triggers.firing import Firing, TriggerKind
from otel_perfbuf.triggers.process_exit import signal_name
from otel_perfbuf.triggers.socket import SocketOptions, SocketTrigger
from otel_perfbuf.triggers.spans import SpanRegistry

from .record_options import add_arguments, trace_lists
from .record_output import Output
from .spawn import NOT_EXECUTABLE, NOT_FOUND, Child, find_command, find_user

__all__ = ["add_arguments", "run"]

_JOIN_S = 2.0
_SOCKET_VARIABLE = "OTEL_PERFBUF_TRIGGER_SOCKET"


@dataclass(slots=True)
class _End:
    """How what was recorded ended; ``status`` is a wait status, None for a process that is not our child."""

    status: int | None
    interrupted: bool = False

    @property
    def sentence(self) -> str:
        if self.status is None:
            return "recording was ended" if self.interrupted else "the process ended"
        if os.WIFSIGNALED(self.status):
            return f"CMD was killed by {signal_name(os.WTERMSIG(self.status))}"
        return f"CMD exited with {os.WEXITSTATUS(self.status)}"

    @property
    def exit_code(self) -> int:
        """A shell's: CMD's own status, 128 + N for signal N; 0 for -p."""
        if self.status is None:
            return 0
        if os.WIFSIGNALED(self.status):
            return 128 + os.WTERMSIG(self.status)
        return os.WEXITSTATUS(self.status)


def run(args: argparse.Namespace) -> int:
    """Runs `record`; gives CMD's exit code."""
    words = args.cmd[1:] if args.cmd[:1] == ["--"] else args.cmd
    if (args.pid is None) == (not words):
        raise ConfigError("record: give either `-- CMD [ARG...]` or `-p PID`")
    when = set(args.on or ("exit", "error"))
    if args.pid is not None:
        when.add("always")
        _check_process(args.pid)
    user = find_user(args.user) if args.user is not None else None
    path = ""
    if words:
        path, problem = find_command(words[0], os.environ)
        if problem:
            cause = "not found" if problem == NOT_FOUND else "it is no executable file"
            print(f"otel-perfbuf: record: running {printable(words[0]) or repr('')}: {cause}", file=sys.stderr)
            return problem
    include, exclude = trace_lists(args.trace)
    options = SourceOptions(
        per_cpu_bytes=args.per_cpu_bytes,
        whole_host=False,
        include=include,
        exclude=exclude,
        string_bytes=args.string_bytes,
        buffers=args.buffers,
        fd_names=args.fd_names,
    )
    with Output(args.output, args.format, args.otlp, args.lines) as output, _source(options) as source:
        source.attach()
        with _signals_forwarded() as forward_to, _socket_directory() as directory:
            environment = {**os.environ, _SOCKET_VARIABLE: str(directory / "trigger.sock")}
            if args.pid is not None:
                source.follow(args.pid)
                _restrict(args)
                with _end_of(args.pid) as wait:
                    code = _recorded(args.pid, wait, when, args.window, source, output, directory)
                return _saved(args.save_rings, source, code)
            child = Child.hold(path, words, environment, user)
            forward_to(child)
            try:
                source.follow(child.pid, wait_exec=True)
            except BaseException:
                child.abandon()
                raise
            _restrict(args)
            run_child = functools.partial(_run_child, child, words[0])
            code = _recorded(child.pid, run_child, when, args.window, source, output, directory)
            return _saved(args.save_rings, source, code)


def _saved(directory: Path | None, source: HistorySource, code: int) -> int:
    """Saves the rings for `PerfReader.from_file` where --save-rings asks for it; the exit code stays CMD's."""
    if directory is not None:
        try:
            save_rings(source.reader, directory)
        except OSError as error:
            cause = error.strerror or str(error)
            print(f"otel-perfbuf: record: saving the rings to {directory}: {cause}", file=sys.stderr)
    return code


def _check_process(pid: int) -> None:
    """That a process has this id: a thread's id has a folder in /proc too, and nothing would be recorded."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise ConfigError(f"record -p {pid}: there is no such process") from None
    process = next((line.split()[1] for line in status.splitlines() if line.startswith("Tgid:")), str(pid))
    if process != str(pid):
        raise ConfigError(f"record -p {pid}: this is a thread of process {process}; give -p {process}")


def _source(options: SourceOptions) -> HistorySource:
    """The recorder; a list that -e got wrong is told as -e, not as the configuration's key."""
    try:
        return HistorySource(options)
    except ConfigError as error:
        words = [
            f"record -e: {text}" if key.startswith(("include", "exclude")) else f"record: {text}"
            for key, text in error.problems
        ]
        raise ConfigError("; ".join(words) or f"record: {error}") from error


@contextlib.contextmanager
def _socket_directory() -> Iterator[Path]:
    """A directory for the trigger socket that CMD's user can enter."""
    directory = Path(tempfile.mkdtemp(prefix="otel-perfbuf-"))
    if path_fault(str(directory / "trigger.sock")):  # a long TMPDIR; a socket's path is short
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="otel-perfbuf-", dir="/tmp"))
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _recorded(
    pid: int,
    wait: Callable[[], _End | int],
    when: set[str],
    window_s: float | None,
    source: HistorySource,
    output: Output,
    directory: Path,
) -> int:
    """Waits for the end of what is recorded, dumps what is to be dumped; gives the exit code.

    ``wait`` gives the end, or the exit code alone where nothing was recorded.
    """
    recorder = FlightRecorder(
        source, DumpOptions(before_s=window_s, max_records=1 << 40, root_pid=pid), output.take, after_s=_JOIN_S
    )
    spans = SpanRegistry(source.program.spans)
    trigger = SocketTrigger(SocketOptions(path=str(directory / "trigger.sock")), register=spans.register)

    def fire(firing: Firing) -> None:
        # The socket is open to CMD's user, and so to everybody: what a stranger reports is not CMD's.
        if "error" in when and firing.pid is not None and source.program.has_recorded(firing.pid):
            recorder.fire(firing)

    source.watch_cpus()
    recorder.start()
    output.start()
    spans.start()
    trigger.start(fire)
    try:
        end = wait()
        if isinstance(end, int):
            return end
    finally:
        trigger.stop()
        spans.stop()
    firing = _last_firing(pid, end, when)
    if firing is not None:
        recorder.fire(firing)
    recorder.settle()
    if not recorder.stop(timeout_s=60.0):
        print("otel-perfbuf: record: making the dump took more than 60 s; it is given up", file=sys.stderr)
    try:
        output.finish(end.sentence)
    except OSError:
        # stderr cannot be written (a full disk, `2>&1 | head`): CMD's status still is the answer.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stderr.fileno())
    return end.exit_code


def _restrict(args: argparse.Namespace) -> None:
    """CMD has been forked and no thread is there: from here on only what recording needs, and signals to CMD."""
    needs = {CAP_KILL: "signals are passed on to a command of any user"}
    if not raise_limits():
        needs[CAP_IPC_LOCK] = "RLIMIT_MEMLOCK cannot be raised, and rings are locked memory"
    written = [str(path) for path in (args.output, args.save_rings) if path is not None]
    drop_capabilities({**needs, **writing_needs(written)})


def _last_firing(pid: int, end: _End, when: set[str]) -> Firing | None:
    failed = end.status is not None and end.exit_code != 0
    kind: TriggerKind
    if failed and "exit" in when:
        kind = "process_exit"
    elif "always" in when:
        kind = "manual"
    else:
        return None
    return Firing(kind=kind, reason=end.sentence, unix_ns=time.time_ns(), pid=pid)


def _run_child(child: Child, name: str) -> _End | int:
    """Lets CMD run to its end; the exit code alone when its execve failed (said)."""
    error = child.release()
    if error:
        child.wait()
        print(f"otel-perfbuf: record: running {printable(name)}: {os.strerror(error)}", file=sys.stderr)
        return NOT_FOUND if error == errno.ENOENT else NOT_EXECUTABLE
    return _End(child.wait())


def _not_ignored() -> list[signal.Signals]:
    """What asks for an end; not what we were started with as ignored (nohup), which CMD ignores too."""
    return [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]


@contextlib.contextmanager
def _signals_forwarded() -> Iterator[Callable[[Child], None]]:
    """Gives what begins to send SIGTERM and SIGHUP on to CMD; before it was called they end us, tidily.

    SIGINT from the terminal reaches CMD by itself. All this until the dump is out: who hits Ctrl-C twice, or stops a
    whole group, wants to know no less why CMD ended.
    """
    children: list[Child] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not children:
            raise SystemExit(128 + number)
        children[0].send(number)

    def begin(child: Child) -> None:
        children.append(child)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    before = {number: signal.signal(number, forward) for number in _not_ignored()}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield begin
    finally:
        for number, handler in before.items():
            # After the dump only the exit with its status is left: a late signal must not put another in its place.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_IGN if children else handler)


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[Callable[[], _End]]:
    """Gives what waits until a process that is not our child ends, or a signal asks us to end.

    From the first moment at which there is something to dump until the dump is out, a signal asks for no more than
    that: who is quick with Ctrl-C, or hits it twice, wants the history no less.
    """
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ask(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of what asked before
            os.write(wake_write, b"1")

    def wait() -> _End:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return _End(None)
        try:
            ready = select.select([descriptor, wake_read], [], [])[0]
            return _End(None, interrupted=wake_read in ready)
        finally:
            os.close(descriptor)

    numbers = (signal.SIGINT, *_not_ignored())
    for number in numbers:
        signal.signal(number, ask)
    try:
        yield wait
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # only the exit with its status is left
        os.close(wake_read)
        os.close(wake_write)
