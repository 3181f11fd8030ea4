# SPDX-License-Identifier: Apache-2.0
"""Which span each thread runs, told to the kernel's recorder at every change: exact correlation.

What it is not: the memory (spanmap.py), nor the hooks (hooks.py). Source: CONTRACT section 3 (`exact`).

Facts: a context changes by attach and detach, and by `contextvars.Context.run`, which nothing in Python can watch.
Meaning: a span may be published only where its end on this thread will be seen. Decision: each hooked frame (a step of
an asyncio loop, a work item of a pool, a thread) puts back what was published before it; attach publishes only in a
frame, or in a thread's own base context, which a context variable marks; detach puts back what attach found. So a frame
that is not hooked (another loop, another pool) publishes nothing: its records are not exact, and none is wrong.
Limit: code that itself runs stored contexts one after the other on a thread, within an attached span, is not seen.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from typing import Any, Final

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from otel_perfbuf.sdk.spanmap import Registration, Slot
from otel_perfbuf.sdk.threads import other_scheduler_on_this_thread

__all__ = ["Publisher", "ThreadState", "span_ids"]

_HOME: Final[contextvars.ContextVar[object]] = contextvars.ContextVar("perfbuf_home", default=None)


class ThreadState:
    """What one thread has published. ``home`` marks its base context; ``loop`` runs the innermost hooked step."""

    __slots__ = ("depth", "generation", "home", "ids", "loop", "slot")

    def __init__(self) -> None:
        self.home = object()
        self.generation = 0
        self.slot: Slot | None = None
        self.ids: bytes | None = None
        self.depth = 0
        self.loop: object = None


class _Token:
    """A context's token, and what was published before it on the thread of that home."""

    __slots__ = ("home", "ids", "token")

    def __init__(self, token: Any, home: object, ids: bytes | None) -> None:
        self.token, self.home, self.ids = token, home, ids


def span_ids(context: Any) -> bytes | None:
    """Trace and span id of a context's own span as 24 bytes; a remote parent's is another process's: None."""
    found = trace.get_current_span(context).get_span_context()
    if not found.is_valid or found.is_remote:
        return None
    return found.trace_id.to_bytes(16, "big") + found.span_id.to_bytes(8, "big")


class Publisher:
    """One a process: hangs itself into OpenTelemetry's runtime context, which keeps it."""

    def __init__(self, registration: Registration, runtime: ContextVarsRuntimeContext) -> None:
        self.registration = registration
        self._local = threading.local()
        self._attach, self._detach = type(runtime).attach, type(runtime).detach
        self._runtime = runtime
        self._variable = runtime._current_context

    def state(self) -> ThreadState:
        """The calling thread's."""
        try:
            return self._local.state  # type: ignore[no-any-return]
        except AttributeError:
            self._local.state = ThreadState()
            return self._local.state  # type: ignore[no-any-return]

    def adopt(self) -> None:
        """The current context is the calling thread's base context: from here on nothing else runs around it."""
        _HOME.set(self.state().home)

    def write(self, state: ThreadState, ids: bytes | None) -> None:
        """Publishes a span, or none, for the calling thread."""
        if state.generation != self.registration.generation:
            self._refresh(state)
        elif state.ids is ids:
            return
        state.ids = ids
        if state.slot is not None:
            state.slot.write(ids)

    def _refresh(self, state: ThreadState) -> None:
        registration = self.registration
        state.slot = None
        if registration.pid != os.getpid():
            return  # a forked child before its hook has run: the map is its parent's
        state.generation = registration.generation
        span_map = registration.map
        if span_map is not None:
            state.slot = span_map.claim(threading.get_native_id())

    def may_publish(self, state: ThreadState) -> bool:
        """Whether the end of what is published now will be seen."""
        if other_scheduler_on_this_thread():
            return False
        loop = asyncio._get_running_loop()
        if loop is not None:
            return loop is state.loop
        return state.depth > 0 or _HOME.get() is state.home

    def attach(self, context: context_api.Context) -> Any:
        """The runtime context's attach, and its span published."""
        token = self._attach(self._runtime, context)
        try:
            state = self.state()
            before = state.ids
            if self.may_publish(state):
                self.write(state, span_ids(context))
            else:
                self.write(state, None)
                before = None
            return _Token(token, state.home, before)
        except Exception:  # noqa: BLE001 - an application's request must not fail because its recorder did
            return token

    def detach(self, token: Any) -> None:
        """The runtime context's detach, and what was published before its attach again."""
        if type(token) is not _Token:
            self._detach(self._runtime, token)
            return
        self._detach(self._runtime, token.token)
        try:
            state = self.state()
            known = state.home is token.home and self.may_publish(state)
            self.write(state, token.ids if known else None)
        except Exception:  # noqa: BLE001 - as above
            return

    def enter(self, state: ThreadState, context: contextvars.Context | None) -> bytes | None:
        """Begins a hooked frame with the span of ``context`` (None: the current one); gives what `leave` puts back."""
        before = state.ids
        if other_scheduler_on_this_thread():
            self.write(state, None)
            return before
        found = self._runtime.get_current() if context is None else context.get(self._variable)
        self.write(state, span_ids(found) if found else None)
        return before

    def enter_empty(self, state: ThreadState) -> bytes | None:
        """Begins a hooked frame with no span."""
        before = state.ids
        self.write(state, None)
        return before

    def leave(self, state: ThreadState, before: bytes | None) -> None:
        """Ends a hooked frame."""
        self.write(state, before)

    def before_fork(self) -> None:
        """The forking thread has no slot while it forks: the child must not write into its parent's map."""
        state = self.state()
        if state.slot is not None:
            state.slot.write(None)
        state.slot, state.generation = None, 0

    def after_fork_in_parent(self) -> None:
        """The forking thread goes on with its span."""
        state = self.state()
        self.write(state, state.ids)

    def after_fork_in_child(self) -> None:
        """A map of its own, and the span that the forking thread ran, which is the child's now."""
        self.registration.after_fork()
        state = self.state()
        self.write(state, state.ids)
