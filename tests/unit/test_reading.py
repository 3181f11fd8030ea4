# SPDX-License-Identifier: Apache-2.0
"""The reading of a dump: each rule by an example, the order of candidates, and what the engine gathers for it."""

from __future__ import annotations

import pytest
from samples import Arena, SampleWriter, string

from otel_perfbuf._core._core import ffi
from otel_perfbuf.recorder.history import Encoding, History
from otel_perfbuf.recorder.reading import Finding, rank, read_reading
from otel_perfbuf.records import build_plan
from otel_perfbuf.records.syscalls import data_lines

RULES = [line.split("\t") for line in data_lines("cause_rules.tsv")]
FOREVER = (1 << 63) - 1


def found(
    call: str, error: str, line: str = "", *, count: int = 1, last_ns: int = 100, exit_only: bool = False
) -> Finding:
    """A failure with a line that looks like its call's."""
    return Finding(call, error, line or f"{call}(3) = -1 {error}", count, last_ns, 7, 1, 5, exit_only=exit_only)


NOISE = [
    found("read", "EAGAIN"),
    found("ioctl", "ENOTTY"),
    found("lseek", "ESPIPE"),
    found("readlink", "EINVAL"),
    found("wait4", "ECHILD"),
    found("getpeername", "ENOTCONN"),
    found("close", "EBADF", "close(-1) = -1 EBADF (Bad file descriptor)"),
    found("fcntl", "EBADF"),
    found("fgetxattr", "ENODATA"),
    found("prctl", "EINVAL"),
    found("openat", "ENXIO", 'openat(AT_FDCWD, "/dev/tty", O_RDWR) = -1 ENXIO'),
    found("futex", "ETIMEDOUT"),
    found("connect", "ENOENT", 'connect(3, {sa_family=AF_UNIX, sun_path="/var/run/nscd/socket"}, 110) = -1 ENOENT'),
    found("connect", "EINPROGRESS"),
    found("connect", "ECONNREFUSED", 'connect(3, {sa_family=AF_UNIX, sun_path="/run/systemd/notify"}, 110) = -1'),
    found("openat", "ENOENT", 'openat(AT_FDCWD, "/lib/x86_64-linux-gnu/libx.so.6", O_RDONLY) = -1 ENOENT'),
    found("newfstatat", "ENOENT", 'newfstatat(AT_FDCWD, "/usr/lib/python3.11/site-packages/x.py", 0x1, 0) = -1'),
    found("access", "ENOENT", 'access("/etc/app.conf", F_OK) = -1 ENOENT'),
    found("statfs", "ENOENT", 'statfs("/sys/fs/selinux", 0x7fff1cef76c0) = -1 ENOENT'),
]
CAUSES = [
    (found("oom_kill", "", "oom kill 7"), "the kernel killed a process because memory ran out"),
    (found("signal", "SIGSEGV"), "a fatal signal ended it"),
    (found("signal", "SIGKILL"), "somebody killed the process"),
    (found("signal", "SIGPIPE"), "it wrote to a pipe or socket that nobody reads any more"),
    (found("signal", "SIGTERM"), "a signal ended the process"),
    (found("socket", "EPERM", exit_only=True), "denied before entry: seccomp or ptrace"),
    (found("openat", "EMFILE"), "no file descriptor was left"),
    (found("write", "ENOSPC"), "the disk is full"),
    (found("clone", "EAGAIN"), "no further process or thread was allowed"),
    (found("mmap", "ENOMEM"), "memory ran out"),
    (found("openat", "EROFS"), "the file system is read-only"),
    (found("read", "EIO"), "the device failed"),
    (found("write", "EFBIG"), "a file size limit was reached"),
    (
        found("getsockopt", "ECONNREFUSED", "getsockopt(3, SOL_SOCKET, SO_ERROR, [ECONNREFUSED], [4]) = 0"),
        "a connection that was under way failed",
    ),
    (found("connect", "ECONNREFUSED"), "nobody listens there"),
    (found("connect", "ETIMEDOUT"), "that address cannot be reached"),
    (found("bind", "EADDRINUSE"), "the address cannot be used"),
    (found("connect", "ENOENT"), "the socket's file is missing"),
    (found("read", "ECONNRESET"), "the other side has closed the connection"),
    (found("recvfrom", "ETIMEDOUT"), "the other side did not answer in time"),
    (
        found("execve", "ENOENT", 'execve("/usr/local/sbin/sleep", ["sleep", "5"], 0x7ffc /* 36 vars */) = -1 ENOENT'),
        "no such program there (a search along PATH tries several places)",
    ),
    (found("execve", "EACCES"), "a program could not be executed"),
    (found("openat", "EACCES"), "access was denied"),
    (
        found("openat", "ENOENT", 'openat(AT_FDCWD, "/srv/a.json", O_RDONLY) = -1 ENOENT'),
        "a file that was needed is missing",
    ),
    (
        found("openat", "ENOENT", 'openat(AT_FDCWD, "/root/.config/app", O_RDONLY) = -1 ENOENT'),
        "a setting of the user is not there",
    ),
    (
        found("openat", "ENOENT", 'openat(AT_FDCWD, "/srv/hooks", O_RDONLY|O_DIRECTORY) = -1 ENOENT'),
        "a directory that was looked into is not there",
    ),
    (found("mkdir", "EEXIST"), "it was there already"),
    (found("rmdir", "ENOTEMPTY"), "the file is not what was expected"),
    (found("flock", "EDEADLK"), "a lock is held by another"),
    (found("read", "EBADF"), "the call was wrong"),
    (found("kill", "ESRCH"), "the process is gone"),
    (found("quotactl", "EUSERS"), "a call failed"),
]


