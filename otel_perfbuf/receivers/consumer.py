# SPDX-License-Identifier: Apache-2.0
"""Where requests go: what a consumer is. What it is not: one (the service has them)."""

from __future__ import annotations

from collections.abc import Callable

from otel_perfbuf.triggers.otlp_scan import MalformedRequest

__all__ = ["Consumer", "MalformedRequest"]

Consumer = Callable[[bytes], object]
"""Takes the protobuf bytes of one request of its signal, from any thread, and returns at once.

Raises MalformedRequest (a sentence) when they are no such request. The bytes are not kept.
"""
