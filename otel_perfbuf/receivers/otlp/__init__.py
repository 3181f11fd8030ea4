# SPDX-License-Identifier: Apache-2.0
"""OTLP in: requests over gRPC and HTTP become protobuf bytes. What it is not: it looks into no message (triggers/).

Nothing is imported here: who only checks a configuration needs options.py and no gRPC.
"""
