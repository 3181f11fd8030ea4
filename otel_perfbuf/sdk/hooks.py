# SPDX-License-Identifier: Apache-2.0
"""The places where a thread's span changes, hooked: contexts, asyncio's steps, to_thread, thread pools, threads, fork.

What it is not: it decides not what is published (publish.py). Source: FACTS 41; Python's asyncio/events.py (Handle),
concurrent/futures/thread.py (_WorkItem), asyncio/threads.py; the rest is public.

Each hook is put in once a process and stays: taking one out under running code would leave frames half left. A hook
whose place is missing in this Python is left out: then what runs there is not exact.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import concurrent.futures.thread
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from opentelemetry import context as context_api
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from otel_perfbuf.sdk.publish import Publisher
from otel_perfbuf.sdk.spanmap import Registration

__all__ = ["install"]

_ANSWER_WAIT_S = 0.05  # once, when the first processor is made, and only where an agent listens


def install(path: str) -> Publisher | None:
    """The process's publisher; hooks everything at the first call. None: OpenTelemetry's contexts are not those known
    here, so nothing will be exact.
    """
    runtime = getattr(context_api, "_RUNTIME_CONTEXT", None)
    if not isinstance(runtime, ContextVarsRuntimeContext) or not hasattr(runtime, "_current_context"):
        return None
    known = getattr(runtime, "perfbuf_publisher", None)
    if isinstance(known, Publisher):
        return known
    registration = Registration(path)
    publisher = Publisher(registration, runtime)
    registration.look()
    registration.wait(_ANSWER_WAIT_S)
    _put(runtime, "perfbuf_publisher", publisher)
    if asyncio._get_running_loop() is None and threading.current_thread() is threading.main_thread():
        publisher.adopt()
    _put(runtime, "attach", publisher.attach)
    _put(runtime, "detach", publisher.detach)
    _hook_loops(publisher)
    _hook_pools(publisher)
    _hook_threads(publisher)
    os.register_at_fork(
        before=publisher.before_fork,
        after_in_parent=publisher.after_fork_in_parent,
        after_in_child=publisher.after_fork_in_child,
    )
    return publisher


def _put(place: Any, name: str, hook: Any) -> None:
    """Puts a hook in; the one place that tells the type checker that it is meant."""
    setattr(place, name, hook)


def _runs_eagerly(loop: Any) -> bool:
    """Whether tasks may begin inside another task's step, which no hook sees (Python 3.12)."""
    factory = getattr(loop, "_task_factory", None)
    return factory is not None and "eager" in getattr(factory, "__qualname__", "eager")


def _hook_loops(publisher: Publisher) -> None:
    original = getattr(asyncio.events.Handle, "_run", None)
    if original is None:
        return
    eager_is_possible = sys.version_info >= (3, 12)

    @functools.wraps(original)
    def run(handle: Any) -> None:
        state = publisher.state()
        loop, depth = state.loop, state.depth
        if eager_is_possible and _runs_eagerly(handle._loop):
            state.loop, before = None, publisher.enter_empty(state)
        else:
            state.loop = handle._loop
            before = publisher.enter(state, handle._context)
        state.depth = 0
        try:
            original(handle)
        finally:
            state.loop, state.depth = loop, depth
            publisher.leave(state, before)

    _put(asyncio.events.Handle, "_run", run)


def _in_frame(publisher: Publisher, current: bool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the function as a frame of its own. ``current``: the context's span is published from the start; else
    nothing is until a span is attached, since the function may be any context's `run`.
    """
    state = publisher.state()
    loop, state.loop = state.loop, None
    before = publisher.enter(state, None) if current else publisher.enter_empty(state)
    state.depth += 1
    try:
        return function(*args, **kwargs)
    finally:
        state.depth -= 1
        state.loop = loop
        publisher.leave(state, before)


def _hook_pools(publisher: Publisher) -> None:
    item = getattr(concurrent.futures.thread, "_WorkItem", None)
    if item is not None:
        original = item.run

        @functools.wraps(original)
        def run(work: Any, *args: Any) -> Any:
            return _in_frame(publisher, False, original, work, *args)

        _put(item, "run", run)
    to_thread: Any = asyncio.to_thread

    @functools.wraps(to_thread)
    async def in_thread(func: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await to_thread(_in_frame, publisher, True, func, *args, **kwargs)

    _put(asyncio, "to_thread", in_thread)
    _put(asyncio.threads, "to_thread", in_thread)


def _hook_threads(publisher: Publisher) -> None:
    original = threading.Thread.start

    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        run = thread.run

        def adopted() -> None:
            del thread.run  # the instance's own, set below
            publisher.adopt()
            run()

        _put(thread, "run", adopted)
        original(thread)

    _put(threading.Thread, "start", start)
