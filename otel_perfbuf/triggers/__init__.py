# SPDX-License-Identifier: Apache-2.0
"""Conditions, firings, hold-off and budgets. What it is not: it knows no rings and no exporters."""
