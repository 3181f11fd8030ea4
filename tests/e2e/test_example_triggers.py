# SPDX-License-Identifier: Apache-2.0
"""The trigger examples in other languages: each, under `record`, makes a dump that shows its own failed call.

A language whose tools are not installed has no test here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from recording import parse_lines, record

EXAMPLES = Path(__file__).parents[2] / "examples"
JARS = Path("/usr/share/java")


def _go(folder: Path) -> list[str | Path]:
    subprocess.run(["go", "build", "-o", folder / "trigger", "."], cwd=EXAMPLES / "go", check=True, timeout=180)
    return [folder / "trigger"]


def _node(folder: Path) -> list[str | Path]:
    shutil.copytree(EXAMPLES / "node", folder / "node", ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "install", "--silent", "--no-fund"], cwd=folder / "node", check=True, timeout=180)
    return ["node", folder / "node" / "trigger.js"]


def _java(folder: Path) -> list[str | Path]:
    command = ["javac", "-cp", f"{JARS}/*", "-d", folder, EXAMPLES / "java" / "Trigger.java"]
    subprocess.run(command, check=True, timeout=180)
    return ["java", "-cp", f"{JARS}/*:{folder}", "Trigger"]


def _socat(folder: Path) -> list[str | Path]:
    return [EXAMPLES / "socat" / "deploy.sh"]


def _installed() -> list[tuple[Callable[[Path], list[str | Path]], str]]:
    found: list[tuple[Callable[[Path], list[str | Path]], str]] = []
    if shutil.which("go"):
        found.append((_go, "span_error"))
    if shutil.which("npm") and shutil.which("cc") and shutil.which("make"):
        found.append((_node, "span_error"))
    if shutil.which("javac") and (JARS / "jnr-unixsocket.jar").exists():
        found.append((_java, "span_error"))
    if shutil.which("socat"):
        found.append((_socat, "manual"))
    return found


@pytest.mark.parametrize(("made", "kind"), _installed(), ids=lambda value: getattr(value, "__name__", value))
def test_a_dump_shows_the_call_that_failed(made: Callable[[Path], list[str | Path]], kind: str, tmp_path: Path) -> None:
    """Its reason is the one that the example sent, its trace too where it has one."""
    output = tmp_path / "dump.jsonl"
    done = record(
        "-o", output, "--format", "otlp_json", "--on", "error",
        command=[*made(tmp_path), "a reason of its own"], env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    dump = parse_lines(output.read_text())
    assert dump.header["perfbuf.dump.trigger"] == kind
    assert dump.header["perfbuf.dump.reason"] == "a reason of its own"
    failed = [item for item in dump.history if '"/nonexistent/settings.json"' in item.body]
    assert "ENOENT" in [item.attributes.get("error.type") for item in failed]
    assert bool(dump.dump_span().parent_span_id) == (kind == "span_error")
