# SPDX-License-Identifier: Apache-2.0
"""Configurations: the Collector's shape, every fault at once with its key path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.service.config import load, parse, render
from otel_perfbuf.service.graph import build_graph
from otel_perfbuf.service.options import FlightRecorderOptions, PerfBufferOptions
from otel_perfbuf.service.registry import REGISTRY, components
from otel_perfbuf.triggers.process_exit import ProcessExitOptions
from otel_perfbuf.triggers.socket import SocketOptions

_CONFIG = Path(__file__).parents[2] / "config"


def _good() -> dict[str, Any]:
    return {
        "receivers": {"perf_buffer/syscalls": None, "perf_buffer/live": {"program": "process", "mode": "forward"}},
        "connectors": {"flight_recorder": {"history": ["perf_buffer/syscalls"], "triggers": {"socket": {}}}},
        "exporters": {"otlp_grpc": {"headers": {"Authorization": "Bearer 123"}}, "file": {"path": "x.jsonl"}},
        "extensions": {"control": None},
        "service": {
            "extensions": ["control"],
            "pipelines": {
                "logs/dumps": {"receivers": ["flight_recorder"], "exporters": ["otlp_grpc", "file"]},
                "traces/dumps": {"receivers": ["flight_recorder"], "exporters": ["otlp_grpc"]},
                "logs/live": {"receivers": ["perf_buffer/live"], "exporters": ["file"]},
            },
        },
    }


def _problems(tree: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as found:
        parse(tree)
    return dict(found.value.problems)


def test_the_default_files_values_are_the_codes() -> None:
    """Each value that config/flight-recorder.yaml shows is what the code takes when it is left out."""
    written = yaml.safe_load((_CONFIG / "flight-recorder.yaml").read_text())
    configuration = load([str(_CONFIG / "flight-recorder.yaml")])
    receiver = configuration.receivers["perf_buffer/syscalls"].options
    assert isinstance(receiver, PerfBufferOptions)
    assert receiver == PerfBufferOptions()
    recorder = configuration.connectors["flight_recorder"].options
    assert isinstance(recorder, FlightRecorderOptions)
    triggers = recorder.triggers
    assert (triggers.socket, triggers.process_exit) == (SocketOptions(), ProcessExitOptions())
    left_out = FlightRecorderOptions(history=recorder.history, triggers=triggers)
    assert recorder == left_out
    grpc = REGISTRY["exporters"]["otlp_grpc"].options()
    plain = grpc.model_validate({"tls": {"insecure": True}, "sending_queue": {"storage": "file_storage"}})
    assert configuration.exporters["otlp_grpc"].options == plain
    control = REGISTRY["extensions"]["control"].options()
    assert configuration.extensions["control"].options == control()
    spool = REGISTRY["extensions"]["file_storage"].options()
    assert configuration.extensions["file_storage"].options == spool()
    assert configuration.service.telemetry == type(configuration.service.telemetry)()
    assert set(written["receivers"]["perf_buffer/syscalls"]) | {
        "map",
        "event_name",
        "watermark",
        "fd_names",
        "redact",
    } == set(PerfBufferOptions.model_fields), "a key that the default file does not show"


def test_the_live_file_adds_to_the_default_file() -> None:
    """Both files together give both pipelines; alone, live.yaml is a whole configuration."""
    load([str(_CONFIG / "live.yaml")])
    both = load([str(_CONFIG / "flight-recorder.yaml"), str(_CONFIG / "live.yaml")])
    graph = build_graph(both)
    assert graph.forward == ("perf_buffer/process",)
    assert graph.recorders == ("flight_recorder",)


def test_the_graph_joins_signals_by_exporter() -> None:
    """An exporter in a logs and a traces pipeline of one source gets both; unused components are not started."""
    tree = _good()
    tree["exporters"]["debug"] = None
    graph = build_graph(parse(tree))
    ways = {route.exporter: set(route.signals) for route in graph.routes["flight_recorder"]}
    assert ways == {"otlp_grpc": {"logs", "traces"}, "file": {"logs"}}
    assert set(graph.exporters) == {"otlp_grpc", "file"}


def test_all_faults_are_told_at_once() -> None:
    """Wrong values, unknown keys, types and ids, and wrong joints are all in one error."""
    tree = _good()
    tree["receivers"]["perf_buffer/syscalls"] = {"per_cpu_byte": 1, "targets": {"pids": ["x"]}, "watermark": "quarter"}
    tree["receivers"]["perf_bufer"] = None
    tree["receivers"]["Bad Id"] = None
    tree["connectors"]["flight_recorder"]["hold_off"] = 30
    tree["exporters"]["otlp_grpc"]["sending_queue"] = {"size": 1}
    tree["extensions"]["control"] = ["list"]
    tree["service"]["pipelines"]["logs/live"]["exporters"] = ["otlp_http"]
    tree["service"]["pipelines"]["metrics"] = {"receivers": ["perf_buffer/live"], "exporters": ["file"]}
    tree["service"]["extensions"] = ["pprof"]
    tree["recievers"] = {}
    problems = _problems(tree)
    assert set(problems) >= {
        "receivers.perf_buffer/syscalls.per_cpu_byte",
        "receivers.perf_buffer/syscalls.targets.pids.0",
        "receivers.perf_buffer/syscalls.watermark",
        "receivers.perf_bufer",
        "receivers.Bad Id",
        "connectors.flight_recorder.hold_off",
        "exporters.otlp_grpc.sending_queue.size",
        "extensions.control",
        "service.pipelines.logs/live.exporters.0",
        "service.pipelines.metrics",
        "service.extensions.0",
        "recievers",
    }
    assert "known here: program" in problems["receivers.perf_buffer/syscalls.per_cpu_byte"]
    assert "perf_buffer" in problems["receivers.perf_bufer"]


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"service": None}, "service.pipelines", "no pipeline"),
        ({"service": 7}, "service", "a map"),
        ({"receivers": []}, "receivers", "a map"),
        ({"processors": {"batch": None}}, "processors", "Collector"),
        ({"connectors": {"flight_recorder": {}}}, "connectors.flight_recorder.history", "name the overwritable"),
        (
            {"connectors": {"flight_recorder": {"history": ["perf_buffer/live"]}}},
            "connectors.flight_recorder.history.0",
            "forward",
        ),
        (
            {"connectors": {"flight_recorder": {"history": ["nope"]}}},
            "connectors.flight_recorder.history.0",
            "no receiver",
        ),
    ],
)
def test_wrong_joints(change: dict[str, Any], path: str, words: str) -> None:
    """What does not fit together is told where it is written."""
    assert words in _problems({**_good(), **change})[path]


def test_an_overwritable_receiver_in_a_pipeline() -> None:
    """It is an error that tells where the receiver belongs instead."""
    tree = _good()
    tree["service"]["pipelines"]["logs/live"]["receivers"] = ["perf_buffer/syscalls"]
    assert "history of a flight_recorder" in _problems(tree)["service.pipelines.logs/live.receivers.0"]


def test_a_recorder_whose_dumps_go_nowhere() -> None:
    """A flight recorder that begins no logs pipeline is an error."""
    tree = _good()
    del tree["service"]["pipelines"]["logs/dumps"]
    assert "go nowhere" in _problems(tree)["connectors.flight_recorder"]


def test_two_recorders_cannot_share_a_history() -> None:
    """Each process's end is told once, so a receiver has one recorder."""
    tree = _good()
    tree["connectors"]["flight_recorder/2"] = tree["connectors"]["flight_recorder"]
    tree["service"]["pipelines"]["logs/2"] = {"receivers": ["flight_recorder/2"], "exporters": ["file"]}
    assert "already" in _problems(tree)["connectors.flight_recorder/2.history.0"]


