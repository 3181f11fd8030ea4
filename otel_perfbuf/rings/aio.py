# SPDX-License-Identifier: Apache-2.0
"""Waiting for a file descriptor in an asyncio loop. What it is not: it reads nothing.

Source: https://docs.python.org/3/library/asyncio-eventloop.html#watching-file-descriptors.
"""

from __future__ import annotations

import asyncio

__all__ = ["readable"]


async def readable(fd: int, timeout_s: float | None = None) -> None:
    """Returns when ``fd`` is readable; with ``timeout_s`` after so long instead.

    The fd is borrowed, must stay open meanwhile, and is watched by nobody else.
    """
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    if timeout_s is not None:
        # In this case data is there and not ready, so that the fd may be readable all the time.
        await asyncio.sleep(timeout_s)
        return
    loop.add_reader(fd, tell)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
