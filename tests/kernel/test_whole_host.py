# SPDX-License-Identifier: Apache-2.0
"""Recording the whole host: who has been there before, and is still."""

from __future__ import annotations

import subprocess

from bpf_recording import recording, wait_until

from otel_perfbuf._core._core import lib
from otel_perfbuf.recorder.inflight import open_calls
from otel_perfbuf.recorder.source import HistorySource, SourceOptions


def test_a_thread_that_waits_since_before_recording_has_a_page_and_its_process_a_row() -> None:
    """It makes no call while it is recorded, and must be found by a dump all the same."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        wait_until(lambda: _waits(process.pid), "cat's read")
        with recording(filter_targets=False, rings=False) as recorded:
            page = recorded.page(process.pid)
            rows = [entry.comm for (tgid, _), entry in recorded.program.processes().items() if tgid == process.pid]
        process.communicate(b"")
    assert (page.flags & (lib.PB_PAGE_TARGET | lib.PB_PAGE_ENTERED), page.last_sequence) == (lib.PB_PAGE_TARGET, 0)
    assert rows == ["cat"]


def test_its_call_is_in_the_capture() -> None:
    """The call that it waits in comes from /proc: in flight, with its arguments."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        wait_until(lambda: _waits(process.pid), "cat's read")
        with HistorySource(SourceOptions(per_cpu_bytes=1 << 16)) as source:
            source.attach()
            capture = source.capture()
        process.communicate(b"")
    (call,) = [call for call in open_calls(capture.pages) if call.tgid == process.pid]
    assert source.plan.syscall_name(call.number) == "read"
    assert call.arguments[0] == 0


def _waits(pid: int) -> bool:
    with open(f"/proc/{pid}/syscall", encoding="ascii") as file, open(f"/proc/{pid}/comm", encoding="ascii") as comm:
        return comm.read() == "cat\n" and file.read().startswith("0 0x0 ")