@pytest.mark.parametrize(
    ("section", "component", "options", "path"),
    [
        ("receivers", "fluent_forward", {"users": {"a": "b"}}, "receivers.fluent_forward"),
        (
            "receivers",
            "perf_buffer/syscalls",
            {"ring": "shared", "snapshot": "swap"},
            "receivers.perf_buffer/syscalls.ring",
        ),
        (
            "receivers",
            "perf_buffer/x",
            {"program": "process", "mode": "forward", "ring": "shared"},
            "receivers.perf_buffer/x.ring",
        ),
        (
            "receivers",
            "perf_buffer/x",
            {"program": "process", "mode": "forward", "snapshot": "swap"},
            "receivers.perf_buffer/x.snapshot",
        ),
        ("receivers", "perf_buffer/syscalls", {"mode": "kafka"}, "receivers.perf_buffer/syscalls.mode"),
        ("receivers", "perf_buffer/x", {"program": "my.bpf.o"}, "receivers.perf_buffer/x.program"),
        ("receivers", "perf_buffer/x", {"map": "/sys/fs/bpf/x"}, "receivers.perf_buffer/x.program"),
        (
            "receivers",
            "perf_buffer/syscalls",
            {"redact": [{"pattern": "("}]},
            "receivers.perf_buffer/syscalls.redact.0",
        ),
        ("extensions", "file_storage", {"max_bytes": "1KiB"}, "extensions.file_storage.max_bytes"),
        ("extensions", "file_storage", {"directory": "spool"}, "extensions.file_storage.directory"),
        ("exporters", "file/2", {"path": "y", "format": "parquet"}, "exporters.file/2.format"),
    ],
)
def test_what_is_not_available_is_said(section: str, component: str, options: Any, path: str) -> None:
    """What this version cannot do is refused where it is configured, not ignored."""
    tree = _good()
    tree[section][component] = options
    assert path in _problems(tree)


