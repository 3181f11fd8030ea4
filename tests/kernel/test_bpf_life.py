# SPDX-License-Identifier: Apache-2.0
"""A recorded process's life on a real kernel: fork, exec, signals, ends, OOM kills, alerts, and the process table."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bpf_recording import Recording, Target, compile_targets, recording, state_of, wait_until
from machine import SLOWNESS

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.bpf.syscalls import AlertRules, ProcessEntry
from otel_perfbuf.rings import Sample


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program to be recorded."""
    return compile_targets(tmp_path_factory.mktemp("targets"))


def _entry(recorded: Recording, pid: int) -> ProcessEntry:
    (entry,) = [entry for (tgid, _), entry in recorded.program.processes().items() if tgid == pid]
    return entry


def test_a_forked_child_is_recorded_from_its_first_call_on(targets: Path) -> None:
    """The fork is a record before its call; the child's side of it (an exit without enter) is none, as in strace."""
    with Target(targets, "fork", "5") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        events = recorded.events(target.pid)
        (fork,) = [event for event in events if event.name == "<fork>"]
        child = int(fork.body.child_tid)
        of_child = recorded.events(child)
        entry = _entry(recorded, child)
    assert fork.body.child_tgid == child
    (clone,) = [event for event in events if event.name in ("clone", "clone3", "fork")]
    assert (clone.result, fork.sequence) == (child, clone.sequence + 1)
    assert of_child[-2].name == "exit_group"
    assert of_child[-1].name == "<exit>"
    assert os.waitstatus_to_exitcode(of_child[-1].body.status) == 5
    assert all(event.flags in (0, lib.PB_FLAG_NO_RETURN) for event in of_child)
    assert (entry.parent_tgid, os.waitstatus_to_exitcode(entry.exit_status)) == (target.pid, 5)


def test_a_successful_exec_tells_its_path_and_its_table_entry(tmp_path: Path) -> None:
    """The exec record has the path asked for; the table has the executable by its real path and what names the
    resource in OTEL_*, and nothing else of the environment.
    """
    link = tmp_path / "link"
    link.symlink_to("/bin/sleep")
    environment = {"OTEL_SERVICE_NAME": "shop", "OTEL_EXPORTER_OTLP_HEADERS": "key=secret", "PATH": os.environ["PATH"]}
    with recording(comms=["sh"]) as recorded:
        with Target(Path("/bin/sh"), "-c", f"read a; exec {link} 60", env=environment) as target:
            target.go(b"go\n")
            wait_until(lambda: "link" in [each.comm for each in recorded.program.processes().values()], "the exec")
            last = [event for event in recorded.events(target.pid) if event.name == "<exec>"][-1]
            real = os.readlink(f"/proc/{target.pid}/exe")
        entry = _entry(recorded, target.pid)
    assert last.captures[0].data.decode() == str(link)
    assert entry.executable == real
    assert dict(entry.environment) == {"OTEL_SERVICE_NAME": "shop"}
    assert entry.uid == os.getuid()


def test_an_exec_from_a_thread_goes_on_under_the_leaders_id(targets: Path) -> None:
    """The thread's instance keeps its sequence over the exec and takes the leader's thread id; the leader's ends."""
    with Target(targets, "exec-thread") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.run()
        records = recorded.records()
    (exec_,) = [record for record in records if record.name == "<exec>"]
    assert (exec_.tid, exec_.tgid) == (target.pid, target.pid)
    assert exec_.body.old_tid != target.pid
    events = [r for r in records if r.instance == exec_.instance and r.name != "<entry>"]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert {event.tid for event in events} == {target.pid, exec_.body.old_tid}
    (call,) = [event for event in events if event.name == "execve"]
    assert (call.sequence, call.result) == (exec_.sequence - 1, 0)
    leader = [r for r in records if r.instance != exec_.instance]
    assert leader[-1].name == "pause"
    assert [record.name for record in records].count("<exit>") == 1


def test_wait_exec_records_from_the_successful_exec_on(targets: Path) -> None:
    """Calls before it, and a try that fails, leave nothing: the first record is the execve that succeeds."""
    ready, go = os.pipe(), os.pipe()
    with recording() as recorded:
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            try:
                os.execv("/nowhere/true", ["true"])
            except OSError:
                os.execv("/bin/true", ["true"])
        os.read(ready[0], 1)
        recorded.program.follow(child, wait_exec=True)
        os.write(go[1], b"x")
        assert os.waitpid(child, 0)[1] == 0
        records = [record for record in recorded.records() if record.tgid == child]
        events = recorded.events(child)
    for fd in (*ready, *go):
        os.close(fd)
    assert [event.name for event in events[:2]] == ["execve", "<exec>"]
    assert records[0].name == "<entry>"
    assert records[0].capture(0).data == b"/bin/true"


