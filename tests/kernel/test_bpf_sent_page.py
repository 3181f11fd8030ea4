# SPDX-License-Identifier: Apache-2.0
"""What a page sent last stays with it: a thread that waits right behind a full page still has its last calls."""

from __future__ import annotations

import time
from pathlib import Path

from bpf_recording import Page, Recording, Target, parse_sample, recording, wait_until
from machine import SLOWNESS

from otel_perfbuf._core._core import lib

SHELL = Path("/bin/sh")
CALLS = 60
SCRIPT = "read a; " + "umask 22; " * CALLS + "read b; exit 3"
"""Calls of 56 bytes, so 17 fill a page; the shell reads its input byte by byte."""


def waiting_page(recorded: Recording, target: Target) -> Page:
    """The shell's page when it has made its calls and waits in the second read."""
    recorded.program.follow(target.pid)
    target.go(b"\n")

    def waits() -> bool:
        page = recorded.page(target.pid)
        return bool(page.open_call and page.open_call.name == "read" and page.open_call.sequence > CALLS)

    wait_until(waits, "the second read")
    return recorded.page(target.pid)


def test_the_page_sent_last_is_read_before_the_page() -> None:
    """One sequence through both and the call in flight; at least a page's worth of calls; the ring has the same."""
    with Target(SHELL, "-c", SCRIPT) as target, recording() as recorded:
        page = waiting_page(recorded, target)
        in_ring = [parse_sample(sample) for sample in recorded.samples()]
        assert page.open_call is not None
        numbers = [record.sequence for record in [*page.sent, *page.records]]
        assert numbers == list(range(numbers[0], page.open_call.sequence))
        assert len(page.sent) == lib.PB_PAGE_RECORD_BYTES // 56
        assert page.last_sequence == page.open_call.sequence
        last = max((records for records in in_ring if records[0].tid == target.pid), key=lambda r: r[0].sequence)
        assert [(r.sequence, r.time_ns, r.name) for r in last] == [(r.sequence, r.time_ns, r.name) for r in page.sent]


def test_a_page_sent_long_ago_goes_once_more_at_the_end() -> None:
    """Not counted twice: its sample owns no records; and not for a thread that sent it a moment ago."""
    with Target(SHELL, "-c", SCRIPT) as target, recording() as recorded:
        page = waiting_page(recorded, target)
        sent_ns = page.sent[-1].time_ns
        # SENT_LONG_AGO_NS of page.bpf.h: what passes here is time itself
        wait_until(lambda: time.monotonic_ns() - sent_ns > 1_100_000_000, "a second")
        assert target.process.stdin is not None
        target.go(b"\n")
        assert target.process.wait(20 * SLOWNESS) == 3
        samples = [parse_sample(sample) for sample in recorded.samples()]
        again = [records for records in samples if records[0].sample_kind == lib.PB_SAMPLE_AGAIN]
        assert [[record.sequence for record in records] for records in again] == [[r.sequence for r in page.sent]]
        stats = recorded.program.stats()
        own = [r for records in samples if records not in again for r in records if r.kind != lib.PB_RECORD_ENTRY]
        assert sum(stats.ring_records_by_cpu.values()) == len(own)

    with Target(SHELL, "-c", SCRIPT) as target, recording() as recorded:
        waiting_page(recorded, target)
        target.go(b"\n")
        assert target.process.wait(20 * SLOWNESS) == 3
        kinds = {record.sample_kind for sample in recorded.samples() for record in parse_sample(sample)}
        assert lib.PB_SAMPLE_AGAIN not in kinds
