# SPDX-License-Identifier: Apache-2.0
"""Options of the otlp receiver: the Collector receiver's keys, defaults and limits; only the ports differ.

What it is not: it opens nothing. Source: the Collector's otlpreceiver, confighttp, configgrpc and configtls;
CONTRACT section 2 (endpoints). Keys of theirs that mean nothing here are refused with a sentence, not ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, Field, model_validator

from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.receivers.options import ListenOptions, ServerTlsOptions
from otel_perfbuf.units import Duration, Size

__all__ = ["GrpcOptions", "HttpOptions", "OtlpReceiverOptions"]

_AUTH: Final = "this receiver authenticates by client certificates only; set tls.client_ca_file"
_METADATA: Final = "headers are not passed on from here; leave it out"
_BUFFERS: Final = "buffers have the size that the library gives them; leave it out"
_CORS: Final = "browsers do not send to a flight recorder; let a Collector take theirs and copy errors here"

Unavailable = list[tuple[str, str]]


def _url_path(path: str) -> str:
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError(f"{path!r} is no path of a URL; write for example /v1/traces")
    return path


UrlPath = Annotated[str, AfterValidator(_url_path)]


class KeepaliveServerOptions(StrictModel):
    """0 or left out: gRPC's own default (an idle connection is closed after 5 minutes, unlike the Collector's)."""

    max_connection_idle: Duration = Field(default=300.0, ge=0)
    max_connection_age: Duration = Field(default=0.0, ge=0)
    max_connection_age_grace: Duration = Field(default=0.0, ge=0)
    time: Duration = Field(default=0.0, ge=0)
    timeout: Duration = Field(default=0.0, ge=0)


class KeepaliveEnforcementOptions(StrictModel):
    """How often a client may ping."""

    min_time: Duration = Field(default=300.0, ge=0)
    permit_without_stream: bool = False


class KeepaliveOptions(StrictModel):
    """`keepalive: {...}` of configgrpc."""

    server_parameters: KeepaliveServerOptions = KeepaliveServerOptions()
    enforcement_policy: KeepaliveEnforcementOptions = KeepaliveEnforcementOptions()


class GrpcOptions(ListenOptions):
    """`protocols: {grpc: ...}`. ``max_recv_msg_size_mib`` bounds a message before and after decompression."""

    endpoint: str = "127.0.0.1:4327"
    tls: ServerTlsOptions | None = None
    max_recv_msg_size_mib: int = Field(default=4, ge=1, le=1024)
    max_concurrent_streams: int = Field(default=100, ge=1, le=10_000)
    keepalive: KeepaliveOptions = KeepaliveOptions()
    read_buffer_size: Any = None
    write_buffer_size: Any = None
    auth: Any = None
    include_metadata: Any = None

    def unavailable(self) -> Unavailable:
        """What is refused."""
        keys = {
            "read_buffer_size": _BUFFERS,
            "write_buffer_size": _BUFFERS,
            "auth": _AUTH,
            "include_metadata": _METADATA,
        }
        return _given(self, keys)


class HttpOptions(ListenOptions):
    """`protocols: {http: ...}`. ``max_request_body_size`` bounds a body before and after decompression.

    ``read_timeout`` is for a whole body; 0 is 30 s, since a body that never ends holds memory.
    """

    endpoint: str = "127.0.0.1:4328"
    tls: ServerTlsOptions | None = None
    max_request_body_size: Size = Field(default=20 << 20, ge=1, le=1 << 30)
    traces_url_path: UrlPath = "/v1/traces"
    logs_url_path: UrlPath = "/v1/logs"
    read_timeout: Duration = Field(default=0.0, ge=0)
    read_header_timeout: Duration = Field(default=60.0, gt=0)
    write_timeout: Duration = Field(default=30.0, gt=0)
    idle_timeout: Duration = Field(default=60.0, gt=0)
    keep_alives_enabled: bool = True
    cors: Any = None
    auth: Any = None
    include_metadata: Any = None

    @model_validator(mode="after")
    def _paths_differ(self) -> HttpOptions:
        if self.traces_url_path == self.logs_url_path:
            raise ValueError("traces_url_path and logs_url_path are the same; each needs a path of its own")
        return self

    def unavailable(self) -> Unavailable:
        """What is refused."""
        return _given(self, {"cors": _CORS, "auth": _AUTH, "include_metadata": _METADATA})


class ProtocolsOptions(StrictModel):
    """Which of both are served; a protocol with nothing behind it takes its defaults, as in a Collector."""

    grpc: GrpcOptions | None = None
    http: HttpOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_maps(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if not given:
            raise ValueError("name grpc, http or both")
        return {key: {} if value is None else value for key, value in given.items()}


class OtlpReceiverOptions(StrictModel):
    """OTLP in, as a source of triggers."""

    protocols: ProtocolsOptions = ProtocolsOptions(grpc=GrpcOptions(), http=HttpOptions())

    def unavailable(self) -> Unavailable:
        """What is refused, with a sentence each."""
        found = []
        for name, protocol in (("grpc", self.protocols.grpc), ("http", self.protocols.http)):
            if protocol is not None:
                inner = protocol.unavailable()
                if protocol.tls is not None:
                    inner += [(f"tls.{key}", sentence) for key, sentence in protocol.tls.unavailable()]
                found += [(f"protocols.{name}.{key}", sentence) for key, sentence in inner]
        return found


def _given(options: BaseModel, sentences: dict[str, str]) -> Unavailable:
    return [(key, sentence) for key, sentence in sentences.items() if getattr(options, key) not in (None, False)]
