# SPDX-License-Identifier: Apache-2.0
"""Which exporters there are, and the one for an endpoint. What it is not: it configures and starts nothing.

Modules are imported when asked for: gRPC alone takes longer to import than a small program runs.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import Final, Protocol, cast

from pydantic import BaseModel

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.exporters.payload import Exporter

__all__ = ["EXPORTERS", "LOGS_ONLY", "ExporterModule", "exporter_for_endpoint", "exporter_module"]

EXPORTERS: Final = MappingProxyType(
    {"otlp_grpc": "beta", "otlp_http": "beta", "fluent_forward": "beta", "file": "beta", "debug": "development"}
)
"""Type to stability, in the order in which they are shown."""

LOGS_ONLY: Final = frozenset({"fluent_forward"})
"""Types that have no form for spans."""


class ExporterModule(Protocol):
    """What an exporter's module has."""

    TYPE: str
    STABILITY: str
    Options: type[BaseModel]

    def create(self, options: BaseModel) -> Exporter:
        """The exporter for validated ``Options``."""


def exporter_module(component_type: str) -> ExporterModule:
    """The module of an exporter type; KeyError for an unknown one."""
    if component_type not in EXPORTERS:
        raise KeyError(component_type)
    return cast(ExporterModule, importlib.import_module(f"otel_perfbuf.exporters.{component_type}"))


def exporter_for_endpoint(endpoint: str) -> Exporter:
    """The exporter for ``http(s)://HOST:PORT``, ``grpc(s)://HOST:PORT`` or ``unix:///PATH`` (gRPC); or ConfigError."""
    scheme, _, rest = endpoint.partition("://")
    try:
        if scheme in ("http", "https"):
            http = exporter_module("otlp_http")
            return http.create(http.Options.model_validate({"endpoint": endpoint}))
        if scheme in ("grpc", "grpcs", "unix"):
            target = endpoint if scheme == "unix" else rest.rstrip("/")
            grpc = exporter_module("otlp_grpc")
            options = {"endpoint": target, "tls": {"insecure": scheme != "grpcs"}}
            return grpc.create(grpc.Options.model_validate(options))
    except ValueError as fault:
        raise ConfigError(_unusable(endpoint)) from fault
    raise ConfigError(_unusable(endpoint))


def _unusable(endpoint: str) -> str:
    return (
        f"sending to {endpoint!r}: no such endpoint can be; "
        "write http://HOST:4318, grpc://HOST:4317 or unix:///PATH (gRPC over a Unix socket)"
    )
