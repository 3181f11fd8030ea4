# SPDX-License-Identifier: Apache-2.0
"""What fds are at each moment: by opens, copies, forks and execs, over gaps, and by what the kernel said of who lives.

Histories are made by a writer that plays the BPF programs; every expectation is what the kernel would have said then.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from samples import Arena, Capture, SampleWriter, string, word

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.recorder.descriptors import FdSeed, Seeds, seed_text
from otel_perfbuf.recorder.fd_names import FdNames
from otel_perfbuf.recorder.history import Encoding, History
from otel_perfbuf.records import Redaction, build_plan, default_patterns
from otel_perfbuf.records.plan import Plan

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")

PLAN = build_plan()
NUMBERS = {decoding.syscall.name: number for number, decoding in PLAN.decodings.items()}
AT_FDCWD = -100
CLOEXEC = 0o2000000
FOREVER = (1 << 63) - 1


class Thread:
    """One thread's calls in the order of their sequence, each ``step`` ns long."""

    def __init__(self, tid: int = 100, tgid: int = 0, *, start_ns: int = 1000, first: int = 1) -> None:
        self.tgid = tgid or tid
        self.writer = SampleWriter(tid=tid, tgid=self.tgid, instance=start_ns * 1000 + tid, process_start_ns=start_ns)
        self.sequence = first - 1

    def next(self, skip: int = 0) -> int:
        """The next sequence."""
        self.sequence += 1 + skip
        return self.sequence

    def call(
        self,
        time_ns: int,
        name: str,
        args: Sequence[int],
        result: int = 0,
        captures: Sequence[Capture] = (),
        *,
        duration_ns: int = 5,
        skip: int = 0,
    ) -> Thread:
        """A finished call; ``skip`` records before it are missing."""
        self.writer.syscall(
            self.next(skip), time_ns, NUMBERS[name], args, result, captures=captures, duration_ns=duration_ns
        )
        return self

    def open(self, time_ns: int, path: str, fd: int, *, at: int = AT_FDCWD, flags: int = 0, **more: int) -> Thread:
        """An openat."""
        return self.call(time_ns, "openat", [at, 1, flags, 0], fd, [string(1, path.encode())], **more)

    def read(self, time_ns: int, fd: int, **more: int) -> Thread:
        """A read."""
        return self.call(time_ns, "read", [fd, 0, 10], 1, **more)

    def close(self, time_ns: int, fd: int, result: int = 0, **more: int) -> Thread:
        """A close."""
        return self.call(time_ns, "close", [fd], result, **more)


def lines(
    *threads: Thread,
    seeds: dict[tuple[int, int], Seeds] | None = None,
    complete_since_ns: int = 0,
    later: bytes = b"",
    pages: bytes = b"",
    plan: Plan = PLAN,
) -> list[str]:
    """All bodies in the order of time, fds with their names."""
    history = History([Arena([thread.writer.sample() for thread in threads])], [pages], [later])
    history.select([True] * history.process_count, 0, FOREVER, 1 << 30)
    names = FdNames(history, plan, seeds or {}, complete_since_ns)
    encoding = Encoding(unix_offset_ns=1, observed_unix_ns=1, scope=b"")
    records = []
    for chunk, _ in history.encode(plan.pointer, [b""] * history.process_count, encoding, names.pointer):
        for resource in ExportLogsServiceRequest.FromString(chunk).resource_logs:
            records += [record for scope in resource.scope_logs for record in scope.log_records]
    return [record.body.string_value for record in sorted(records, key=lambda record: record.time_unix_nano)]


def seen(at_ns: int, **fds: str) -> Seeds:
    """Seeds: f3="/x" is fd 3; cwd the working directory."""
    rows = [FdSeed(AT_FDCWD if key == "cwd" else int(key[1:]), seed_text(text), 1) for key, text in fds.items()]
    return Seeds(at_ns, tuple(rows))


