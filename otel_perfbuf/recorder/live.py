# SPDX-License-Identifier: Apache-2.0
"""A forward ring, drained live: records become OTLP chunks as they come. Source: DESIGN sections 1 and 2.

What it is not: no dump, so no trace, no correlation, no header. What the ring lost is sent as `perfbuf.lost`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.bpf.syscalls import ProcessEntry
from otel_perfbuf.errors import ConfigError, KernelError, PerfbufError, ReaderClosed
from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.records.plan import Plan
from otel_perfbuf.rings import Batch, PerfReader
from otel_perfbuf.rings.protocol import Reader, ReaderFactory
from otel_perfbuf.rings.readout import SLICE_BYTES

from .clock import unix_offset_ns
from .header import SCOPE
from .history import Encoding, History, ProcessKey
from .inflight import EntryFrames
from .processes import Process, process_resource, table_process
from .redacted import Redacted

__all__ = ["ForwardProgram", "LiveStream", "NamedMap"]

_log = logging.getLogger(__name__)

_POLL_S = 1.0
_FOREVER = (1 << 63) - 1


class ForwardProgram(Protocol):
    """What sends samples of the form of bpf/records.h."""

    @property
    def events_map(self) -> Any:
        """Its perf event array."""

    def attach(self) -> None:
        """Begins to send."""

    def process(self, key: ProcessKey) -> ProcessEntry | None:
        """Who a process of its samples is now; None: not known any more."""

    def missed_events(self) -> int:
        """Events at which the kernel did not run it (`BpfObject.missed_events`)."""

    def close(self) -> None:
        """Detaches it; twice is fine."""


class NamedMap:
    """A map that somebody else's program fills, or what a registered reader takes for one: only its name is known."""

    def __init__(self, name: str) -> None:
        self.events_map = name

    def attach(self) -> None:
        """Whoever fills it has begun already."""

    def missed_events(self) -> int:
        """Its program is not known."""
        return 0

    def process(self, _key: ProcessKey) -> None:
        """Nobody knows."""

    def close(self) -> None:
        """Nothing was opened."""


def _lost_sample(count: int, now_ns: int) -> bytes:
    """A sample of our own making that says how many records the ring had no room for."""
    record = ffi.new("struct pb_lost *")
    record.record.bytes, record.record.kind = ffi.sizeof("struct pb_lost"), lib.PB_RECORD_LOST
    record.record.time_ns, record.count, record.reason = now_ns, count, lib.PB_LOST_NO_SPACE
    sample = ffi.new("struct pb_sample *")
    sample.version, sample.kind, sample.sent_ns = lib.PB_VERSION, lib.PB_SAMPLE_SINGLE, now_ns
    sample.bytes = ffi.sizeof("struct pb_sample") + ffi.sizeof("struct pb_lost")
    return bytes(ffi.buffer(sample)) + bytes(ffi.buffer(record))


