# SPDX-License-Identifier: Apache-2.0
"""Receivers: telemetry in, for triggers. What it is not: it decides nothing about dumps, and reads no rings."""
