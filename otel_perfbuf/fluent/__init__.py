# SPDX-License-Identifier: Apache-2.0
"""Fluent's forward protocol as bytes; who sends and who listens is exporters' and receivers'."""
