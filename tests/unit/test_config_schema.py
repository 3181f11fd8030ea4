# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of configurations agrees with the check: by jsonschema, a validator that nobody here wrote."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from otel_perfbuf.cli import main
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.service.config import load, parse, render
from otel_perfbuf.service.registry import REGISTRY, SECTIONS
from otel_perfbuf.service.schema import configuration_schema

CONFIG = Path(__file__).parents[2] / "config"
# Ours are the files whose receivers or connectors are; a Collector's or Fluent Bit's stand beside them.
OURS = sorted(
    path
    for path in CONFIG.rglob("*.yaml")
    if any(word in path.read_text() for word in ("perf_buffer", "flight_recorder:"))
    and not path.name.startswith(("collector", "fluent", "daemonset"))
)
FREE = ("headers",)  # maps with keys of the user's own


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    """Of the schema that print-config prints; the schema itself is checked against its dialect."""
    schema = configuration_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_print_config_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON, without any configuration; without either option the command says what is missing."""
    assert main(["print-config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == configuration_schema()
    assert main(["print-config"]) == 2
    assert "--config FILE, or --schema" in capsys.readouterr().err


def test_there_are_files() -> None:
    """The search below finds the files that it is for."""
    assert {path.name for path in OURS} >= {"flight-recorder.yaml", "live.yaml"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(CONFIG)))
def test_our_files_are_valid(path: Path, validator: Draft202012Validator) -> None:
    """What config/ shows, as it is written and as print-config writes it out in full."""
    assert not [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))]
    whole = yaml.safe_load(render(load([str(path)])))
    assert not [error.message for error in validator.iter_errors(whole)]


def everything() -> dict[str, Any]:
    """Each component with all its options written out, as far as it has defaults."""
    tree: dict[str, Any] = {
        "receivers": {
            "perf_buffer": {"redact": [{"pattern": "x"}]},
            "perf_buffer/live": {"program": "process", "mode": "forward"},
        },
        "connectors": {"flight_recorder": {"history": ["perf_buffer"], "triggers": {"socket": {}, "process_exit": {}}}},
        "exporters": {"file": {"path": "/x"}, "otlp_http": {"headers": {"a": "b"}}, "otlp_grpc": {}, "debug": {}},
        "extensions": {"control": {}, "health_check": {}},
        "service": {
            "extensions": ["control"],
            "pipelines": {"logs/dumps": {"receivers": ["flight_recorder"], "exporters": ["file"]}},
            "telemetry": {
                "logs": {"level": "info"},
                "metrics": {
                    "readers": [
                        {"periodic": {"exporter": {"otlp": {"headers": [{"name": "a", "value": "b"}]}}}},
                        {"pull": {"exporter": {"prometheus": {"port": 9999}}}},
                    ]
                },
            },
        },
    }
    rendered = yaml.safe_load(render(parse(tree)))
    assert isinstance(rendered, dict)
    return rendered


def maps_of(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of every map whose keys are ours."""
    if isinstance(tree, dict):
        if not path or path[-1] not in FREE:
            yield path
        for key, value in tree.items():
            yield from maps_of(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from maps_of(value, (*path, index))


def at(tree: Any, path: tuple[str | int, ...]) -> Any:
    """What is there."""
    for part in path:
        tree = tree[part]
    return tree


@pytest.mark.parametrize("path", list(maps_of(everything())), ids=lambda path: ".".join(map(str, path)) or "top")
def test_an_unknown_key_is_refused_by_both(path: tuple[str | int, ...], validator: Draft202012Validator) -> None:
    """In every map, however deep, `validate` and the schema refuse a key that there is not."""
    tree = everything()
    assert not [error.message for error in validator.iter_errors(tree)]
    wrong = copy.deepcopy(tree)
    at(wrong, path)["no_such_key"] = {}
    with pytest.raises(ConfigError, match="no_such_key"):
        parse(wrong)
    assert list(validator.iter_errors(wrong))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("receivers.perf_buffer.buffers", "everything"),
        ("receivers.perf_buffer.fd_names", "perhaps"),
        ("receivers.perf_buffer/live.watermark", "quarter"),
        ("receivers.perf_buffer.targets.pids", ["x"]),
        ("connectors.flight_recorder.scope", "galaxy"),
        ("connectors.flight_recorder.max_records", 0),
        ("exporters.file.format", "parquet"),
        ("exporters.otlp_grpc.sending_queue.num_consumers", 1000),
        ("service.telemetry.logs.level", "loud"),
        ("service.pipelines.logs/dumps.receivers", "flight_recorder"),
    ],
)
def test_wrong_values_are_refused_by_both(path: str, value: Any, validator: Draft202012Validator) -> None:
    """Words, kinds and bounds; but any of them may be an expression, whose value only `validate` sees."""
    tree = everything()
    *parents, key = path.split(".")
    at(tree, tuple(parents))[key] = value
    with pytest.raises(ConfigError):
        parse(tree)
    assert list(validator.iter_errors(tree))
    if not isinstance(value, list) and key != "receivers":
        at(tree, tuple(parents))[key] = "${env:FROM_ELSEWHERE:-x}"
        assert not list(validator.iter_errors(tree))


def test_every_component_is_in_it(validator: Draft202012Validator) -> None:
    """With or without a name, with nothing behind its id; under no other section, and no type that there is not."""
    for section in SECTIONS:
        for name, kind in REGISTRY[section].items():
            for component in (name, f"{name}/2"):
                errors = list(validator.iter_errors({section: {component: None}}))
                assert bool(errors) != kind.available, (section, component)
        assert list(validator.iter_errors({section: {"no_such_type": None}}))
    assert list(validator.iter_errors({"receivers": {"control": None}}))
