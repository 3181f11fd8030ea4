# SPDX-License-Identifier: Apache-2.0
"""Readers of BPF rings: see CONTRACT section 6."""

from otel_perfbuf.rings.batch import Batch, Lost, RingState, Sample
from otel_perfbuf.rings.reader import PerfReader, ReaderStats

__all__ = ["Batch", "Lost", "PerfReader", "ReaderStats", "RingState", "Sample"]
