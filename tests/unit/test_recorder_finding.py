# SPDX-License-Identifier: Apache-2.0
"""From telemetry to processes: a played process table, one rule of issue 6 a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_perfbuf.recorder.finding import PROCESSES_MAX, ProcessFinder, find_processes
from otel_perfbuf.recorder.hosts import Host, this_host
from otel_perfbuf.recorder.processes import Process, cgroup_paths, process_from_proc, start_of
from otel_perfbuf.triggers.firing import Evidence, Match

HOST = Host("web-1", frozenset({"0123456789abcdef0123456789abcdef"}))
ONE, TWO = "1" * 64, "2" * 64
SECOND_NS = 1_000_000_000
NEVER = 1 << 22  # no process has this pid: nothing of /proc can be known of it


def process(pid: int, service: str = "", **keys: Any) -> Process:
    """One that started at its pid in seconds; ``said`` are attributes of its environment."""
    said = keys.pop("said", "")
    environment = {"OTEL_SERVICE_NAME": service} if service else {}
    if said:
        environment["OTEL_RESOURCE_ATTRIBUTES"] = said
    start_ns = keys.pop("start_ns", (pid % 1000) * SECOND_NS)
    return Process(pid=NEVER + pid, start_ns=start_ns, environment=environment, **keys)


def docker(container: str, pid: int, inner: int, service: str = "", **keys: Any) -> Process:
    """A container's process."""
    return process(pid, service, namespace_pid=inner, cgroup=f"/system.slice/docker-{container}.scope", **keys)


def found(
    processes: list[Process], *, at_s: float = 0.0, host: Host = HOST, **attributes: Any
) -> tuple[str | None, list[int]]:
    """(by, pids less NEVER) for telemetry with these attributes (``_`` for ``.``), of a span that ended at ``at_s``."""
    named = {key.replace("_", "."): value for key, value in attributes.items()}
    own = {key: named.pop(f"span.{key}", None) for key in ("process", "thread")}
    at_ns = int(at_s * SECOND_NS)
    evidence = Evidence(named, own["process"], own["thread"], at_ns, at_ns)
    match = find_processes(evidence, {(each.pid, each.start_ns): each for each in processes}, host, unix_offset_ns=0)
    assert bool(match.processes) != bool(match.why)
    return match.by, [pid - NEVER for pid, _ in match.processes]


def test_a_pid_of_this_host() -> None:
    """process.pid of the resource or of the span, as a number or as text; of a span it wins."""
    table = [process(1), process(2)]
    assert found(table, process_pid=NEVER + 1) == ("process.pid", [1])
    assert found(table, process_pid=str(NEVER + 2), host_name="web-1") == ("process.pid", [2])
    assert found(table, process_pid=NEVER + 1, span_process=NEVER + 2) == ("process.pid", [2])
    assert found(table, process_pid="x" * 30) == (None, [])


def test_a_pid_of_another_host_matches_nothing() -> None:
    """Neither by its number nor by its service's name; host.id of this host speaks louder than a name."""
    table = [process(1, "checkout", cgroup="/system.slice/checkout.service")]
    assert found(table, process_pid=NEVER + 1, host_name="web-2", service_name="checkout") == (None, [])
    assert found(table, process_pid=NEVER + 1, host_name="WEB-1.example.org") == ("process.pid", [1])
    assert found(table, process_pid=NEVER + 1, host_name="nat", host_id=next(iter(HOST.ids))) == ("process.pid", [1])
    assert found(table, process_pid=NEVER + 1, host_id="i-0abc", service_name="checkout") == (None, [])
    assert found(table, process_pid=NEVER + 1, host_name="web-1", host_id="i-0abc") == ("process.pid", [1])


def test_a_pid_in_a_container() -> None:
    """Every container has a 1: container.id says which; of a container that is not here it is nobody."""
    table = [docker(ONE, 11, 1), docker(TWO, 12, 1), docker(TWO, 13, 7), process(1)]
    assert found(table, process_pid=1, container_id=ONE) == ("process.pid", [11])
    assert found(table, process_pid=7, container_id=TWO[:12]) == ("process.pid", [13])
    assert found(table, process_pid=7, container_id=TWO, host_name="pod-7", host_id="i-0abc") == ("process.pid", [13])
    assert found(table, process_pid=1, container_id="3" * 64) == (None, [])
    assert found(table, process_pid=1) == (None, [])


def test_a_pid_in_a_container_that_only_its_host_name_names() -> None:
    """Docker's host names are the first twelve digits of the container's id."""
    table = [docker(ONE, 11, 1, "checkout"), docker(TWO, 12, 1, "checkout")]
    assert found(table, process_pid=1, host_name=ONE[:12], service_name="checkout") == ("process.pid", [11])


