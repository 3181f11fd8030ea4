# SPDX-License-Identifier: Apache-2.0
"""The text form of dumps, and the debug exporter: what people read."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator

import pytest
from export_samples import BEGIN_NS, DUMP_ID, logs_chunk, logs_request, traces_chunk, traces_request
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.errors import ConfigError, ExportError
from otel_perfbuf.exporters import components, debug
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.exporters.text import dumps_of, nothing_to_dump, render, text_lines

RECORD = re.compile(r"\d+ \d\d:\d\d:\d\d\.\d{6} .+")


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC here."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def shown(*requests: ExportLogsServiceRequest, lines: int | None = None, colour: bool = False) -> list[str]:
    """The lines of all dumps in these requests and the dump span."""
    return [
        line for dump in dumps_of(requests, [traces_request()]) for line in text_lines(dump, lines=lines, colour=colour)
    ]


def test_whole_dump() -> None:
    """The dump's id, trigger, trace and span first, a record a line with its seconds, the summary last."""
    assert shown(logs_request(3, header=True)) == [
        f"# dump {DUMP_ID}: span_error: ConnectionRefusedError: no",
        "# trace 4bf92f3577b34da6a3ce929d0e0e4736 span 00f067aa0ba902b7",
        '42 22:13:20.000000 openat(AT_FDCWD, "file0", O_RDONLY) = 3 <0.000001>',
        '42 22:13:20.001000 openat(AT_FDCWD, "file1", O_RDONLY) = 3 <0.000001>',
        '42 22:13:20.002000 openat(AT_FDCWD, "file2", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000001>',
        "# 3 records of 1 process over 0.002 s",
        "# failed: openat ENOENT",
        "# not here: 7 overwritten",
    ]


def test_failing_span_is_known_from_records_alone() -> None:
    """Without the dump span the span of thread_window records is shown; without any the dump's own, and said so."""
    alone = list(text_lines(dumps_of([logs_request(1, header=True)])[0]))
    assert alone[1] == "# trace 4bf92f3577b34da6a3ce929d0e0e4736 span 00f067aa0ba902b7"
    bare = list(text_lines(dumps_of([logs_request(0, header=True)])[0]))
    assert bare[1].endswith("span 1122334455667788 (the dump's own: no span was reported)")


def test_records_of_all_chunks_and_processes_are_in_time_order() -> None:
    """Chunks may come in any order (they are sent over several streams); lines ascend in time."""
    later = logs_request(50, begin_ns=BEGIN_NS + 50_000_000)
    other = logs_request(100, begin_ns=BEGIN_NS + 500_000, pid=43)
    lines = [line for line in shown(later, other, logs_request(50, header=True)) if not line.startswith("#")]
    assert len(lines) == 200
    times = [line.split()[1] for line in lines]
    assert times == sorted(times)
    assert {line.split()[0] for line in lines} == {"42", "43"}


def test_limit_shows_failed_calls_and_the_last_records() -> None:
    """With two lines: the newest eight failed calls, the last two records, and how many are left out in between."""
    lines = shown(logs_request(100, header=True), lines=2)
    records = [line for line in lines if not line.startswith("#")]
    numbers = [int(re.search(r"file(\d+)", line)[1]) for line in records]  # type: ignore[index]
    assert numbers == [74, 77, 80, 83, 86, 89, 92, 95, 98, 99]
    assert lines[2] == "# ... 74 records left out"
    left_out = sum(int(line.split()[2]) for line in lines if line.startswith("# ... "))
    assert left_out + len(records) == 100
    assert "# 100 records of 1 process over 0.099 s" in lines


def test_no_lines_is_header_and_summary_only() -> None:
    """What goes to stderr when a file has the rest."""
    lines = shown(logs_request(100, header=True), lines=0)
    assert all(line.startswith("#") for line in lines)
    assert "# failed: openat ENOENT (33 times)" in lines
    assert not any("left out" in line for line in lines)


