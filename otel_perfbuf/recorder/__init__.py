# SPDX-License-Identifier: Apache-2.0
"""From a firing to a dump, and from a forward ring to a live stream. Source: DESIGN sections 3 and 6."""

from .dump import Dump, DumpOptions
from .live import LiveStream
from .recorder import FlightRecorder, Gate
from .source import HistorySource, SourceOptions

__all__ = ["Dump", "DumpOptions", "FlightRecorder", "Gate", "HistorySource", "LiveStream", "SourceOptions"]