def sockaddr(port: int, address: bytes = b"\x7f\0\0\1") -> Capture:
    """An IPv4 address as argument 1."""
    data = struct.pack("=H", 2) + struct.pack(">H", port) + address + bytes(8)
    return Capture(1, lib.PB_CAPTURE_SOCKADDR, data)


def test_an_open_names_its_result_and_later_uses_until_it_is_closed() -> None:
    """The result too; a close that failed with EBADF takes nothing away, any other error does."""
    thread = Thread().open(1010, "/etc/hosts", 3).read(1020, 3).close(1030, 3, -9).read(1040, 3).close(1050, 3, -5)
    found = lines(thread.read(1060, 3))
    assert found[0].endswith("= 3</etc/hosts>")
    assert [line.split(",")[0] for line in found[1:]] == [
        "read(3</etc/hosts>",
        "close(3</etc/hosts>) = -1 EBADF (Bad file descriptor)",
        "read(3</etc/hosts>",
        "close(3</etc/hosts>) = -1 EIO (Input/output error)",
        "read(3",
    ]


def test_a_number_that_another_thread_is_given_during_the_close_is_the_new_file() -> None:
    """The close takes the fd away at its begin: an open that ends before the close's end is not undone."""
    one = Thread().open(1010, "/a", 3).close(1020, 3, duration_ns=100).read(1200, 3)
    other = Thread(101, 100).open(1030, "/b", 3, duration_ns=10)
    assert "read(3</b>" in lines(one, other)[-1]


def test_a_copy_is_what_its_source_is() -> None:
    """dup, dup2 onto an open fd, fcntl's copies; a dup2 of an fd to itself changes nothing."""
    thread = Thread().open(1010, "/a", 3).open(1020, "/b", 4)
    thread.call(1030, "dup", [3], 5).call(1040, "dup2", [3, 4], 4).call(1050, "dup2", [4, 4], 4)
    thread.call(1060, "fcntl", [3, 1030, 10], 10).read(1070, 4).read(1080, 5).read(1090, 10)
    found = lines(thread)
    assert found[2:5] == ["dup(3</a>) = 5</a>", "dup2(3</a>, 4</b>) = 4</a>", "dup2(4</a>, 4</a>) = 4</a>"]
    assert all(f"read({fd}</a>" in line for fd, line in zip((4, 5, 10), found[6:], strict=True))


def test_a_relative_path_is_joined_to_its_directory() -> None:
    """To an fd's, to the working directory where that is known, else nobody knows which file of that name it is."""
    thread = Thread().open(1010, "x", 3).call(1020, "chdir", [1], 0, [string(0, b"/srv")]).open(1030, "x", 4)
    thread.open(1040, "/tmp/", 5).open(1050, "y", 6, at=5).open(1060, ".", 7).call(1070, "fchdir", [5])
    found = lines(thread.open(1080, "z", 8))
    assert [line.rpartition(" = ")[2] for line in found] == [
        "3", "0", "4</srv/x>", "5</tmp/>", "6</tmp/y>", "7</srv>", "0", "8</tmp/z>",
    ]  # fmt: skip
    assert found[2].startswith("openat(AT_FDCWD</srv>, ")


def test_a_child_has_its_parents_fds_and_each_goes_its_own_way() -> None:
    """A fork copies the table; what the parent does afterwards is not the child's."""
    parent = Thread().open(1010, "/a", 3)
    parent.writer.fork(parent.next(), 1020, 200, 200)
    parent.close(1030, 3)
    child = Thread(200, start_ns=1020).read(1040, 3).close(1050, 3).read(1060, 3)
    assert [line.split(",")[0] for line in lines(parent, child)[2:]] == [
        "close(3</a>) = 0", "read(3</a>", "close(3</a>) = 0", "read(3",
    ]  # fmt: skip


