# SPDX-License-Identifier: Apache-2.0
"""Readers of BPF rings: see CONTRACT section 6."""

from otel_perfbuf.rings.batch import Batch, Lost, RingState, Sample
from otel_perfbuf.rings.reader import PerfReader, ReaderStats
from otel_perfbuf.rings.ringbuf import RingbufReader, create_ringbuf

__all__ = [
    "Batch",
    "Lost",
    "PerfReader",
    "ReaderStats",
    "RingState",
    "RingbufReader",
    "Sample",
    "create_ringbuf",
]
