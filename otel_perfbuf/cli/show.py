# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf show FILE`: a saved dump as text, whatever form it was saved in."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.saved import read_saved, saved_lines

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `show`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="text, otlp_json or otlp_proto")


def run(args: argparse.Namespace) -> int:
    """Shows the file; 0, or 1 when a part of it could not be read."""
    try:
        saved = read_saved(args.file)
    except OSError as error:
        raise PerfbufError(
            f"reading the dump {args.file}: {error.strerror}; give a file that record -o wrote"
        ) from error
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for line in saved_lines(saved, colour=colour):
        print(line)
    for problem in saved.problems:
        print(f"otel-perfbuf: show: {problem}", file=sys.stderr)
    return 1 if saved.problems else 0