def test_an_exec_closes_what_was_opened_so_and_what_is_not_known() -> None:
    """O_CLOEXEC goes, others stay, F_SETFD changes it; an fd whose flag is not known is bare afterwards."""
    thread = Thread().open(1010, "/a", 3, flags=CLOEXEC).open(1020, "/b", 4).open(1030, "/c", 5, flags=CLOEXEC)
    thread.call(1040, "fcntl", [5, 2, 0])
    thread.writer.exec(thread.next(), 1050, b"/bin/x")
    assert [line.split(",")[0] for line in lines(thread.read(1060, 3).read(1070, 4).read(1080, 5))[-3:]] == [
        "read(3", "read(4</b>", "read(5</c>",
    ]  # fmt: skip


def test_behind_a_gap_nothing_is_known_and_inside_it_nothing_of_other_threads() -> None:
    """A missing record may be a close of any fd of the process, at any time within the gap."""
    one = Thread().open(1010, "/a", 3).read(1020, 3).read(1100, 3, skip=1).open(1110, "/b", 4).read(1120, 4)
    other = Thread(101, 100).read(1015, 3).read(1050, 3).read(1130, 3)
    found = [line for line in lines(one, other) if not line.startswith("lost")]
    assert [line.split(",")[0] for line in found if line.startswith("read")] == [
        "read(3</a>", "read(3</a>", "read(3", "read(3", "read(4</b>", "read(3",
    ]  # fmt: skip


def test_names_begin_where_the_history_is_whole() -> None:
    """Before that a thread that is dead by now may have closed anything; a thread's hidden begin counts as a gap."""
    thread = Thread(first=5).open(1010, "/a", 3).open(1020, "/b", 4).read(1050, 3).open(1060, "/c", 5).read(1070, 5)
    found = lines(thread, complete_since_ns=1040)
    assert [line.split(",")[0] for line in found if "read" in line] == ["read(3", "read(5</c>"]
    early = Thread().open(1010, "/a", 3).read(1200, 3)
    late = Thread(101, 100, first=3).read(1100, 3)
    assert "read(3," in lines(early, late)[-1]


def test_a_seed_holds_backward_to_the_last_record_that_touched_its_fd() -> None:
    """And to the last gap; forward until its fd is closed."""
    thread = Thread(first=9).read(1010, 3).read(1020, 4).close(1030, 4).open(1040, "/new", 4).read(1050, 4)
    thread.read(1300, 3).close(1310, 3).read(1320, 3)
    found = lines(thread, seeds={(100, 1000): seen(1200, f3="/log", f4="/real", cwd="/srv")})
    assert [line.split(",")[0] for line in found] == [
        "read(3</log>", "read(4", "close(4) = 0", "openat(AT_FDCWD</srv>", "read(4</real>", "read(3</log>",
        "close(3</log>) = 0", "read(3",
    ]  # fmt: skip


def test_a_seed_does_not_reach_over_a_close() -> None:
    """What stands there at the look may have come by SCM_RIGHTS: no record tells its number."""
    thread = Thread().open(1010, "/a", 3).read(1020, 3).close(1030, 3).read(1040, 3)
    found = lines(thread, seeds={(100, 1000): seen(1200, f3="/sent")})
    assert [line.split(",")[0] for line in found[1:]] == ["read(3</a>", "close(3</a>) = 0", "read(3</sent>"]


def test_a_file_without_a_name_is_not_its_directory() -> None:
    """O_TMPFILE: the path that was asked for is the directory, the file's own is not known."""
    thread = Thread().open(1010, "/tmp", 3, flags=0o20200002).read(1020, 3)
    assert [line.split(",")[0] for line in lines(thread)[1:]] == ["read(3"]


def test_of_two_opens_of_one_number_within_each_other_nobody_knows_the_last() -> None:
    """A third thread closed the number between them, and what it is now depends on when inside the long open."""
    slow = Thread().open(1010, "/slow", 3, duration_ns=100).read(1200, 3)
    stray, fast = Thread(101, 100).close(1020, 3), Thread(102, 100).open(1030, "/fast", 3)
    assert lines(slow, stray, fast)[-1].startswith("read(3,")


