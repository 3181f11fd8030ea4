# SPDX-License-Identifier: Apache-2.0
"""One dump: captures and firings in, OTLP chunks and a header out.

What it is not: it decides not whether a dump is made (recorder.py) and sends nothing. Source: CONTRACT section 3.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_perfbuf._core._core import ffi
from otel_perfbuf.exporters.payload import Chunk, Payload
from otel_perfbuf.records.plan import Plan
from otel_perfbuf.triggers.firing import Firing, SpanContext

from .capture import Capture, Losses
from .edges import ring_edges
from .fd_names import FdNames
from .header import SCOPE, Header, header_request, span_request
from .history import Encoding, History, ProcessKey
from .processes import Process, cgroup_path, process_from_proc, process_resource, started_at
from .reading import read_reading
from .redacted import Redacted
from .scope import descendants, newest

__all__ = ["Dump", "DumpOptions", "make_dump"]

Scope = Literal["process", "cgroup", "host"]

_FOREVER_NS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Connector options; ``before_s`` None is everything still held.

    ``root_pid``: only it and its children are recorded, and scope ``process`` is all of them.
    """

    scope: Scope = "process"
    before_s: float | None = 10.0
    max_records: int = 100_000
    root_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump as it is sent: ``header`` has its counts, ``exit_statuses`` the ends of processes that it saw."""

    header: Header
    payload: Payload
    exit_statuses: Mapping[ProcessKey, int]


def _table(history: History, captures: Sequence[Capture]) -> dict[ProcessKey, Process]:
    """Every process of the captures or the history; what the kernel's table lacks comes from /proc, if it is alive."""
    table: dict[ProcessKey, Process] = {}
    for capture in captures:
        table.update(capture.processes)
    for key in history.processes():
        known = table.get(key)
        if known is not None and (known.executable or known.exit_status is not None):
            continue
        found = process_from_proc(key[0]) if started_at(key[0], key[1]) else None
        if found is not None:
            table[key] = replace(found, start_ns=key[1])
        elif known is None:
            table[key] = Process(pid=key[0], start_ns=key[1])
    return table


def _targets(firing: Firing, table: Mapping[ProcessKey, Process], offset_ns: int) -> list[ProcessKey]:
    """The processes that the firing is about, as far as they are known: one, or the candidates."""
    if firing.pid is None:
        return []
    found = [key for key in firing.processes if key in table]
    one = newest(firing.pid, table, firing.unix_ns - offset_ns) if not found else None
    return found if one is None else [one]


def _in_scope(
    firing: Firing, options: DumpOptions, targets: Sequence[ProcessKey], table: Mapping[ProcessKey, Process]
) -> set[ProcessKey]:
    scope = options.scope
    cgroups = {firing.cgroup} if firing.cgroup is not None else set()
    if scope == "cgroup" and not cgroups:
        paths = {table[target].cgroup or cgroup_path(table[target].cgroup_id) for target in targets}
        cgroups = paths - {""}
    if cgroups:
        inside = tuple(f"{cgroup.rstrip('/')}/" for cgroup in cgroups)
        return {
            key
            for key, process in table.items()
            if f"{process.cgroup or cgroup_path(process.cgroup_id)}/".startswith(inside)
        }
    if scope == "host" or firing.pid is None:
        return set(table)
    if options.root_pid is not None:
        # Only the command and what it started is recorded: a table that has lost a link must not lose its records.
        return set(table)
    return set().union(*(descendants(target, table) for target in targets))


def _mark_span(history: History, firing: Firing, targets: Sequence[ProcessKey], offset_ns: int) -> None:
    """Gives the failed span's id to the records of its thread, where nothing else can have run there (CONTRACT 3)."""
    if firing.span is None or firing.interleaved or not firing.tid or not firing.start_unix_ns:
        return
    keys = history.processes()
    start, end = firing.start_unix_ns - offset_ns, (firing.end_unix_ns or firing.unix_ns) - offset_ns
    for thread in history.threads():
        if thread.tid == firing.tid and keys[thread.process] in targets:
            history.set_span(thread, start, end)


