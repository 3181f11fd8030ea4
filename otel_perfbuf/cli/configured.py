# SPDX-License-Identifier: Apache-2.0
"""`--config` and `--set`, as run, validate and print-config take them. Source: CONTRACT section 1."""

from __future__ import annotations

import argparse

from otel_perfbuf.service.config import load
from otel_perfbuf.service.model import Configuration

__all__ = ["add_configuration", "configuration"]


def add_configuration(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declares both options."""
    parser.add_argument(
        "--config",
        action="append",
        required=required,
        metavar="FILE",
        help="a configuration file; later ones add to it",
    )
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="sets one key, after all files")


def configuration(args: argparse.Namespace) -> Configuration:
    """The checked configuration; ConfigError with all its problems."""
    return load(args.config, args.set)
