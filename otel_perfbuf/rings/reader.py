# SPDX-License-Identifier: Apache-2.0
"""PerfReader: all rings behind one perf event array, read forward or as a snapshot.

What it is not: it knows neither what a sample means nor what walks the bytes (readout.py). Source: CONTRACT section 6.

Facts: a wake-up is reported once, unread data is not reported again, and data from before the registration never
  (FACTS 10). Decision: all rings are looked at when the reader is new, at every wake-up and at every timeout.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from otel_perfbuf.errors import ConfigError, KernelError, NotOverwritable, ReaderClosed
from otel_perfbuf.rings._sys import ffi, lib
from otel_perfbuf.rings.batch import Batch
from otel_perfbuf.rings.cpus import online_cpus
from otel_perfbuf.rings.gate import Gate
from otel_perfbuf.rings.maps import MapLike, open_perf_map
from otel_perfbuf.rings.options import Clock, SampleType, event_options, slack_for
from otel_perfbuf.rings.readout import ForwardReadout, MappedRing, ReverseReadout
from otel_perfbuf.rings.ring import EventOptions, PerfMap, Ring, open_ring

__all__ = ["PerfReader", "ReaderStats"]


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """What a reader has seen since it was opened.

    ``lost``: as the LOST records say that were read; ``kernel_lost``: as the kernel counts now (None before Linux 6.0).
    """

    batches: int = 0
    samples: int = 0
    lost: int = 0
    kernel_lost: int | None = None
    overwritten_bytes: int = 0
    truncated: int = 0
    malformed: int = 0
    unknown: int = 0


class PerfReader:
    """Reads what BPF programs send with ``bpf_perf_event_output`` into ``map``.

    ``map``: an object with ``fd``, an fd (both borrowed), or a pinned path. ``per_cpu_bytes`` is rounded up to a power
    of two of pages. ``overwritable``: the kernel overwrites the oldest and never waits, and ``snapshot`` reads; else
    ``read`` does, which wakes at ``watermark_bytes`` (default: a quarter ring) or every ``wakeup_events`` samples.
    ``sample_type``: metadata that the kernel adds, of "time", "tid", "cpu"; ``clock`` (default monotonic) stamps time.
    ``max_sample_bytes``: the largest sample that any program sends there; a snapshot then waits for nothing and leaves
    out as many of the oldest bytes as writers in flight may have torn; not given, it waits for a grace period
    (some 10-30 ms) and gives everything.

    Raises ConfigError for arguments, KernelError where the kernel refuses (nothing stays open then).
    All methods may be called from any thread; ``read``, ``flush`` and ``snapshot`` take turns.
    """

    def __init__(
        self,
        map: MapLike,
        *,
        per_cpu_bytes: int,
        overwritable: bool = False,
        watermark_bytes: int | None = None,
        wakeup_events: int | None = None,
        sample_type: Sequence[SampleType] = (),
        clock: Clock | None = None,
        max_sample_bytes: int | None = None,
    ) -> None:
        options = event_options(
            per_cpu_bytes=per_cpu_bytes,
            overwritable=overwritable,
            watermark_bytes=watermark_bytes,
            wakeup_events=wakeup_events,
            sample_type=sample_type,
            clock=clock,
        )
        slack = slack_for(max_sample_bytes, options.sample_type, options.capacity) if overwritable else 0
        self.per_cpu_bytes = options.capacity
        """Data bytes of each ring."""
        self.overwritable = overwritable
        self._stats = ReaderStats()
        self._turn = threading.Lock()
        self._flush = threading.Event()
        self._fresh = True  # data from before the registration is not reported: look before the first wait
        with contextlib.ExitStack() as opened:
            self._open(opened, map, options)
            mapped = [_mapped(ring) for ring in self._rings]
            self._forward = None if overwritable else ForwardReadout(mapped, options.sample_type)
            self._reverse = None
            if overwritable:
                grace = None if max_sample_bytes is not None else _grace_period
                self._reverse = ReverseReadout(mapped, options.sample_type, slack_bytes=slack, grace_period=grace)
            self._opened = opened.pop_all()
        self._gate = Gate(self._wake, self._opened.close)

    def _open(self, opened: contextlib.ExitStack, map: MapLike, options: EventOptions) -> None:
        self._map: PerfMap = open_perf_map(map)
        opened.callback(self._map.close)
        self._epoll = select.epoll()
        opened.callback(self._epoll.close)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        opened.callback(os.close, self._event)
        self._epoll.register(self._event, select.EPOLLIN)
        cpus = [cpu for cpu in online_cpus() if cpu < self._map.max_entries]
        if not cpus:
            raise ConfigError(
                f"the map {self._map.name} has {self._map.max_entries} entries and no online CPU has so low a number; "
                "make max_entries the number of possible CPUs"
            )
        self._rings: list[Ring] = []
        for cpu in cpus:
            ring = open_ring(cpu, options)
            if ring is None:
                continue
            opened.callback(ring.close)
            if not options.overwritable:
                self._epoll.register(ring.fd, select.EPOLLIN)
            self._map.set(ring)
            opened.callback(self._map.delete, cpu)
            self._rings.append(ring)
        if not self._rings:
            raise KernelError(errno.ENODEV, f"opening perf rings for the map {self._map.name}: every CPU went offline")

    # ---- forward ----

    def read(self, timeout: float | None = None) -> Batch:
        """Waits until a ring has reached its watermark, and gives what all rings hold by then.

        At the timeout (seconds; None = none; 0 = do not wait) it gives what is there, below any watermark: an empty
        batch when there is nothing. A batch holds at most some 128 KiB of each ring; the next call gives the rest at
        once. Raises ReaderClosed when the reader is closed meanwhile, NotOverwritable when it is an overwritable one.
        """
        forward = self._need_forward("read")
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._gate, self._turn:
            while True:
                self._gate.check()
                batch = None
                if self._fresh or forward.left_bytes:
                    self._fresh = False
                    batch = self._drain(forward)
                    if len(batch):
                        return batch
                timed_out = not self._wait(deadline)
                self._gate.check()
                flushed = self._end_flush()
                batch = self._drain(forward)
                if len(batch) or timed_out or flushed:
                    return batch

    def flush(self) -> Batch:
        """Gives what is there, below any watermark, without waiting.

        When another thread waits in ``read``, that one wakes and gets it, and this batch is empty.
        """
        forward = self._need_forward("flush")
        with self._gate:
            self._flush.set()
            self._wake()
            if not self._turn.acquire(blocking=False):
                return Batch.empty()
            try:
                self._end_flush()
                self._fresh = False
                return self._drain(forward)
            finally:
                self._turn.release()

    def _need_forward(self, what: str) -> ForwardReadout:
        if self._forward is None:
            raise NotOverwritable(f"{what} of an overwritable reader of the map {self._map.name}: use snapshot()")
        return self._forward

    def _wait(self, deadline: float | None) -> bool:
        """Waits for a wake-up of a ring, a flush or close; False at the deadline."""
        if deadline is None:
            return bool(self._epoll.poll(maxevents=1))
        return bool(self._epoll.poll(max(0.0, deadline - time.monotonic()), maxevents=1))

    def _end_flush(self) -> bool:
        # First the event, then the flag: a flush between the two joins this one, and no event stays behind unread.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        flushed = self._flush.is_set()
        self._flush.clear()
        return flushed

    def _drain(self, forward: ForwardReadout) -> Batch:
        batch = forward.drain()
        self._account(batch)
        return batch

    # ---- overwritable ----

    def snapshot(self, since: Literal["last", "all"] = "last") -> Batch:
        """The history that the rings hold, oldest first, read while the programs go on writing.

        ``last``: what no snapshot has returned before; ``all``: everything that is still held. Either way the next
        "last" begins behind it. Raises NotOverwritable when the reader is a forward one.
        """
        if self._reverse is None:
            raise NotOverwritable(
                f"snapshot of a forward reader of the map {self._map.name}: open it with overwritable=True"
            )
        if since not in ("last", "all"):
            raise ConfigError(f"since is {since!r}; give 'last' or 'all'")
        with self._gate, self._turn:
            self._gate.check()
            batch = self._reverse.snapshot(everything=since == "all")
            self._account(batch)
            return batch

    # ---- both ----

    def pause(self) -> None:
        """Makes the programs' outputs fail with -ENOSPC until ``resume``: the rings stand still, nothing is freed.

        What they try to send meanwhile is lost, and a LOST record says so after resume. Twice is fine.
        """
        with self._gate:
            for ring in self._rings:
                ring.pause(True)

    def resume(self) -> None:
        """Ends a pause; twice is fine."""
        with self._gate:
            for ring in self._rings:
                ring.pause(False)

    @property
    def stats(self) -> ReaderStats:
        """Counts since the reader was opened; ReaderClosed after close."""
        with self._gate:
            known = [lost for ring in self._rings if (lost := ring.lost()) is not None]
            stats = self._stats
        return ReaderStats(
            batches=stats.batches,
            samples=stats.samples,
            lost=stats.lost,
            kernel_lost=sum(known) if len(known) == len(self._rings) else None,
            overwritten_bytes=stats.overwritten_bytes,
            truncated=stats.truncated,
            malformed=stats.malformed,
            unknown=stats.unknown,
        )

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that have a ring, ascending; there may be holes."""
        return tuple(ring.cpu for ring in self._rings)

    def fileno(self) -> int:
        """An fd that is readable when ``read(0)`` is worth a call: for select, epoll, or asyncio's add_reader."""
        with self._gate:
            return self._epoll.fileno()

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return self._gate.closed

    def close(self) -> None:
        """Takes the rings out of the map and gives everything back; batches stay valid.

        Wakes a blocked ``read``, which raises ReaderClosed, and returns when it has. A second close is fine.
        """
        self._gate.close()

    def _wake(self) -> None:
        os.eventfd_write(self._event, 1)

    def _account(self, batch: Batch) -> None:
        stats, walk = self._stats, batch.walk
        self._stats = ReaderStats(
            batches=stats.batches + 1,
            samples=stats.samples + walk.frames - walk.lost_frames,
            lost=stats.lost + walk.lost,
            overwritten_bytes=stats.overwritten_bytes + (batch.overwritten_bytes if self.overwritable else 0),
            truncated=stats.truncated + walk.truncated,
            malformed=stats.malformed + walk.malformed,
            unknown=stats.unknown + walk.unknown,
        )

    def __enter__(self) -> Self:
        """The reader, which the with block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    def __del__(self) -> None:
        """Closes what was forgotten, with a ResourceWarning."""
        gate = getattr(self, "_gate", None)
        if gate is not None and not gate.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            with contextlib.suppress(OSError, ReaderClosed):
                gate.close()


def _mapped(ring: Ring) -> MappedRing:
    page = int(ffi.cast("uintptr_t", ring.address))
    return MappedRing(ring.cpu, page, page + os.sysconf("SC_PAGESIZE"), ring.capacity)


def _grace_period() -> bool:
    # EINVAL with nohz_full, ENOSYS before 4.3: then the slack alone must do.
    return int(lib.pb_sys_grace_period()) >= 0
