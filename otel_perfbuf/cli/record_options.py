# SPDX-License-Identifier: Apache-2.0
"""The options of `record`, with strace's letters where strace has them. Source: CONTRACT section 1; strace(1)."""

from __future__ import annotations

import argparse
from pathlib import Path

from otel_perfbuf.units import parse_duration, parse_size

__all__ = ["add_arguments", "trace_lists"]


def _window(text: str) -> float | None:
    """Seconds, or None for "all"."""
    if text == "all":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; or 'all' for everything still held") from error


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _lines(text: str) -> int | None:
    """A number, or None for "all"."""
    if text == "all":
        return None
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of lines nor 'all'")
    return int(text)


def _string_bytes(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes from 1 to 4096")
    return int(text)


def trace_lists(expressions: list[str]) -> tuple[list[str], list[str]]:
    """Strace's -e expressions as (include, exclude) names and %classes: `open,close`, `trace=%file`, `!futex`."""
    include: list[str] = []
    exclude: list[str] = []
    for expression in expressions:
        text = expression.removeprefix("trace=").removeprefix("t=")
        for word in text.removeprefix("!").split(","):
            word = word.strip()
            if word and word != "all":
                # In strace one ! in front excludes the whole list; one before a single name is taken as well.
                (exclude if text.startswith("!") or word.startswith("!") else include).append(word.removeprefix("!"))
    return include, exclude


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `record`."""
    add = parser.add_argument
    parser.usage = "otel-perfbuf record [options] -- CMD [ARG...]\n       otel-perfbuf record [options] -p PID"
    add("--on", action="append", choices=("exit", "always", "error"), help="when to dump (default: exit and error)")
    add("--window", type=_window, default=10.0, metavar="TIME", help="history before the failure: 10s, or all")
    add("--per-cpu-bytes", type=_size, default=4 << 20, metavar="SIZE", help="ring of each CPU (default 4MiB)")
    add("-o", "--output", type=Path, metavar="FILE", help="write the dumps to FILE")
    add("--format", choices=("text", "otlp_json", "otlp_proto"), default="text", help="of FILE (default text)")
    add("--otlp", metavar="ENDPOINT", help="send the dumps: http://HOST:4318, grpc://HOST:4317, unix:///PATH")
    add("--lines", type=_lines, default=50, metavar="N", help="records on stderr: N (default 50) or all")
    add("-p", "--pid", type=int, metavar="PID", help="record a running process and its children until Ctrl-C")
    add("-u", "--user", metavar="USER", help="run CMD as USER")
    add("-e", "--trace", action="append", default=[], metavar="LIST", help="only these: open,close,%%file; !futex")
    add("-s", "--string-bytes", type=_string_bytes, default=128, metavar="N", help="of strings (default 128)")
    add("--buffers", choices=("none", "sizes", "content"), default="none", help="what buffers show (default none)")
    names = parser.add_mutually_exclusive_group()
    names.add_argument("-y", "--fd-names", action="store_true", default=True, help=argparse.SUPPRESS)
    names.add_argument("--no-fd-names", dest="fd_names", action="store_false", help="fds as bare numbers")
    add("--save-rings", type=Path, metavar="DIR", help="save the rings for PerfReader.from_file")
    add("cmd", nargs=argparse.REMAINDER, metavar="-- CMD [ARG...]")