def test_swap_counts_twice() -> None:
    """Two rings a CPU and a copy of both must fit into max_total_bytes."""
    tree = _good()
    cpus = os.cpu_count() or 1
    fits = {"per_cpu_bytes": "1MiB", "max_total_bytes": cpus * (4 << 20), "snapshot": "swap"}
    tree["receivers"]["perf_buffer/syscalls"] = fits
    parse(tree)
    fits["max_total_bytes"] = cpus * (4 << 20) - 1
    assert "x twice per_cpu_bytes" in _problems(tree)["receivers.perf_buffer/syscalls.max_total_bytes"]


def test_a_registered_reader_can_be_a_mode(register_readers: Callable[..., Path]) -> None:
    """With the process program, or with a map of its own that no program of ours fills; not with syscalls."""
    register_readers(datagrams="custom_reader:DatagramReader")
    tree = _good()
    for options in ({"program": "process"}, {"map": "127.0.0.1:0"}, {"map": "/sys/fs/bpf/x"}):
        tree["receivers"]["perf_buffer/live"] = {"mode": "datagrams", **options}
        configuration = parse(tree)
        receiver = configuration.receivers["perf_buffer/live"].options
        assert isinstance(receiver, PerfBufferOptions)
        assert receiver.program == options.get("program")
        assert build_graph(configuration).forward == ("perf_buffer/live",)
    tree["receivers"]["perf_buffer/live"] = {"mode": "datagrams"}
    assert "overwritable only" in _problems(tree)["receivers.perf_buffer/live.mode"]
    tree["receivers"]["perf_buffer/live"]["mode"] = "datagram"
    assert "forward, overwritable, datagrams" in _problems(tree)["receivers.perf_buffer/live.mode"]


@pytest.mark.parametrize(
    ("extensions", "started", "storage", "sentence"),
    [
        ({}, [], "file_storage", "there is no extension file_storage"),
        ({"file_storage": None}, [], "file_storage", "add it to service.extensions"),
        ({"control": None}, ["control"], "control", "control is no file_storage"),
    ],
)
def test_a_queue_names_a_spool_that_is_started(
    extensions: dict[str, Any], started: list[str], storage: str, sentence: str
) -> None:
    """A storage that is not there, not started or something else is an error at its key."""
    tree = _good()
    tree["extensions"] = extensions
    tree["service"]["extensions"] = started
    tree["exporters"]["otlp_grpc"] = {"sending_queue": {"storage": storage}}
    assert sentence in _problems(tree)["exporters.otlp_grpc.sending_queue.storage"]


def test_two_spools_cannot_share_a_directory() -> None:
    """Each has one of its own."""
    tree = _good()
    tree["extensions"] |= {"file_storage/a": {"directory": "/x"}, "file_storage/b": {"directory": "/x/"}}
    assert "is the directory of file_storage/a" in _problems(tree)["extensions.file_storage/b.directory"]


@pytest.mark.parametrize(
    ("trigger", "key", "words"),
    [
        ({"syscall_error": {"syscalls": ["conect"], "errnos": ["EPERM"]}}, "syscall_error.syscalls", "connect"),
        ({"syscall_error": {"syscalls": ["connect"], "errnos": ["ENOPE"]}}, "syscall_error.errnos", "ENOPE"),
        ({"syscall_latency": {"longer_than": "1s", "syscalls": ["%nett"]}}, "syscall_latency.syscalls", "%net"),
        ({"syscall_latency": {"longer_than": "-1s"}}, "syscall_latency.longer_than", "1m"),
    ],
)
def test_triggers_of_the_kernel_are_checked(trigger: dict[str, Any], key: str, words: str) -> None:
    """Names of calls and errors that there are none of, with the close ones."""
    tree = _good()
    tree["connectors"]["flight_recorder"]["triggers"] = trigger
    (path,) = [path for path in _problems(tree) if path.startswith("connectors.flight_recorder.triggers." + key)]
    assert words in _problems(tree)[path]


