# SPDX-License-Identifier: Apache-2.0
"""Dumps in a file: OTLP JSON lines or length-framed protobuf. What it is not: a spool; nothing is read back or rotated.

Source: the Collector's file exporter (fileexporter README: one JSON line a request; proto: 4-byte big-endian length and
message). A Collector's exporter has one file a pipeline; here spans of otlp_proto go to PATH.traces, since such a frame
does not say what it is.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Final, Literal

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_perfbuf.errors import ConfigError, ExportError
from otel_perfbuf.exporters.answers import counted
from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.exporters.otlp_json import to_json
from otel_perfbuf.exporters.payload import Chunk, Signal

__all__ = ["STABILITY", "TRACES_SUFFIX", "TYPE", "FileExporter", "Options", "create", "json_line"]

TYPE: Final = "file"
STABILITY: Final = "beta"
TRACES_SUFFIX: Final = ".traces"

# What may pass by itself: room is made, a file system comes back.
_RETRYABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EAGAIN, errno.EINTR})


class Options(StrictModel):
    """``append``: what the file held stays; else it is truncated by the first dump."""

    path: Path
    format: Literal["otlp_json", "otlp_proto"] = "otlp_json"
    append: bool = False


def create(options: Options) -> FileExporter:
    """The exporter for these options; the first send creates the file, readable by its owner alone."""
    return FileExporter(options)


class FileExporter:
    """Appends each chunk as one line or frame: whole or not at all."""

    def __init__(self, options: Options, *, mode: int = 0o600) -> None:
        """``mode``: of a file that is created, cut by the umask; arguments of others' calls are not for everyone."""
        self._options = options
        self._mode = mode
        self._lock = threading.Lock()
        self._files: dict[Path, int] = {}
        self._made: set[Path] = set()

    def start(self) -> None:
        """Checks that the directory is there; ConfigError otherwise. Creates nothing."""
        path = self._options.path
        if path.is_dir() or not path.parent.is_dir():
            cause = "is a directory" if path.is_dir() else f"has no directory {path.parent}"
            sentence = f"{path} {cause}; give the path of a file in a directory that exists"
            raise ConfigError(f"starting {TYPE}: path: {sentence}", (("path", sentence),))

    def send(self, chunk: Chunk, timeout_s: float) -> int:
        """Writes one chunk; gives 0, or raises ExportError (retryable when the disk is full). The timeout is unused."""
        del timeout_s  # a write to a file has none
        path = self._path(chunk.signal)
        try:
            frame = self._frame(chunk)
        except DecodeError as fault:
            raise ExportError(
                f"writing {counted(chunk)} to {path}: no OTLP request: {fault}", retryable=False
            ) from fault
        with self._lock:
            try:
                self._write(self._file(path), frame)
            except OSError as fault:
                raise ExportError(
                    f"writing {counted(chunk)} to {path} failed: {fault.strerror}; nothing of them is left in the file",
                    retryable=fault.errno in _RETRYABLE,
                ) from fault
        return 0

    def stop(self) -> None:
        """Closes the files."""
        with self._lock:
            files, self._files = self._files, {}
            for fd in files.values():
                os.close(fd)

    def _path(self, signal: Signal) -> Path:
        path = self._options.path
        if self._options.format == "otlp_proto" and signal == "traces":
            return path.with_name(path.name + TRACES_SUFFIX)
        return path

    def _frame(self, chunk: Chunk) -> bytes:
        if self._options.format == "otlp_proto":
            return len(chunk.body).to_bytes(4, "big") + chunk.body
        return json_line(chunk)

    def _file(self, path: Path) -> int:
        fd = self._files.get(path)
        if fd is None:
            # After a stop and a start what this exporter wrote before is kept
            fresh = not self._options.append and path not in self._made
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if fresh else 0)
            fd = self._files[path] = os.open(path, flags, self._mode)
            self._made.add(path)
            if not fresh:
                _at_end(fd)
        return fd

    @staticmethod
    def _write(fd: int, frame: bytes) -> None:
        written = 0
        try:
            while written < len(frame):
                written += os.write(fd, memoryview(frame)[written:])
        except OSError:
            if written:
                _take_back(fd, written)
            raise


def json_line(chunk: Chunk) -> bytes:
    """The chunk as one line of OTLP JSON, newline included; DecodeError when its bytes are no OTLP request."""
    kind = ExportLogsServiceRequest if chunk.signal == "logs" else ExportTraceServiceRequest
    request = kind.FromString(chunk.body)
    # A string that is no text cannot be in a message: protobuf refuses it; so surrogates cannot occur here
    return json.dumps(to_json(request), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _at_end(fd: int) -> None:
    try:
        os.lseek(fd, 0, os.SEEK_END)
    except OSError as fault:
        if fault.errno != errno.ESPIPE:  # a pipe has no end to go to
            raise


def _take_back(fd: int, written: int) -> None:
    """Cuts off the half of a frame that was written; a pipe or device keeps it."""
    try:
        start = os.lseek(fd, -written, os.SEEK_CUR)
        os.ftruncate(fd, start)
    except OSError:
        return
