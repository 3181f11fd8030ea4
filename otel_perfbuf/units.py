# SPDX-License-Identifier: Apache-2.0
"""Durations and sizes as people write them: "200ms", "1m30s", "64KiB".

What it is not: a clock, or a place for any default. Source: CONTRACT section 2; durations as Go's
time.ParseDuration reads them, since that is what Collector users write.

>>> parse_duration("1m30s"), parse_size("64KiB")
(90.0, 65536)
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

__all__ = [
    "Duration",
    "Size",
    "format_duration",
    "format_size",
    "parse_duration",
    "parse_size",
    "power_of_two_within",
]

_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,9})?(?:ns|us|µs|ms|s|m|h))+", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_MAX_DURATION_S: Final = 100 * 365 * 86_400.0

_UNIT_BYTES: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))? ?(B|KiB|MiB|GiB|TiB)?", re.ASCII)
_MAX_SIZE_BYTES: Final = 1 << 62


def parse_duration(value: object) -> float:
    """Seconds of "200ms", "5s", "1m30s", "1h" or 0; ValueError (a sentence) for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value == 0:
            return 0.0
        raise ValueError(f"a duration needs a unit: {value} is not one, write for example {value}s")
    if not isinstance(value, str):
        raise ValueError(f"a duration is text like 200ms, 5s, 1m or 1h, not {type(value).__name__}")
    text = value.strip()
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{_shown(value)} is not a duration; write for example 200ms, 5s, 1m or 1h")
    seconds = sum(float(number) * _UNIT_NS[unit] for number, unit in _DURATION_PART.findall(text)) / 1e9
    if seconds > _MAX_DURATION_S:
        raise ValueError(f"{_shown(value)} is longer than a hundred years")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that parse_duration reads back as the same nanoseconds: 90.0 is "1m30s"."""
    rest_ns = round(seconds * 1e9)
    if rest_ns == 0:
        return "0s"
    if rest_ns < _UNIT_NS["s"]:
        unit = next(unit for unit in ("ms", "us", "ns") if rest_ns % _UNIT_NS[unit] == 0)
        return f"{rest_ns // _UNIT_NS[unit]}{unit}"
    text = ""
    for unit in ("h", "m"):
        count, rest_ns = divmod(rest_ns, _UNIT_NS[unit])
        text += f"{count}{unit}" if count else ""
    if rest_ns:
        whole, part_ns = divmod(rest_ns, _UNIT_NS["s"])
        text += f"{whole}.{part_ns:09}".rstrip("0").rstrip(".") + "s"
    return text


def parse_size(value: object) -> int:
    """Bytes of "64KiB", "4MiB", "1.5GiB", "4096" or 4096; ValueError (a sentence) for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        size_bytes = value
    elif isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        if not found:
            raise ValueError(f"{_shown(value)} is not a size; write plain bytes, or for example 64KiB, 4MiB or 1GiB")
        whole, part, unit = found[1], found[2] or "", _UNIT_BYTES[found[3] or ""]
        size_bytes, rest = divmod(int(whole + part) * unit, 10 ** len(part))
        if rest:
            raise ValueError(f"{_shown(value)} is not a whole number of bytes")
    else:
        raise ValueError(f"a size is plain bytes or text like 64KiB or 4MiB, not {type(value).__name__}")
    if not 0 <= size_bytes <= _MAX_SIZE_BYTES:
        raise ValueError(f"a size of {_shown(str(value))} is out of range")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """The shortest text that parse_size reads back as the same bytes: 65536 is "64KiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _UNIT_BYTES[unit] == 0:
            return f"{size_bytes // _UNIT_BYTES[unit]}{unit}"
    return str(size_bytes)


def _shown(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:37] + "...")


def _duration_field(value: object) -> float:
    try:
        return parse_duration(value)
    except ValueError as fault:
        raise PydanticCustomError("duration", "{sentence}", {"sentence": str(fault)}) from None


def _size_field(value: object) -> int:
    try:
        return parse_size(value)
    except ValueError as fault:
        raise PydanticCustomError("size", "{sentence}", {"sentence": str(fault)}) from None


def _shown_size(size_bytes: int) -> int | str:
    text = format_size(size_bytes)
    return size_bytes if text.isdigit() else text


Duration = Annotated[
    float,
    BeforeValidator(_duration_field),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["200ms", "5s", "1m", "1h", 0]}),
]
"""A pydantic field in seconds; ``model_dump(mode="json")`` writes it as people do. Defaults are plain floats."""

Size = Annotated[
    int,
    BeforeValidator(_size_field),
    PlainSerializer(_shown_size, return_type=int | str, when_used="json"),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["64KiB", "4MiB", 65536]}),
]
"""A pydantic field in bytes; ``model_dump(mode="json")`` writes it as people do. Defaults are plain ints."""


def power_of_two_within(size: int) -> int:
    """The largest power of two that is not above ``size``, which is at least 1.

    >>> power_of_two_within(12 << 20) == 8 << 20
    True
    """
    return 1 << (size.bit_length() - 1)
