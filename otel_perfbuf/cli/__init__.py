# SPDX-License-Identifier: Apache-2.0
"""The command `otel-perfbuf`. Source: CONTRACT section 1."""

from .main import main

__all__ = ["main"]
