# SPDX-License-Identifier: Apache-2.0
"""The errors that otel-perfbuf raises.

What each message says: what was being done, to what, the cause, the way out. Source: CONTRACT section 6.
"""

from __future__ import annotations

import os

__all__ = [
    "ConfigError",
    "ExportError",
    "KernelError",
    "NotOverwritable",
    "NotSupported",
    "PerfbufError",
    "ReaderClosed",
]


class PerfbufError(Exception):
    """Base of all errors of this package."""


class ConfigError(PerfbufError, ValueError):
    """A configuration or an argument is wrong.

    ``problems`` holds one ``(key path, sentence)`` for each problem found, all at once.
    """

    def __init__(self, message: str, problems: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class KernelError(PerfbufError, OSError):
    """The kernel refused something; ``errno`` is kept."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(errno, message)

    def __str__(self) -> str:
        """The sentence, then the errno's own words."""
        if not self.errno:
            return str(self.strerror)
        return f"{self.strerror}: {os.strerror(self.errno)}"


class NotSupported(KernelError):
    """This kernel lacks a feature.

    ``feature`` names it and ``first_kernel`` is the first kernel version that has it ("6.19").
    """

    def __init__(self, errno: int, message: str, *, feature: str, first_kernel: str) -> None:
        super().__init__(errno, message)
        self.feature = feature
        self.first_kernel = first_kernel


class ReaderClosed(PerfbufError):
    """The reader was closed, perhaps by another thread while this one waited."""


class NotOverwritable(PerfbufError):
    """A snapshot was asked of a forward reader, or a read of an overwritable one."""


class ExportError(PerfbufError):
    """A backend did not take a request; ``retryable`` says whether the same bytes may be sent again.

    ``too_large``: it would take a smaller one.
    """

    def __init__(
        self, message: str, *, retryable: bool, retry_after_s: float | None = None, too_large: bool = False
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.too_large = too_large
