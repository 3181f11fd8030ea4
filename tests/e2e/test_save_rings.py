# SPDX-License-Identifier: Apache-2.0
"""`record --save-rings`: what the rings of a live host held, read again without BPF."""

from __future__ import annotations

from pathlib import Path

from recording import record

from otel_perfbuf.rings import PerfReader


def test_saved_rings_hold_what_was_recorded(tmp_path: Path) -> None:
    """The saved rings give samples that name a path which CMD opened; CMD's status is kept."""
    done = record("--save-rings", tmp_path / "rings", command=["sh", "-c", "cat /nonexistent-for-rings; exit 5"])
    assert done.returncode == 5, done.stderr
    with PerfReader.from_file(tmp_path / "rings") as reader:
        batch = reader.snapshot(since="all")
    assert any(b"/nonexistent-for-rings" in data for data in batch.data())
    assert not batch.malformed


def test_rings_that_cannot_be_saved_are_a_sentence(tmp_path: Path) -> None:
    """A file in the directory's place: one sentence, and CMD's status is kept."""
    (tmp_path / "file").write_text("")
    done = record("--on", "always", "--save-rings", tmp_path / "file", command=["true"])
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith(f"otel-perfbuf: record: saving the rings to {tmp_path / 'file'}: ")
