# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf check`: what this host can record, a line a capability. Source: CONTRACT section 1."""

from __future__ import annotations

import argparse
import json

from otel_perfbuf.rings.probe import probe_host

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `check`."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Probes the host; 0 when the syscall recorder can run, else 1."""
    findings = probe_host()
    able = all(finding.ok for finding in findings if finding.required)
    if args.json:
        rows = [
            {"name": f.name, "ok": f.ok, "required": f.required, "detail": f.detail, "way_out": f.way_out}
            for f in findings
        ]
        print(json.dumps({"can_record": able, "capabilities": rows}, indent=2))
    else:
        for finding in findings:
            mark = "yes" if finding.ok else "NO " if finding.required else "no "
            line = f"{mark} {finding.name}: {finding.detail}"
            print(line if finding.ok or not finding.way_out else f"{line} -> {finding.way_out}")
        print("this host can record" if able else "this host cannot record: see the lines with NO")
    return 0 if able else 1
