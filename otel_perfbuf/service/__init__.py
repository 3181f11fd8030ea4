# SPDX-License-Identifier: Apache-2.0
"""Configuration, graph, lifecycle, control and own telemetry. What it is not: it knows no component's inside."""