def test_a_namespace_pid_with_the_services_name() -> None:
    """Without a container's id the number alone says nothing; with the name it tells which of two."""
    table = [docker(ONE, 11, 1, "checkout"), docker(TWO, 12, 1, "cart"), docker(ONE, 13, 9, "checkout")]
    assert found(table, process_pid=1, service_name="checkout") == ("process.pid", [11])
    assert found(table, process_pid=5, service_name="cart") == ("service.name", [12])
    init = Process(pid=1, namespace_pid=1)
    assert found([init, *table], process_pid=1, service_name="cart") == ("process.pid", [12])
    assert found([init, *table], process_pid=1, service_name="cart", host_name="web-1") == ("process.pid", [1 - NEVER])


def test_our_own_resources_have_both_pids() -> None:
    """perfbuf.process.namespace_pid: then process.pid is the host's."""
    table = [docker(ONE, 11, 1), docker(TWO, 12, 1)]
    evidence = Evidence({"process.pid": NEVER + 12, "perfbuf.process.namespace_pid": 1})
    keys = {(each.pid, each.start_ns): each for each in table}
    assert find_processes(evidence, keys, HOST, unix_offset_ns=0).processes == ((NEVER + 12, 12 * SECOND_NS),)


def test_a_reused_pid_is_the_process_of_that_time() -> None:
    """Of two processes that had the pid the one that lived when the span ended; a dead one too."""
    table = [process(1, start_ns=10 * SECOND_NS, exit_ns=20 * SECOND_NS), process(1, start_ns=30 * SECOND_NS)]
    keys = {(each.pid, each.start_ns): each for each in table}
    for at_s, start in ((15, 10), (21, 10), (40, 30)):
        evidence = Evidence({"process.pid": NEVER + 1}, end_unix_ns=at_s * SECOND_NS)
        assert find_processes(evidence, keys, HOST, unix_offset_ns=0).processes == ((NEVER + 1, start * SECOND_NS),)
    assert not find_processes(
        Evidence({"process.pid": NEVER + 1}, end_unix_ns=25 * SECOND_NS), keys, HOST, unix_offset_ns=0
    ).processes


def test_service_instance_before_service_name() -> None:
    """The instance's id is one process; the name alone is all of that name, the newest first."""
    table = [process(number, "checkout", said=f"service.instance.id=i{number}") for number in (1, 2)]
    assert found(table, service_name="checkout", service_instance_id="i2") == ("service.instance.id", [2])
    assert found(table, service_name="checkout") == ("service.name", [2, 1])
    assert found(table, service_name="checkout", service_instance_id="i3") == (None, [])


def test_a_name_in_the_resource_attributes_is_decoded() -> None:
    """OTEL_RESOURCE_ATTRIBUTES has service.name too, percent-encoded; another namespace contradicts."""
    table = [process(1, said="service.name=check%20out,service.namespace=shop")]
    assert found(table, service_name="check out") == ("service.name", [1])
    assert found(table, service_name="check out", service_namespace="bank") == (None, [])


def test_children_are_not_candidates_of_their_own() -> None:
    """A fork inherits OTEL_*: the topmost process stands for all, since a dump takes descendants in."""
    table = [process(1, "checkout"), *(process(n, "checkout", parent_pid=NEVER + 1) for n in range(2, 9))]
    assert found(table, service_name="checkout") == ("service.name", [1])


def test_candidates_are_bounded() -> None:
    """A thousand of one name: the newest ones."""
    table = [process(number, "checkout") for number in range(999)]
    by, pids = found(table, service_name="checkout", at_s=2000)
    assert (by, pids) == ("service.name", list(range(998, 998 - PROCESSES_MAX, -1)))


def test_a_container_by_its_cgroup() -> None:
    """container.id alone leads to the container's topmost processes; a runtime's prefix does not matter."""
    table = [docker(ONE, 11, 1), docker(ONE, 12, 2, parent_pid=NEVER + 11), docker(TWO, 13, 1), process(14)]
    assert found(table, container_id=ONE) == ("container.id", [11])
    assert found(table, container_id=f"docker://{TWO}") == ("container.id", [13])
    assert found(table, container_id="1234") == (None, [])


def test_a_container_excludes_namesakes() -> None:
    """A service's name in another container, or in none, is somebody else; where nothing is known it may be it."""
    table = [
        docker(ONE, 11, 1, "checkout"),
        docker(TWO, 12, 1, "checkout"),
        process(13, "checkout", cgroup="/user.slice"),
    ]
    assert found(table, container_id=TWO, service_name="checkout") == ("service.name", [12])
    assert found([process(13, "checkout")], container_id=TWO, service_name="checkout") == ("service.name", [13])


