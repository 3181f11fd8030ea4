# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests. What it is not: the Collector itself, which is in collector.py."""

from __future__ import annotations

from collector import collector

__all__ = ["collector"]
