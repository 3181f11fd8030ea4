# SPDX-License-Identifier: Apache-2.0
"""validate, print-config, components, dump and status as a person calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from otel_perfbuf.cli.main import main
from otel_perfbuf.service.control import Control, ControlBackend, DumpSummary
from otel_perfbuf.service.options import ControlOptions

_DEFAULT = str(Path(__file__).parents[2] / "config" / "flight-recorder.yaml")


def test_validate_prints_nothing_when_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 and no output."""
    assert main(["validate", "--config", _DEFAULT]) == 0
    assert capsys.readouterr() == ("", "")


def test_validate_prints_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and `KEY.PATH: sentence` lines on stderr, nothing else."""
    sets = ["--set", "connectors.flight_recorder.hold_off=30", "--set", "receivers.perf_buffer/syscalls.rings=2"]
    assert main(["validate", "--config", _DEFAULT, *sets]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = sorted(err.splitlines())
    assert [line.partition(": ")[0] for line in lines] == [
        "connectors.flight_recorder.hold_off",
        "receivers.perf_buffer/syscalls.rings",
    ]


def _environment() -> dict[str, str]:
    """Of an interpreter that loads our C parts: with the sanitizers' run time where they were built with it."""
    return {**os.environ, "LD_PRELOAD": os.environ["OTEL_PERFBUF_TEST_PRELOAD"]}


def test_validate_loads_no_kernel_part() -> None:
    """It opens nothing: the modules that could are not even imported."""
    code = (
        "import sys; from otel_perfbuf.cli.main import main\n"
        f"assert main(['validate', '--config', {_DEFAULT!r}]) == 0\n"
        "loaded = {f'otel_perfbuf.{part}' for part in ('bpf', 'rings', 'recorder')} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment())


def test_print_config_and_components_are_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    """Both can be read by a YAML parser."""
    assert main(["print-config", "--config", _DEFAULT, "--set", "connectors.flight_recorder.scope=host"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["connectors"]["flight_recorder"]["scope"] == "host"
    assert main(["components"]) == 0
    listed = yaml.safe_load(capsys.readouterr().out)
    assert {"name": "otlp_grpc", "stability": "beta"} in listed["exporters"]


def test_dump_and_status(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`dump` prints the id and counts, `status` one line a component; both as JSON too."""
    status = {
        "version": "1",
        "pid": 7,
        "uptime_seconds": 61.5,
        "receivers": {
            "perf_buffer": {"mode": "overwritable", "ring_bytes": 8 << 20, "lost": 0, "history_seconds": 4.5}
        },
        "connectors": {
            "flight_recorder": {"fired": {"manual": 2}, "suppressed": {}, "refused": {}, "dumps": {"made": 2}},
            "flight_recorder/b": {"warm_up_left_s": 12.5},
        },
        "exporters": {"file": {"queue_size": 0, "queue_capacity": 1000, "sent": 5}},
        "spool_bytes": 0,
    }
    path = str(tmp_path / "control.sock")
    control = Control(
        ControlOptions(path=path),
        ControlBackend(lambda _: DumpSummary("ab" * 16, 3, 2, 1), lambda: status, lambda: ""),
    )
    control.start()
    try:
        assert main(["dump", "--pid", "1", "--control", path]) == 0
        assert capsys.readouterr().out == "ab" * 16 + " records=3 lost=2 overwritten=1\n"
        monkeypatch.setenv("OTEL_PERFBUF_CONTROL_SOCKET", path)
        assert main(["dump", "--all", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["records"] == 3
        assert main(["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == status
        assert main(["status"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "agent 1 pid=7 up=1m1s",
            "perf_buffer ring_bytes=8MiB history=4.5s lost=0",
            "flight_recorder fired=2 suppressed=0 refused=0 dumps=2",
            "flight_recorder/b fired=0 suppressed=0 refused=0 dumps=0 warm_up_left=12.5s",
            "file queue=0/1000 sent=5 failed=0 rejected=0 dropped=0",
            "spool=0",
        ]
        assert main(["dump", "--cgroup", "relative"]) == 2
        assert "cgroup is no path" in capsys.readouterr().err
    finally:
        control.stop()
    assert main(["status"]) == 1
    assert "no agent listens there" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["dump"], ["dump", "--pid", "1", "--all"], ["dump", "--pid", "x"], ["validate"]])
def test_usage_errors(words: list[str]) -> None:
    """Exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give it up")
def test_run_without_capabilities_ends_with_77() -> None:
    """`run` ends at once with one sentence that names what is missing."""
    ended = subprocess.run(
        [
            "setpriv",
            "--bounding-set=-all",
            "--inh-caps=-all",
            sys.executable,
            "-m",
            "otel_perfbuf",
            "run",
            "--config",
            _DEFAULT,
        ],
        capture_output=True,
        text=True,
        env=_environment(),
    )
    assert ended.returncode == 77
    assert "CAP_BPF and CAP_PERFMON" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
