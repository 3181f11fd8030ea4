# SPDX-License-Identifier: Apache-2.0
"""Dumps on disk until every exporter's receiver has acknowledged them."""