def test_triggers_without_values_are_off() -> None:
    """syscall_error without both lists and latencies of 0s are off, so they are no errors."""
    tree = _good()
    tree["connectors"]["flight_recorder"]["triggers"] = {
        "syscall_error": {"syscalls": ["openat"]},
        "span_latency": {},
        "syscall_latency": {"longer_than": "0s"},
        "socket": None,
    }
    options = parse(tree).connectors["flight_recorder"].options
    assert isinstance(options, FlightRecorderOptions)
    assert options.triggers.socket == SocketOptions()
    assert options.triggers.process_exit is None


def test_values_of_secrets_are_in_no_error() -> None:
    """A wrong header is told without its value."""
    tree = _good()
    tree["exporters"]["otlp_grpc"]["headers"] = {"Authorization": ["Bearer 123"]}
    tree["exporters"]["file"]["token"] = "hunter2"
    text = str(_problems(tree))
    assert "headers.Authorization" in text
    assert "123" not in text
    assert "hunter2" not in text


def test_printed_configurations_hide_secrets_and_load_again(tmp_path: Path) -> None:
    """print-config redacts header values, writes durations and sizes as people do, and is a configuration itself."""
    configuration = parse(_good())
    text = render(configuration)
    assert "Bearer" not in text
    assert "[REDACTED]" in text
    assert "per_cpu_bytes: 4MiB" in text
    assert "hold_off: 30s" in text
    (tmp_path / "again.yaml").write_text(text)
    again = load([str(tmp_path / "again.yaml")])
    assert again.receivers == configuration.receivers
    assert again.connectors == configuration.connectors
    assert again.service == configuration.service
    assert render(again) == text


def test_every_kind_of_secret_is_hidden() -> None:
    """Headers, keys and passwords by their type, whatever their names, and the user's part of a URL."""
    tree = _good()
    tree["exporters"]["otlp_http"] = {"endpoint": "http://me:hunter2@host:4318", "headers": {"x-scope": "hunter3"}}
    tree["exporters"]["fluent_forward"] = {"shared_key": "hunter4", "tls": {"insecure": True}}
    text = render(parse(tree))
    assert "hunter" not in text
    assert "http://[REDACTED]@host:4318" in text
    assert "shared_key: '[REDACTED]'" in text
    assert "**" not in text


