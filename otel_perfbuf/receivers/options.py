# SPDX-License-Identifier: Apache-2.0
"""What every receiver that listens can be told: where, and with which certificates. What it is not: it opens nothing.

Source: the Collector's confignet and configtls. Keys of theirs that mean nothing here are refused with a sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import model_validator

from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.triggers.bound import path_fault

__all__ = ["ListenOptions", "ServerTlsOptions"]

_RELOAD: Final = "certificates are read at the start and at a reload (SIGHUP); leave it out"

Unavailable = list[tuple[str, str]]


class ListenOptions(StrictModel):
    """Where to listen: ``HOST:PORT`` (0: any free port), ``unix:///PATH``, or a path with ``transport: unix``."""

    endpoint: str
    transport: Literal["tcp", "unix"] = "tcp"

    @model_validator(mode="after")
    def _endpoint_is_one(self) -> ListenOptions:
        path = self.unix_path
        if path is not None:
            if not path.startswith("/"):
                raise ValueError(f"endpoint: {self.endpoint!r} names no absolute path; write unix:///PATH")
            if fault := path_fault(path):
                raise ValueError(f"endpoint: {fault}")
            return self
        host, _, port = self.endpoint.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535 or "/" in host:
            raise ValueError(f"endpoint: {self.endpoint!r} is none; write HOST:PORT, or unix:///PATH")
        return self

    @property
    def unix_path(self) -> str | None:
        """The path of a Unix socket, None for TCP."""
        if self.endpoint.startswith("unix:"):
            return self.endpoint.removeprefix("unix:").removeprefix("//")
        return self.endpoint if self.transport == "unix" else None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for TCP only."""
        host, _, port = self.endpoint.rpartition(":")
        return host.strip("[]"), int(port)


class ServerTlsOptions(StrictModel):
    """Certificate and key of this server (PEM); ``client_ca_file``: clients must show a certificate of this authority.

    The lowest version is TLS 1.2.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    reload_interval: Any = None

    def unavailable(self) -> Unavailable:
        """What is refused."""
        return [] if self.reload_interval is None else [("reload_interval", _RELOAD)]