def test_children_that_are_already_there_are_followed(targets: Path) -> None:
    """follow(PID) takes the process's children of today with it."""
    with subprocess.Popen(["sh", "-c", f"exec 3<&0; '{targets}' calls 10 <&3 & wait"], stdin=subprocess.PIPE) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        wait_until(lambda: bool(children.read_text().split()), "the fork")
        child = int(children.read_text().split()[0])
        wait_until(lambda: Path(f"/proc/{child}/comm").read_text() == "targets\n", "the child's exec")
        with recording() as recorded:
            recorded.program.follow(parent.pid)
            parent.communicate(b"x", timeout=10 * SLOWNESS)
            assert [event.name for event in recorded.events(child)].count("getppid") == 10


def test_a_process_killed_while_it_blocks(targets: Path) -> None:
    """SIGKILL in a read: the call in flight before; after: the read cut with -512, the signal with its sender, the
    end, although the process is gone (FACTS 18).
    """
    with Target(targets, "block") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        target.go()
        wait_until(lambda: recorded.page(target.pid).open_call is not None, "the second read")
        target.process.kill()
        target.process.wait()
        read, delivered, end = recorded.events(target.pid)[-3:]
        entry = _entry(recorded, target.pid)
    assert (read.name, read.result, read.args[0]) == ("read", -512, 0)
    assert (delivered.name, delivered.body.number, delivered.body.code) == ("<signal>", signal.SIGKILL, 0)
    assert int.from_bytes(bytes(delivered.body.fields)[:4], "little") == os.getpid()
    assert (end.name, end.body.status) == ("<exit>", signal.SIGKILL)
    assert entry.exit_ns >= end.time_ns
    assert entry.exit_status == signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fatal_signal_has_its_name_and_its_sender(targets: Path, number: signal.Signals) -> None:
    """The kernel delivers SIGTERM's default action as SIGKILL: the record says SIGTERM."""
    with Target(targets, "block") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        wait_until(lambda: state_of(target.pid) == "S", "the first read")
        target.process.send_signal(number)
        target.process.wait()
        signals = [event.body for event in recorded.events(target.pid) if event.name == "<signal>"]
    assert [(body.number, body.has_info) for body in signals] == [(number, 1)]
    assert int.from_bytes(bytes(signals[0].fields)[:4], "little") == os.getpid()


def test_a_crash_has_its_address(targets: Path) -> None:
    """SIGSEGV by a store to address 16: code SEGV_MAPERR, the address, and the status of the end."""
    with Target(targets, "segv") as target, recording() as recorded:
        recorded.program.follow(target.pid)
        assert target.run() == -signal.SIGSEGV
        delivered, end = recorded.events(target.pid)[-2:]
    assert (delivered.body.number, delivered.body.code, delivered.body.has_info) == (signal.SIGSEGV, 1, 1)
    assert int.from_bytes(bytes(delivered.body.fields)[:8], "little") == 16
    assert end.body.status & 0x7F == signal.SIGSEGV


def test_a_processs_end_is_one_record_and_ends_no_thread_by_signal(targets: Path) -> None:
    """Five threads ended by another's exit_group(7): one end, code 7, and no SIGKILL that nobody sent.

    Since Linux 7.0 a thread's end may be missed while another one's is preempted: counted, and then done once more.
    """
    for _ in range(12):
        with Target(targets, "threads", "5") as target, recording() as recorded:
            recorded.program.follow(target.pid)
            assert target.run() == 7
            records = recorded.records()
            missed = recorded.program.stats().missed_events
        if not missed:
            break
    assert missed == 0
    threads = {record.instance for record in records}
    ends = [record for record in records if record.name == "<exit>"]
    assert len(threads) == 6
    assert [os.waitstatus_to_exitcode(end.body.status) for end in ends] == [7]
    assert not [record for record in records if record.name == "<signal>"]
    for instance in threads:
        of_thread = [r.sequence for r in records if r.instance == instance and r.name != "<entry>"]
        assert of_thread == list(range(1, len(of_thread) + 1))


def _alerts(recorded: Recording, kind: int = lib.PB_ALERT_EXIT) -> list[tuple[int, int]]:
    assert recorded.alerts is not None
    found = []
    for sample in recorded.alerts.read(timeout=0.5):
        assert isinstance(sample, Sample)
        alert = ffi.new("struct pb_alert *")
        ffi.memmove(alert, bytes(sample.data), ffi.sizeof("struct pb_alert"))
        assert alert.kind == kind
        found.append((int(alert.time_ns), int(alert.tgid), int(alert.status)))
    return [(tgid, status) for _, tgid, status in sorted(found)]  # each CPU has its own ring


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        (AlertRules(everything=True), ["exit 0", "exit 3", "segv"]),
        (AlertRules(nonzero=True), ["exit 3"]),
        (AlertRules(signals=[signal.SIGSEGV]), ["segv"]),
        (AlertRules(), []),
    ],
)
def test_alerts_are_for_the_ends_that_were_asked_for(targets: Path, rules: AlertRules, wanted: list[str]) -> None:
    """One alert with the wait status for each end that the rules name."""
    statuses = {}
    with recording(alerts=rules) as recorded:
        for mode in ("exit 0", "exit 3", "segv"):
            with Target(targets, *mode.split()) as target:
                recorded.program.follow(target.pid)
                target.run()
                statuses[target.pid] = mode
        alerts = _alerts(recorded)
    assert [statuses[pid] for pid, _ in alerts] == wanted
    for pid, status in alerts:
        expected = -signal.SIGSEGV if statuses[pid] == "segv" else int(statuses[pid][-1])
        assert os.waitstatus_to_exitcode(status & 0xFF7F) == expected


