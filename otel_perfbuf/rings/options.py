# SPDX-License-Identifier: Apache-2.0
"""PerfReader's arguments, checked and turned into what the kernel takes. What it is not: it opens nothing.

Source: CONTRACT section 6; perf_event_open(2).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Literal

from otel_perfbuf._core._core import lib as core
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.rings._sys import lib
from otel_perfbuf.rings.ring import EventOptions

__all__ = ["CLOCKS", "SAMPLE_TYPES", "Clock", "SampleType", "capacity_for", "event_options", "slack_for"]

SampleType = Literal["time", "tid", "cpu"]
Clock = Literal["monotonic", "monotonic_raw", "boottime", "realtime", "tai"]

SAMPLE_TYPES: dict[str, int] = {
    "time": lib.PB_SYS_SAMPLE_TIME,
    "tid": lib.PB_SYS_SAMPLE_TID,
    "cpu": lib.PB_SYS_SAMPLE_CPU,
}
CLOCKS: dict[str, int] = {
    "monotonic": time.CLOCK_MONOTONIC,
    "monotonic_raw": time.CLOCK_MONOTONIC_RAW,
    "boottime": time.CLOCK_BOOTTIME,
    "realtime": time.CLOCK_REALTIME,
    "tai": time.CLOCK_TAI,
}
MAX_CAPACITY = 1 << 38  # a ring's bytes; far above what a kernel maps, below any overflow
NEVER = (1 << 31) - 1  # a watermark that the kernel cuts to the ring's size: one wake-up a ring of bytes
MAX_RAW_BYTES = 65516  # a larger payload wraps the 16-bit header.size (FACTS 9)
LOST_BYTES = 24  # a LOST record may share the sample's reservation (FACTS 6)


def capacity_for(per_cpu_bytes: int) -> int:
    """``per_cpu_bytes`` rounded up to a power of two of whole pages; ConfigError below 1 byte."""
    if not 1 <= per_cpu_bytes <= MAX_CAPACITY:
        raise ConfigError(f"per_cpu_bytes is {per_cpu_bytes}; give 1 to {MAX_CAPACITY} bytes")
    pages = -(-per_cpu_bytes // resource.getpagesize())
    return (1 << (pages - 1).bit_length()) * resource.getpagesize()


def slack_for(max_sample_bytes: int | None, sample_type: int, capacity: int) -> int:
    """Bytes that writers in flight can have torn: one largest reservation for each level that they nest.

    A ring that has no room for more than that would never give anything while it is written: ConfigError.
    """
    if max_sample_bytes is not None and not 1 <= max_sample_bytes <= MAX_RAW_BYTES:
        raise ConfigError(f"max_sample_bytes is {max_sample_bytes}; a perf sample has 1 to {MAX_RAW_BYTES} bytes")
    raw = MAX_RAW_BYTES if max_sample_bytes is None else max_sample_bytes
    metadata = 8 * sum(bool(sample_type & bit) for bit in SAMPLE_TYPES.values())
    slack = int(core.PB_NESTED_WRITERS) * (LOST_BYTES + 8 + metadata + (raw + 4 + 7) // 8 * 8)
    if max_sample_bytes is not None and slack >= capacity:
        raise ConfigError(
            f"max_sample_bytes is {max_sample_bytes}: writers in flight may have torn {slack} bytes, and the ring has "
            f"only {capacity}; make per_cpu_bytes larger"
        )
    return slack


def event_options(
    *,
    per_cpu_bytes: int,
    overwritable: bool,
    watermark_bytes: int | None,
    wakeup_events: int | None,
    sample_type: Sequence[SampleType],
    clock: Clock | None,
) -> EventOptions:
    """The checked options; ConfigError says which argument is wrong and what is possible."""
    capacity = capacity_for(per_cpu_bytes)
    if watermark_bytes is not None and wakeup_events is not None:
        raise ConfigError("watermark_bytes and wakeup_events exclude each other: the kernel counts one or the other")
    if overwritable and (watermark_bytes is not None or wakeup_events is not None):
        raise ConfigError("an overwritable reader never wakes: leave watermark_bytes and wakeup_events out")
    if watermark_bytes is not None and not 1 <= watermark_bytes < capacity:
        raise ConfigError(
            f"watermark_bytes is {watermark_bytes}; give at least 1 and less than the ring's {capacity} bytes, "
            "else records are lost before anybody wakes"
        )
    if wakeup_events is not None and not 1 <= wakeup_events < 1 << 32:
        raise ConfigError(f"wakeup_events is {wakeup_events}; give 1 or more")
    for name in sample_type:
        if name not in SAMPLE_TYPES:
            raise ConfigError(f"sample_type has {name!r}; known are {', '.join(SAMPLE_TYPES)}")
    if clock is not None and clock not in CLOCKS:
        raise ConfigError(f"clock is {clock!r}; known are {', '.join(CLOCKS)}")
    if clock is not None and "time" not in sample_type:
        raise ConfigError("clock is given but sample_type has no 'time' that it could stamp")
    if overwritable:
        watermark_bytes = NEVER
    elif watermark_bytes is None and wakeup_events is None:
        # A wake-up costs more than a record (FACTS 23).
        watermark_bytes = capacity // 4
    return EventOptions(
        capacity=capacity,
        overwritable=overwritable,
        sample_type=lib.PB_SYS_SAMPLE_RAW | sum(SAMPLE_TYPES[name] for name in set(sample_type)),
        watermark_bytes=min(watermark_bytes or 0, NEVER),
        wakeup_events=wakeup_events or 0,
        clock_id=CLOCKS[clock or "monotonic"] if "time" in sample_type else None,
    )