def make_dump(
    captures: Sequence[Capture],
    firings: Sequence[Firing],
    options: DumpOptions,
    *,
    plan: Plan,
    started_ns: int,
    losses: Losses,
    fd_names: bool = False,
) -> Dump:
    """Makes the dump of ``firings`` (the first is the trigger, the others joined it) out of ``captures``.

    ``started_ns`` (monotonic) is when recording began. ``fd_names``: fds are shown with what they are. Both sequences
    are in the order of their time and not empty.
    """
    firing, offset = firings[0], captures[-1].unix_offset_ns
    history = History(
        [*(capture.batch for capture in captures), *(capture.entries for capture in captures)],
        [capture.pages for capture in captures],
        [capture.later_pages for capture in captures],
    )
    table = _table(history, captures)
    targets = _targets(firing, table, offset)
    scope = _in_scope(firing, options, targets, table)
    keys = history.processes()
    end_ns = captures[-1].taken_ns
    start_ns = 0 if options.before_s is None else firing.unix_ns - offset - int(options.before_s * 1e9)
    in_scope = [key in scope for key in keys]
    selected, dropped = history.select(in_scope, start_ns, _FOREVER_NS, options.max_records)
    _mark_span(history, firing, targets, offset)

    trace_id = firing.span.trace_id if firing.span else secrets.token_bytes(16)
    flags = firing.span.flags if firing.span else 1
    span = SpanContext(trace_id, secrets.token_bytes(8), flags)
    contexts = dict.fromkeys(item.span for item in firings if item.span is not None)
    edges = ring_edges(captures, started_ns)
    redacted = Redacted(plan.redaction)
    header = Header(
        dump_id=secrets.token_hex(16),
        trigger=firing.kind,
        reason=redacted.text(firing.reason),
        scope="cgroup" if firing.cgroup else "host" if firing.pid is None else options.scope,
        fired_unix_ns=firing.unix_ns,
        made_unix_ns=time.time_ns(),
        window_start_unix_ns=max(start_ns, started_ns) + offset,
        window_end_unix_ns=end_ns + offset,
        complete_since_unix_ns=max((edge.since_ns for edge in edges.values()), default=started_ns) + offset,
        records=selected - history.gaps_selected,
        lost=losses.lost,
        missed_events=losses.missed_events,
        dropped=dropped,
        overwritten=losses.overwritten,
        scope_overwritten=sum(row.missing for row in history.threads() if in_scope[row.process]),
        truncated=sum(1 for ring in captures[-1].batch.rings if ring.truncated),
        malformed=history.malformed + sum(ring.malformed for item in captures for ring in item.batch.rings),
        suppressed=losses.suppressed,
        snapshot_ns=sum(capture.snapshot_ns for capture in captures),
        redactions=0,
        torn_pages=history.torn,
        span=span,
        parent=firing.span,
        links=list(contexts),
        matched_by=firing.matched_by,
        candidates=len(firing.processes),
    )
    # The trigger's service name is the target's; other processes have their own.
    resources = [
        redacted.resource(process_resource(table[key], firing.service_name if key in targets else None)) for key in keys
    ]
    about = redacted.resource(_about(firing, targets, table))
    fds = None
    if fd_names:
        seeds = {key: found for capture in captures for key, found in capture.seeds.items()}
        # What is lost may have been calls that change fds.
        since_ns = end_ns if losses.lost or losses.missed_events else header.complete_since_unix_ns - offset
        fds = FdNames(history, plan, seeds, since_ns)
    encoding = Encoding(
        unix_offset_ns=offset,
        observed_unix_ns=end_ns + offset,
        scope=SCOPE.SerializeToString(),
        trace_id=trace_id,
        trace_flags=flags,
        dump_span_id=span.span_id,
        span_id=firing.span.span_id if firing.span else span.span_id,
        dump_id=header.dump_id,
    )
    gathered = ffi.new("struct pb_reading *")
    records = [
        Chunk("logs", body, count)
        for body, count in history.encode(
            plan.pointer,
            [resource.SerializeToString() for resource in resources],
            encoding,
            ffi.NULL if fds is None else fds.pointer,
            gathered,
        )
    ]
    reading = read_reading(gathered, plan, max(start_ns, started_ns), end_ns)
    header = replace(header, redactions=history.redactions + redacted.count, reading=tuple(reading.sentences()))
    chunks = [
        Chunk("logs", header_request(header, about), 1),
        Chunk("traces", span_request(header, about), 1),
        *records,
    ]
    return Dump(header, Payload(tuple(chunks), header.dump_id), history.exit_statuses())


def _about(firing: Firing, targets: Sequence[ProcessKey], table: Mapping[ProcessKey, Process]) -> Resource:
    """The resource of the header and the dump span: the target process, as far as anything is known of it.

    Of several, what they have in common, and the service's name.
    """
    if len(targets) == 1:
        return process_resource(table[targets[0]], firing.service_name)
    if targets:
        every = [process_resource(table[key], firing.service_name).attributes for key in targets]
        return Resource(attributes=[pair for pair in every[0] if all(pair in other for other in every[1:])])
    if firing.pid is not None:
        return process_resource(Process(pid=firing.pid), firing.service_name)
    resource = process_resource(Process(pid=0), firing.service_name or "host")
    kept = [item for item in resource.attributes if item.key in ("service.name", "host.name")]
    return Resource(attributes=kept)
