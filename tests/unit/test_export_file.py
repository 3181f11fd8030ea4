# SPDX-License-Identifier: Apache-2.0
"""The file exporter and what reads its files back: whole frames or none, every form, every kind of damage."""

from __future__ import annotations

import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from export_samples import logs_chunk, logs_request, traces_chunk, traces_request
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.errors import ConfigError, ExportError, PerfbufError
from otel_perfbuf.exporters.file import FileExporter, Options, create
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.exporters.saved import read_saved, saved_lines


def started(path: Path, format: str = "otlp_json", **keys: object) -> FileExporter:
    """An exporter that may send."""
    exporter = create(Options.model_validate({"path": path, "format": format, **keys}))
    exporter.start()
    return exporter


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process cannot grow beyond 8 KiB: a disk that is full, without a disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_json_lines(tmp_path: Path) -> None:
    """Logs and spans are one line each in the same file, and are read back as the same messages."""
    path = tmp_path / "d.jsonl"
    exporter = started(path)
    exporter.send(logs_chunk(5), 1)
    exporter.send(traces_chunk(), 1)
    exporter.stop()
    assert [list(json.loads(line)) for line in path.read_text().splitlines()] == [["resourceLogs"], ["resourceSpans"]]
    saved = read_saved(path)
    assert (saved.format, saved.malformed) == ("otlp_json", 0)
    assert saved.logs == [logs_request(5)]
    assert saved.traces[0].resource_spans[0].scope_spans[0].spans == (
        traces_request().resource_spans[0].scope_spans[0].spans
    )


def test_proto_frames(tmp_path: Path) -> None:
    """Each message has its length in four big-endian bytes before it; spans go to FILE.traces."""
    path = tmp_path / "d.pb"
    exporter = started(path, "otlp_proto")
    chunks = [logs_chunk(5), logs_chunk(1), traces_chunk()]
    for chunk in chunks:
        exporter.send(chunk, 1)
    exporter.stop()
    assert path.read_bytes() == b"".join(len(c.body).to_bytes(4, "big") + c.body for c in chunks[:2])
    assert (tmp_path / "d.pb.traces").read_bytes()[4:] == chunks[2].body
    saved = read_saved(path)
    assert (saved.format, saved.logs, saved.traces) == (
        "otlp_proto", [logs_request(5), logs_request(1)], [traces_request()],
    )  # fmt: skip
    assert read_saved(tmp_path / "d.pb.traces").traces == [traces_request()]


def test_first_dump_creates_and_truncates(tmp_path: Path) -> None:
    """Nothing is touched before the first dump; it truncates, later ones and a restart of the exporter do not."""
    path = tmp_path / "d.jsonl"
    path.write_text("old\n")
    exporter = started(path)
    assert path.read_text() == "old\n"
    exporter.send(logs_chunk(), 1)
    exporter.stop()
    exporter.start()
    exporter.send(logs_chunk(), 1)
    exporter.stop()
    exporter.stop()
    assert len(path.read_text().splitlines()) == 2
    again = started(path, append=True)
    again.send(logs_chunk(), 1)
    again.stop()
    assert len(path.read_text().splitlines()) == 3


