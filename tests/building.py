# SPDX-License-Identifier: Apache-2.0
"""The small C and BPF programs of the tests: one table of what they are built from, one function that gives one.

What it is not: a build of the project. A guest of the kernel matrix has no compiler: there OTEL_PERFBUF_TEST_PROGRAMS
names a folder with all of them, which `python tests/building.py FOLDER` makes on the host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["program"]

TESTS = Path(__file__).parent
READY = os.environ.pop("OTEL_PERFBUF_TEST_PROGRAMS", "")  # not into the environment of what is recorded
C = ("cc", "-O1", "-Wall", "-Werror", "-pthread")
BPF = ("clang", "-O2", "-g", "-Wall", "-Werror", "-target", "bpf")

# name of the program -> its source
SOURCES = {
    "targets": "kernel/programs/targets.c",
    "ring_writer": "kernel/programs/ring_writer.c",
    "rings.bpf.o": "kernel/programs/rings.bpf.c",
    "ringbuf.bpf.o": "kernel/programs/ringbuf.bpf.c",
    "attach.bpf.o": "kernel/programs/attach.bpf.c",
    "refused.bpf.o": "kernel/programs/refused.bpf.c",
    "burst": "e2e/programs/burst.c",
    "many_messages": "e2e/programs/many_messages.c",
    "noisy_neighbour": "e2e/programs/noisy_neighbour.c",
}


def _command(name: str) -> list[str]:
    if not name.endswith(".bpf.o"):
        return list(C)
    done = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True, check=False)
    return [*BPF, "-idirafter", f"/usr/include/{done.stdout.strip() or os.uname().machine + '-linux-gnu'}", "-c"]


def program(name: str, folder: Path) -> Path:
    """The program ``name`` of SOURCES in ``folder``, built or copied there if it is not there yet."""
    target = folder / name
    if not target.exists():
        if READY:
            shutil.copy(Path(READY, name), target)
        else:
            subprocess.run([*_command(name), TESTS / SOURCES[name], "-o", target], check=True)
    return target


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for each in SOURCES:
        program(each, Path(sys.argv[1]))
