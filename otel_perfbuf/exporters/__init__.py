# SPDX-License-Identifier: Apache-2.0
"""Exporters: chunks of OTLP bytes to receivers, files and eyes."""