def test_file_is_its_owners_alone_unless_told_otherwise(tmp_path: Path) -> None:
    """An agent's file holds others' calls: mode 0600; who records an own command may say 0666 and the umask cuts it."""
    started(tmp_path / "a").send(logs_chunk(), 1)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    before = os.umask(0o027)
    try:
        FileExporter(Options(path=tmp_path / "b"), mode=0o666).send(logs_chunk(), 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o640


@pytest.mark.parametrize("format", ["otlp_json", "otlp_proto"])
@pytest.mark.usefixtures("small_files")
def test_full_disk_leaves_no_half_frame(tmp_path: Path, format: str) -> None:
    """What does not fit is taken back to the last whole frame; one retryable sentence; smaller ones still fit."""
    path = tmp_path / "d"
    exporter = started(path, format)
    exporter.send(logs_chunk(1), 1)
    whole = path.read_bytes()
    with pytest.raises(ExportError, match=f"writing 60 log records to {path} failed: File too large") as caught:
        exporter.send(logs_chunk(60), 1)
    assert caught.value.retryable
    assert path.read_bytes() == whole
    exporter.send(logs_chunk(2), 1)
    exporter.stop()
    assert len(read_saved(path).logs) == 2


def test_no_space_left_on_device_is_retryable() -> None:
    """/dev/full says ENOSPC to every write."""
    exporter = started(Path("/dev/full"))
    with pytest.raises(ExportError, match="No space left on device") as caught:
        exporter.send(logs_chunk(), 1)
    exporter.stop()
    assert caught.value.retryable


def test_missing_directory_is_a_configuration_error(tmp_path: Path) -> None:
    """At the start, with key and way out; so is a directory in the file's place."""
    with pytest.raises(ConfigError, match=r"path: .* has no directory"):
        started(tmp_path / "none" / "d")
    with pytest.raises(ConfigError, match=r"path: .* is a directory"):
        started(tmp_path)


def test_bytes_that_are_no_request_are_not_written_as_json(tmp_path: Path) -> None:
    """They are a failure that no retry mends."""
    exporter = started(tmp_path / "d")
    with pytest.raises(ExportError) as caught:
        exporter.send(Chunk("logs", b"\xff\xff", 1), 1)
    assert not caught.value.retryable
    assert not (tmp_path / "d").exists()


def test_streams_do_not_mix(tmp_path: Path) -> None:
    """Four threads write at once; every line is whole."""
    path = tmp_path / "d"
    exporter = started(path)
    threads = [threading.Thread(target=lambda: [exporter.send(logs_chunk(20), 1) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    exporter.stop()
    saved = read_saved(path)
    assert (len(saved.logs), saved.malformed) == (40, 0)


def test_bare_request_and_text_are_recognised(tmp_path: Path) -> None:
    """One ExportLogsServiceRequest as bytes is read; text is given as it is, also one that begins with a newline."""
    (tmp_path / "r").write_bytes(logs_chunk(2).body)
    assert read_saved(tmp_path / "r").logs == [logs_request(2)]
    for text in ("# dump 1\n42 10:00:00.000000 read(3) = 0 <0.1>\n", "\n42 x\n"):
        (tmp_path / "t").write_text(text)
        saved = read_saved(tmp_path / "t")
        assert (saved.format, "\n".join(saved_lines(saved, colour=False)) + "\n") == ("text", text)


def test_bad_lines_and_frames_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    """Damage in the middle hides nothing else; the first is told with its place."""
    path = tmp_path / "d.jsonl"
    exporter = started(path)
    exporter.send(logs_chunk(1), 1)
    exporter.stop()
    line = path.read_text()
    nested = '{"resourceLogs":' + "[" * 5000 + "]" * 5000 + "}\n"
    path.write_text(
        line + "{nonsense}\n\n" + '{"resourceMetrics":[]}\n' + nested + line[: len(line) // 2] + "\n" + line
    )
    saved = read_saved(path)
    assert (len(saved.logs), saved.malformed) == (2, 4)
    assert saved.problems[0].startswith("line 2 is no OTLP JSON: ")
    body = logs_chunk(1).body
    frame = len(body).to_bytes(4, "big") + body
    path.write_bytes(frame + b"\0\0\0\2\xff\xff" + frame + frame[:-1])
    saved = read_saved(path)
    assert (len(saved.logs), saved.malformed) == (2, 2)
    assert "the frame at byte" in saved.problems[0]


@pytest.mark.parametrize("data", [b"", b" \n", b"{}", b"{", b"\0\0\0\5abc", b"\x89PNG\0\0", b"\0"])
def test_files_that_are_no_dump_get_one_sentence(tmp_path: Path, data: bytes) -> None:
    """Path and cause in one line."""
    (tmp_path / "d").write_bytes(data)
    with pytest.raises(PerfbufError, match=f"reading the dump {tmp_path / 'd'}: ") as caught:
        read_saved(tmp_path / "d")
    assert "\n" not in str(caught.value)


BODY = ExportLogsServiceRequest.FromString(logs_chunk(2).body).SerializeToString()
FRAMES = (len(BODY).to_bytes(4, "big") + BODY) * 2


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_files_never_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Cuts and flipped bytes give what is left, or a PerfbufError."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    whole = bytearray(data.draw(st.sampled_from([FRAMES, BODY, b'{"resourceLogs":[{"scopeLogs":[{}]}]}\n' * 2])))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        saved = read_saved(path)
    except PerfbufError:
        return
    for line in saved_lines(saved, colour=False):
        assert saved.format == "text" or "\n" not in line
