# SPDX-License-Identifier: Apache-2.0
"""The bytes of one spooled dump. What it is not: it opens no file and knows no exporter.

    file   = magic, frame(meta), frame(chunk) ..., frame(end)
    frame  = length u32, crc32 u32 (of kind and payload), kind u8, payload      all little-endian
    chunk  = signal u8, records u32, the OTLP request as it is sent
    end    = number of chunks u32
    acks   = (chunk u32, share u16, outcome u8, 0 u8, crc32 u32 of the first eight) ..., appended one by one

A file without a whole end frame is of a dump that was never made: the writer was killed, or the disk was. Length and
checksum find that, so nothing of it is sent. Of the acknowledgements a cut last one is left out: it is sent twice then.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_perfbuf.exporters.item import ChunkInfo
from otel_perfbuf.exporters.payload import Chunk, Signal

__all__ = ["ACK_BYTES", "FrameFault", "Meta", "Place", "ack", "layout", "parse_acks", "read_chunk", "scan", "written"]

_MAGIC: Final = b"pbspool1"
_HEAD: Final = struct.Struct("<IIB")
_CHUNK: Final = struct.Struct("<BI")
_END: Final = struct.Struct("<I")
_ACK: Final = struct.Struct("<IHBx")
ACK_BYTES: Final = _ACK.size + 4
_META_KIND, _CHUNK_KIND, _END_KIND = 1, 2, 3
_FRAME_MAX_BYTES: Final = 64 << 20  # a request has 3.5 MiB; a length above this is none
_META_MAX_BYTES: Final = 1 << 20
_SIGNALS: Final[tuple[Signal, ...]] = ("logs", "traces")


class FrameFault(Exception):
    """Bytes that are not what was written; the text says where."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of a dump besides its chunks; ``shares``: by exporter id, which chunks it gets."""

    dump_id: str
    trigger: str
    records: int
    shares: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk's frame begins, and what is in it."""

    offset: int
    info: ChunkInfo


def written(meta: Meta, chunks: Sequence[Chunk]) -> Iterator[bytes]:
    """The file's bytes, piece by piece."""
    yield _MAGIC
    yield from _frame(_META_KIND, _about(meta))
    for chunk in chunks:
        yield from _frame(_CHUNK_KIND, _CHUNK.pack(_SIGNALS.index(chunk.signal), chunk.records), chunk.body)
    yield from _frame(_END_KIND, _END.pack(len(chunks)))


def layout(meta: Meta, chunks: Sequence[Chunk]) -> tuple[list[Place], int]:
    """Where `written` puts the chunks, and how many bytes it gives; nothing is copied."""
    places = []
    offset = len(_MAGIC) + _HEAD.size + len(_about(meta))
    for chunk in chunks:
        places.append(Place(offset, ChunkInfo(chunk.signal, chunk.records, len(chunk.body))))
        offset += _HEAD.size + _CHUNK.size + len(chunk.body)
    return places, offset + _HEAD.size + _END.size


def _about(meta: Meta) -> bytes:
    shares = {name: list(indices) for name, indices in meta.shares.items()}
    about = {"dump_id": meta.dump_id, "trigger": meta.trigger, "records": meta.records, "shares": shares}
    return json.dumps(about).encode()


def _frame(kind: int, *payload: bytes) -> Iterator[bytes]:
    checksum = zlib.crc32(bytes([kind]))
    for part in payload:
        checksum = zlib.crc32(part, checksum)
    yield _HEAD.pack(sum(map(len, payload)), checksum, kind)
    yield from payload


def scan(fd: int) -> tuple[Meta, list[Place]]:
    """Reads a whole file and checks all of it; FrameFault when it is cut or damaged, OSError."""
    if os.pread(fd, len(_MAGIC), 0) != _MAGIC:
        raise FrameFault("it does not begin as a spooled dump does")
    offset = len(_MAGIC)
    kind, payload, offset = _read(fd, offset)
    if kind != _META_KIND or len(payload) > _META_MAX_BYTES:
        raise FrameFault("its first frame does not say what it is")
    meta = _meta(payload)
    places: list[Place] = []
    while True:
        start = offset
        kind, payload, offset = _read(fd, offset)
        if kind != _CHUNK_KIND:
            break
        places.append(Place(start, _info(payload)))
    if kind != _END_KIND or payload != _END.pack(len(places)) or os.pread(fd, 1, offset):
        raise FrameFault(f"it does not end after {len(places)} chunks")
    if any(not 0 <= index < len(places) for indices in meta.shares.values() for index in indices):
        raise FrameFault("it names chunks that it does not have")
    return meta, places


def read_chunk(fd: int, place: Place) -> Chunk:
    """One chunk, checked; FrameFault or OSError."""
    kind, payload, _ = _read(fd, place.offset)
    if kind != _CHUNK_KIND or _info(payload) != place.info:
        raise FrameFault(f"at byte {place.offset} there is another frame than was written")
    return Chunk(place.info.signal, payload[_CHUNK.size :], place.info.records)


def ack(share: int, index: int, *, delivered: bool) -> bytes:
    """The acknowledgement of one chunk for one share."""
    record = _ACK.pack(index, share, delivered)
    return record + zlib.crc32(record).to_bytes(4, "little")


def parse_acks(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """(share, chunk, delivered) of every whole acknowledgement."""
    for start in range(0, len(data) - ACK_BYTES + 1, ACK_BYTES):
        record = data[start : start + _ACK.size]
        if data[start + _ACK.size : start + ACK_BYTES] == zlib.crc32(record).to_bytes(4, "little"):
            index, share, delivered = _ACK.unpack(record)
            yield share, index, bool(delivered)


def _read(fd: int, offset: int) -> tuple[int, bytes, int]:
    """(kind, payload, offset of the next frame)."""
    head = os.pread(fd, _HEAD.size, offset)
    if len(head) < _HEAD.size:
        raise FrameFault(f"it is cut at byte {offset}")
    length, checksum, kind = _HEAD.unpack(head)
    if length > _FRAME_MAX_BYTES:
        raise FrameFault(f"the frame at byte {offset} says that it has {length} bytes")
    payload = _whole(fd, length, offset + _HEAD.size)
    if len(payload) < length:
        raise FrameFault(f"it is cut in the frame at byte {offset}")
    if zlib.crc32(payload, zlib.crc32(bytes([kind]))) != checksum:
        raise FrameFault(f"the checksum of the frame at byte {offset} is wrong")
    return kind, payload, offset + _HEAD.size + length


def _whole(fd: int, length: int, offset: int) -> bytes:
    data = os.pread(fd, length, offset)
    while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
        data += more
    return data


def _info(payload: bytes) -> ChunkInfo:
    if len(payload) < _CHUNK.size or payload[0] >= len(_SIGNALS):
        raise FrameFault("a chunk says neither logs nor traces")
    signal, records = _CHUNK.unpack_from(payload)
    return ChunkInfo(_SIGNALS[signal], records, len(payload) - _CHUNK.size)


def _meta(payload: bytes) -> Meta:
    try:
        about: Any = json.loads(payload)
        shares = {str(name): tuple(map(int, indices)) for name, indices in about["shares"].items()}
        return Meta(str(about["dump_id"]), str(about["trigger"]), int(about["records"]), shares)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise FrameFault("its first frame does not say what it is") from fault