def test_a_seed_with_a_secret_is_no_name() -> None:
    """What the kernel told of a living process's fds goes through redaction too."""
    plan = build_plan(redaction=Redaction(default_patterns()))
    thread = Thread().read(1010, 3).read(1020, 4)
    found = lines(thread, seeds={(100, 1000): seen(1200, f3="/srv/token=hunter2", f4="/log")}, plan=plan)
    assert [line.split(",")[0] for line in found] == ["read(3", "read(4</log>"]


def test_a_seed_does_not_reach_over_a_gap() -> None:
    """Before the gap the fd may have been another file; with a gap around the look itself no seed holds."""
    thread = Thread().read(1010, 3).read(1100, 3, skip=2)
    found = lines(thread, seeds={(100, 1000): seen(1200, f3="/log")})
    assert [line.split(",")[0] for line in found if "read" in line] == ["read(3", "read(3</log>"]
    around = lines(thread, seeds={(100, 1000): seen(1050, f3="/log")})
    assert not any("</log>" in line for line in around)


def test_calls_between_the_snapshot_and_the_look_take_seeds_away() -> None:
    """Pages read behind the look: a close and open there, or records that are missing; they are in no dump."""
    thread = Thread().read(1010, 3).read(1020, 4)
    since = Thread(first=3).close(1110, 3).open(1120, "/other", 3)
    seeds = {(100, 1000): seen(1200, f3="/other", f4="/log")}
    assert [line.split(",")[0] for line in lines(thread, seeds=seeds, later=since.writer.page())] == [
        "read(3", "read(4</log>",
    ]  # fmt: skip
    gap = Thread(first=5).read(1110, 9)
    assert not any("</" in line for line in lines(thread, seeds=seeds, later=gap.writer.page()))


def test_a_call_in_flight_at_the_snapshot_that_ended_before_the_look_counts() -> None:
    """It is shown in flight, and its end takes the seed away from what came before it."""
    thread = Thread().read(1010, 3)
    writer = SampleWriter(instance=1000 * 1000 + 100, process_start_ns=1000)
    open_call = SampleWriter().syscall(2, 1020, NUMBERS["openat"], [AT_FDCWD, 1, 0, 0], 0)
    page = writer.page(open_call, seen_ns=1030, last_sequence=2)
    since = Thread(first=2).open(1020, "/other", 3, duration_ns=50)
    found = lines(thread, seeds={(100, 1000): seen(1200, f3="/other")}, pages=page, later=since.writer.page())
    assert found[0].startswith("read(3,")
    assert found[1].endswith("<unfinished ...>")
    assert len(found) == 2


def test_sockets_show_the_ends_that_calls_told() -> None:
    """Bound, connected (also while that is under way), accepted; a port that the kernel chose is not known."""
    thread = Thread().call(1010, "socket", [2, 1, 0], 3).call(1020, "bind", [3, 1, 16], 0, [sockaddr(80)])
    thread.call(1030, "accept4", [3, 1, 2, 0], 4, [sockaddr(5000)]).call(1040, "socket", [2, 1 | 0o4000, 0], 5)
    thread.call(1050, "connect", [5, 1, 16], -115, [sockaddr(443)]).read(1060, 5).read(1070, 4)
    thread.call(1080, "bind", [5, 1, 16], 0, [sockaddr(0)])
    found = lines(thread)
    assert found[2].startswith("accept4(3<TCP:[127.0.0.1:80]>,")
    assert found[2].endswith("= 4<TCP:[127.0.0.1:80->127.0.0.1:5000]>")
    assert found[4].startswith("connect(5<TCP>,")
    assert [line.split(",")[0] for line in found[5:7]] == [
        "read(5<TCP:[->127.0.0.1:443]>", "read(4<TCP:[127.0.0.1:80->127.0.0.1:5000]>",
    ]  # fmt: skip


def test_here_is_no_part_of_a_path() -> None:
    """./ in front says nothing; .. stays, since what is above a symbolic link is not known."""
    thread = Thread().call(1010, "chdir", [1], 0, [string(0, b"/srv")])
    for index, path in enumerate(("./x", ".//./x", "./", "./.", "./.x", "../x", "./../x")):
        thread.open(1020 + index, path, 3 + index)
    assert [line.rpartition(" = ")[2] for line in lines(thread)[1:]] == [
        "3</srv/x>", "4</srv/x>", "5</srv>", "6</srv>", "7</srv/.x>", "8</srv/../x>", "9</srv/../x>",
    ]  # fmt: skip


