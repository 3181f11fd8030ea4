# SPDX-License-Identifier: Apache-2.0
"""Children are followed however they are made, and each process is a resource of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recording import Arrived, Record, parse_lines, record

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], Arrived]:
    """Pids by role as the program tells them, and its dump."""
    path = tmp_path_factory.mktemp("family") / "dump"
    options = ("--window", "all", "-o", path, "--format", "otlp_json")
    done = record(*options, command=["/usr/bin/python3", PROGRAMS / "family.py"])
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout), parse_lines(path.read_text())


def of(dump: Arrived, pid: int) -> list[Record]:
    """The records of one process."""
    found = [item for item in dump.history if item.resource["process.pid"] == pid]
    assert len({json.dumps(item.resource, sort_keys=True) for item in found}) == 1
    return found


def test_every_process_is_there_once(family: tuple[dict[str, int], Arrived]) -> None:
    """No other than those, and each with its end."""
    pids, dump = family
    assert {item.resource["process.pid"] for item in dump.history} == set(pids.values())
    for role, pid in pids.items():
        ends = [item for item in of(dump, pid) if item.name == "perfbuf.process.exit"]
        assert len(ends) == 1, role


@pytest.mark.parametrize(
    ("role", "parent", "service", "executable", "end"),
    [
        ("main", None, None, None, "+++ exited with 1 +++"),
        ("spawn", "main", "spawned", "/bin/sh", "+++ exited with 0 +++"),
        ("grandchild", "spawn", "spawned", "/bin/sh", "+++ exited with 0 +++"),
        ("fork", "main", "forked one", "/bin/true", "+++ exited with 0 +++"),
        ("thread", "main", "threaded", "/bin/sh", "+++ exited with 3 +++"),
        ("orphan_parent", "main", None, None, "+++ exited with 0 +++"),
        ("orphan", "orphan_parent", "orphaned", "/bin/sh", "+++ exited with 4 +++"),
    ],
)
def test_resource_of_each_process(
    family: tuple[dict[str, int], Arrived],
    role: str,
    parent: str | None,
    service: str | None,
    executable: str | None,
    end: str,
) -> None:
    """Parent, service name from the environment of its own program, executable, and how it ended."""
    pids, dump = family
    records = of(dump, pids[role])
    resource = records[0].resource
    program = Path(executable or "/usr/bin/python3").resolve()
    if parent:
        assert resource["process.parent_pid"] == pids[parent]
    assert resource["service.name"] == (service or program.name)
    assert resource["process.executable.path"] == str(program)
    assert resource["process.executable.name"] == program.name
    assert records[-1].body == end


def test_resource_attributes_of_the_environment(family: tuple[dict[str, int], Arrived]) -> None:
    """OTEL_RESOURCE_ATTRIBUTES are the process's."""
    pids, dump = family
    assert of(dump, pids["fork"])[0].resource["team"] == "a"


def test_exec_by_a_thread_takes_the_leaders_id(family: tuple[dict[str, int], Arrived]) -> None:
    """The thread that executed goes on under the process's id, in its own sequence."""
    pids, dump = family
    records = of(dump, pids["thread"])
    executed = next(item for item in records if item.name == "perfbuf.process.exec")
    assert executed.attributes["thread.id"] == pids["thread"]
    instance = executed.attributes["perfbuf.thread.instance"]
    own = sorted(
        item.attributes["perfbuf.sequence"]
        for item in records
        if item.attributes["perfbuf.thread.instance"] == instance
    )
    assert own == list(range(1, len(own) + 1))
    last = records[-1]
    assert last.attributes["perfbuf.thread.instance"] == instance
    assert last.attributes["perfbuf.sequence"] == own[-1]


def test_forks_name_their_children(family: tuple[dict[str, int], Arrived]) -> None:
    """perfbuf.process.fork has the child's pid."""
    pids, dump = family
    children = {
        item.attributes["perfbuf.child_pid"]
        for item in of(dump, pids["main"])
        if item.name == "perfbuf.process.fork" and item.body.startswith("fork ")
    }
    assert children == {pids[role] for role in ("spawn", "fork", "thread", "orphan_parent")}
