# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf validate`: nothing and 0, or every fault and 2; opens nothing but the files."""

from __future__ import annotations

import argparse

from .configured import add_configuration, configuration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `validate`."""
    add_configuration(parser)


def run(args: argparse.Namespace) -> int:
    """Checks the configuration; 0, or ConfigError with all its problems."""
    configuration(args)
    return 0
