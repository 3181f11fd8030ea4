# SPDX-License-Identifier: Apache-2.0
"""Dumps on disk: written whole, found again, cut and damaged files found out, oldest dropped first."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from export_samples import ScriptedExporter
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.item import KeptFault
from otel_perfbuf.exporters.payload import Chunk
from otel_perfbuf.exporters.queue import SendingQueue
from otel_perfbuf.spool.entry import Entry, Share
from otel_perfbuf.spool.frames import FrameFault, Meta, ack, layout, parse_acks, scan, written
from otel_perfbuf.spool.storage import Spool

CHUNKS = (Chunk("logs", b"header", 1), Chunk("traces", b"span", 1), Chunk("logs", b"x" * 5000, 100))
SHARES = {"file": (0, 2), "otlp_grpc": (0, 1, 2)}


def meta(name: str = "a", shares: dict[str, tuple[int, ...]] | None = None) -> Meta:
    """About a dump; ``name`` becomes its id."""
    return Meta(name * 32, "span_error", 100, SHARES if shares is None else shares)


def opened(directory: Path, max_bytes: int = 1 << 20, **keys: object) -> Spool:
    """A spool that is open."""
    spool = Spool(directory, max_bytes, **keys)  # type: ignore[arg-type]
    spool.open()
    return spool


def reopened(spool: Spool, directory: Path, **keys: object) -> Spool:
    """The same directory under a new agent."""
    spool.close()
    return opened(directory, **keys)  # type: ignore[arg-type]


def left(share: Share) -> list[bytes]:
    """The bodies that are not acknowledged, in order."""
    return [share.load(index).body for index, _ in enumerate(share.begin())]


def settle(share: Share, indices: Sequence[int], *, delivered: bool = True) -> None:
    """Acknowledges some of what is left."""
    share.begin()
    for index in indices:
        share.settle(index, delivered=delivered)


def names(directory: Path) -> set[str]:
    """The spool's files but its lock."""
    return {path.name for path in directory.iterdir()} - {"lock"}


def test_a_dump_is_found_again_byte_for_byte(tmp_path: Path) -> None:
    """After a restart each exporter gets its own chunks, as they were, in their order."""
    spool = opened(tmp_path / "spool")
    spool.add(meta(), CHUNKS)
    spool = reopened(spool, tmp_path / "spool")
    (grpc,), (file,) = spool.shares("otlp_grpc"), spool.shares("file")
    assert left(grpc) == [chunk.body for chunk in CHUNKS]
    assert left(file) == [b"header", b"x" * 5000]
    assert [grpc.load(index).signal for index in range(3)] == ["logs", "traces", "logs"]
    assert (grpc.dump_id, grpc.trigger) == ("a" * 32, "span_error")


def test_each_exporter_acknowledges_for_itself(tmp_path: Path) -> None:
    """What one has acknowledged is kept for the other; the files go with the last acknowledgement."""
    spool = opened(tmp_path)
    spool.add(meta(), CHUNKS)
    settle(spool.shares("otlp_grpc")[0], [0, 1, 2])
    spool = reopened(spool, tmp_path)
    assert spool.shares("otlp_grpc") == []
    assert spool.exporters() == {"file": 1}
    settle(spool.shares("file")[0], [0])
    spool = reopened(spool, tmp_path)
    assert left(spool.shares("file")[0]) == [b"x" * 5000]
    settle(spool.shares("file")[0], [0])
    assert names(tmp_path) == set()
    assert spool.stats().size_bytes == spool.stats().dumps == 0


def test_a_failed_chunk_is_remembered_over_a_restart(tmp_path: Path) -> None:
    """A dump of which a chunk was given up is not delivered, whoever finishes it."""
    spool = opened(tmp_path)
    spool.add(meta(), CHUNKS)
    settle(spool.shares("otlp_grpc")[0], [0], delivered=False)
    spool = reopened(spool, tmp_path)
    assert spool.shares("otlp_grpc")[0].failed
    assert not spool.shares("file")[0].failed


def test_file_and_directory_are_synced_before_a_dump_counts(tmp_path: Path) -> None:
    """fsync of the file when it is whole, then of the directory, before `add` returns."""
    synced: list[tuple[bool, int]] = []

    def fsync(fd: int) -> None:
        found = os.fstat(fd)
        synced.append((stat.S_ISDIR(found.st_mode), found.st_size))

    opened(tmp_path, fsync=fsync).add(meta(), CHUNKS)
    (path,) = tmp_path.glob("*.dump")
    assert synced[0] == (False, path.stat().st_size)
    assert [directory for directory, _ in synced] == [False, True]


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    """0700 and 0600, whatever the umask, and a directory that was there is narrowed."""
    directory = tmp_path / "deep" / "spool"
    directory.mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        spool = opened(directory)
        spool.add(meta(), CHUNKS)
        settle(spool.shares("file")[0], [0])
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert len(list(directory.iterdir())) == 3


