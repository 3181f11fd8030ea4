# SPDX-License-Identifier: Apache-2.0
"""Options of the fluent_forward receiver. What it is not: it opens nothing.

Names of fields are asked in their order; a name is a key of the record, of its ``attributes`` or ``resource`` map, or a
path of keys with dots. Source: what Fluent Bit's and Fluentd's parsers, journald and common loggers call them.
"""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.receivers.options import ListenOptions, ServerTlsOptions
from otel_perfbuf.units import Size

__all__ = ["FieldsOptions", "FluentReceiverOptions", "MatchOptions"]

_PATTERN_MAX: Final = 1024
_NAMES_MAX: Final = 32

Names = tuple[str, ...]


class FieldsOptions(StrictModel):
    """Which fields say what; a list replaces the default one."""

    severity: Names = (
        "level",
        "severity",
        "log.level",
        "severity_text",
        "severity_number",
        "levelname",
        "loglevel",
        "PRIORITY",
    )
    message: Names = ("message", "log", "msg", "MESSAGE")
    trace_id: Names = ("trace_id", "trace.id", "traceId", "traceid")
    span_id: Names = ("span_id", "span.id", "spanId", "spanid")
    service: Names = ("service.name", "service")
    instance: Names = ("service.instance.id",)
    pid: Names = ("process.pid", "pid", "process_id", "_PID")
    tid: Names = ("thread.id", "tid", "thread_id")
    container_id: Names = ("container.id", "container_id", "kubernetes.docker_id", "CONTAINER_ID_FULL")
    host: Names = ("host.name", "hostname", "_HOSTNAME")

    @field_validator("*")
    @classmethod
    def _bounded(cls, names: Names) -> Names:
        if len(names) > _NAMES_MAX or not all(0 < len(name) <= 255 for name in names):
            raise PydanticCustomError("names", "at most 32 names of 1 to 255 characters belong here")
        return names


class MatchOptions(StrictModel):
    """A log that fires whatever its severity: ``pattern`` (Python's re) is found in one of ``fields``.

    No fields: those of the message. At most 4,096 characters of a field are searched.
    """

    pattern: str = Field(max_length=_PATTERN_MAX)
    fields: Names = ()

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as fault:
            raise PydanticCustomError("pattern", "{why}", {"why": f"it is no pattern: {fault}"}) from None
        return pattern


class FluentReceiverOptions(ListenOptions):
    """``ignore_tags``: patterns (``*`` is any text) of streams that never trigger; records of our own never do anyway.

    ``shared_key``: clients must know it; with ``users`` they must also be one of them. One message has at most
    ``max_message_bytes`` on the wire and ``max_unpacked_bytes`` unpacked.
    """

    endpoint: str = "127.0.0.1:24225"
    tls: ServerTlsOptions | None = None
    shared_key: SecretStr | None = None
    self_hostname: str | None = Field(default=None, min_length=1, max_length=255)
    users: dict[str, SecretStr] = Field(default={}, max_length=1000)
    max_connections: int = Field(default=128, ge=1, le=10_000)
    max_message_bytes: Size = Field(default=8 << 20, ge=1024, le=256 << 20)
    max_unpacked_bytes: Size = Field(default=64 << 20, ge=1024, le=1 << 30)
    fields: FieldsOptions = FieldsOptions()
    match: tuple[MatchOptions, ...] = Field(default=(), max_length=32)
    ignore_tags: tuple[str, ...] = Field(default=("perfbuf", "perfbuf.*"), max_length=64)

    @model_validator(mode="after")
    def _users_need_a_key(self) -> FluentReceiverOptions:
        if self.users and self.shared_key is None:
            raise ValueError("users need a shared_key: Fluent's handshake has no password alone")
        return self

    def unavailable(self) -> list[tuple[str, str]]:
        """What is refused, with a sentence each."""
        tls = self.tls.unavailable() if self.tls is not None else []
        return [(f"tls.{key}", sentence) for key, sentence in tls]
