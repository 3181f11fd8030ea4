# SPDX-License-Identifier: Apache-2.0
"""Messages of Fluent's forward protocol: what an event's time, a message and an acknowledgement look like.

What it is not: it opens no socket and knows no OTLP. Source: Fluentd's "Forward Protocol Specification v1":

    Message        [tag, time, record, option?]
    Forward        [tag, [[time, record], ...], option?]
    PackedForward  [tag, bin of concatenated [time, record], option?]      option "compressed": "gzip" | "zstd"
    response       {"ack": option "chunk"}
    time           seconds, or EventTime: ext type 0, seconds u32 and nanoseconds u32, big-endian
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

__all__ = [
    "UNPACK_FAULTS",
    "Events",
    "Limits",
    "ProtocolFault",
    "acknowledgement",
    "event_time",
    "packed_entries",
    "packed_forward",
    "parse",
    "unpacker",
]

_EVENT_TIME_TYPE: Final = 0
_EVENT_TIME: Final = struct.Struct(">II")
_SECOND_NS: Final = 1_000_000_000
_END: Final = b"\xc0"  # nil, put behind entries: an event that is cut swallows it

UNPACK_FAULTS: Final = (ValueError, TypeError, RecursionError, msgpack.UnpackException)
"""What msgpack raises for bytes that it cannot make values of; TypeError: a map's key that cannot be one."""


class ProtocolFault(ValueError):
    """A message that is not of the protocol, or above a limit; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may have: bytes on the wire, bytes after it was unpacked, events."""

    message_bytes: int = 8 << 20
    unpacked_bytes: int = 64 << 20
    events: int = 100_000


@dataclass(frozen=True, slots=True)
class Events:
    """A message: its tag, its events as (unix ns, record), and the chunk that is to be acknowledged."""

    tag: str
    events: Iterable[tuple[int, Mapping[Any, Any]]]
    chunk: str | None = None
    option: Mapping[Any, Any] = field(default_factory=dict)


def event_time(unix_ns: int) -> msgpack.ExtType:
    """EventTime; what its 32 bits of seconds cannot hold becomes their end (the year 2106) or 1970."""
    seconds, nanos = divmod(max(unix_ns, 0), _SECOND_NS)
    if seconds > 0xFFFFFFFF:
        seconds, nanos = 0xFFFFFFFF, _SECOND_NS - 1
    return msgpack.ExtType(_EVENT_TIME_TYPE, _EVENT_TIME.pack(seconds, nanos))