def test_a_second_agent_is_refused(tmp_path: Path) -> None:
    """Two would send everything twice."""
    spool = opened(tmp_path)
    with pytest.raises(PerfbufError, match=r"another agent uses it; give a directory of its own"):
        opened(tmp_path)
    reopened(spool, tmp_path).close()


def test_the_oldest_whole_dump_makes_room(tmp_path: Path) -> None:
    """With room for three the first of four goes; its queue is told once, and the others stay whole."""
    size = layout(meta(), CHUNKS)[1]
    spool = opened(tmp_path, 3 * size)
    entries = [spool.add(meta(name), CHUNKS) for name in "abc"]
    told: list[str] = []
    for share in entries[0].shares.values():
        share.begin()
        share.on_drop(lambda: not told.append("a"))  # type: ignore[func-returns-value]  # None, so True
    spool.add(meta("d"), CHUNKS)
    assert told == ["a", "a"]
    assert [share.dump_id[0] for share in spool.shares("file")] == ["b", "c", "d"]
    stats = spool.stats()
    assert (stats.dropped, stats.dumps, stats.size_bytes) == (1, 3, 3 * size)
    with pytest.raises(KeptFault, match="No such file"):
        entries[0].load(0)
    assert [share.dump_id[0] for share in reopened(spool, tmp_path).shares("file")] == ["b", "c", "d"]


def test_dumps_that_no_queue_has_are_told_to_the_spools_listener(tmp_path: Path) -> None:
    """A smaller bound at a restart drops the oldest, counted, though no queue knows them yet."""
    size = layout(meta(), CHUNKS)[1]
    spool = opened(tmp_path, 3 * size)
    for name in "abc":
        spool.add(meta(name), CHUNKS)
    spool.close()
    dropped: list[str] = []
    spool = opened(tmp_path, 2 * size, on_dropped=lambda about: dropped.append(about.dump_id[0]))
    assert (dropped, spool.stats().dropped) == (["a"], 1)


def test_a_queue_that_has_ended_does_not_count_a_drop(tmp_path: Path) -> None:
    """Its exporter is gone since a reload: the spool's own listener is told instead."""
    size = layout(meta(), CHUNKS)[1]
    dropped: list[str] = []
    spool = opened(tmp_path, size, on_dropped=lambda about: dropped.append(about.dump_id[0]))
    queue = SendingQueue(ScriptedExporter(), name="otlp_grpc")  # never started: it sends nothing
    for share in spool.add(meta("a", {"otlp_grpc": (0, 1, 2)}), CHUNKS).shares.values():
        queue.put_kept(share)
    queue.drain(0.0)
    spool.add(meta("b"), CHUNKS)
    assert dropped == ["a"]
    assert queue.stats().logs.dropped == 0


def test_the_number_of_dumps_is_bounded_too(tmp_path: Path) -> None:
    """Small dumps do not fill the memory that knows them."""
    spool = opened(tmp_path, dumps_max=2)
    for name in "abc":
        spool.add(meta(name), CHUNKS)
    assert [share.dump_id[0] for share in spool.shares("file")] == ["b", "c"]


