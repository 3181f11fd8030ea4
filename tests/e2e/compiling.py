# SPDX-License-Identifier: Apache-2.0
"""Compiles the small C programs of programs/ for the end-to-end tests: once a session.

What it is not: a build of the project. C where a test needs exactly known system calls, which an interpreter hides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from building import program

__all__ = ["Compile", "compiled"]

Compile = Callable[[str], Path]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A function that gives a program's path: "burst" is made of programs/burst.c."""
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)

    def build(name: str) -> Path:
        return program(name, folder)

    return build