def _load(tmp_path: Path, *texts: str, sets: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> Any:
    files = []
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
        files.append(str(tmp_path / f"{number}.yaml"))
    return load(files, sets, environment or {})


_BASE = yaml.safe_dump(_good())


def test_later_files_merge_maps_and_replace_lists(tmp_path: Path) -> None:
    """A later file adds keys, replaces scalars and whole lists; --set comes last."""
    later = """
receivers: {perf_buffer/syscalls: {per_cpu_bytes: 1MiB, targets: {comms: [a]}}}
service: {pipelines: {logs/dumps: {receivers: [flight_recorder], exporters: [file]}}}
"""
    latest = "receivers: {perf_buffer/syscalls: {targets: {comms: [b]}}}"
    sets = ("receivers.perf_buffer/syscalls.per_cpu_bytes=2MiB", "connectors.flight_recorder.scope=host")
    configuration = _load(tmp_path, _BASE, later, latest, sets=sets)
    receiver = configuration.receivers["perf_buffer/syscalls"].options
    assert receiver.per_cpu_bytes == 2 << 20
    assert receiver.targets.comms == ("b",)
    assert configuration.connectors["flight_recorder"].options.scope == "host"
    assert configuration.service.pipelines["logs/dumps"].exporters == ("file",)
    assert "logs/live" in configuration.service.pipelines


def test_expressions_are_expanded(tmp_path: Path) -> None:
    """${env:}, defaults, ${file:} without its last newline, $$, and numbers for numeric keys."""
    (tmp_path / "token").write_text("s3cret\n")
    later = f"""
exporters:
  otlp_grpc:
    endpoint: ${{env:HOST}}:${{env:PORT:-4317}}
    headers: {{authorization: "Bearer ${{file:{tmp_path}/token}}", cost: $$5}}
connectors: {{flight_recorder: {{max_records: "${{env:RECORDS}}"}}}}
"""
    configuration = _load(tmp_path, _BASE, later, environment={"HOST": "collector", "RECORDS": "77", "PORT": ""})
    exporter = configuration.exporters["otlp_grpc"].options
    assert exporter.endpoint == "collector:4317"
    assert exporter.headers["authorization"].get_secret_value() == "Bearer s3cret"
    assert exporter.headers["cost"].get_secret_value() == "$5"
    assert configuration.connectors["flight_recorder"].options.max_records == 77


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("${env:NOT_THERE}", "NOT_THERE is not set"),
        ("${file:/not/there}", "No such file"),
        ("${NOT_THERE}", "none of"),
        ("${env:1x}", "no environment variable"),
    ],
)
def test_wrong_expressions(tmp_path: Path, value: str, words: str) -> None:
    """An expression that cannot be expanded is told with the key it is in."""
    with pytest.raises(ConfigError) as found:
        _load(tmp_path, _BASE, f"exporters: {{file: {{path: '{value}'}}}}")
    problems = dict(found.value.problems)
    assert words in problems["exporters.file.path"]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: [1\nb: 2\n", "2:2", "no YAML"),
        ("receivers: {}\nservice: {}\nreceivers: {}\n", "3:1", "receivers is there twice"),
        ("a: &x {b: 1}\nc: *x\n", "2:4", "aliases"),
        ("? [1, 2]\n: 3\n", "1:3", "no plain text"),
        ("- 1\n", "", "no map"),
        ("a: !!python/object:os.system x\n", "1:4", "no YAML"),
        ("a: " + "[" * 200 + "]" * 200, "", "nested too deeply"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, place: str, words: str) -> None:
    """YAML faults have file, line and column."""
    with pytest.raises(ConfigError) as found:
        _load(tmp_path, text)
    ((path, sentence),) = found.value.problems
    assert path == str(tmp_path / "0.yaml") + (f":{place}" if place else "")
    assert words in sentence


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """All of them are told."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError) as found:
        load([str(tmp_path / "missing"), str(tmp_path), str(tmp_path / "binary")], ["nonsense"])
    assert [path.removeprefix(str(tmp_path)) for path, _ in found.value.problems] == [
        "/missing",
        "",
        "/binary",
        "--set nonsense",
    ]


def test_components_are_those_that_work() -> None:
    """The list has every section, with a stability each, and nothing that `validate` refuses."""
    listed = components()
    assert list(listed) == ["receivers", "connectors", "exporters", "extensions"]
    assert {"name": "perf_buffer", "stability": "beta"} in listed["receivers"]
    assert [kind["name"] for kind in listed["receivers"]] == ["perf_buffer", "otlp", "fluent_forward"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)  # a loaded machine is no fault
@given(st.data())
def test_no_tree_ends_in_anything_but_problems(data: st.DataObject) -> None:
    """Whatever is put in some place of a good configuration, the outcome is a configuration or a list of problems."""
    tree: Any = _good()
    place = tree
    for _ in range(data.draw(st.integers(0, 4))):
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key]:
            break
        place = place[key]
    place[data.draw(st.sampled_from(sorted(place)) | st.text(max_size=9))] = data.draw(_json)
    try:
        parse(tree)
    except ConfigError as fault:
        assert fault.problems
        assert all(sentence for _, sentence in fault.problems)


def test_fluent_carries_no_spans() -> None:
    """In a traces pipeline the Fluent exporter is an error at its place."""
    tree = _good()
    tree["exporters"]["fluent_forward"] = None
    tree["service"]["pipelines"]["traces/dumps"] = {"receivers": ["flight_recorder"], "exporters": ["fluent_forward"]}
    assert "log records only" in _problems(tree)["service.pipelines.traces/dumps.exporters.0"]


@pytest.mark.parametrize(
    ("pipeline", "triggers", "sentence"),
    [
        ("traces/in", {"log_severity": {}}, "gives log records"),
        ("logs/in", {}, "has no trigger log_severity"),
    ],
)
def test_fluent_in_needs_a_trigger(pipeline: str, triggers: dict[str, Any], sentence: str) -> None:
    """Where its logs could never fire, the pipeline says so."""
    tree = _good()
    tree["receivers"]["fluent_forward"] = None
    tree["connectors"]["flight_recorder"]["triggers"] = triggers
    tree["service"]["pipelines"][pipeline] = {"receivers": ["fluent_forward"], "exporters": ["flight_recorder"]}
    assert sentence in _problems(tree)[f"service.pipelines.{pipeline}.receivers.0"]
