# SPDX-License-Identifier: Apache-2.0
"""Nothing is invented: one field of a saved recording is changed, and exactly that changes in the dump.

The bytes are the kernel's own (`record --save-rings`); where the fields lie is bpf/records.h.
"""

from __future__ import annotations

import platform
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from recording import attributes, record

from otel_perfbuf._core._core import ffi
from otel_perfbuf.recorder.history import Encoding, History
from otel_perfbuf.records import build_plan
from otel_perfbuf.rings import PerfReader

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of openat")
PATH = b"/nonexistent-for-single-fields"
NUMBER, RESULT, DURATION, ARGUMENTS = (
    ffi.offsetof("struct pb_syscall", name) for name in ("number", "result", "duration_ns", "args")
)
BEFORE_PATH = ARGUMENTS + 4 * 8 + ffi.sizeof("struct pb_capture")  # openat has four arguments, the path comes first

Dumped = list[tuple[str, dict[str, object]]]


def dumped(rings: Path) -> Dumped:
    """(body, attributes) of all records that the saved rings hold, in the order of time."""
    with PerfReader.from_file(rings) as reader:
        batch = reader.snapshot(since="all")
    history = History([batch], [])
    history.select([True] * history.process_count, 0, (1 << 63) - 1, 1 << 30)
    plan = build_plan()
    records = []
    for chunk, _ in history.encode(plan.pointer, [b""] * history.process_count, Encoding(1, 1, b"")):
        for resource in ExportLogsServiceRequest.FromString(chunk).resource_logs:
            records += [item for scope in resource.scope_logs for item in scope.log_records]
    return [(item.body.string_value, attributes(item.attributes)) for item in records]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rings of a cat of a file that is missing."""
    rings = tmp_path_factory.mktemp("saved") / "rings"
    done = record("--save-rings", rings, command=["cat", PATH.decode()])
    assert done.returncode == 1, done.stderr
    return rings


def changed(saved: Path, target: Path, change: Callable[[bytearray, int], None]) -> Dumped:
    """What a copy of the rings says in which one record, the failed openat, was changed."""
    shutil.copytree(saved, target)
    places = []
    for file in target.iterdir():
        data = bytearray(file.read_bytes())
        at = data.find(PATH)
        while at >= 0:
            begin = at - BEFORE_PATH
            if begin >= 0 and struct.unpack_from("=I", data, begin + NUMBER) == (257,):
                places.append((file, data, begin))
            at = data.find(PATH, at + 1)
    assert len(places) == 1
    file, data, begin = places[0]
    change(data, begin)
    file.write_bytes(data)
    return dumped(target)


def put(form: str, offset: int, value: int | bytes) -> Callable[[bytearray, int], None]:
    """Writes one field of the record."""
    return lambda data, begin: struct.pack_into(form, data, begin + offset, value)


@pytest.mark.parametrize(
    ("change", "words", "attribute"),
    [
        (put("=q", RESULT, -13), ("-1 ENOENT (No such file or directory)", "-1 EACCES (Permission denied)"), None),
        (put("=Q", ARGUMENTS + 16, 1), ("O_RDONLY", "O_WRONLY"), None),
        (put("=I", ARGUMENTS, 7), ("openat(AT_FDCWD,", "openat(7,"), None),
        (put("=s", BEFORE_PATH + 1, b"N"), ("/nonexistent-", "/Nonexistent-"), None),
        (put("=Q", DURATION, 12345), ("", ""), ("perfbuf.duration_ns", 12345)),
        (put("=I", NUMBER, 2), ("", ""), ("perfbuf.syscall.number", 2)),
    ],
    ids=["result", "flags", "directory", "path", "duration", "number"],
)
def test_exactly_the_changed_field_changes(
    saved: Path,
    tmp_path: Path,
    change: Callable[[bytearray, int], None],
    words: tuple[str, str],
    attribute: tuple[str, int] | None,
) -> None:
    """Every other record is as it was, and of this one what does not follow from the field."""
    before, after = dumped(saved), changed(saved, tmp_path / "rings", change)
    assert len(before) == len(after)
    different = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(different) == 1
    (old_body, old), (new_body, new) = different[0]
    if attribute and attribute[0] == "perfbuf.syscall.number":
        assert new_body.startswith("open(")
    else:
        assert new_body == old_body.replace(*words)
    if attribute:
        assert new[attribute[0]] == attribute[1]
    fixed = {"thread.id", "perfbuf.sequence", "perfbuf.thread.instance", "cpu.logical_number", "thread.name"}
    assert {key: old[key] for key in fixed} == {key: new[key] for key in fixed}