def test_a_process_in_a_pid_namespace_has_both_its_ids(targets: Path) -> None:
    """unshare(CLONE_NEWPID): the key is the host's pid, namespace_pid is 1."""
    with recording(comms=["targets"]) as recorded:
        with subprocess.Popen(["unshare", "--pid", "--fork", targets, "calls", "1"], stdin=subprocess.PIPE) as process:
            process.communicate(b"x", timeout=10 * SLOWNESS)
        entries = [entry for entry in recorded.program.processes().values() if entry.comm == "targets"]
    assert [entry.namespace_pid for entry in entries] == [1]


CGROUP_ROOTS = [p for p in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")) if (p / "cgroup.procs").exists()]


@contextmanager
def _cgroup() -> Iterator[Path]:
    if not CGROUP_ROOTS:
        pytest.skip("no cgroup v2 is mounted")
    folder = CGROUP_ROOTS[0] / f"otel-perfbuf-test-{os.getpid()}"
    (folder / "below").mkdir(parents=True)
    try:
        yield folder
    finally:
        (folder / "below").rmdir()
        folder.rmdir()


def test_processes_of_a_cgroup_and_below_are_targets(targets: Path) -> None:
    """cgroups=[PATH]: who is there when recording begins, in a cgroup below it too, and who execs there later."""
    with _cgroup() as folder, Target(targets, "calls", "5") as early:
        (folder / "below/cgroup.procs").write_text(str(early.pid))
        with recording(cgroups=[str(folder)]) as recorded:
            early.run()
            shell = f"echo $$ > {folder}/cgroup.procs; exec '{targets}' calls 5"
            with Target(Path("/bin/sh"), "-c", shell) as late:
                late.run()
            with Target(targets, "calls", "5") as other:
                other.run()
            counts: dict[int, int] = {}
            for record in recorded.records():
                if record.name == "getppid":
                    counts[record.tgid] = counts.get(record.tgid, 0) + 1
            entry = _entry(recorded, late.pid)
            assert entry.cgroup_id == folder.stat().st_ino
    assert counts == {early.pid: 5, late.pid: 5}
    assert other.pid not in counts


MEMORY = Path("/sys/fs/cgroup/memory")


def test_an_oom_kill_is_in_the_ring(targets: Path) -> None:
    """A process that swallows its cgroup's memory: the kill is a record that names the victim and its cgroup."""
    limits = [(MEMORY, "memory.limit_in_bytes"), *((root, "memory.max") for root in CGROUP_ROOTS)]
    name = f"otel-perfbuf-oom-{os.getpid()}"
    folder = limit = None
    for root, file in limits:
        if root.exists():
            (root / name).mkdir()
            if (root / name / file).exists():
                folder, limit = root / name, root / name / file
                break
            (root / name).rmdir()
    if folder is None or limit is None:
        pytest.skip("no memory cgroup (neither v1 nor v2 with the memory controller)")
    try:
        limit.write_text(str(16 << 20))
        with Target(targets, "swallow") as target, recording(alerts=AlertRules(oom_kill=True)) as recorded:
            (folder / "cgroup.procs").write_text(str(target.pid))
            recorded.program.follow(target.pid)
            assert target.run() == -signal.SIGKILL
            kills = [record for record in recorded.records() if record.name == "<oom>"]
            alerts = _alerts(recorded, lib.PB_ALERT_OOM_KILL)
            entry = _entry(recorded, target.pid)
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), "an empty cgroup")
        folder.rmdir()
    assert [(kill.body.victim_tgid, kill.body.cgroup_id) for kill in kills] == [(target.pid, entry.cgroup_id)]
    assert kills[0].comm == "targets"
    assert [tgid for tgid, _ in alerts] == [target.pid]


def test_a_thread_that_ran_nothing_but_a_prctl_name_keeps_its_newest_name() -> None:
    """thread.name of a sample is the name at the time it was sent."""
    libc = ctypes.CDLL(None)
    ready, go = os.pipe(), os.pipe()
    with recording() as recorded:
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            libc.prctl(15, b"renamed", 0, 0, 0)
            os._exit(0)
        os.read(ready[0], 1)
        recorded.program.follow(child)
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        assert {event.comm for event in recorded.events(child)} == {"renamed"}
    for fd in (*ready, *go):
        os.close(fd)
