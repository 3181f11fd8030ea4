# SPDX-License-Identifier: Apache-2.0
"""Fluent in: logs of Fluent Bit, Fluentd and fluent-logger that can trigger dumps."""
