# SPDX-License-Identifier: Apache-2.0
"""Which strings leave the recorder only in part: the patterns, compiled for the C core.

What it is not: it matches nothing itself; _core/redact.c does, where a record is read for its text.
Source: pcre2pattern(3), CONTRACT section 2 (redact); data/redact.tsv for what is redacted by default.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records.syscalls import data_lines

__all__ = ["Redact", "Redaction", "argument_patterns", "build_redaction", "default_patterns"]

_REFERENCE = re.compile(r"\\([1-9])")


@dataclass(frozen=True, slots=True)
class Redact:
    r"""One pattern (PCRE2's dialect) and what stands in its place: ``\1`` to ``\9`` are groups, ``\\`` a backslash.

    ``scope``: any string and buffer and each argument of a program, its arguments only, or the argument that follows
    one that matches (replaced whole).
    """

    pattern: str
    replace: str = "[REDACTED]"
    scope: Literal["any", "argument", "next_argument"] = "any"


@cache
def _defaults() -> tuple[Redact, ...]:
    rows = [line.split("\t") for line in data_lines("redact.tsv")]
    name = next(row[1] for row in rows if row[0] == "name")
    patterns = ((scope, text.replace("{name}", name), replace) for scope, text, *rest in rows for replace in rest)
    return tuple(Redact(text, replace, scope) for scope, text, replace in patterns)  # type: ignore[arg-type]


def default_patterns() -> tuple[Redact, ...]:
    """What is redacted of strings and buffers when nobody says otherwise."""
    return tuple(row for row in _defaults() if row.scope == "any")


def argument_patterns() -> tuple[Redact, ...]:
    """What is redacted of programs' arguments whenever anything is: ``-pSECRET``, ``--password X``."""
    return tuple(row for row in _defaults() if row.scope != "any")


def build_redaction(patterns: Sequence[Redact]) -> Redaction | None:
    """A receiver's patterns and, if there is any, those of programs' arguments; None: nothing is redacted."""
    return Redaction((*patterns, *argument_patterns())) if patterns else None


class Redaction:
    """Compiled patterns, applied in their order; ``pointer`` is a ``struct pb_redaction *`` of this object.

    Belongs to one thread at a time (as PCRE2's match data). Raises ConfigError: a pattern that does not compile or
    matches the empty string (with the place), a group that the pattern has not.
    """

    def __init__(self, patterns: Sequence[Redact]) -> None:
        self._texts = [ffi.new("char[]", row.replace.encode()) for row in patterns]
        self._patterns: Any = ffi.new("struct pb_pattern[]", max(len(patterns), 1))
        self.pointer: Any = ffi.new("struct pb_redaction *")
        self.pointer.patterns = self._patterns
        try:
            for row, text in zip(patterns, self._texts, strict=True):
                self._compile(row, text)
        except ConfigError:
            self.close()
            raise
        weakref.finalize(self, _free, self.pointer, self._patterns)

    def _compile(self, row: Redact, text: Any) -> None:
        pattern = self._patterns[self.pointer.count]
        source = row.pattern.encode()
        error, at = ffi.new("char[]", lib.PB_PATTERN_ERROR_BYTES), ffi.new("uint64_t *")
        if lib.pb_pattern_compile(ffi.addressof(pattern), source, len(source), error, at) != lib.PB_OK:
            why = ffi.string(error).decode("utf-8", "replace")
            raise ConfigError(f"redact: the pattern {row.pattern!r}: {why} (at {at[0]})")
        self.pointer.count += 1
        pattern.replace, pattern.replace_bytes = text, len(text) - 1
        pattern.scope = getattr(lib, f"PB_PATTERN_{row.scope.upper()}")
        groups = lib.pb_pattern_groups(ffi.addressof(pattern))
        for found in _REFERENCE.finditer(row.replace.replace("\\\\", "")):
            if int(found[1]) > groups:
                has = "no group" if not groups else f"{groups} group{'s' * (groups > 1)}"
                raise ConfigError(f"redact: {row.replace!r} names group {found[1]}; {row.pattern!r} has {has}")

    def redact(self, data: bytes, *, arguments: bool = False) -> bytes:
        """What is shown of one string (``arguments``: of argv, each string with its NUL); for tests and validation."""
        out, written = ffi.new("uint8_t[]", lib.PB_REDACTED_BYTES), ffi.new("uint32_t *")
        act = lib.pb_redact_arguments if arguments else lib.pb_redact
        if not act(self.pointer, data, len(data), out, lib.PB_REDACTED_BYTES, written):
            return data
        return bytes(ffi.buffer(out, written[0]))

    def close(self) -> None:
        """Frees the patterns; twice is fine."""
        _free(self.pointer, self._patterns)


def _free(redaction: Any, patterns: Any) -> None:
    while redaction.count:
        redaction.count -= 1
        lib.pb_pattern_free(ffi.addressof(patterns[redaction.count]))
