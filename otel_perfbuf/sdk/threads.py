# SPDX-License-Identifier: Apache-2.0
"""Which thread ran a span, and whether anything else may have run there meanwhile.

What it is not: the active span at each moment (publish.py).
Source: CONTRACT section 3 (`thread_window`) and section 5 (`interleaved`).

Meaning: a span's thread is its own from start to end unless the span ended on another thread, an event loop or green
threads run on it, or a span that does not descend from it was open there meanwhile. Descendants are the span's own
work. Unsure counts as interleaved: a missing span id is a smaller fault than a wrong one.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Final

__all__ = ["OpenSpans", "loop_on_this_thread", "other_scheduler_on_this_thread"]

_MAX_OPEN: Final = 100_000
_MAX_OPEN_ON_THREAD: Final = 64


def loop_on_this_thread() -> bool:
    """True when an event loop or green threads may switch tasks on the calling thread."""
    if asyncio._get_running_loop() is not None:  # get_running_loop() raises, which costs ten times more
        return True
    return other_scheduler_on_this_thread()


def other_scheduler_on_this_thread() -> bool:
    """True when something that is no asyncio loop may switch tasks on the calling thread."""
    modules = sys.modules
    if "gevent" in modules or "eventlet" in modules:
        return True
    trio = modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return True
    twisted = modules.get("twisted.python.threadable")
    return twisted is not None and bool(twisted.isInIOThread())


class _Open:
    __slots__ = ("interleaved", "parent", "tid")

    def __init__(self, tid: int, parent: int, interleaved: bool) -> None:
        self.tid = tid
        self.parent = parent
        self.interleaved = interleaved


class OpenSpans:
    """The spans of this process that have begun and not ended; bounded, without locks (single dict steps only)."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._by_thread: dict[int, dict[int, _Open]] = {}

    def begin(self, span_id: int, parent_id: int) -> None:
        """The calling thread starts a span; parent_id is 0 for a root."""
        tid = threading.get_native_id()
        begun = _Open(tid, parent_id, loop_on_this_thread())
        while len(self._open) >= _MAX_OPEN:
            self._forget(next(iter(self._open)))  # never ended: forgotten means interleaved, should it end after all
        self._open[span_id] = begun
        if begun.interleaved:
            # What was open before the loop began to run may have others' tasks on its thread too.
            for other in list(self._by_thread.get(tid, {}).values()):
                other.interleaved = True
            return
        on_thread = self._by_thread.setdefault(tid, {})
        ancestors = self._ancestors(begun)
        for other_id, other in list(on_thread.items()):
            if other_id not in ancestors:
                other.interleaved = begun.interleaved = True
        if len(on_thread) < _MAX_OPEN_ON_THREAD:
            on_thread[span_id] = begun
        else:
            begun.interleaved = True

    def end(self, span_id: int) -> tuple[int, bool]:
        """The calling thread ends a span: its thread id, and whether anything else may have run there meanwhile."""
        tid = threading.get_native_id()
        begun = self._forget(span_id)
        if begun is None or begun.tid != tid:
            return tid, True
        return tid, begun.interleaved or loop_on_this_thread()

    def _forget(self, span_id: int) -> _Open | None:
        begun = self._open.pop(span_id, None)
        if begun is not None:
            on_thread = self._by_thread.get(begun.tid)
            if on_thread is not None:
                on_thread.pop(span_id, None)
                if not on_thread:
                    self._by_thread.pop(begun.tid, None)
        return begun

    def _ancestors(self, begun: _Open) -> set[int]:
        found: set[int] = set()
        parent = begun.parent
        while parent and parent not in found and len(found) < _MAX_OPEN_ON_THREAD:
            found.add(parent)
            above = self._open.get(parent)
            parent = above.parent if above is not None else 0
        return found
