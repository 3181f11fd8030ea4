# SPDX-License-Identifier: Apache-2.0
"""Trigger datagrams: bytes to a checked value and back; pure.

What it is not: it knows no socket and no process; who may say what is the socket's business (socket.py).
Source: CONTRACT section 5. Everything here comes from strangers: every field is bounded, and what is not exactly of
the contract's form is refused with the reason that the counters are kept by.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from otel_perfbuf.triggers.firing import SpanContext

__all__ = ["DATAGRAM_MAX_BYTES", "Datagram", "DatagramKind", "Refused", "build_datagram", "parse_datagram", "printable"]

DATAGRAM_MAX_BYTES: Final = 8192
_TEXT_MAX_CHARACTERS: Final = 2048
_PID_MAX: Final = 1 << 22  # PID_MAX_LIMIT
_TIME_MAX_NS: Final = (1 << 63) - 1

DatagramKind = Literal["span_error", "span_latency", "log_severity", "manual", "register"]


@dataclass(frozen=True, slots=True)
class Datagram:
    """What an application said. ``pid`` and ``tid`` are of its own pid namespace; times 0: not known."""

    kind: DatagramKind
    trace_id: bytes | None = None
    span_id: bytes | None = None
    trace_flags: int = 1
    pid: int | None = None
    tid: int | None = None
    start_unix_nano: int = 0
    end_unix_nano: int = 0
    service_name: str | None = None
    name: str | None = None
    interleaved: bool = False
    reason: str | None = None

    @property
    def span(self) -> SpanContext | None:
        """The span, when both of its ids are there."""
        if self.trace_id is None or self.span_id is None:
            return None
        return SpanContext(self.trace_id, self.span_id, self.trace_flags)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a datagram is not taken; ``cause`` is one of few words, for counting."""

    cause: str
    sentence: str


class _WrongError(Exception):
    """A field that is not of the contract's form."""


_HEX = re.compile(r"[0-9a-fA-F]+", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without what could move a terminal's cursor, turn its direction or not be encoded as UTF-8."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def parse_datagram(data: bytes) -> Datagram | Refused:
    """One checked datagram, or why it is refused; never raises."""
    if len(data) > DATAGRAM_MAX_BYTES:
        return Refused("oversized", f"it has {len(data)} bytes, at most {DATAGRAM_MAX_BYTES} are taken")
    try:
        message = json.loads(data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_doubles)
    except _WrongError as wrong:
        return Refused("malformed", str(wrong))
    except (ValueError, RecursionError):
        return Refused("malformed", "it is not one JSON object in UTF-8")
    if not isinstance(message, dict):
        return Refused("malformed", "it is not one JSON object in UTF-8")
    version = message.pop("v", None)
    if type(version) is not int or version != 1:
        return Refused("version", "its v is not 1")
    kind = message.pop("kind", None)
    if not isinstance(kind, str) or kind not in get_args(DatagramKind):
        return Refused("kind", "its kind is none of " + ", ".join(get_args(DatagramKind)))
    try:
        checked = {key: _checked(key, value) for key, value in message.items()}
    except _WrongError as wrong:
        return Refused("field", str(wrong))
    datagram = Datagram(kind=kind, **checked)  # type: ignore[arg-type]  # membership was just tested
    if 0 < datagram.end_unix_nano < datagram.start_unix_nano:
        return Refused("field", "its span ends before it starts")
    return datagram


def build_datagram(datagram: Datagram) -> bytes:
    """The bytes that parse_datagram reads back as the same value; fields at their defaults are left out."""
    message: dict[str, object] = {"v": 1, "kind": datagram.kind}
    for field in fields(Datagram)[1:]:
        value = getattr(datagram, field.name)
        if value != field.default:
            message[field.name] = value.hex() if isinstance(value, bytes) else value
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _no_constant(name: str) -> float:
    raise _WrongError(f"{name} is no JSON")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    message = dict(pairs)
    if len(message) != len(pairs):
        raise _WrongError("a key is there twice")
    return message


def _checked(key: str, value: object) -> object:
    if key in ("trace_id", "span_id"):
        return _id(key, value, 16 if key == "trace_id" else 8)
    if key == "trace_flags":
        return _integer(key, value, 0, 255)
    if key in ("pid", "tid"):
        return _integer(key, value, 1, _PID_MAX)
    if key in ("start_unix_nano", "end_unix_nano"):
        return _integer(key, value, 0, _TIME_MAX_NS)
    if key in ("service_name", "name", "reason"):
        if not isinstance(value, str) or len(value) > _TEXT_MAX_CHARACTERS:
            raise _WrongError(f"its {key} is no text of at most {_TEXT_MAX_CHARACTERS} characters")
        return printable(value)
    if key == "interleaved":
        if not isinstance(value, bool):
            raise _WrongError("its interleaved is neither true nor false")
        return value
    raise _WrongError("it has a key that is not of the contract: " + printable(key[:40]))


def _id(key: str, value: object, size: int) -> bytes:
    if not isinstance(value, str) or len(value) != 2 * size or not _HEX.fullmatch(value) or not int(value, 16):
        raise _WrongError(f"its {key} is not {2 * size} hex digits that are not all zero")
    return bytes.fromhex(value)


def _integer(key: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _WrongError(f"its {key} is no integer from {least} to {most}")
    return value
