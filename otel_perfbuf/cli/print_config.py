# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf print-config`: the effective configuration as YAML, secrets redacted."""

from __future__ import annotations

import argparse

from otel_perfbuf.service.config import render

from .configured import add_configuration, configuration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `print-config`."""
    add_configuration(parser)


def run(args: argparse.Namespace) -> int:
    """Prints it; 0, or ConfigError with all its problems."""
    print(render(configuration(args)), end="")
    return 0
