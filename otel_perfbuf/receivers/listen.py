# SPDX-License-Identifier: Apache-2.0
"""Listening sockets and their TLS, for every receiver. What it is not: it accepts nothing (serving.py, grpc.py)."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Final, Protocol

from otel_perfbuf.errors import ConfigError, PerfbufError
from otel_perfbuf.receivers.options import ServerTlsOptions
from otel_perfbuf.triggers.bound import BoundSocket, bind_unix

__all__ = ["UNIX_MODE", "Listener", "Pems", "listen", "read_pems", "tls_context"]

UNIX_MODE: Final = 0o666
"""Of a Unix socket: whoever may connect to loopback may connect to it."""

_BACKLOG: Final = 128


class Address(Protocol):
    """Where to listen, as the options have it."""

    @property
    def endpoint(self) -> str:
        """As it was written."""

    @property
    def unix_path(self) -> str | None:
        """The path of a Unix socket, None for TCP."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for TCP only."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening, non-blocking socket; ``endpoint`` names it with the port that it has."""

    socket: socket.socket
    endpoint: str
    bound: BoundSocket | None = None

    def close(self) -> None:
        """Closes it, and removes a Unix socket's file; twice is fine."""
        if self.bound is not None:
            self.bound.close()
        self.socket.close()


def listen(where: Address, what: str) -> Listener:
    """Listens; PerfbufError when that cannot be."""
    path = where.unix_path
    if path is not None:
        bound = bind_unix(path, socket.SOCK_STREAM, UNIX_MODE, what)
        bound.socket.listen(_BACKLOG)
        return Listener(bound.socket, f"unix://{path}", bound)
    host, port = where.address
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(_BACKLOG)
        except BaseException:
            opened.close()
            raise
    except OSError as fault:
        raise PerfbufError(
            f"cannot open the {what} at {where.endpoint}: {fault.strerror or fault}; choose another endpoint"
        ) from fault
    return Listener(opened, f"{host}:{opened.getsockname()[1]}")


@dataclass(frozen=True, slots=True)
class Pems:
    """What the TLS options' files hold."""

    certificate: bytes
    key: bytes
    client_authority: bytes | None


def read_pems(options: ServerTlsOptions, what: str) -> Pems:
    """The files' bytes; ConfigError names the key when one cannot be read or is none."""
    found = {}
    for key in ("cert_file", "key_file", "client_ca_file"):
        path = getattr(options, key)
        try:
            found[key] = path.read_bytes() if path is not None else None
        except OSError as fault:
            raise ConfigError(
                f"opening the {what}: tls.{key}: reading {path} failed: {os.strerror(fault.errno or 0)}; "
                "give a readable PEM file"
            ) from fault
    tls_context(options, what)  # gRPC's own complaint about a wrong file names neither key nor file
    return Pems(found["cert_file"] or b"", found["key_file"] or b"", found["client_ca_file"])


def tls_context(options: ServerTlsOptions, what: str, protocols: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
    """A server's context that offers these application protocols; ConfigError when the files do not make one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with contextlib.suppress(NotImplementedError):  # a TLS library without ALPN
        context.set_alpn_protocols(list(protocols))
    try:
        context.load_cert_chain(options.cert_file, options.key_file)
        if options.client_ca_file is not None:
            context.load_verify_locations(options.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as fault:
        raise ConfigError(
            f"opening the {what}: tls: the files make no server certificate: {fault}; give a certificate, its key and "
            "an authority as PEM"
        ) from fault
    return context
