# SPDX-License-Identifier: Apache-2.0
"""Compiles the small C programs of programs/ for the end-to-end tests: once a session.

What it is not: a build of the project. C where a test needs exactly known system calls, which an interpreter hides.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["Compile", "compiled"]

PROGRAMS = Path(__file__).parent / "programs"

Compile = Callable[[str], Path]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A function that gives a program's path: "burst" is made of programs/burst.c."""
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)

    def build(name: str) -> Path:
        path = folder / name
        if not path.exists():
            source = PROGRAMS / f"{name}.c"
            subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-pthread", "-o", path, source], check=True)
        return path

    return build
