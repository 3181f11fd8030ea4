# SPDX-License-Identifier: Apache-2.0
"""Twenty concurrent spans over asyncio, pools, threads and children; every probe says in its path which span is active.

A probe opens /probe/SPAN_ID (a path that is not there): what the recorder puts to that call must be that very span, or
none. One of the jobs fails at the end; prints its span id, and how many probes ran in which span.
"""

import asyncio
import collections
import concurrent.futures
import contextvars
import json
import os
import subprocess
import sys
import threading
import time

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Status, StatusCode

from otel_perfbuf.sdk import FlightRecorderSpanProcessor

ROUNDS = 12
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(FlightRecorderSpanProcessor())
tracer = provider.get_tracer("mixed")
probes: collections.Counter[str] = collections.Counter()
left_open: list = []


def probe() -> None:
    """Makes one call that names the active span."""
    context = trace.get_current_span().get_span_context()
    name = trace.format_span_id(context.span_id) if context.is_valid else "none"
    probes[name] += 1
    try:
        os.open(f"/probe/{name}", os.O_RDONLY)
    except OSError:
        pass


async def job(number: int) -> str:
    """One of the concurrent requests; gives its span's id."""
    with tracer.start_as_current_span(f"job {number}") as span:
        for _ in range(ROUNDS):
            probe()
            await asyncio.sleep(0)
            probe()
            with tracer.start_as_current_span("child"):
                probe()
                await asyncio.sleep(0.001)
                probe()
            await asyncio.to_thread(probe)
            # a context that is run where no hook is: nothing may be published for good by what happens in it
            await asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, unbalanced)
        if number == 7:
            child = await asyncio.create_subprocess_exec("true")
            await child.wait()
            probe()
            span.set_status(Status(StatusCode.ERROR, "job 7 failed"))
        return trace.format_span_id(span.get_span_context().span_id)


def unbalanced() -> None:
    """Attaches a span and goes away without a detach, as middlewares do that begin in one call and end in another."""
    span = tracer.start_span("left open")
    left_open.append(trace.use_span(span))
    left_open[-1].__enter__()
    probe()
    span.end()


def threaded(_: int = 0) -> None:
    """Spans of a thread that runs no loop."""
    probe()
    with tracer.start_as_current_span("in a thread"):
        for _ in range(ROUNDS):
            probe()
            time.sleep(0)
            with tracer.start_as_current_span("inner"):
                probe()
            probe()
    probe()


def forked() -> None:
    """A child that goes on in its parent's span, on a map of its own."""
    with tracer.start_as_current_span("forks"):
        probe()
        pid = os.fork()
        if not pid:
            threaded()
            os._exit(0)
        probe()
        os.waitpid(pid, 0)
        probe()


async def main() -> list[str]:
    """All jobs at once."""
    return await asyncio.gather(*(job(number) for number in range(20)))


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(threaded, range(8)))
    ids = asyncio.run(main())
    list(pool.map(threaded, range(8)))
threads = [threading.Thread(target=threaded) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
forked()
subprocess.run(["true"], check=True)
probe()
sys.stdout.write(json.dumps({"failed": ids[7], "probes": probes}) + "\n")
sys.stdout.flush()
sys.exit(3)