def told(thread: Thread, time_ns: int, fd: int, port: int, room: int = 16, result: int = 0) -> Thread:
    """A getsockname, with what it was given room for and what it gave back."""
    thread.call(time_ns, "getsockname", [fd, 1, 2], result, [sockaddr(port)] if not result else [])
    thread.writer.entry(thread.writer.last, time_ns, [word(2, room)])
    return thread


def test_a_port_that_the_kernel_chose_is_known_once_getsockname_has_told_it() -> None:
    """From then on, beside the peer; not from a call that failed or had too little room, and no other fd changes."""
    thread = Thread().open(1001, "/a", 0).call(1010, "socket", [2, 1, 0], 3)
    thread.call(1020, "bind", [3, 1, 16], 0, [sockaddr(0)])
    told(told(told(thread, 1030, 3, 4000, room=8), 1040, 3, 4000, result=-9), 1050, 3, 4000)
    thread.read(1060, 3).call(1070, "connect", [3, 1, 16], 0, [sockaddr(80)])
    told(thread.read(1080, 3), 1090, 3, 4001).read(1100, 3).read(1110, 0)
    found = lines(thread)
    assert found[4].startswith("getsockname(3<TCP>,")
    assert [line.split(",")[0] for line in (found[6], found[8], *found[10:])] == [
        "read(3<TCP:[127.0.0.1:4000]>",
        "read(3<TCP:[127.0.0.1:4000->127.0.0.1:80]>",
        "read(3<TCP:[127.0.0.1:4001->127.0.0.1:80]>",
        "read(0</a>",
    ]


def test_a_socket_that_is_bound_everywhere_has_an_address_of_its_own_once_it_is_connected() -> None:
    """Which one is not known: the kernel chose it."""
    everywhere = [sockaddr(80, bytes(4))]
    thread = Thread().call(1010, "socket", [2, 2, 0], 3).call(1020, "bind", [3, 1, 16], 0, everywhere)
    thread.read(1030, 3).call(1040, "connect", [3, 1, 16], 0, [sockaddr(53)]).read(1050, 3)
    found = [line.split(",")[0] for line in lines(thread)]
    assert (found[2], found[4]) == ("read(3<UDP:[0.0.0.0:80]>", "read(3<UDP:[->127.0.0.1:53]>")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("io_uring_setup", [8, 1]),
        ("io_uring_enter", [8, 1, 0, 0, 0, 0]),
        ("unshare", [0x400]),
        ("unshare", [0x200]),
        ("unshare", [0x20000]),
        ("setns", [4, 0x20000]),
        ("chroot", [0]),
        ("clone", [0x400, 0, 0, 0, 0]),
        ("clone", [0x200, 0, 0, 0, 0]),
        ("close_range", [9, 9, 2]),
    ],
)
def test_what_records_cannot_follow_has_no_names(name: str, args: list[int]) -> None:
    """io_uring opens and closes without calls; a shared or a thread's own table is not one table a process."""
    thread = Thread().open(1010, "/a", 3).call(1020, name, args, 3 if name == "io_uring_setup" else 7)
    found = lines(thread.read(1030, 3), seeds={(100, 1000): seen(1200, f3="/a")})
    assert found[-1].startswith("read(3,")


def test_a_range_is_closed_or_marked() -> None:
    """close_range; CLOSE_RANGE_CLOEXEC closes at the next exec."""
    thread = Thread().open(1010, "/a", 3).open(1020, "/b", 4).open(1030, "/c", 5)
    thread.call(1040, "close_range", [5, 0xFFFFFFFF, 0]).call(1050, "close_range", [4, 4, 4]).read(1060, 5)
    thread.read(1070, 4)
    thread.writer.exec(thread.next(), 1080, b"/bin/x")
    found = [line.split(",")[0] for line in lines(thread.read(1090, 4).read(1100, 3)) if "read" in line]
    assert found == ["read(5", "read(4</b>", "read(4", "read(3</a>"]


