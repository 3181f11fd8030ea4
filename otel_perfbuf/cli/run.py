# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf run`: the agent in the foreground, until SIGINT or SIGTERM; SIGHUP reloads."""

from __future__ import annotations

import argparse

from otel_perfbuf.service.agent import Agent
from otel_perfbuf.service.assembly import KernelParts
from otel_perfbuf.service.restriction import restrict

from .configured import add_configuration, configuration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `run`."""
    add_configuration(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the agent; 0 after a signal. Raises what made the start impossible."""
    return Agent(lambda: configuration(args), KernelParts(), restrict).run()
