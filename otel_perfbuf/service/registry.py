# SPDX-License-Identifier: Apache-2.0
"""Which components there are. What it is not: it creates and starts none. Source: CONTRACT sections 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel

from otel_perfbuf.exporters.components import EXPORTERS, exporter_module
from otel_perfbuf.receivers.fluent.options import FluentReceiverOptions
from otel_perfbuf.receivers.otlp.options import OtlpReceiverOptions
from otel_perfbuf.service.options import (
    ControlOptions,
    FileStorageOptions,
    FlightRecorderOptions,
    HealthCheckOptions,
    PerfBufferOptions,
)

__all__ = ["REGISTRY", "SECTIONS", "ComponentType", "Section", "components"]

Section = Literal["receivers", "connectors", "exporters", "extensions"]
SECTIONS: Final[tuple[Section, ...]] = ("receivers", "connectors", "exporters", "extensions")


@dataclass(frozen=True, slots=True)
class ComponentType:
    """A type of component; ``options`` gives its model (exporters are imported only then)."""

    name: str
    stability: str
    options: Callable[[], type[BaseModel]]

    @property
    def available(self) -> bool:
        """Whether it can be used at all, not only be configured."""
        return self.stability != "unavailable"


def _own(*types: tuple[str, str, type[BaseModel]]) -> Mapping[str, ComponentType]:
    return MappingProxyType(
        {name: ComponentType(name, stability, partial(_same, model)) for name, stability, model in types}
    )


def _same(model: type[BaseModel]) -> type[BaseModel]:
    return model


def _exporter_options(name: str) -> type[BaseModel]:
    return exporter_module(name).Options


REGISTRY: Final[Mapping[Section, Mapping[str, ComponentType]]] = MappingProxyType(
    {
        "receivers": _own(
            ("perf_buffer", "beta", PerfBufferOptions),
            ("otlp", "beta", OtlpReceiverOptions),
            ("fluent_forward", "beta", FluentReceiverOptions),
        ),
        "connectors": _own(("flight_recorder", "beta", FlightRecorderOptions)),
        "exporters": MappingProxyType(
            {
                name: ComponentType(name, stability, partial(_exporter_options, name))
                for name, stability in EXPORTERS.items()
            }
        ),
        "extensions": _own(
            ("control", "beta", ControlOptions),
            ("health_check", "beta", HealthCheckOptions),
            ("file_storage", "beta", FileStorageOptions),
        ),
    }
)


def components() -> dict[str, list[dict[str, str]]]:
    """What `otel-perfbuf components` prints: each section's types that can be used, with stability."""
    return {
        section: [
            {"name": kind.name, "stability": kind.stability} for kind in REGISTRY[section].values() if kind.available
        ]
        for section in SECTIONS
    }