class LiveStream:
    """Drains one forward reader in a thread of its own and hands payloads to ``emit``.

    Owns the program and the reader. ``watermark_bytes`` None is a quarter of a ring (FACTS 23: a wake-up costs more
    than a record); what lies below it is read once a second. ``open_reader``: a registered one instead of ours, with
    its ``mode``'s name.
    """

    def __init__(
        self,
        program: ForwardProgram,
        plan: Plan,
        emit: Callable[[Payload], object],
        *,
        per_cpu_bytes: int,
        watermark_bytes: int | None = None,
        open_reader: ReaderFactory | None = None,
        mode: str = "forward",
    ) -> None:
        self._program = program
        self._per_cpu_bytes = per_cpu_bytes
        self._mode = mode
        self._plan = plan
        self._emit = emit
        self._stopping = threading.Event()
        self._records = self._lost = self._missed_events = self._malformed = 0
        try:
            self._reader: Reader
            if open_reader is not None:
                self._reader = _opened(open_reader, mode, program, per_cpu_bytes)
            else:
                self._reader = PerfReader(
                    program.events_map,
                    per_cpu_bytes=per_cpu_bytes,
                    watermark_bytes=watermark_bytes or per_cpu_bytes // 4,
                )
        except BaseException:
            program.close()
            raise
        self._thread = threading.Thread(target=self._run, name="perfbuf-live", daemon=True)

    def start(self) -> None:
        """Attaches the program and begins to drain."""
        self._program.attach()
        if isinstance(self._reader, PerfReader):
            try:
                self._reader.watch_cpus()
            except KernelError as error:
                _log.warning("%s; a CPU that comes back is not recorded", error)
        self._thread.start()

    def stop(self) -> None:
        """Detaches, sends what the rings still hold, closes them; twice is fine."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        try:
            # When the thread is not waiting in its read, what lies below the watermark comes here.
            flushed = self._reader.flush()
            if self._thread.is_alive():
                self._thread.join()
            self._take(flushed)
            # A batch is a slice of each ring, and the program still sends: as many as a full ring has, no more.
            for _ in range(2 * self._per_cpu_bytes // SLICE_BYTES + 1):  # a ring's size may have been rounded up
                batch = self._reader.read(timeout=0)
                self._take(batch)
                if not batch.frame_count:
                    break
        except Exception as error:  # noqa: BLE001  a reader of somebody else's may raise anything
            _log.error("draining the live stream at its end: %s", error)
        self._reader.close()
        self._program.close()

    def status(self) -> dict[str, Any]:
        """Counts for `otel-perfbuf status`."""
        return {
            "mode": self._mode,
            "ring_bytes": self._ring_bytes(),
            "records": self._records,
            "lost": self._lost,
            "missed_events": self._missed_events,
            "malformed": self._malformed,
        }

    def _ring_bytes(self) -> int:
        reader = self._reader
        return reader.per_cpu_bytes * len(reader.cpus) if isinstance(reader, PerfReader) else self._per_cpu_bytes

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                # A poll once a second besides the watermark: what lies below it is read by the flush.
                self._take(self._reader.read(timeout=_POLL_S))
            except ReaderClosed:
                return
            except Exception as error:  # noqa: BLE001  the stream outlives any one batch
                _log.exception("the live stream could not send a batch: %s", error)
                self._stopping.wait(_POLL_S)  # a reader that always fails must not take a core

    def _take(self, batch: Batch) -> None:
        if not batch.frame_count:
            return
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        lost = int(batch.lost)
        self._lost += lost
        self._missed_events = self._program.missed_events()
        inputs: list[Batch | EntryFrames] = [batch]
        if lost:
            inputs.append(EntryFrames([_lost_sample(lost, now_ns)]))
        history = History(inputs, [])
        self._malformed += history.malformed + int(batch.malformed)
        keys = history.processes()
        history.select([True] * len(keys), 0, _FOREVER, _FOREVER)
        # Asked anew for each batch: an exec makes another program of a known process.
        redacted = Redacted(self._plan.redaction)
        resources = [redacted.resource(process_resource(self._process(key))).SerializeToString() for key in keys]
        offset = unix_offset_ns()
        encoding = Encoding(offset, now_ns + offset, SCOPE.SerializeToString())
        chunks = tuple(
            Chunk("logs", body, records) for body, records in history.encode(self._plan.pointer, resources, encoding)
        )
        if chunks:
            self._records += sum(chunk.records for chunk in chunks)
            self._emit(Payload(chunks))

    def _process(self, key: ProcessKey) -> Process:
        entry = self._program.process(key)
        return Process(*key) if entry is None else table_process(key, entry)


def _opened(open_reader: ReaderFactory, mode: str, program: ForwardProgram, per_cpu_bytes: int) -> Reader:
    try:
        return open_reader(program.events_map, per_cpu_bytes=per_cpu_bytes)
    except (PerfbufError, OSError):
        raise
    except Exception as error:
        raise ConfigError(f"opening the reader {mode}: {type(error).__name__}: {error}") from error
