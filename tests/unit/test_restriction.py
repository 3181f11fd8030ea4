# SPDX-License-Identifier: Apache-2.0
"""Which capabilities a configuration needs beyond the four, by what it writes and where it listens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from otel_perfbuf.service import restriction
from otel_perfbuf.service.config import parse
from otel_perfbuf.service.privileges import CAP_DAC_OVERRIDE, CAP_NET_BIND_SERVICE
from otel_perfbuf.service.restriction import needs_of


def tree(directory: Path) -> dict[str, Any]:
    """Everything in one directory, on high ports."""
    return {
        "receivers": {"perf_buffer": None, "otlp": {"protocols": {"grpc": {"endpoint": "127.0.0.1:4327"}}}},
        "connectors": {
            "flight_recorder": {
                "history": ["perf_buffer"],
                "triggers": {"socket": {"path": f"{directory}/trigger.sock"}, "span_error": None},
            }
        },
        "exporters": {"file": {"path": f"{directory}/dumps"}, "otlp_grpc": {"endpoint": "127.0.0.1:443"}},
        "extensions": {
            "control": {"path": f"{directory}/control.sock"},
            "file_storage": {"directory": f"{directory}/spool"},
            "health_check": {"endpoint": "127.0.0.1:13133"},
        },
        "service": {
            "extensions": ["control", "health_check", "file_storage"],
            "pipelines": {
                "traces/in": {"receivers": ["otlp"], "exporters": ["flight_recorder"]},
                "logs/dumps": {"receivers": ["flight_recorder"], "exporters": ["file", "otlp_grpc"]},
            },
            "telemetry": {},
        },
    }


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Sets one key."""
    *parents, key = path.split(".")
    for part in parents:
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    tree[key] = value


def test_own_places_and_high_ports_need_nothing(tmp_path: Path) -> None:
    """To connect to a low port needs no more either."""
    config = tree(tmp_path)
    config["service"]["telemetry"] = {"metrics": {"readers": [{"pull": {}}]}}
    assert needs_of(parse(config)) == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("receivers.otlp.protocols.grpc.endpoint", "127.0.0.1:317"),
        ("extensions.health_check.endpoint", "127.0.0.1:80"),
        ("service.telemetry.metrics.readers", [{"pull": {"exporter": {"prometheus": {"port": 88}}}}]),
    ],
)
def test_a_low_port_needs_to_be_bound(tmp_path: Path, path: str, value: Any) -> None:
    """Whatever listens there, and the reason says the port."""
    config = tree(tmp_path)
    config["service"]["telemetry"] = {"metrics": {"readers": []}}
    put(config, path, value)
    needs = needs_of(parse(config))
    assert set(needs) == {CAP_NET_BIND_SERVICE}
    assert " listens on port " in needs[CAP_NET_BIND_SERVICE]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("connectors.flight_recorder.triggers.socket.path", "{}/trigger.sock"),
        ("exporters.file.path", "{}/dumps"),
        ("extensions.control.path", "{}/control.sock"),
        ("extensions.file_storage.directory", "{}"),
        ("extensions.health_check.endpoint", "unix://{}/health.sock"),
        ("receivers.otlp.protocols", {"http": {"endpoint": "{}/otlp.sock", "transport": "unix"}}),
    ],
)
def test_a_place_of_another_user_needs_to_be_written(tmp_path: Path, path: str, value: Any) -> None:
    """Each kind of file and socket; a directory that everybody may write needs nothing."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, 65534, 65534)
    config = tree(tmp_path)
    if isinstance(value, dict):
        value["http"]["endpoint"] = value["http"]["endpoint"].format(theirs)
    put(config, path, value if isinstance(value, dict) else value.format(theirs))
    assert needs_of(parse(config)) == {CAP_DAC_OVERRIDE: f"{theirs} belongs to another user"}
    theirs.chmod(0o777)
    assert needs_of(parse(config)) == {}


@pytest.mark.parametrize(
    ("text", "level"), [("2\n", 0), ("-1\n", 0), ("3\n", 3), ("4\n", 4), ("rubbish", 0), (None, 0)]
)
def test_a_level_above_2_asks_for_cap_sys_admin(tmp_path: Path, text: str | None, level: int) -> None:
    """Levels 3 (Debian) and 4 (Ubuntu) are no upstream kernel's; what cannot be read asks for nothing."""
    sysctl = tmp_path / "perf_event_paranoid"
    if text is not None:
        sysctl.write_text(text)
    assert restriction._strictest_perf(sysctl) == level
