# SPDX-License-Identifier: Apache-2.0
"""The shared key handshake of Fluent's forward protocol, both sides, as values. What it is not: it opens no socket.

Source: Fluentd's "Forward Protocol Specification v1", "Handshake messages"; digests are SHA-512 in hex:

    server  ["HELO", {"nonce", "auth", "keepalive"}]
    client  ["PING", hostname, salt, digest(salt + hostname + nonce + key), user, digest(auth + user + password)]
    server  ["PONG", true | false, reason, hostname, digest(salt + hostname + nonce + key)]
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from otel_perfbuf.fluent.protocol import ProtocolFault

__all__ = ["Credentials", "Helo", "check_ping", "check_pong", "helo", "parse_helo", "ping", "pong"]

_SALT_BYTES: Final = 16
_FIELD_MAX_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one side knows: its own host name, the shared key, and users (a client's one, a server's all)."""

    hostname: str
    shared_key: str
    users: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Helo:
    """A server's greeting: the nonce of this connection, and the salt for passwords (empty: none is asked for)."""

    nonce: bytes
    auth: bytes = b""


def helo(*, with_users: bool) -> tuple[Helo, bytes]:
    """A greeting with numbers of its own, and its bytes."""
    greeting = Helo(secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_SALT_BYTES) if with_users else b"")
    return greeting, _packed(["HELO", {"nonce": greeting.nonce, "auth": greeting.auth, "keepalive": True}])


def parse_helo(message: Any) -> Helo:
    """A server's greeting; ProtocolFault."""
    if not isinstance(message, list) or len(message) != 2 or message[0] != "HELO" or not isinstance(message[1], dict):
        raise ProtocolFault("it does not greet with HELO")
    options = message[1]
    return Helo(_bytes(options.get("nonce", b"")), _bytes(options.get("auth", b"")))


def ping(credentials: Credentials, greeting: Helo) -> tuple[bytes, bytes]:
    """The client's answer, and the salt that `check_pong` needs."""
    salt = secrets.token_bytes(_SALT_BYTES)
    user, password = next(iter(credentials.users.items()), ("", "")) if greeting.auth else ("", "")
    digest = _digest(greeting.auth, user, password) if greeting.auth else ""
    proof = _proof(salt, credentials.hostname, greeting.nonce, credentials.shared_key)
    return _packed(["PING", credentials.hostname, salt, proof, user, digest]), salt


def check_ping(message: Any, credentials: Credentials, greeting: Helo) -> tuple[bytes, str]:
    """(the salt, "" or why the client is refused) of a client's answer; ProtocolFault when it is none."""
    if not isinstance(message, list) or len(message) != 6 or message[0] != "PING":
        raise ProtocolFault("it does not answer HELO with PING")
    hostname, salt, proof = _text(message[1]), _bytes(message[2]), _text(message[3])
    user, digest = _text(message[4]), _text(message[5])
    if not _same(proof, _proof(salt, hostname, greeting.nonce, credentials.shared_key)):
        return salt, "shared_key mismatch"
    if credentials.users:
        # The same work for a name that is not known: how long an answer takes tells nothing
        wanted = _digest(greeting.auth, user, credentials.users.get(user, ""))
        if not _same(digest, wanted) or user not in credentials.users:
            return salt, "username/password mismatch"
    return salt, ""


def pong(credentials: Credentials, greeting: Helo, salt: bytes, refusal: str) -> bytes:
    """The server's verdict; an empty ``refusal`` accepts."""
    if refusal:
        return _packed(["PONG", False, refusal, "", ""])
    proof = _proof(salt, credentials.hostname, greeting.nonce, credentials.shared_key)
    return _packed(["PONG", True, "", credentials.hostname, proof])


def check_pong(message: Any, credentials: Credentials, greeting: Helo, salt: bytes) -> None:
    """Raises ProtocolFault unless the server has accepted us and has shown that it knows the key too."""
    if not isinstance(message, list) or len(message) != 5 or message[0] != "PONG":
        raise ProtocolFault("it does not answer PING with PONG")
    if message[1] is not True:
        raise ProtocolFault(f"it refuses us: {_text(message[2])[:200]!r}")
    hostname, proof = _text(message[3]), _text(message[4])
    if hostname == credentials.hostname:
        raise ProtocolFault("it has our own host name, so it may be an echo; set another self_hostname")
    if not _same(proof, _proof(salt, hostname, greeting.nonce, credentials.shared_key)):
        raise ProtocolFault("it does not know the shared key")


def _proof(salt: bytes, hostname: str, nonce: bytes, shared_key: str) -> str:
    return hashlib.sha512(salt + _raw(hostname) + nonce + _raw(shared_key)).hexdigest()


def _digest(auth: bytes, user: str, password: str) -> str:
    return hashlib.sha512(auth + _raw(user) + _raw(password)).hexdigest()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(_raw(given), _raw(wanted))


def _packed(message: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _bytes(value: Any) -> bytes:
    data = _raw(value) if isinstance(value, str) else value
    if not isinstance(data, bytes) or len(data) > _FIELD_MAX_BYTES:
        raise ProtocolFault("a handshake's field is no short text")
    return data


def _text(value: Any) -> str:
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) > _FIELD_MAX_BYTES:
        raise ProtocolFault("a handshake's field is no short text")
    return text
