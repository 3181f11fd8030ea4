# SPDX-License-Identifier: Apache-2.0
"""Starts the command that `record` records: held until it is followed, then one execve. Source: execve(2).

What it is not: no subprocess.Popen, since the recorder must know the pid before the first instruction of CMD runs, and
the first recorded call must be CMD's own execve, as strace shows it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_perfbuf.errors import ConfigError

__all__ = ["NOT_EXECUTABLE", "NOT_FOUND", "Child", "find_command", "find_user"]

NOT_FOUND = 127
NOT_EXECUTABLE = 126


def find_command(name: str, environment: Mapping[str, str]) -> tuple[str, int]:
    """(path, 0), or ("", 127 or 126) when there is nothing to execute (a shell's exit codes)."""
    if "/" in name:
        if not os.path.exists(name):
            return "", NOT_FOUND
        usable = os.path.isfile(name) and os.access(name, os.X_OK)
        return (name, 0) if usable else ("", NOT_EXECUTABLE)
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    return (found, 0) if found else ("", NOT_FOUND)


def find_user(name: str) -> pwd.struct_passwd:
    """The user that -u names, by name or number."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    raise ConfigError(f"record -u {name}: there is no such user")


@dataclass(slots=True)
class Child:
    """CMD's process: `hold` makes it, `release` lets it execute, `wait` gives its wait status."""

    pid: int
    _go: int
    _failure: int
    _ended: bool = False

    @classmethod
    def hold(
        cls,
        path: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        user: pwd.struct_passwd | None = None,
    ) -> Child:
        """Forks a process that waits; call it before the first thread is started."""
        go_read, go_write = os.pipe()
        failure_read, failure_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a shell's background job
                        signal.signal(number, signal.SIG_DFL)
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, execve would pass it on
                    signal.signal(number, signal.SIG_DFL)
                os.close(go_write)
                os.close(failure_read)
                if not os.read(go_read, 1):
                    os._exit(1)
                os.close(go_read)
                if user is not None:
                    os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid) if user.pw_name else [])
                    os.setgid(user.pw_gid)
                    os.setuid(user.pw_uid)
                os.execve(path, list(arguments), dict(environment))  # noqa: S606  CMD is what the user asked to run
            except OSError as error:
                os.write(failure_write, str(error.errno).encode())
            finally:
                os._exit(NOT_EXECUTABLE)
        os.close(go_read)
        os.close(failure_write)
        return cls(pid, go_write, failure_read)

    def release(self) -> int:
        """Lets it execute; 0, or the errno of the execve that failed (the process is then gone, after `wait`)."""
        with contextlib.suppress(BrokenPipeError):  # a signal has ended it meanwhile: `wait` tells
            os.write(self._go, b"1")
        os.close(self._go)
        words = os.read(self._failure, 16)
        os.close(self._failure)
        return int(words) if words else 0

    def abandon(self) -> None:
        """Ends a held process that was never released."""
        os.close(self._go)
        os.close(self._failure)
        self.wait()

    def wait(self) -> int:
        """Its wait status; interrupted waits go on."""
        while True:
            try:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                self._ended = True  # before its pid can be another's
                return os.waitpid(self.pid, 0)[1]
            except OSError as error:
                if error.errno == errno.ECHILD:
                    return 0
                raise

    def send(self, number: int) -> None:
        """Sends a signal; that it has ended meanwhile is no error."""
        if self._ended:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