def test_what_was_missing_is_said() -> None:
    """The sentence names the attributes that are not there, and those that led to nobody."""

    def why(**attributes: Any) -> str:
        named = {key.replace("_", "."): value for key, value in attributes.items()}
        return find_processes(Evidence(named), {}, HOST, unix_offset_ns=0).why

    assert why() == "it has no process.pid, service.instance.id, service.name, container.id"
    text = why(service_name="checkout")
    assert "it has no process.pid, service.instance.id, container.id" in text
    assert "no process that is recorded has service.name checkout" in text
    assert "OTEL_SERVICE_NAME" in text
    assert "it is of host web-2" in why(host_name="web-2", process_pid=5)


def test_real_processes() -> None:
    """This process is found by its own pid and by a thread of it on this host, and not as another host's."""
    own = process_from_proc(os.getpid())
    start_ns = start_of(os.getpid())
    assert own is not None
    assert start_ns is not None
    table = {(own.pid, start_ns): own}
    host = this_host()
    here = {"host.name": socket.gethostname()}
    assert find_processes(Evidence({"process.pid": os.getpid()}), table, host, unix_offset_ns=0).by == "process.pid"
    by_thread = Evidence(here, thread_id=os.getpid())
    assert find_processes(by_thread, table, host, unix_offset_ns=0).by == "thread.id"
    assert not find_processes(Evidence({}, thread_id=os.getpid()), table, host, unix_offset_ns=0).processes
    elsewhere = Evidence({"process.pid": os.getpid(), "host.name": "elsewhere.example"})
    assert not find_processes(elsewhere, table, host, unix_offset_ns=0).processes


def test_a_process_of_another_uts_namespace() -> None:
    """A host name that only its container has is read from its own root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a UTS namespace")
    program = "import socket; socket.sethostname('pod-7'); print('set', flush=True); input()"
    other = subprocess.Popen(
        ["unshare", "--uts", sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "set\n"
        start_ns = start_of(other.pid)
        found_process = process_from_proc(other.pid)
        assert start_ns is not None
        assert found_process is not None
        table = {(other.pid, start_ns): replace(found_process, start_ns=start_ns)}
        file_name = Path("/etc/hostname").read_text().strip()
        evidence = Evidence({"process.pid": other.pid, "host.name": "elsewhere.example"})
        assert not find_processes(evidence, table, Host("web-1"), unix_offset_ns=0).processes
        # /etc/hostname of its root is this host's file here: a container has one of its own.
        evidence = Evidence({"process.pid": other.pid, "host.name": file_name})
        assert find_processes(evidence, table, Host("web-1"), unix_offset_ns=0).by == "process.pid"
    finally:
        other.communicate("\n")


def test_the_table_is_read_again_when_it_does_not_have_it() -> None:
    """An old table is read anew, a young one only when nothing was found, at most once a second."""
    reads: list[float] = []
    now = [0.0]
    table: dict[tuple[int, int], Process] = {}

    def read() -> dict[tuple[int, int], Process]:
        reads.append(now[0])
        return dict(table)

    finder = ProcessFinder(read, dict, lambda: 0, HOST, clock=lambda: now[0])
    asked = Evidence({"process.pid": NEVER + 1})
    assert finder(asked) == Match(why=finder(asked).why)
    table[NEVER + 1, 5] = process(1, start_ns=5)
    now[0] = 0.5
    assert not finder(asked).processes
    now[0] = 1.5
    assert finder(asked).processes
    now[0] = 3.0
    assert finder(asked).processes
    assert reads == [0.0, 1.5]
    now[0] = 7.0
    finder(asked)
    assert reads == [0.0, 1.5, 7.0]


def test_paths_of_gone_cgroups_stay_known() -> None:
    """A container that has ended is still the container of its dead process."""
    paths = [{7: f"/docker/{ONE}"}, {}]
    now = [0.0]
    dead = {(NEVER + 1, 5): process(1, start_ns=5, cgroup_id=7)}
    finder = ProcessFinder(lambda: dead, lambda: paths.pop(0), lambda: 0, HOST, clock=lambda: now[0])
    asked = Evidence({"container.id": ONE})
    assert finder(asked).by == "container.id"
    now[0] = 10.0
    assert finder(asked).by == "container.id"
    assert not paths


def test_cgroup_paths_are_those_of_the_kernel() -> None:
    """The walk has this process's own cgroup, by the id of its folder."""
    with open("/proc/self/cgroup") as file:
        own = [line.rstrip("\n")[3:] for line in file if line.startswith("0::")]
    if not own:
        pytest.skip("needs cgroup v2")
    assert own[0] in cgroup_paths().values()
