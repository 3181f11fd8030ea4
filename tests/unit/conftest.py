# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the service's tests: played parts and the agent's counters."""

from __future__ import annotations

import pytest
from played_parts import PlayedParts

from otel_perfbuf.service.telemetry import Telemetry


@pytest.fixture
def parts() -> PlayedParts:
    """A kernel that does what it is told."""
    return PlayedParts()


@pytest.fixture
def telemetry() -> Telemetry:
    """The agent's counters."""
    return Telemetry()
