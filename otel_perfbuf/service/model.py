# SPDX-License-Identifier: Apache-2.0
"""What a checked configuration is. What it is not: it reads and checks nothing (config.py, graph.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, Field

from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.service.options import TelemetryOptions
from otel_perfbuf.service.registry import Section

__all__ = ["Component", "Configuration", "PipelineOptions", "ServiceOptions"]


class PipelineOptions(StrictModel):
    """One pipeline: ids of where it begins and ends."""

    receivers: tuple[str, ...]
    exporters: tuple[str, ...]


class ServiceOptions(StrictModel):
    """`service:`."""

    extensions: tuple[str, ...] = ()
    pipelines: dict[str, PipelineOptions] = Field(default_factory=dict)
    telemetry: TelemetryOptions = TelemetryOptions()


@dataclass(frozen=True, slots=True)
class Component:
    """A configured component; ``options`` is an instance of its type's model."""

    id: str
    type: str
    options: BaseModel


@dataclass(frozen=True, slots=True)
class Configuration:
    """All components by id, and how they are joined."""

    receivers: Mapping[str, Component] = field(default_factory=dict)
    connectors: Mapping[str, Component] = field(default_factory=dict)
    exporters: Mapping[str, Component] = field(default_factory=dict)
    extensions: Mapping[str, Component] = field(default_factory=dict)
    service: ServiceOptions = field(default_factory=ServiceOptions)

    def section(self, section: Section) -> Mapping[str, Component]:
        """The components of one section by id."""
        components: Mapping[str, Component] = getattr(self, section)
        return components