def packed_entries(events: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[bytes, int]:
    """The concatenated entries of a PackedForward, and how many they are."""
    packer = msgpack.Packer(autoreset=False, use_bin_type=True)
    count = 0
    for unix_ns, record in events:
        packer.pack([event_time(unix_ns), record])
        count += 1
    return bytes(packer.getbuffer()), count


def packed_forward(tag: str, entries: bytes, count: int, chunk: str | None, compressed: str | None) -> bytes:
    """One PackedForward message; ``entries`` as they are (compressed already, if ``compressed`` says so)."""
    option: dict[str, Any] = {"size": count}
    if compressed is not None:
        option["compressed"] = compressed
    if chunk is not None:
        option["chunk"] = chunk
    packed: bytes = msgpack.packb([tag, entries, option], use_bin_type=True)
    return packed


def acknowledgement(chunk: str) -> bytes:
    """The response that says that a chunk was taken."""
    packed: bytes = msgpack.packb({"ack": chunk}, use_bin_type=True)
    return packed


def unpacker(limits: Limits) -> msgpack.Unpacker:
    """A stream of messages; a message above ``limits.message_bytes`` raises what `parse` turns into a fault."""
    # Old clients pack binary as str, and text that is no UTF-8 must not end a connection
    return msgpack.Unpacker(
        raw=False,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=limits.message_bytes,
        ext_hook=_ext,
    )


def parse(message: Any, limits: Limits) -> Events:
    """A message of any mode; its events are unpacked while they are iterated. Raises ProtocolFault, also then."""
    if not isinstance(message, list) or not 2 <= len(message) <= 4 or not isinstance(message[0], str):
        raise ProtocolFault("it is no array of a tag and events")
    tag, body = message[0], message[1]
    if isinstance(body, list):
        option = _option(message[2:])
        return Events(tag, _forward(body, limits), _chunk(option), option)
    if isinstance(body, (bytes, str)):
        option = _option(message[2:])
        return Events(tag, _packed(_bytes(body), option, limits), _chunk(option), option)
    if len(message) < 3:
        raise ProtocolFault("it has neither events nor a record")
    option = _option(message[3:])
    return Events(tag, [_entry([body, message[2]])], _chunk(option), option)


def _forward(entries: list[Any], limits: Limits) -> Iterator[tuple[int, Mapping[Any, Any]]]:
    if len(entries) > limits.events:
        raise ProtocolFault(f"it has {len(entries)} events, at most {limits.events} are taken")
    for entry in entries:
        yield _entry(entry)


def _packed(data: bytes, option: Mapping[Any, Any], limits: Limits) -> Iterator[tuple[int, Mapping[Any, Any]]]:
    compressed = option.get("compressed", "text")
    if compressed == "gzip":
        data = _gunzipped(data, limits)
    elif compressed == "zstd":
        data = _unzstd(data, limits)
    elif compressed not in ("text", None):
        raise ProtocolFault("its compression is none of gzip, zstd and text")
    entries = msgpack.Unpacker(
        raw=False,
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=len(data) + len(_END),
        ext_hook=_ext,
    )
    entries.feed(data)
    entries.feed(_END)
    count = 0
    whole = False
    try:
        for entry in entries:
            if whole := entry is None:
                break
            count += 1
            if count > limits.events:
                raise ProtocolFault(f"it has more than {limits.events} events")
            yield _entry(entry)
    except ProtocolFault:
        raise
    except UNPACK_FAULTS as fault:
        raise ProtocolFault(f"event {count + 1} is no msgpack") from fault
    if not whole:
        raise ProtocolFault(f"event {count + 1} is cut")


def _gunzipped(data: bytes, limits: Limits) -> bytes:
    """All members of a gzip stream, at most as many bytes as the limit allows."""
    parts: list[bytes] = []
    left = limits.unpacked_bytes
    try:
        while data:
            inflater = zlib.decompressobj(wbits=31)
            parts.append(inflater.decompress(data, left + 1))
            left -= len(parts[-1])
            if left < 0:
                raise ProtocolFault(f"unpacked it has more than {limits.unpacked_bytes} bytes")
            if not inflater.eof:
                raise ProtocolFault("its gzip data is cut")
            data = inflater.unused_data
    except zlib.error as fault:
        raise ProtocolFault("it is no gzip data") from fault
    return b"".join(parts)


def _unzstd(data: bytes, limits: Limits) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data, read_across_frames=True) as reader:
            unpacked: bytes = reader.read(limits.unpacked_bytes + 1)
    except zstandard.ZstdError as fault:
        raise ProtocolFault("it is no zstd data") from fault
    if len(unpacked) > limits.unpacked_bytes:
        raise ProtocolFault(f"unpacked it has more than {limits.unpacked_bytes} bytes")
    return unpacked


def _entry(entry: Any) -> tuple[int, Mapping[Any, Any]]:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2:
        raise ProtocolFault("an event is no array of time and record")
    time, record = entry
    if isinstance(time, list) and time:  # Fluent Bit 2.1 and later: [[time, metadata], record]
        time = time[0]
    if isinstance(record, dict):
        return _unix_ns(time), record
    raise ProtocolFault("a record is no map")


def _unix_ns(time: Any) -> int:
    if isinstance(time, _EventTime):
        return time.unix_ns
    if isinstance(time, int) and not isinstance(time, bool) and 0 <= time < 1 << 34:
        return time * _SECOND_NS
    if isinstance(time, float) and 0 <= time < 1 << 34:
        return int(time * _SECOND_NS)
    raise ProtocolFault("an event's time is neither seconds nor an EventTime")


@dataclass(frozen=True, slots=True)
class _EventTime:
    unix_ns: int


def _ext(kind: int, data: bytes) -> Any:
    if kind == _EVENT_TIME_TYPE and len(data) == _EVENT_TIME.size:
        seconds, nanos = _EVENT_TIME.unpack(data)
        return _EventTime(seconds * _SECOND_NS + nanos)
    return msgpack.ExtType(kind, data)


def _option(rest: list[Any]) -> Mapping[Any, Any]:
    if not rest or rest[0] is None:
        return {}
    if len(rest) > 1 or not isinstance(rest[0], dict):
        raise ProtocolFault("its option is no map")
    return rest[0]


def _chunk(option: Mapping[Any, Any]) -> str | None:
    chunk = option.get("chunk")
    if chunk is not None and not isinstance(chunk, str):
        raise ProtocolFault("its chunk is no text")
    return chunk


def _bytes(body: bytes | str) -> bytes:
    return body if isinstance(body, bytes) else body.encode("utf-8", "surrogateescape")
