# SPDX-License-Identifier: Apache-2.0
"""Which rings hold the history, how large they are, and their reader: per-CPU perf rings or one shared ring.

What it is not: it loads no program (source.py) and reads nothing. Choice and sizes: docs/decisions, shared ring.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass
from typing import Any, Literal

from otel_perfbuf.errors import ConfigError, KernelError, NotSupported
from otel_perfbuf.rings import PerfReader, RingbufReader, create_ringbuf
from otel_perfbuf.rings.cpus import online_cpus
from otel_perfbuf.rings.options import capacity_for
from otel_perfbuf.units import power_of_two_within

__all__ = ["AUTO_CPUS_MAX", "AUTO_LEAST_BYTES", "HistoryRings", "RingKind", "plan_rings"]

RingKind = Literal["per_cpu", "shared", "auto"]

AUTO_CPUS_MAX = 8
"""Up to so many CPUs `auto` takes the shared ring: its writers take turns at one lock."""

AUTO_LEAST_BYTES = 2 << 20
"""From so large `per_cpu_bytes` on: a writer that loses its CPU within an output stops the others a ring later."""

_LARGEST_SAMPLE_BYTES = 8192  # PB_SAMPLE_MAX_BYTES
_SHARED_MAX_BYTES = 1 << 31  # BPF maps count their bytes in 32 bits


@dataclass(frozen=True, slots=True)
class HistoryRings:
    """What is to be opened: ``count`` rings of ``each_bytes``; ``shared``: one, a BPF ring buffer."""

    shared: bool
    each_bytes: int
    count: int
    swap: bool = False

    @property
    def bytes(self) -> int:
        """Of all rings; a snapshot's copy is as large."""
        return self.each_bytes * self.count * (2 if self.swap else 1)

    def check_total(self, max_total_bytes: int) -> None:
        """ConfigError when the rings and their copies are larger than that."""
        total = 2 * self.bytes
        if total > max_total_bytes:
            twice = "twice " if self.swap else ""
            rings = "a shared ring of" if self.shared else f"{self.count} CPUs x {twice}"
            raise ConfigError(
                f"opening the history's rings: {rings} {self.each_bytes} bytes and as much for the copies are {total} "
                f"bytes, more than max_total_bytes {max_total_bytes}; make per_cpu_bytes smaller or max_total_bytes "
                "larger"
            )

    def open(self, history_map: Any) -> PerfReader | RingbufReader:
        """The reader of the program's map, which was made of this kind."""
        if self.shared:
            return RingbufReader(history_map)
        return PerfReader(
            history_map,
            per_cpu_bytes=self.each_bytes,
            overwritable=True,
            swap=self.swap,
            max_sample_bytes=_LARGEST_SAMPLE_BYTES,
        )


def plan_rings(ring: RingKind, per_cpu_bytes: int, *, swap: bool = False) -> HistoryRings:
    """Chooses the rings for this host, by trying what its kernel has.

    NotSupported where ``ring`` is "shared" and the kernel has no overwritable ring buffer.
    """
    each_bytes, cpus = capacity_for(per_cpu_bytes), len(online_cpus())
    per_cpu = HistoryRings(False, each_bytes, cpus, swap)
    if ring == "per_cpu" or (ring == "auto" and (swap or cpus > AUTO_CPUS_MAX or each_bytes < AUTO_LEAST_BYTES)):
        return per_cpu
    if swap:
        raise ConfigError("ring shared with snapshot swap: the shared ring has no second one; write snapshot: copy")
    try:
        os.close(create_ringbuf(resource.getpagesize(), overwritable=True))
    except NotSupported as error:
        if ring == "auto":
            return per_cpu
        raise NotSupported(
            errno.EINVAL,
            "ring: shared needs an overwritable BPF ring buffer (BPF_F_RB_OVERWRITE), which came with Linux "
            f"{error.first_kernel}, and this kernel refuses it; write ring: auto or per_cpu",
            feature=error.feature,
            first_kernel=error.first_kernel,
        ) from error
    except KernelError:
        if ring == "auto":
            return per_cpu  # what forbids this forbids the program's load too, and that is told there
        raise
    return HistoryRings(True, min(power_of_two_within(each_bytes * cpus), _SHARED_MAX_BYTES), 1)
