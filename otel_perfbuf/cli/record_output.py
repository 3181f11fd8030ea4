# SPDX-License-Identifier: Apache-2.0
"""Where `record` puts its dumps: text on stderr, a file, an OTLP endpoint. Source: CONTRACT section 1.

What it is not: it makes no dumps and renders no record (exporters/text.py does, from the same OTLP bytes).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from otel_perfbuf.errors import ConfigError, ExportError
from otel_perfbuf.exporters.components import exporter_for_endpoint, exporter_module
from otel_perfbuf.exporters.delivery import Outcome
from otel_perfbuf.exporters.payload import Exporter, Payload
from otel_perfbuf.exporters.queue import SendingQueue
from otel_perfbuf.exporters.text import render
from otel_perfbuf.recorder.dump import Dump

__all__ = ["Output"]

_SEND_S = 10.0
_SHOWN_DUMPS = 16  # a service may fail a thousand times under `record`: the last ones are kept to be shown

_LOGGER = logging.getLogger("otel_perfbuf")


class _Keeper(logging.Handler):
    """Keeps what the parts warn of: stderr is CMD's while it runs."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one message; an attempt that will be made again is no problem yet."""
        if not getattr(record, "tried_again", False):
            self._problems.append(record.getMessage())


def _once(problems: list[str]) -> list[str]:
    """Each problem once: not what is said as the cause inside another's sentence."""
    different = list(dict.fromkeys(problems))
    return [each for each in different if not any(each in other for other in different if other != each)]


class Output:
    """Takes dumps from the recorder's thread, shows the last lines at the end."""

    def __init__(self, path: Path | None, file_format: str, endpoint: str | None, lines: int | None) -> None:
        self._path = path
        self._format = file_format
        self._endpoint = endpoint
        self._lines = lines
        self._dumps: deque[Dump] = deque(maxlen=_SHOWN_DUMPS)
        self._made = 0
        self._problems: list[str] = []
        self._keeper = _Keeper(self._problems)
        self._lock = threading.Lock()
        self._file: Exporter | None = None
        self._text: Any = None
        self._queue: SendingQueue | None = None
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"record -o {path}: give the path of a file in a directory that exists")
        if path is not None and file_format != "text":
            module = exporter_module("file")
            self._file = module.create(module.Options.model_validate({"path": path, "format": file_format}))
        if endpoint is not None:
            self._queue = SendingQueue(exporter_for_endpoint(endpoint), name=endpoint, timeout_s=_SEND_S)

    def start(self) -> None:
        """Starts the threads that send and keeps warnings until `finish`; after the command was forked."""
        _LOGGER.addHandler(self._keeper)
        _LOGGER.propagate = False
        if self._file is not None:
            self._file.start()
        if self._queue is not None:
            self._queue.start()

    def take(self, dump: Dump) -> None:
        """Writes and queues one dump, and keeps it for the text on stderr."""
        with self._lock:
            self._dumps.append(dump)
            self._made += 1
        try:
            if self._file is not None:
                for chunk in dump.payload.chunks:
                    self._file.send(chunk, _SEND_S)
            elif self._path is not None:
                self._write_text(dump.payload)
        except ExportError as error:
            self._problems.append(str(error))
        except OSError as error:
            self._problems.append(
                f"writing the dump as text to {self._path}: {error.strerror}; the file is not whole, "
                "give another one with -o"
            )
        if self._queue is not None:
            self._queue.put(dump.payload, self._delivered)

    def _write_text(self, payload: Payload) -> None:
        assert self._path is not None
        if self._text is None:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._text = os.fdopen(descriptor, "w", encoding="utf-8")
        for line in render(payload.chunks, lines=None, colour=False):
            self._text.write(line + "\n")
        self._text.flush()

    def _delivered(self, _payload: Payload, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._problems.append(outcome.error)

    def finish(self, end: str) -> None:
        """Sends what is left, then says everything on stderr: dumps, summary, problems."""
        if self._queue is not None:
            leftover = self._queue.drain(_SEND_S)
            if leftover.sentence:
                self._problems.append(leftover.sentence)
        colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        lines = 0 if self._path is not None or self._endpoint is not None else self._lines
        if self._made > len(self._dumps):
            earlier = self._made - len(self._dumps)
            print(f"# {earlier:,} earlier dumps are not shown here; -o FILE or --otlp gets all", file=sys.stderr)
        for dump in self._dumps:
            for line in render(dump.payload.chunks, lines=lines, colour=colour):
                print(line, file=sys.stderr)
        if not self._dumps and not self._problems:
            print(f"# nothing to dump: {end} and reported no error", file=sys.stderr)
        for problem in _once(self._problems):
            print(f"otel-perfbuf: record: {problem}", file=sys.stderr)
        sys.stderr.flush()

    def __enter__(self) -> Self:
        """The output itself; its file is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _LOGGER.removeHandler(self._keeper)
        _LOGGER.propagate = True
        if self._file is not None:
            self._file.stop()
        if self._text is not None:
            with contextlib.suppress(OSError):  # what did not fit is said already
                self._text.close()
        if self._queue is not None:
            self._queue.drain(0.0)
