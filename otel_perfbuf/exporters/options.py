# SPDX-License-Identifier: Apache-2.0
"""What every network exporter can be told: TLS, headers, retry, queue. What it is not: it sends nothing.

Names and defaults are the Collector's (configtls, configretry, exporterhelper), except where CONTRACT section 2 or a
bound that protects the host says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.units import Duration, Size

__all__ = [
    "Compression",
    "DeliveryOptions",
    "NetworkOptions",
    "QueueOptions",
    "RetryOptions",
    "StrictModel",
    "TlsOptions",
    "read_pem",
]

Compression = Literal["gzip", "zstd", "none"]


class StrictModel(BaseModel):
    """A map of a configuration: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsOptions(StrictModel):
    """``insecure``: plain text where the endpoint has no scheme that says; the files are PEM."""

    insecure: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _pair(self) -> TlsOptions:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: give both or neither")
        return self


class RetryOptions(StrictModel):
    """How a retryable answer is met: waits grow from ``initial_interval`` by ``multiplier`` up to ``max_interval``.

    Each is spread by ``randomization_factor``. After ``max_elapsed_time`` (0: never) the request is given up.
    """

    enabled: bool = True
    initial_interval: Duration = Field(default=5.0, gt=0)
    randomization_factor: float = Field(default=0.5, ge=0, lt=1)
    multiplier: float = Field(default=1.5, ge=1)
    max_interval: Duration = Field(default=30.0, gt=0)
    max_elapsed_time: Duration = Field(default=300.0, ge=0)


class QueueOptions(StrictModel):
    """``queue_size`` counts requests (chunks), ``max_bytes`` their bytes; ``num_consumers`` are streams at a time.

    ``storage`` names a file_storage extension that keeps the queue over a restart.
    """

    queue_size: int = Field(default=1000, gt=0)
    max_bytes: Size = Field(default=256 << 20, gt=0)
    num_consumers: int = Field(default=4, ge=1, le=64)
    storage: str | None = None


class DeliveryOptions(StrictModel):
    """The keys that every network exporter has."""

    timeout: Duration = Field(default=5.0, ge=0)
    retry_on_failure: RetryOptions = RetryOptions()
    sending_queue: QueueOptions = QueueOptions()

    def limit_s(self, timeout_s: float) -> float:
        """The shorter of the caller's limit and ``timeout`` (0: no limit of its own); seconds."""
        return min(timeout_s, self.timeout) if self.timeout else timeout_s


class NetworkOptions(DeliveryOptions):
    """And those of the OTLP exporters; header values are secrets and are redacted when printed."""

    tls: TlsOptions = TlsOptions()
    headers: dict[str, SecretStr] = {}
    compression: Compression = "gzip"

    @model_validator(mode="after")
    def _headers(self) -> NetworkOptions:
        for name, value in self.headers.items():
            text = value.get_secret_value()
            if not name or not all(char.isascii() and (char.isalnum() or char in "!#$%&'*+-.^_`|~") for char in name):
                raise ValueError(f"headers: {name!r} is not a header name; use letters, digits and -")
            if not text.isascii() or not text.isprintable():
                raise ValueError(f"headers.{name}: the value holds characters that no header can carry")
        return self

    def plain_headers(self) -> dict[str, str]:
        """The headers with their values in the clear, names in lower case, for the wire only."""
        return {name.lower(): value.get_secret_value() for name, value in self.headers.items()}


def read_pem(path: Path | None, key: str, exporter: str) -> bytes | None:
    """The bytes of a PEM file, None for None; ConfigError names the key when it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as fault:
        sentence = f"reading {path} failed: {fault.strerror}; give a readable PEM file"
        raise ConfigError(f"starting {exporter}: {key}: {sentence}", ((key, sentence),)) from fault
