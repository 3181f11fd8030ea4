# SPDX-License-Identifier: Apache-2.0
"""`otel-perfbuf record -p` beside a test, from the moment at which it records.

How the test knows that moment: the recorder's trigger socket appears when the target is followed. It lies in a folder
of TMPDIR, which is the test's own here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["attached"]

START_S = 60
CHECKOUT = Path(__file__).parents[2]


@contextmanager
def attached(arguments: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """The recorder, recording; killed at the end when the test has not ended it."""
    with tempfile.TemporaryDirectory(prefix="perfbuf-test-") as folder:
        recorder = subprocess.Popen(
            [sys.executable, "-m", "otel_perfbuf", "record", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env={**os.environ, "TMPDIR": folder},
        )
        try:
            deadline = time.monotonic() + START_S
            while not list(Path(folder).glob("otel-perfbuf-*/trigger.sock")):
                assert recorder.poll() is None, recorder.communicate()[1]
                assert time.monotonic() < deadline, "the recorder did not begin"
                time.sleep(0.01)  # a file's appearance in a folder that is still to be made: nothing to wait on
            yield recorder
        finally:
            if recorder.poll() is None:
                recorder.kill()
                recorder.communicate()
