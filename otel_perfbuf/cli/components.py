# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf components`: what can be configured, as YAML."""

from __future__ import annotations

import argparse

import yaml

from otel_perfbuf.service.registry import components

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`components` has no options."""


def run(_args: argparse.Namespace) -> int:
    """Prints the list; 0."""
    print(yaml.safe_dump(components(), sort_keys=False), end="")
    return 0