def test_a_dump_larger_than_the_spool_is_not_taken(tmp_path: Path) -> None:
    """It is said with both sizes, counted, and nothing is dropped for it."""
    spool = opened(tmp_path, 10_000)
    spool.add(meta(), CHUNKS)
    with pytest.raises(PerfbufError, match=r"it has \d+, more than max_bytes \(10000\)"):
        spool.add(meta("b"), [Chunk("logs", b"x" * 20_000, 1)])
    assert (spool.stats().failed, spool.stats().dumps) == (1, 1)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_leaves_nothing_behind(tmp_path: Path, fault: int) -> None:
    """A dump whose file cannot be synced is taken back, counted, and said with the system's own words."""

    def fsync(_fd: int) -> None:
        raise OSError(fault, os.strerror(fault))

    spool = opened(tmp_path, fsync=fsync)
    with pytest.raises(PerfbufError, match=os.strerror(fault)):
        spool.add(meta(), CHUNKS)
    assert names(tmp_path) == set()
    assert (spool.stats().failed, spool.stats().dumps) == (1, 0)


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    """Order is a running number, not a clock: a later dump is never taken for an older one."""
    spool = opened(tmp_path)
    spool.add(meta("a"), CHUNKS)
    spool = reopened(spool, tmp_path)
    spool.add(meta("b"), CHUNKS)
    spool = reopened(spool, tmp_path)
    assert [share.dump_id[0] for share in spool.shares("file")] == ["a", "b"]
    assert names(tmp_path) == {"0000000000000001.dump", "0000000000000002.dump"}


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """What has another name is not ours; acknowledgements without their dump are swept up."""
    for name in ("README", "1.dump", "x.acks", "0000000000000001.txt"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "0000000000000007.acks").write_bytes(ack(0, 0, delivered=True))
    spool = opened(tmp_path)
    assert names(tmp_path) == {"README", "1.dump", "x.acks", "0000000000000001.txt"}
    assert spool.stats().malformed == 0


def file_bytes() -> bytes:
    """A whole file."""
    return b"".join(written(meta(), CHUNKS))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(file_bytes()) - 1))
def test_a_file_cut_anywhere_is_found_out(size: int) -> None:
    """SIGKILL in the middle of writing: whatever was written before, the file is counted, deleted and never sent."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = directory / "0000000000000001.dump"
        path.write_bytes(file_bytes()[:size])
        spool = opened(directory)
        assert (spool.stats().malformed, spool.stats().dumps) == (1, 0)
        assert not path.exists()
        spool.close()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(file_bytes()) - 1), st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_found_out(place: int, difference: int) -> None:
    """A disk that gives other bytes back than were written: nothing of the file is sent."""
    data = bytearray(file_bytes())
    data[place] ^= difference
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        with pytest.raises(FrameFault):
            scan(file.fileno())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_no_dump(data: bytes) -> None:
    """Garbage under a dump's name is counted, not read into memory and not sent."""
    with tempfile.TemporaryFile() as file:
        file.write(b"pbspool1" + data)
        file.flush()
        with pytest.raises(FrameFault):
            scan(file.fileno())


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 2**32 - 1), st.booleans())), st.integers(0, 11))
def test_a_cut_acknowledgement_is_left_out(acks: list[tuple[int, int, bool]], cut: int) -> None:
    """All whole ones are read; the last, cut by a kill, is as if it had not come: its chunk is sent twice."""
    data = b"".join(ack(share, index, delivered=delivered) for share, index, delivered in acks)
    assert list(parse_acks(data)) == acks
    assert list(parse_acks(data + ack(1, 2, delivered=True)[:cut])) == acks


def test_acknowledgements_after_a_cut_one_are_read(tmp_path: Path) -> None:
    """What is appended after a restart begins where one begins."""
    spool = opened(tmp_path)
    spool.add(meta(), CHUNKS)
    settle(spool.shares("otlp_grpc")[0], [0])
    acks = tmp_path / "0000000000000001.acks"
    acks.write_bytes(acks.read_bytes() + b"\x01\x02\x03")
    spool = reopened(spool, tmp_path)
    settle(spool.shares("otlp_grpc")[0], [0])
    spool = reopened(spool, tmp_path)
    assert left(spool.shares("otlp_grpc")[0]) == [b"x" * 5000]


def test_a_chunk_damaged_later_is_a_fault_of_that_chunk(tmp_path: Path) -> None:
    """Bytes that change after the start are found when the chunk is read."""
    spool = opened(tmp_path)
    entry: Entry = spool.add(meta(), CHUNKS)
    data = bytearray(entry.path.read_bytes())
    data[-100] ^= 1
    entry.path.write_bytes(data)
    share = spool.shares("otlp_grpc")[0]
    assert left_until_fault(share) == ([b"header", b"span"], 1)


def left_until_fault(share: Share) -> tuple[list[bytes], int]:
    """The bodies that can be read, and how many cannot."""
    bodies, faults = [], 0
    for index, _ in enumerate(share.begin()):
        try:
            bodies.append(share.load(index).body)
        except KeptFault as fault:
            assert "checksum" in str(fault)
            faults += 1
    return bodies, faults


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """A file where the directory should be: said with its path and the way out."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PerfbufError, match=r"opening the spool .*/file/spool: Not a directory; give a directory"):
        opened(tmp_path / "file" / "spool")
