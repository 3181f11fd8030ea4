# SPDX-License-Identifier: Apache-2.0
"""PerfReader: all rings behind one perf event array, read forward or as a snapshot.

What it is not: it knows neither what a sample means nor what walks the bytes (readout.py), nor how to wait (base.py).
Source: CONTRACT section 6.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Literal, Self

from otel_perfbuf.errors import ConfigError, KernelError, NotOverwritable, ReaderClosed
from otel_perfbuf.rings._sys import ffi, lib
from otel_perfbuf.rings.base import ReaderBase, ReaderStats, Waiting
from otel_perfbuf.rings.batch import Batch
from otel_perfbuf.rings.cpu_watch import CpuWatch
from otel_perfbuf.rings.maps import MapLike, open_perf_map
from otel_perfbuf.rings.options import Clock, SampleType, event_options, slack_for
from otel_perfbuf.rings.readout import ForwardReadout, MappedRing, ReverseReadout
from otel_perfbuf.rings.ring import Ring
from otel_perfbuf.rings.ring_set import RingSet
from otel_perfbuf.rings.saved import SavedRings
from otel_perfbuf.rings.swap import SwapReadout

__all__ = ["PerfReader", "ReaderStats"]

_log = logging.getLogger(__name__)


class PerfReader(ReaderBase):
    """Reads what BPF programs send with ``bpf_perf_event_output`` into ``map``.

    ``map``: an object with ``fd``, an fd (both borrowed), or a pinned path. ``per_cpu_bytes`` is rounded up to a power
    of two of pages. ``overwritable``: the kernel overwrites the oldest and never waits, and ``snapshot`` reads; else
    ``read`` does, which wakes at ``watermark_bytes`` (default: a quarter ring) or every ``wakeup_events`` samples.
    ``swap``: each CPU has two rings, and a snapshot reads one while the other is written: nothing is overwritten
    during the copy, at twice the memory. ``sample_type``: metadata that the kernel adds, of "time", "tid", "cpu";
    ``clock`` (default monotonic) stamps time.
    ``max_sample_bytes``: the largest sample that any program sends there; a snapshot then waits for nothing and leaves
    out as many of the oldest bytes as writers in flight may have torn; not given (or with ``swap``), it waits for a
    grace period (some 10-30 ms) and gives everything.

    Raises ConfigError for arguments, KernelError where the kernel refuses (nothing stays open then).
    All methods may be called from any thread; ``read``, ``flush`` and ``snapshot`` take turns.
    ``from_file(DIR)`` reads what ``otel_perfbuf.testing.save_rings`` has saved, without BPF and without privileges.
    ``async for batch in reader`` gives what ``read()`` gives, in an asyncio loop, and ends when the reader is closed.
    """

    def __init__(
        self,
        map: MapLike,
        *,
        per_cpu_bytes: int,
        overwritable: bool = False,
        swap: bool = False,
        watermark_bytes: int | None = None,
        wakeup_events: int | None = None,
        sample_type: Sequence[SampleType] = (),
        clock: Clock | None = None,
        max_sample_bytes: int | None = None,
    ) -> None:
        if swap and not overwritable:
            raise ConfigError("swap is given without overwritable: a forward ring loses nothing to its reader")
        options = event_options(
            per_cpu_bytes=per_cpu_bytes,
            overwritable=overwritable,
            watermark_bytes=watermark_bytes,
            wakeup_events=wakeup_events,
            sample_type=sample_type,
            clock=clock,
        )
        slack = slack_for(max_sample_bytes, options.sample_type, options.capacity) if overwritable else 0
        self._prepare_fields(overwritable, swap, options.capacity, options.sample_type, slack)
        self._grace = None if max_sample_bytes is not None else _grace_period
        waiting = Waiting()
        with contextlib.ExitStack() as opened:
            opened.callback(waiting.close)
            perf_map = open_perf_map(map)
            opened.callback(perf_map.close)
            self._what = f"the map {perf_map.name}"
            self._set: RingSet | SavedRings = RingSet(
                perf_map, options, None if overwritable else waiting.add, pairs=swap
            )
            opened.callback(self._set.close)
            self._read_rings()
            self._opened = opened.pop_all()
        self._start(waiting)

    @classmethod
    def from_file(cls, directory: str | os.PathLike[str]) -> Self:
        """A reader of rings that were saved from a live one: the same calls, the same batches, no kernel.

        A forward one gives what waited to be read; an overwritable one gives the history. Nothing is written to the
        files. Raises ConfigError when the directory holds no saved rings.
        """
        saved = SavedRings(directory)
        reader = cls.__new__(cls)
        reader._prepare_fields(saved.overwritable, False, saved.capacity, saved.sample_type, 0)
        reader._what = f"the rings saved in {os.fspath(directory)}"
        reader._grace = None
        reader._set = saved
        reader._read_rings()
        waiting = Waiting()
        reader._opened.callback(waiting.close)
        reader._opened.callback(saved.close)
        reader._start(waiting)
        return reader

    def _prepare_fields(self, overwritable: bool, swap: bool, capacity: int, sample_type: int, slack: int) -> None:
        super().__init__(overwritable=overwritable)
        self.swap = swap
        self.per_cpu_bytes = capacity
        """Data bytes of each ring."""
        self.sample_type = sample_type
        """PERF_SAMPLE_* bits of the rings' records."""
        self._slack = slack
        self._rings_lock = threading.Lock()  # for what looks at the rings without waiting for a turn
        # A rescan was asked for; these CPUs have been offline. Who asks wakes the reader afterwards.
        self._went: set[int] | None = None
        self._watch: CpuWatch | None = None
        self._forward: ForwardReadout | None = None
        self._reverse: ReverseReadout | SwapReadout | None = None

    def _read_rings(self) -> None:
        """Readouts of the rings as they are now; cursors of those that stay are kept."""
        mapped = [_mapped(ring) for ring in self._set.rings]
        if not self.overwritable:
            self._forward = ForwardReadout(mapped, self.sample_type)
        elif self.swap:
            swapping = SwapReadout(
                mapped,
                [_mapped(ring) for ring in self._set.spares],
                self.sample_type,
                slack_bytes=self._slack,
                grace_period=_grace_period,
                flip=self._flip,
            )
            if isinstance(self._reverse, SwapReadout):
                swapping.adopt(self._reverse)
            self._reverse = swapping
        else:
            reverse = ReverseReadout(mapped, self.sample_type, slack_bytes=self._slack, grace_period=self._grace)
            if isinstance(self._reverse, ReverseReadout):
                reverse.adopt(self._reverse)
            self._reverse = reverse

    # ---- what ReaderBase asks for ----

    def _take(self) -> Batch:
        assert self._forward is not None  # read and flush have refused an overwritable reader
        return self._forward.drain()

    def _has_more(self) -> bool:
        return self._fresh or (self._forward is not None and self._forward.left_bytes > 0)

    def _prepare(self) -> None:
        if self._went is None:
            return
        try:
            self._rescan_when_asked()
        except KernelError as error:
            # Who reads goes on with the rings that there are.
            _log.warning("rescanning the CPUs: %s", error)

    # ---- overwritable ----

    def snapshot(self, since: Literal["last", "all"] = "last") -> Batch:
        """The history that the rings hold, oldest first, read while the programs go on writing.

        ``last``: what no snapshot has returned before; ``all``: everything that is still held. Either way the next
        "last" begins behind it. Raises NotOverwritable when the reader is a forward one.
        """
        if not self.overwritable:
            raise NotOverwritable(f"snapshot of a forward reader of {self._what}: open it with overwritable=True")
        return self._snapshot(since, self._take_snapshot)

    def _take_snapshot(self, everything: bool) -> Batch:
        assert self._reverse is not None  # snapshot has refused a forward reader
        return self._reverse.snapshot(everything=everything)

    def _flip(self) -> None:
        with self._rings_lock:
            self._set.flip()

    # ---- rings ----

    def pause(self) -> None:
        """Makes the programs' outputs fail with -ENOSPC until ``resume``: the rings stand still, nothing is freed.

        What they try to send meanwhile is lost, and a LOST record says so after resume. Twice is fine.
        """
        self._pause(True)

    def resume(self) -> None:
        """Ends a pause; twice is fine."""
        self._pause(False)

    def _pause(self, pause: bool) -> None:
        with self._gate, self._rings_lock:
            for ring in self._set.all():
                ring.pause(pause)

    def rescan(self) -> None:
        """Gives CPUs that came online a ring, and keeps what the rings of CPUs that went still hold.

        When another thread waits in ``read``, that one wakes and does it. KernelError when a ring cannot be opened;
        the others are in use then, and a later call tries again.
        """
        self._rescan(frozenset())

    def watch_cpus(self) -> None:
        """Rescans by itself whenever the kernel says that a CPU came or went; twice is fine.

        A thread listens to uevents until the reader is closed. KernelError when the kernel gives no such socket.
        """
        with self._gate, self._turn:
            if self._watch is not None:
                return
            ours = weakref.WeakMethod(self._rescan)

            def changed(went: frozenset[int]) -> None:
                rescan = ours()
                if rescan is not None:
                    with contextlib.suppress(ReaderClosed):
                        rescan(went)

            try:
                self._watch = CpuWatch(changed)
            except OSError as error:
                raise KernelError(error.errno or 0, "opening the kernel's uevent socket to watch CPUs") from error
            self._opened.callback(self._watch.close)

    def _rescan(self, went: Collection[int]) -> None:
        with self._gate:
            with self._rings_lock:
                self._went = {*(self._went or ()), *went}
            self._waiting.wake()
            # A snapshot is short; a read may wait for ever, and does it itself.
            if self._turn.acquire(blocking=self.overwritable):
                try:
                    self._rescan_when_asked()
                finally:
                    self._turn.release()

    def _rescan_when_asked(self) -> None:
        """In its own turn: nobody reads the rings meanwhile."""
        with self._rings_lock:
            went, self._went = self._went, None
            if went is None:
                return
            before = self._set.all()
            old: list[Ring] = []
            try:
                old = self._set.rescan(went, self._is_drained)
            finally:
                for ring in self._set.rings:
                    if ring.gone:
                        self._waiting.remove(ring.fd)
                if self._set.all() != before:
                    self._read_rings()
                    self._fresh = True
                for ring in old:
                    self._waiting.remove(ring.fd)
                    ring.close()

    def _waiting_bytes(self) -> list[tuple[int, int, int, bytes]]:
        """For save_rings: each forward ring's cpu, head, tail and data; nothing between tail and head can change."""
        with self._gate, self._turn, self._rings_lock:
            assert self._forward is not None
            return self._forward.images()

    def _is_drained(self, ring: Ring) -> bool:
        return self._forward is not None and not self._forward.has_more(_mapped(ring))

    @property
    def stats(self) -> ReaderStats:
        """Counts since the reader was opened; ReaderClosed after close."""
        with self._gate, self._rings_lock:
            return ReaderStats(**self._counts, kernel_lost=self._set.lost())

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs whose ring is written, ascending; there may be holes."""
        with self._rings_lock:
            return self._set.cpus


def _mapped(ring: Ring) -> MappedRing:
    page = int(ffi.cast("uintptr_t", ring.address))
    return MappedRing(ring.cpu, page, page + os.sysconf("SC_PAGESIZE"), ring.capacity)


def _grace_period() -> bool:
    # EINVAL with nohz_full, ENOSYS before 4.3: then the slack alone must do.
    return int(lib.pb_sys_grace_period()) >= 0