def test_call_in_flight_shows_its_age() -> None:
    """How long a blocked call has lasted is told apart from how long a finished one took."""
    request = logs_request(1)
    record = request.resource_logs[0].scope_logs[0].log_records[0]
    record.body.string_value = "read(0, <unfinished ...>"
    for pair in record.attributes:
        if pair.key == "perfbuf.syscall.state":
            pair.value.string_value = "in_flight"
        if pair.key == "perfbuf.duration_ns":
            pair.value.int_value = 15_002_000_000
    assert "42 22:13:20.000000 read(0, <unfinished ...> <15.002 s so far>" in shown(request)


def test_records_of_no_thread_are_comments_in_their_place() -> None:
    """Lost records of a CPU stand where they are missing, and every line that is no record begins with #."""
    request = logs_request(2)
    lost = (
        request.resource_logs[0]
        .scope_logs[0]
        .log_records.add(event_name="perfbuf.lost", time_unix_nano=BEGIN_NS + 500_000, severity_number=9)
    )
    lost.body.string_value = "lost 12 records (overwritten)"
    lost.attributes.add(key="perfbuf.dump.id").value.string_value = DUMP_ID
    lines = shown(request)
    assert lines[3] == "# 22:13:20.000500 lost 12 records (overwritten)"
    assert all(line.startswith("#") or RECORD.fullmatch(line) for line in lines)


def test_bodies_cannot_steer_the_terminal() -> None:
    """Escape sequences, line breaks and direction marks of a body are shown, not obeyed."""
    request = logs_request(1, header=True)
    records = request.resource_logs[0].scope_logs[0].log_records
    records[1].body.string_value = "a\x1b[2Jb\nc\u202ed\x9be"
    records[0].attributes[2].value.string_value = "bad\nreason\x1b"
    lines = shown(request)
    assert "42 22:13:20.000000 a\\x1b[2Jb\\x0ac\\u202ed\\x9be <0.000001>" in lines
    assert lines[0].endswith("bad\\x0areason\\x1b")


def test_colours() -> None:
    """Errors red, failed calls yellow, comments dim, the rest plain; without colour no escape at all."""
    request = logs_request(3, header=True)
    request.resource_logs[0].scope_logs[0].log_records[1].severity_number = 17
    painted = shown(request, colour=True)
    assert painted[0].startswith("\x1b[2m# dump")
    assert [line[:5] for line in painted[2:5]] == ["\x1b[31m", "42 22", "\x1b[33m"]
    assert "\x1b" not in "".join(shown(request))


def test_several_dumps_are_shown_in_turn() -> None:
    """Records are filed under their own dump."""
    other = "f" * 32
    lines = shown(logs_request(2, header=True), logs_request(1, header=True, dump_id=other), logs_request(1))
    heads = [number for number, line in enumerate(lines) if line.startswith("# dump")]
    assert [lines[number].split()[2].rstrip(":") for number in heads] == [DUMP_ID, other]
    assert sum(RECORD.fullmatch(line) is not None for line in lines[: heads[1]]) == 3


def test_render_of_chunks() -> None:
    """The recorder's chunks and a saved file's messages give the same lines; bytes that are none give one sentence."""
    request = logs_request(3, header=True)
    chunks = [Chunk("logs", request.SerializeToString(), 3), traces_chunk()]
    assert list(render(chunks, lines=None, colour=False)) == shown(request)
    with pytest.raises(ValueError, match="no OTLP request"):
        list(render([Chunk("logs", b"\xff\xff", 3)], lines=None, colour=False))


def test_nothing_to_dump() -> None:
    """The contract's line."""
    assert nothing_to_dump("exited with 0") == "# nothing to dump: CMD exited with 0 and reported no error"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(0, 10))
def test_any_times_and_limits(times: list[int], lines: int) -> None:
    """Whatever the times, every record is shown or counted as left out, and the order of shown ones ascends."""
    request = logs_request(len(times))
    for record, time_ns in zip(request.resource_logs[0].scope_logs[0].log_records if times else [], times, strict=True):
        record.time_unix_nano = time_ns
        record.body.string_value = f"t{time_ns:020}"
    got = [line for line in shown(request, lines=lines or None) if not line.startswith("# trace")]
    bodies = [found[0] for line in got if (found := re.search(r"t\d{20}", line)) and not line.startswith("# failed")]
    assert bodies == sorted(bodies)
    left_out = sum(int(line.split()[2].replace(",", "")) for line in got if line.startswith("# ... "))
    assert len(bodies) + left_out == len(times)


