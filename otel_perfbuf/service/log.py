# SPDX-License-Identifier: Apache-2.0
"""The agent's own log: stderr, one line each. What it is not: a pipeline; nothing of it is ever exported."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final, TextIO

__all__ = ["set_up"]

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


class _OneLine(logging.Formatter):
    """`2026-11-29T18:31:02.123Z INFO service.agent: sentence`; of an exception its last line and its place."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
            text = f"{text}: {type(error).__name__}: {error}{place}"
        level = "WARN" if record.levelno == logging.WARNING else record.levelname
        name = record.name.removeprefix("otel_perfbuf.")
        when = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"
        return f"{when} {level} {name}: {' '.join(text.split())}"


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Sends everything of this package from ``level`` on to ``stream`` (stderr); other packages from warn on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_OneLine())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("otel_perfbuf").setLevel(_LEVELS[level])
    logging.raiseExceptions = False  # a closed stderr must not end in a traceback, nor the agent in it