def test_the_call_that_makes_an_unknown_fd_ends_what_the_number_was() -> None:
    """pidfd_getfd may give anything: bare, never what stood there before."""
    thread = Thread().open(1010, "/a", 3).call(1020, "pidfd_getfd", [9, 1, 0], 3).read(1030, 3)
    assert lines(thread)[-1].startswith("read(3,")


def test_names_are_escaped_as_strace_does() -> None:
    """Between < and > those two are octal."""
    thread = Thread().open(1010, '/a<1>"\n', 3)
    assert lines(thread)[0].endswith('= 3</a\\0741\\76\\"\\n>')
    assert seed_text("/x<y (deleted)") == b"</x\\74y>(deleted)"


class Kernel:
    """A process's fd table as the kernel keeps it: the oracle of the random histories."""

    def __init__(self) -> None:
        self.table: dict[int, str] = {}

    def lowest(self) -> int:
        """The number that the next open gets."""
        return next(fd for fd in range(3, 100) if fd not in self.table)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7), st.booleans()), max_size=60))
def test_no_name_is_ever_wrong_and_without_gaps_none_is_missing(steps: list[tuple[int, int, bool]]) -> None:
    """Random opens, closes, dups, dup2s and reads; some records are taken out at random: a name is right or absent."""
    kernel, thread, expected = Kernel(), Thread(), []
    lossy = any(drop for *_, drop in steps)
    skip = 0
    for at, (what, pick, drop) in enumerate(steps):
        time_ns = 1010 + 10 * at
        fd = sorted(kernel.table)[pick % len(kernel.table)] if kernel.table else 3
        before = dict(kernel.table)
        name, args, result, captures = "read", [fd, 0, 1], 1, []
        if what == 0:
            result = kernel.lowest()
            kernel.table[result] = f"/file{at}"
            name, args, captures = "openat", [AT_FDCWD, 1, 0, 0], [string(1, f"/file{at}".encode())]
        elif what == 1 and fd in kernel.table:
            del kernel.table[fd]
            name, args, result = "close", [fd], 0
        elif what == 2 and fd in kernel.table:
            result = kernel.lowest()
            kernel.table[result] = kernel.table[fd]
            name, args = "dup", [fd]
        elif what == 3 and fd in kernel.table:
            result = 3 + pick
            kernel.table[result] = kernel.table[fd]
            name, args = "dup2", [fd, result]
        if drop and at:
            skip += 1
            continue
        thread.call(time_ns, name, args, result, captures, skip=skip)
        skip = 0
        if name == "read":
            expected.append((fd, before.get(fd)))
    if not thread.writer.records:
        return
    found = [line for line in lines(thread) if line.startswith("read")]
    assert len(found) == len(expected)
    for line, (fd, name) in zip(found, expected, strict=True):
        shown = line.split(",")[0]
        assert shown in (f"read({fd}", f"read({fd}<{name}>")
        if not lossy:
            assert shown == (f"read({fd}<{name}>" if name else f"read({fd}")


def test_without_room_names_are_left_out_and_nothing_is_wrong() -> None:
    """One entry and one thing for two files: the process has no names then."""
    thread = Thread().open(1010, "/a", 3).open(1020, "/b", 4).read(1030, 3).read(1040, 4)
    history = History([Arena([thread.writer.sample()])], [])
    history.select([True], 0, FOREVER, 100)
    names = FdNames(history, PLAN, {}, 0)
    names.pointer.entry_capacity = 1
    assert lib.pb_fd_names_open(names.pointer, ffi.NULL, 0) == lib.PB_OK
    encoding = Encoding(unix_offset_ns=1, observed_unix_ns=1, scope=b"")
    (chunk, _), *_ = history.encode(PLAN.pointer, [b""], encoding, names.pointer)
    assert b"read(4," in chunk
    assert b"read(4<" not in chunk
