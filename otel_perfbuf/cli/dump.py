# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf dump`: asks the running agent for a dump. Source: CONTRACT section 1."""

from __future__ import annotations

import argparse
import json
import os
import sys

from otel_perfbuf.service.control_client import ControlClient, control_path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `dump`."""
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--pid", type=int, metavar="N", help="this process and its descendants")
    target.add_argument("--cgroup", metavar="PATH", help="every process in this cgroup")
    target.add_argument("--all", action="store_true", help="the whole host")
    parser.add_argument("--reason", metavar="TEXT", help="is written into the dump")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--control", metavar="PATH", help="the agent's control socket")


def run(args: argparse.Namespace) -> int:
    """Prints `ID records=N lost=N overwritten=N`; 0, or PerfbufError when no dump could be made."""
    request: dict[str, object] = {"reason": args.reason or f"asked for by hand (uid {os.getuid()})"}
    if args.pid is not None:
        request["pid"] = args.pid
    elif args.cgroup is not None:
        request["cgroup"] = args.cgroup
    else:
        request["all"] = True
    answer = ControlClient(control_path(args.control)).dump(request)
    if args.json:
        print(json.dumps(answer))
    else:
        counts = " ".join(f"{key}={answer.get(key, 0)}" for key in ("records", "lost", "overwritten"))
        print(f"{answer.get('id')} {counts}")
    if not answer.get("records"):
        print(
            "otel-perfbuf: dump: nothing that was asked for is in the history; it may have been still, have ended"
            " before the history begins, or not be among the receiver's targets",
            file=sys.stderr,
        )
    return 0