@pytest.mark.parametrize("verbosity", ["basic", "normal", "detailed"])
def test_debug_exporter(verbosity: str) -> None:
    """Counts always; a line a record with normal; every field with detailed, as the Collector's prints them."""
    out = io.StringIO()
    exporter = debug.DebugExporter(debug.Options.model_validate({"verbosity": verbosity}), out)
    exporter.start()
    assert exporter.send(logs_chunk(2), 1) == exporter.send(traces_chunk(), 1) == 0
    exporter.stop()
    lines = out.getvalue().splitlines()
    assert 'Logs\t{"resource logs": 1, "log records": 2}' in lines
    assert 'Traces\t{"resource spans": 1, "spans": 1}' in lines
    if verbosity == "normal":
        assert any(line.startswith('openat(AT_FDCWD, "file0", O_RDONLY) = 3 perfbuf.syscall ') for line in lines)
    if verbosity == "detailed":
        for line in (
            "     -> service.name: Str(checkout)", "     -> perfbuf.duration_ns: Int(1234)", "SeverityNumber: Info(9)",
            "Timestamp: 2023-11-14 22:13:20 +0000 UTC", "Trace ID: 4bf92f3577b34da6a3ce929d0e0e4736",
            "    Kind           : Internal", "    Status code    : Ok",
        ):  # fmt: skip
            assert line in lines, line


def test_debug_exporters_closed_stream_is_a_failure() -> None:
    """A stream that is gone fails the chunk in a sentence; nothing else happens."""
    out = io.StringIO()
    out.close()
    with pytest.raises(ExportError, match="printing 1 log record failed"):
        debug.DebugExporter(debug.Options(), out).send(logs_chunk(1), 1)


def test_every_component_has_its_module() -> None:
    """The list and the modules say the same, and each makes an exporter of its defaults."""
    for component_type, stability in components.EXPORTERS.items():
        module = components.exporter_module(component_type)
        assert (component_type, stability) == (module.TYPE, module.STABILITY)
        needed = {"path": "/tmp/x"} if component_type == "file" else {}
        exporter = module.create(module.Options.model_validate(needed))
        assert callable(exporter.send)
        with pytest.raises(ValueError, match="Extra inputs"):
            module.Options.model_validate({**needed, "nonsense": 1})
    with pytest.raises(KeyError):
        components.exporter_module("kafka")


@pytest.mark.parametrize(
    ("endpoint", "kind"),
    [("http://h:4318", "OtlpHttpExporter"), ("https://h", "OtlpHttpExporter"), ("grpc://h:4317", "OtlpGrpcExporter"),
     ("grpcs://h:4317/", "OtlpGrpcExporter"), ("unix:///run/otlp.sock", "OtlpGrpcExporter")],
)  # fmt: skip
def test_exporter_for_an_endpoint(endpoint: str, kind: str) -> None:
    """The scheme chooses the exporter."""
    assert type(components.exporter_for_endpoint(endpoint)).__name__ == kind


@pytest.mark.parametrize("endpoint", ["", "h:4317", "grpc://h", "http://", "unix://relative", "ftp://h:1"])
def test_endpoint_that_cannot_be(endpoint: str) -> None:
    """One sentence with the forms that can."""
    with pytest.raises(ConfigError, match="write http://HOST:4318"):
        components.exporter_for_endpoint(endpoint)


def test_secrets_are_redacted_when_printed() -> None:
    """Header values appear neither in a dump of the options nor in their repr; the wire gets them."""
    options = components.exporter_module("otlp_http").Options.model_validate({"headers": {"Authorization": "s3cret"}})
    assert "s3cret" not in options.model_dump_json() + repr(options)
    assert options.plain_headers() == {"authorization": "s3cret"}  # type: ignore[attr-defined]
    for headers in ({"a b": "x"}, {"a": "x\r\ny"}, {"": "x"}):
        with pytest.raises(ValueError, match="header"):
            components.exporter_module("otlp_http").Options.model_validate({"headers": headers})
