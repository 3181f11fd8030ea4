# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf print-config`: the effective configuration as YAML, secrets redacted; or their JSON Schema."""

from __future__ import annotations

import argparse
import json

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.service.config import render

from .configured import add_configuration, configuration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `print-config`."""
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of configurations instead")
    add_configuration(parser, required=False)


def run(args: argparse.Namespace) -> int:
    """Prints it; 0, or ConfigError with all its problems."""
    if args.schema:
        from otel_perfbuf.service.schema import configuration_schema

        print(json.dumps(configuration_schema(), indent=2))
        return 0
    if not args.config:
        raise ConfigError("print-config: give --config FILE, or --schema")
    print(render(configuration(args)), end="")
    return 0
