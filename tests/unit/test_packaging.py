# SPDX-License-Identifier: Apache-2.0
"""What config/ has for systemd, containers and Kubernetes, checked by systemd's and Kubernetes' own rules."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from otel_perfbuf.service import privileges
from otel_perfbuf.service.config import load

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "config" / "systemd" / "otel-perfbuf.service"
DAEMONSET = ROOT / "config" / "kubernetes" / "daemonset.yaml"
CONTAINERFILE = ROOT / "config" / "container" / "Containerfile"
FOUR = {"BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"}


def directives(name: str) -> list[str]:
    """Every value of one of the unit's keys."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.fixture
def analyzed(tmp_path: Path) -> Path:
    """The unit as it is, but for the command's place, which this host need not have."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: install systemd")
    text = UNIT.read_text().replace("/usr/local/bin/otel-perfbuf", "/bin/true")
    path = tmp_path / UNIT.name
    path.write_text(text)
    return path


def test_systemd_takes_the_unit(analyzed: Path) -> None:
    """`systemd-analyze verify` finds no unknown key, no wrong value; a wrong one it does find."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", analyzed], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    analyzed.write_text(analyzed.read_text().replace("WatchdogSec=30", "WatchdogSec=often"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", analyzed], capture_output=True, text=True, check=False
    )
    assert "often" in done.stderr


def test_systemd_finds_the_unit_hardened(analyzed: Path) -> None:
    """`systemd-analyze security`: exposure 3.0 of 10 or less; what is left is what recording needs."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=30", analyzed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_capabilities_are_those_that_the_agent_keeps() -> None:
    """Unit, DaemonSet and Containerfile grant the four; a container IPC_LOCK too, since it cannot raise the limit."""
    assert len(FOUR) == len(privileges.KEPT)
    for name in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert {word.removeprefix("CAP_") for word in directives(name)[0].split()} == FOUR
    assert directives("LimitMEMLOCK") == ["infinity"]
    context = container()["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"]
    assert set(context["capabilities"]["add"]) == FOUR | {"IPC_LOCK"}
    assert not context["allowPrivilegeEscalation"]
    given = re.search(r"--cap-add=([A-Z_,]+)", CONTAINERFILE.read_text())
    assert given is not None
    assert set(given[1].split(",")) == FOUR | {"IPC_LOCK"}


def resources() -> list[dict[str, Any]]:
    """The documents of the DaemonSet's file."""
    return list(yaml.safe_load_all(DAEMONSET.read_text()))


def container() -> dict[str, Any]:
    """The agent's container."""
    (found,) = next(one for one in resources() if one["kind"] == "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("resource", resources(), ids=lambda resource: str(resource["kind"]))
def test_kubernetes_takes_the_resources(resource: dict[str, Any]) -> None:
    """By Kubernetes' own schemas, unknown keys refused; a key too many is found."""
    for version in ("1.29", "1.33"):
        kubernetes_validate.validate(resource, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**resource, "no_such_key": 1}, "1.33", strict=True)


def test_the_daemonsets_configuration_is_good(tmp_path: Path) -> None:
    """It loads with the environment that the pod has, and with nothing else; every path of it is mounted."""
    config = next(one for one in resources() if one["kind"] == "ConfigMap")["data"]["config.yaml"]
    (tmp_path / "config.yaml").write_text(config)
    names = {item["name"] for item in container()["env"]}
    configuration = load([str(tmp_path / "config.yaml")], environment=dict.fromkeys(names, "192.0.2.7"))
    mounts = [mount["mountPath"] for mount in container()["volumeMounts"] if not mount.get("readOnly")]
    written = [configuration.extensions["control"].options, configuration.extensions["file_storage"].options]
    for options in written:
        path = str(getattr(options, "path", None) or getattr(options, "directory", ""))
        assert any(path.startswith(f"{mount}/") for mount in mounts), path
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert str(getattr(configuration.extensions["health_check"].options, "endpoint", "")).endswith(
        f":{ports['health']}"
    )
    reader = configuration.service.telemetry.metrics.readers[0]
    assert reader.pull is not None
    assert reader.pull.exporter.prometheus.port == ports["metrics"]


def test_the_agent_asks_nothing_of_kubernetes() -> None:
    """No token, and no role is bound to the agent's account."""
    kinds = [one["kind"] for one in resources()]
    assert "ClusterRole" not in kinds
    assert not any(kind.endswith("RoleBinding") for kind in kinds)
    accounts = [one for one in resources() if one["kind"] in ("ServiceAccount", "DaemonSet")]
    assert not accounts[0]["automountServiceAccountToken"]
    assert not accounts[1]["spec"]["template"]["spec"]["automountServiceAccountToken"]


def test_the_image_has_the_libraries_that_are_linked() -> None:
    """What ldd says that our modules need is installed into the last stage; what is copied is there."""
    stages = CONTAINERFILE.read_text().split("\nFROM ")
    modules = sorted((ROOT / "otel_perfbuf").rglob("*.so"))
    assert modules
    linked = "".join(
        subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout for path in modules
    )
    packages = {"libbpf.so.1": "libbpf1", "libpcre2-8.so.0": "libpcre2-8-0"}
    brought = {
        "libelf.so.1",
        "libz.so.1",
        "libzstd.so.1",
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
    }  # by libbpf1 and python3
    needed = set(re.findall(r"^\s*(lib\S+) =>", linked, re.MULTILINE)) - brought
    assert needed <= set(packages) | ({"libasan.so.8", "libubsan.so.1"} if "asan" in linked else set()), needed
    assert all(package in stages[-1] for library, package in packages.items() if library in needed)
    assert "python3" in stages[-1]
    assert sys.version_info >= (3, 11)
