# SPDX-License-Identifier: Apache-2.0
"""Picks the command, and turns every error into one sentence and an exit code (CONTRACT section 1).

A command's module has ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``; it is imported only when it is
asked for, so that `show` needs no BPF and `--help` no gRPC.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from otel_perfbuf.errors import ConfigError, KernelError, NotSupported, PerfbufError
from otel_perfbuf.triggers.datagram import printable

__all__ = ["EXIT_CANNOT_RECORD", "EXIT_FAILED", "EXIT_OK", "EXIT_USAGE", "main"]

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CANNOT_RECORD = 77

_COMMANDS = {
    "run": "run the agent in the foreground",
    "validate": "check a configuration without opening anything",
    "print-config": "print the effective configuration, secrets redacted",
    "components": "list receivers, connectors, exporters and extensions",
    "check": "tell whether this host can record",
    "record": "run a command under the flight recorder",
    "show": "show a saved dump as text",
    "dump": "ask the running agent for a dump",
    "status": "tell what the running agent records",
}


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence, as all others here; commands' parsers are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Ends with the sentence; the first word of a command's is the command."""
        command = self.prog.removeprefix("otel-perfbuf").strip()
        where = f"{command}: " if command else ""
        self.exit(EXIT_USAGE, _safe(f"otel-perfbuf: {where}{message}; see `{self.prog} --help`") + "\n")


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = _Parser(prog="otel-perfbuf", description="A kernel flight recorder for OpenTelemetry pipelines.")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if name == command:
            _module(name).add_arguments(sub)
    return parser


def _module(command: str):  # type: ignore[no-untyped-def]  # a module with the form that the docstring names
    return importlib.import_module(f"otel_perfbuf.cli.{command.replace('-', '_')}")


def _safe(text: str) -> str:
    """The text without what could steer a terminal: names in it come from anywhere. Lines stay (a verifier's log)."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _say(sentence: str) -> None:
    """On stderr, if that can be written at all."""
    try:
        print(f"otel-perfbuf: {_safe(sentence)}", file=sys.stderr, flush=True)
    except OSError:
        # From Python 3.13 on what the interpreter cannot flush at its end makes its exit code 120 instead of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stderr.fileno())


def _open_standard_streams() -> None:
    """Closed ones become /dev/null, or the next ring or socket would get their number and be written to.

    They are closed on exec, so that a recorded command finds them closed as it would without us.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # else print would take stdout for a missing stderr
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _failed(error: Exception) -> int:
    """Says the error; gives the exit code."""
    if isinstance(error, ConfigError):
        if error.problems:
            for key, sentence in error.problems:
                print(_safe(f"{key}: {sentence}" if key else sentence), file=sys.stderr)
        else:
            _say(str(error))
        return EXIT_USAGE
    _say(str(error))
    if isinstance(error, NotSupported):
        return EXIT_CANNOT_RECORD
    if isinstance(error, KernelError) and error.errno in (errno.EPERM, errno.EACCES):
        return EXIT_CANNOT_RECORD
    return EXIT_FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives its exit code. Arguments default to the process's own."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in words if word in _COMMANDS), None)
    _open_standard_streams()
    args = argparse.Namespace(debug=False)
    try:
        args = _parser(command).parse_args(words)
        return int(_module(args.command).run(args))
    except BrokenPipeError:
        # The reader of our output is gone (`| head`): the interpreter's last flush must not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (PerfbufError, OSError) as error:
        if args.debug:
            raise
        return _failed(error)
    except Exception as error:  # no traceback reaches a user who has not asked for it
        if args.debug:
            raise
        what = f"{args.command}: {type(error).__name__}: {error}" if "command" in args else str(error)
        _say(f"{what}; this is a defect, please report it with what --debug shows")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
