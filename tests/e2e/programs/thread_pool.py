# SPDX-License-Identifier: Apache-2.0
"""A pool of four threads that read a file and look for one that is missing."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor


def work(number: int) -> int:
    """A few calls, some of them failing."""
    with open("/etc/passwd", encoding="utf-8") as file:
        file.read()
    with contextlib.suppress(FileNotFoundError):
        os.stat(f"/nowhere/{number}")
    return os.getppid()


with ThreadPoolExecutor(4) as pool:
    assert set(pool.map(work, range(40))) == {os.getppid()}
