# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf status`: what the running agent records. Source: CONTRACT section 1."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from otel_perfbuf.service.control_client import ControlClient, control_path
from otel_perfbuf.units import format_duration, format_size

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `status`."""
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--control", metavar="PATH", help="the agent's control socket")


def run(args: argparse.Namespace) -> int:
    """Prints one line a component; 0, or PerfbufError when no agent answers."""
    status = ControlClient(control_path(args.control)).status()
    print(json.dumps(status) if args.json else "\n".join(_lines(status)))
    return 0


def _lines(status: dict[str, Any]) -> Iterator[str]:
    uptime = format_duration(int(status.get("uptime_seconds", 0)))
    yield f"agent {status.get('version')} pid={status.get('pid')} up={uptime}"
    for name, receiver in status.get("receivers", {}).items():
        depth = receiver.get("history_seconds")
        shown = "" if receiver.get("mode") != "overwritable" else " history="
        if shown:
            shown += "unknown-before-the-first-dump" if depth is None else format_duration(round(depth, 3))
        yield (
            f"{name} ring_bytes={format_size(int(receiver.get('ring_bytes', 0)))}{shown} lost={receiver.get('lost', 0)}"
        )
    for name, connector in status.get("connectors", {}).items():
        left_s = round(connector.get("warm_up_left_s", 0), 3)
        warm_up = f" warm_up_left={format_duration(left_s)}" if left_s else ""
        yield (
            f"{name} fired={sum(connector.get('fired', {}).values())}"
            f" suppressed={sum(connector.get('suppressed', {}).values())}"
            f" refused={sum(connector.get('refused', {}).values())}"
            f" dumps={connector.get('dumps', {}).get('made', 0)}{warm_up}"
        )
    for name, exporter in status.get("exporters", {}).items():
        counts = " ".join(f"{key}={exporter.get(key, 0)}" for key in ("sent", "failed", "rejected", "dropped"))
        yield f"{name} queue={exporter.get('queue_size')}/{exporter.get('queue_capacity')} {counts}"
    for name, spool in status.get("spools", {}).items():
        counts = " ".join(f"{key}={spool.get(key, 0)}" for key in ("dumps", "dropped", "malformed", "failed"))
        waiting = "".join(f" waiting[{exporter}]={dumps}" for exporter, dumps in spool.get("waiting", {}).items())
        yield f"{name} bytes={spool.get('bytes', 0)} {counts}{waiting}"
    yield f"spool={format_size(int(status.get('spool_bytes', 0)))}"
