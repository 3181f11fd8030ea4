# SPDX-License-Identifier: Apache-2.0
"""The loader attaches to kernel functions: kprobes, fentry and their returns, where the kernel has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from building import program as build
from ring_program import libc

from otel_perfbuf.bpf import BpfObject


def counted(folder: Path, names: list[str]) -> list[int]:
    """How often each of the four ways saw 100 calls of ours."""
    with BpfObject(build("attach.bpf.o", folder)) as program:
        program.set_rodata("target_tgid", os.getpid())
        program.load_only(names)
        program.load()
        program.attach(names)
        for _ in range(100):
            libc.getpgid(0)
        counts = program.maps["counts"]
        return [int.from_bytes(value, "little") for _, value in sorted(counts.items())]


@pytest.mark.needs("kprobes")
def test_kprobes_are_attached(tmp_path: Path) -> None:
    """At a function's begin and at its return; what was left out is not attached."""
    assert counted(tmp_path, ["by_kprobe", "by_kretprobe"]) == [100, 100, 0, 0]


@pytest.mark.needs("fentry")
def test_fentry_is_attached(tmp_path: Path) -> None:
    """The same by trampolines."""
    assert counted(tmp_path, ["by_fentry", "by_fexit"]) == [0, 0, 100, 100]
