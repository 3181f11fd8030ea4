# SPDX-License-Identifier: Apache-2.0
"""For tests of ring readers, ours and plug-in authors': writers that play the kernel, saved rings, the contract suite.

What it is not: it needs no privileges and no BPF.
"""

from otel_perfbuf.rings.saved import save_rings
from otel_perfbuf.testing.contract import ReaderContract
from otel_perfbuf.testing.ring_writer import RECORD_LOST, RECORD_SAMPLE, SAMPLE_RAW, U64, RingWriter, padded
from otel_perfbuf.testing.ringbuf_writer import RingbufWriter

__all__ = [
    "RECORD_LOST",
    "RECORD_SAMPLE",
    "SAMPLE_RAW",
    "U64",
    "ReaderContract",
    "RingWriter",
    "RingbufWriter",
    "padded",
    "save_rings",
]
