# SPDX-License-Identifier: Apache-2.0
"""What the ring tests share: their compiled programs, and the program attached to this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ring_program import compile_programs, pinned, ring_program

from otel_perfbuf.bpf import BpfObject


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the compiled programs lie."""
    path = tmp_path_factory.mktemp("rings")
    compile_programs(path)
    return path


@pytest.fixture(scope="module")
def program(folder: Path) -> Iterator[BpfObject]:
    """The program on this process's own calls, which stays on one CPU."""
    with ring_program(folder, os.getpid()) as program, pinned():
        yield program
