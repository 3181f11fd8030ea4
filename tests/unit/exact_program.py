# SPDX-License-Identifier: Apache-2.0
"""A program of its own for test_sdk_exact.py: what is published, beside what OpenTelemetry says is the current span.

Not a test. The agent is played by a thread that answers a registration with memory of its own (memfd) instead of a BPF
map: what the process writes there is read back by the thread that wrote it, as the kernel would. usage: CASE
"""

from __future__ import annotations

import array
import asyncio
import collections
import concurrent.futures
import contextvars
import json
import mmap
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_perfbuf.sdk import FlightRecorderSpanProcessor

BUCKETS, SLOTS = 64, 8
ANSWER = {
    "v": 1,
    "buckets": BUCKETS,
    "buckets_max": BUCKETS,
    "slots": SLOTS,
    "slot_bytes": 32,
    "hash": [0x1E3779B1, 0x05EBCA77],
}


class Agent:
    """Answers registrations; ``memory`` is what the newest process writes into."""

    def __init__(self, path: str, answer: bytes | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.answer = answer
        self.registrations = 0
        self.pairs: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            data, control, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(64))
            if json.loads(data)["kind"] != "register":
                continue
            passed = array.array("i", control[0][2])
            pair = socket.socket(fileno=passed[0])
            memory = os.memfd_create("spans")
            os.ftruncate(memory, BUCKETS * SLOTS * 32)
            self.words = memoryview(mmap.mmap(memory, 0)).cast("Q")
            self.registrations += 1
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
            pair.sendmsg([self.answer or json.dumps(ANSWER).encode()], rights)
            self.pairs.append(pair)

    def published(self) -> str:
        """The calling thread's span in the shared memory, or none."""
        tid = threading.get_native_id()
        for at in range(0, len(self.words), 4):
            if self.words[at] == tid | 1 << 32:
                return bytes(self.words[at + 1 : at + 4])[16:].hex()
        return "none"


path = tempfile.mkdtemp() + "/trigger.sock"
garbage = sys.argv[1] == "garbage"
agent = Agent(path, b'{"v": 1, "buckets": "many"}' if garbage else None)
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(FlightRecorderSpanProcessor(path))
tracer = provider.get_tracer("t")
seen: collections.Counter[str] = collections.Counter()


def probe() -> None:
    """Compares; a span that is published and is not the current one is wrong."""
    context = trace.get_current_span().get_span_context()
    current = trace.format_span_id(context.span_id) if context.is_valid else "none"
    found = agent.published()
    seen["exact" if found == current else "missing" if found == "none" else "wrong"] += 1


async def task(number: int) -> None:
    """Spans of a request over many steps."""
    probe()
    with tracer.start_as_current_span(f"task {number}"):
        for step in range(15):
            probe()
            await asyncio.sleep(0.0005 * ((number + step) % 3))
            probe()
            with tracer.start_as_current_span("child"):
                await asyncio.sleep(0)
                probe()
            probe()
            await asyncio.to_thread(probe)
    probe()


def left_open() -> None:
    """Attaches and does not detach."""
    contexts.append(trace.use_span(tracer.start_span("left open")))
    contexts[-1].__enter__()
    probe()


contexts: list[Any] = []


def interleaved() -> None:
    """Twenty tasks on one loop."""

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(20)))

    with tracer.start_as_current_span("around"):
        probe()
        asyncio.run(main())
        probe()
    probe()


def pools() -> None:
    """Work items that leave spans open, contexts that are run elsewhere, threads of which nothing is known."""
    import _thread

    with tracer.start_as_current_span("outer"):
        context = contextvars.copy_context()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for _ in range(3):
                pool.submit(probe).result()
                pool.submit(left_open).result()
                pool.submit(context.run, left_open).result()
                pool.submit(context.copy().run, probe).result()
        threads = [threading.Thread(target=run) for run in (left_open, probe, lambda: context.copy().run(left_open))]
        for thread in threads:
            thread.start()
            thread.join()
        done = threading.Event()

        def unknown() -> None:
            context.copy().run(left_open)
            probe()
            left_open()
            probe()
            done.set()

        _thread.start_new_thread(unknown, ())
        done.wait()
        probe()


def other_loop() -> None:
    """A loop that runs its handles by itself, as those that are not written in Python do."""

    class Loop(asyncio.SelectorEventLoop):
        def _run_once(self) -> None:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                handle._context.run(handle._callback, *handle._args)
            while self._scheduled and not self._ready:
                self._ready.append(self._scheduled.pop())

    loop: Any = Loop()
    loop.run_until_complete(task(1))
    loop.close()
    probe()


def forks() -> None:
    """The child asks for a map of its own and goes on in the span; the parent's slot stays as it is."""
    with tracer.start_as_current_span("forks"):
        probe()
        read, write = os.pipe()
        before = agent.published()
        if not (pid := os.fork()):
            with tracer.start_as_current_span("child's own"):
                pass
            os.write(write, b"x")
            os._exit(0)
        os.read(read, 1)
        os.waitpid(pid, 0)
        assert len(agent.pairs) == agent.registrations == 2, agent.registrations
        assert before != "none"
        seen["kept"] += 1


def agent_restarts() -> None:
    """The pair closes: the next look, a second later, registers again, and the span that is open is there too."""
    processor = provider._active_span_processor._span_processors[0]
    with tracer.start_as_current_span("long"):
        probe()
        agent.pairs.pop().close()
        registration = processor._registration
        while agent.registrations < 2 or registration.map is None:
            registration._look_at_s = 0.0
            with tracer.start_as_current_span("next"):
                pass
        with tracer.start_as_current_span("inside"):
            probe()
        probe()


cases: dict[str, Callable[[], None]] = {
    "interleaved": interleaved,
    "pools": pools,
    "other_loop": other_loop,
    "forks": forks,
    "restart": agent_restarts,
    "garbage": interleaved,
}
if garbage:
    agent.published = lambda: "none"  # type: ignore[method-assign]
cases[sys.argv[1]]()
sys.stdout.write(json.dumps(seen) + "\n")
sys.stdout.flush()
os._exit(0)