@pytest.mark.parametrize("noise", NOISE, ids=lambda each: f"{each.call}-{each.error}")
def test_noise_is_no_candidate(noise: Finding) -> None:
    """What programs try without needing it."""
    assert rank([noise], 0, 100, lambda _: False) == ()


@pytest.mark.parametrize(("cause", "sentence"), CAUSES, ids=lambda each: getattr(each, "call", ""))
def test_a_cause_is_told_in_its_sentence(cause: Finding, sentence: str) -> None:
    """The row of the table that is meant for it."""
    (candidate,) = rank([cause], 0, 100, lambda _: False)
    assert candidate.sentence == sentence
    assert "thread 7, record 5" in candidate.text()


def test_every_rule_has_an_example() -> None:
    """A new row needs one; rows of noise are as many as their examples."""
    noise = [row for row in RULES if int(row[0]) < 30]
    sentences = {row[4] for row in RULES if int(row[0]) >= 30}
    assert len(noise) == len(NOISE)
    assert sentences == {sentence for _, sentence in CAUSES} | {"the script's interpreter is missing"}


def test_a_script_without_its_interpreter_is_told_apart() -> None:
    """ENOENT of a file that is there."""
    assert rank([found("execve", "ENOENT")], 0, 1, lambda _: True)[0].sentence == "the script's interpreter is missing"
    assert rank([found("execve", "ENOENT")], 0, 1, lambda _: False)[0].sentence == "a program could not be executed"


def test_a_decisive_error_is_found_beside_a_storm() -> None:
    """10,000 refused connections behind one missing file: both are candidates; at most three are told."""
    storm = found("connect", "ECONNREFUSED", count=10_000, last_ns=1000)
    config = found("openat", "ENOENT", 'openat(AT_FDCWD, "/srv/a.json", O_RDONLY) = -1 ENOENT', last_ns=10)
    others = [found("quotactl", "EUSERS", last_ns=at) for at in (20, 30)]
    told = [candidate.finding for candidate in rank([config, storm, *others], 0, 1000, lambda _: False)]
    assert told[:2] in ([config, storm], [storm, config])
    assert len(told) == 3


def test_of_two_alike_the_later_one_is_likelier() -> None:
    """What failed at the end lies nearer to the failure."""
    early = found("openat", "EACCES", last_ns=10)
    late = found("openat", "EACCES", last_ns=90)
    assert rank([early, late], 0, 100, lambda _: False)[0].finding is late


def read(writer: SampleWriter) -> tuple[list[str], list[str]]:
    """(sentences, lines) of one thread's history."""
    plan = build_plan()
    history = History([Arena([writer.sample()])], [])
    history.select([True], 0, FOREVER, 1 << 30)
    gathered = ffi.new("struct pb_reading *")
    chunks = list(history.encode(plan.pointer, [b""], Encoding(1, 1, b""), reading=gathered))
    reading = read_reading(gathered, plan, 0, 1000)
    assert gathered.records == sum(count for _, count in chunks)
    return list(reading.sentences()), [candidate.finding.line for candidate in reading.candidates]


def test_the_engine_gathers_failures_by_what_they_were_about() -> None:
    """Three opens of two paths are two findings, with the last of each; so is the longest call, by its duration."""
    numbers = {decoding.syscall.name: number for number, decoding in build_plan().decodings.items()}
    writer = SampleWriter(tid=4711)
    for sequence, path in ((1, b"/srv/a"), (2, b"/srv/b"), (3, b"/srv/a")):
        writer.syscall(sequence, 10 * sequence, numbers["openat"], [0, 1, 0, 0], -13, captures=[string(1, path)])
    writer.syscall(4, 40, numbers["read"], [3, 0, 5], 5, duration_ns=3_000_000_000)
    sentences, lines = read(writer)
    assert len(lines) == 2
    assert any("2 times, thread 4711, record 3" in sentence and "/srv/a" in sentence for sentence in sentences)
    assert any(sentence.startswith("longest wait 3.000 s: read(3") for sentence in sentences)


def test_a_full_table_counts_what_it_cannot_hold() -> None:
    """5,000 different paths that fail: some hundred are kept, the rest counted, records are all counted once."""
    plan = build_plan()
    writers = []
    for thread in range(50):
        writer = SampleWriter(tid=100 + thread, instance=1 + thread)
        for sequence in range(1, 101):
            path = string(1, f"/srv/{thread}/{sequence}".encode())
            writer.syscall(sequence, 10 * sequence, 257, [0, 1, 0, 0], -2, captures=[path])
        writers.append(writer.sample())
    history = History([Arena(writers)], [])
    history.select([True] * history.process_count, 0, FOREVER, 1 << 30)
    gathered = ffi.new("struct pb_reading *")
    list(history.encode(plan.pointer, [b""] * history.process_count, Encoding(1, 1, b""), reading=gathered))
    assert gathered.finding_count < 1024
    assert gathered.finding_count + gathered.others == gathered.records == 5000
    assert len(read_reading(gathered, plan, 0, 1000).candidates) == 3
