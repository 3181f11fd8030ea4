# SPDX-License-Identifier: Apache-2.0
"""Where dumps and live batches go: the sending queues, the spools, and what is counted of a dump that leaves.

What it is not: it assembles nothing (running.py), and knows not how a dump was made. A dump counts as made when it is
in the spool of every exporter that has one; what the spool could not take is sent from memory. Source: CONTRACT
section 7 (perfbuf_dumps).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.components import exporter_module
from otel_perfbuf.exporters.delivery import Outcome
from otel_perfbuf.exporters.payload import Payload
from otel_perfbuf.exporters.queue import SendingQueue
from otel_perfbuf.service.graph import Route
from otel_perfbuf.service.kept import Kept
from otel_perfbuf.service.model import Component
from otel_perfbuf.service.options import FileStorageOptions
from otel_perfbuf.service.parts import Header, MadeDump
from otel_perfbuf.service.telemetry import Sample, Telemetry
from otel_perfbuf.spool.entry import Entry, Share
from otel_perfbuf.spool.frames import Meta
from otel_perfbuf.spool.storage import Spool

__all__ = ["Outlets"]

_log = logging.getLogger(__name__)


class Outlets:
    """The queues and spools of one configuration. Ids are component ids."""

    def __init__(self, telemetry: Telemetry, kept: Kept | None = None) -> None:
        self._telemetry = telemetry
        self._kept = kept or Kept()
        self.queues: dict[str, SendingQueue] = {}
        self.spools: dict[str, Spool] = {}
        self._storage: dict[str, str] = {}

    def start_spool(self, component: Component, options: FileStorageOptions) -> None:
        """Opens it and finds what an earlier agent left; PerfbufError."""
        spool = self._kept.spools.get(component.id)
        if spool is None:
            spool = Spool(Path(options.directory), options.max_bytes, on_dropped=self._dropped_unsent)
            spool.open()
        self.spools[component.id] = spool

    def start_exporter(self, component: Component) -> None:
        """Starts its queue, and gives it what the spool still has for it."""
        options: Any = component.options
        storage = getattr(getattr(options, "sending_queue", None), "storage", None)
        if storage is not None:
            self._storage[component.id] = storage
        if component.id in self._kept.queues:
            self.queues[component.id] = self._kept.queues[component.id]
            return
        queue = SendingQueue(
            exporter_module(component.type).create(options),
            name=component.id,
            retry=getattr(options, "retry_on_failure", None),
            queue=getattr(options, "sending_queue", None),
        )
        # Before it is started: one that fails half-way has threads too.
        self.queues[component.id] = queue
        queue.start()

    def resume(self) -> None:
        """Sends what an earlier agent, or an exporter before a reload, did not; when all exporters are started."""
        waiting: dict[int, tuple[Entry, list[tuple[str, Share]]]] = {}
        for exporter, storage in self._storage.items():
            if exporter in self._kept.queues:
                continue
            for share in self.spools[storage].shares(exporter):
                waiting.setdefault(id(share.entry), (share.entry, []))[1].append((exporter, share))
        for entry, shares in waiting.values():
            settled = _Settling(
                self._telemetry, entry.meta.dump_id, entry.meta.trigger, entry.meta.records, len(shares)
            )
            if any(share.failed for share in entry.shares.values()):
                settled.fail()
            for exporter, share in shares:
                self.queues[exporter].put_kept(share, partial(self._settled, settled, exporter))
        for name, spool in self.spools.items():
            for exporter, dumps in spool.exporters().items():
                if self._storage.get(exporter) != name:
                    _log.warning(
                        "%s holds %d dumps for %s, which does not use it in this configuration; they stay until the "
                        "space is needed",
                        name,
                        dumps,
                        exporter,
                    )

    def emit(self, dump: MadeDump, routes: Sequence[Route]) -> None:
        """Keeps a dump in its exporters' spools, then hands it to all; when the last has settled it, it is counted."""
        parts = {route.exporter: part for route in routes if (part := route.part(dump.payload)) is not None}
        header = dump.header
        settled = _Settling(self._telemetry, header.dump_id, header.trigger, header.records, len(parts))
        shares = self._spool(header, dump.payload, parts)
        if shares:
            self._telemetry.add("perfbuf_dumps", (header.trigger, "spooled"))
        for exporter, part in parts.items():
            done = partial(self._settled, settled, exporter)
            if exporter in shares:
                self.queues[exporter].put_kept(shares[exporter], done)
            else:
                self.queues[exporter].put(part, done)

    def pass_on(self, receiver: str, payload: Payload, routes: Sequence[Route]) -> None:
        """Hands a live batch to its exporters; it stays in memory until it is sent."""
        taken = False
        for route in routes:
            part = route.part(payload)
            if part is not None:
                taken |= self.queues[route.exporter].put(part, partial(self._passed, route.exporter))
        outcome = "accepted" if taken else "refused"
        self._telemetry.add(f"otelcol_receiver_{outcome}_log_records", (receiver,), payload.records)

    def drain(self, left_s: float, keep: frozenset[str]) -> list[str]:
        """Ends all queues but ``keep`` at the same time: one peer that is away must not take the others' seconds."""
        sentences: list[str] = []

        def drain(queue: SendingQueue) -> None:
            leftover = queue.drain(left_s)
            if leftover.sentence:
                sentences.append(leftover.sentence)

        ending = [queue for name, queue in self.queues.items() if name not in keep]
        threads = [threading.Thread(target=drain, args=(queue,), daemon=True) for queue in ending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(left_s + 1.0)
        return sentences

    def close_spools(self, keep: frozenset[str]) -> None:
        """Closes all spools but ``keep``."""
        for name, spool in self.spools.items():
            if name not in keep:
                spool.close()

    def status(self) -> dict[str, Any]:
        """Of exporters and spools, for `otel-perfbuf status`."""
        exporters = {}
        for name, queue in self.queues.items():
            stats = queue.stats()
            exporters[name] = {
                "queue_size": stats.queue_size,
                "queue_capacity": stats.queue_capacity,
                "sent": stats.logs.sent,
                "failed": stats.logs.failed,
                "rejected": stats.logs.rejected,
                "dropped": stats.logs.dropped,
            }
        spools = {}
        for name, spool in self.spools.items():
            found = spool.stats()
            spools[name] = {
                "bytes": found.size_bytes,
                "dumps": found.dumps,
                "waiting": dict(spool.exporters()),
                "dropped": found.dropped,
                "malformed": found.malformed,
                "failed": found.failed,
            }
        return {"exporters": exporters, "spools": spools, "spool_bytes": self._spool_bytes()}

    def samples(self) -> Iterable[Sample]:
        """Gauges of the queues and spools."""
        for name, queue in self.queues.items():
            stats = queue.stats()
            yield Sample("otelcol_exporter_queue_size", (name,), stats.queue_size)
            yield Sample("otelcol_exporter_queue_capacity", (name,), stats.queue_capacity)
        yield Sample("perfbuf_spool_bytes", (), self._spool_bytes())

    def _spool_bytes(self) -> int:
        return sum(spool.stats().size_bytes for spool in self.spools.values())

    def _spool(self, header: Header, payload: Payload, parts: Mapping[str, Payload]) -> dict[str, Share]:
        """The shares of the exporters whose spool has the dump now."""
        shares: dict[str, Share] = {}
        for name, spool in self.spools.items():
            members = [exporter for exporter in parts if self._storage.get(exporter) == name]
            if not members:
                continue
            wanted = {exporter: _indices(payload, parts[exporter]) for exporter in members}
            meta = Meta(header.dump_id, header.trigger, header.records, wanted)
            try:
                entry = spool.add(meta, payload.chunks)
            except PerfbufError as fault:
                _log.warning("%s; it is sent from memory", fault)
                continue
            shares.update(entry.shares)
        return shares

    def _settled(self, settled: _Settling, exporter: str, _: Payload, outcome: Outcome) -> None:
        self._count(exporter, outcome)
        settled.settle(outcome)

    def _passed(self, exporter: str, _: Payload, outcome: Outcome) -> None:
        self._count(exporter, outcome)

    def _count(self, exporter: str, outcome: Outcome) -> None:
        logs = outcome.logs
        self._telemetry.add("otelcol_exporter_sent_log_records", (exporter,), logs.sent)
        failed = logs.failed + logs.rejected + logs.dropped
        self._telemetry.add("otelcol_exporter_send_failed_log_records", (exporter,), failed)

    def _dropped_unsent(self, meta: Meta) -> None:
        self._telemetry.add("perfbuf_dumps", (meta.trigger, "failed"))


def _indices(payload: Payload, part: Payload) -> tuple[int, ...]:
    """Which of a payload's chunks a route's part of it has."""
    members = {id(chunk) for chunk in part.chunks}
    return tuple(index for index, chunk in enumerate(payload.chunks) if id(chunk) in members)


class _Settling:
    """Counts down the exporters of one dump; when all are done it is exported or failed."""

    def __init__(self, telemetry: Telemetry, dump_id: str, trigger: str, records: int, count: int) -> None:
        self._telemetry = telemetry
        self._dump_id = dump_id
        self._trigger = trigger
        self._records = records
        self._left = count
        self._delivered = True
        self._lock = threading.Lock()

    def fail(self) -> None:
        """An exporter failed with it before a restart."""
        self._delivered = False

    def settle(self, outcome: Outcome) -> None:
        """One exporter is done with it."""
        with self._lock:
            self._left -= 1
            self._delivered &= outcome.delivered
            if self._left:
                return
        word = "exported" if self._delivered else "failed"
        self._telemetry.add("perfbuf_dumps", (self._trigger, word))
        reason = f": {outcome.error}" if not self._delivered and outcome.error else ""
        level = logging.INFO if self._delivered else logging.WARNING
        _log.log(level, "dump %s (%s, %d records) %s%s", self._dump_id, self._trigger, self._records, word, reason)
