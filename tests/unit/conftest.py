# SPDX-License-Identifier: Apache-2.0
"""How long a generated case may take, and fixtures of the service's tests: played parts, the agent's counters."""

from __future__ import annotations

import hypothesis
import pytest
from played_parts import PlayedParts

from otel_perfbuf.service.telemetry import Telemetry

# No test compares absolute times, and a loaded machine takes its own.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")


@pytest.fixture
def parts() -> PlayedParts:
    """A kernel that does what it is told."""
    return PlayedParts()


@pytest.fixture
def telemetry() -> Telemetry:
    """The agent's counters."""
    return Telemetry()
