# SPDX-License-Identifier: Apache-2.0
"""Fluent's messages: all modes, all forms of time, limits, and whatever else may arrive. Built with msgpack alone."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_perfbuf.fluent.handshake import Credentials, check_ping, check_pong, helo, parse_helo, ping, pong
from otel_perfbuf.fluent.protocol import (
    Limits,
    ProtocolFault,
    event_time,
    packed_entries,
    packed_forward,
    parse,
    unpacker,
)

LIMITS = Limits(message_bytes=1 << 20, unpacked_bytes=1 << 20, events=1000)
TIME_NS = 1_700_000_000_123_456_789
EXT = msgpack.ExtType(0, struct.pack(">II", *divmod(TIME_NS, 10**9)))
RECORD = {"log": "it failed", "level": "error"}


def parsed(message: Any, limits: Limits = LIMITS) -> list[tuple[int, Any]]:
    """The events of a message that goes over the wire."""
    stream = unpacker(limits)
    stream.feed(msgpack.packb(message))
    return [(time, dict(record)) for time, record in parse(stream.unpack(), limits).events]


def entries(*pairs: tuple[Any, Any]) -> bytes:
    """Concatenated entries."""
    return b"".join(msgpack.packb(list(pair)) for pair in pairs)


@pytest.mark.parametrize(
    "message",
    [
        ["tag", EXT, RECORD],
        ["tag", EXT, RECORD, {"chunk": "c"}],
        ["tag", EXT, RECORD, None],
        ["tag", [[EXT, RECORD]]],
        ["tag", [[EXT, RECORD]], {"size": 1}],
        ["tag", [[[EXT, {"otlp": 1}], RECORD]]],
        ["tag", entries((EXT, RECORD))],
        ["tag", entries((EXT, RECORD)), {"compressed": "text"}],
        ["tag", gzip.compress(entries((EXT, RECORD))), {"compressed": "gzip"}],
        ["tag", zstandard.compress(entries((EXT, RECORD))), {"compressed": "zstd", "chunk": "c"}],
    ],
)
def test_every_mode_gives_the_same_event(message: list[Any]) -> None:
    """Message, Forward, PackedForward and its compressed forms, with and without options."""
    assert parsed(message) == [(TIME_NS, RECORD)]


def test_gzip_members_are_joined() -> None:
    """Fluentd concatenates compressed buffers: each member is read."""
    data = b"".join(gzip.compress(entries((number, {"n": number}))) for number in range(3))
    assert parsed(["tag", data, {"compressed": "gzip"}]) == [(number * 10**9, {"n": number}) for number in range(3)]


def test_old_clients_pack_entries_as_text() -> None:
    """msgpack of 2013 has no binary: the entries come as a str that is no UTF-8."""
    packed = entries((EXT, RECORD))
    message = msgpack.packb(["tag", packed], use_bin_type=False)
    stream = unpacker(LIMITS)
    stream.feed(message)
    assert list(parse(stream.unpack(), LIMITS).events) == [(TIME_NS, RECORD)]


@pytest.mark.parametrize(("time", "unix_ns"), [(0, 0), (1_700_000_000, 1_700_000_000 * 10**9), (1.5, 1_500_000_000)])
def test_times_may_be_seconds(time: Any, unix_ns: int) -> None:
    """Whole and broken seconds."""
    assert parsed(["tag", time, RECORD])[0][0] == unix_ns


@given(st.integers(0, (2**32 - 1) * 10**9 + 999_999_999))
def test_event_time_keeps_every_nanosecond(unix_ns: int) -> None:
    """What is written is read back, up to the end of its 32 bits; beyond it is held there."""
    packed, count = packed_entries([(unix_ns, {"a": 1})])
    assert count == 1
    assert parsed(["tag", packed]) == [(unix_ns, {"a": 1})]
    assert event_time(2**70) == msgpack.ExtType(0, struct.pack(">II", 2**32 - 1, 999_999_999))


def test_packed_forward_is_what_the_specification_draws() -> None:
    """Tag, bin, option; read with msgpack alone."""
    packed, count = packed_entries([(TIME_NS, {"message": "x"})] * 2)
    assert msgpack.unpackb(packed_forward("t", packed, count, "id", "gzip")) == [
        "t",
        entries((EXT, {"message": "x"})) * 2,
        {"size": 2, "compressed": "gzip", "chunk": "id"},
    ]


@pytest.mark.parametrize(
    "message",
    [
        7,
        [],
        ["tag"],
        [7, EXT, RECORD],
        ["tag", EXT],
        ["tag", EXT, "record"],
        ["tag", "x", RECORD, {}],
        ["tag", -1, RECORD],
        ["tag", True, RECORD],
        ["tag", 2**40, RECORD],
        ["tag", float("nan"), RECORD],
        ["tag", msgpack.ExtType(0, b"short"), RECORD],
        ["tag", msgpack.ExtType(9, b"12345678"), RECORD],
        ["tag", EXT, RECORD, "option"],
        ["tag", EXT, RECORD, {"chunk": 7}],
        ["tag", [[EXT]]],
        ["tag", [7]],
        ["tag", b"\xc1"],
        ["tag", entries((EXT, RECORD))[:-3]],
        ["tag", b"no gzip", {"compressed": "gzip"}],
        ["tag", gzip.compress(entries((EXT, RECORD)))[:-9], {"compressed": "gzip"}],
        ["tag", b"no zstd", {"compressed": "zstd"}],
        ["tag", b"x", {"compressed": "lz4"}],
        ["tag", [[EXT, RECORD]] * 1001],
        ["tag", entries((EXT, RECORD)) * 1001],
    ],
)
def test_what_is_not_of_the_protocol_is_a_fault(message: Any) -> None:
    """Each is told in a sentence, nothing else is raised."""
    with pytest.raises(ProtocolFault):
        parsed(message)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_bombs_end_at_the_limit(kind: str) -> None:
    """100 MB of zeros in some kilobytes: unpacked to the limit and no further."""
    data = gzip.compress(bytes(100_000_000), 9) if kind == "gzip" else zstandard.compress(bytes(100_000_000))
    assert len(data) < 200_000
    with pytest.raises(ProtocolFault, match="more than 1048576 bytes"):
        parsed(["tag", data, {"compressed": kind}])


def test_entries_cut_anywhere_are_a_fault() -> None:
    """Between two events a cut cannot be told from an end; everywhere else it is found."""
    one = entries((EXT, RECORD))
    for size in range(1, 2 * len(one)):
        if size != len(one):
            with pytest.raises(ProtocolFault):
                parsed(["tag", (one * 2)[:size]])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300)
@given(VALUES | st.lists(VALUES, min_size=2, max_size=4).map(lambda values: ["tag", *values]))
def test_any_message_gives_events_or_a_fault(message: Any) -> None:
    """Whatever a client sends, the outcome is events or a ProtocolFault."""
    try:
        for time, record in parse(message, LIMITS).events:
            assert isinstance(time, int)
            assert isinstance(record, dict)
    except ProtocolFault:
        pass


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_packed_entries_give_events_or_a_fault(data: bytes) -> None:
    """Also inside a PackedForward, compressed or not."""
    for option in ({}, {"compressed": "gzip"}, {"compressed": "zstd"}):
        try:
            list(parse(["tag", data, option], LIMITS).events)
        except ProtocolFault:
            pass


def test_deep_nesting_is_a_fault() -> None:
    """A thousand arrays in each other exhaust no stack."""
    with pytest.raises((ProtocolFault, ValueError, msgpack.UnpackException)):
        parsed(["tag", b"\x91" * 5000 + b"\x01"])


def server(key: str = "secret", **users: str) -> Credentials:
    """The server's side."""
    return Credentials("server", key, users)


def client(key: str = "secret", **users: str) -> Credentials:
    """The client's side."""
    return Credentials("client", key, users)


def shaken(ours: Credentials, theirs: Credentials) -> str:
    """Both sides through their whole handshake over msgpack; "" or the server's refusal."""
    greeting, first = helo(with_users=bool(theirs.users))
    seen = parse_helo(msgpack.unpackb(first))
    answer, salt = ping(ours, seen)
    their_salt, refusal = check_ping(msgpack.unpackb(answer), theirs, greeting)
    last = msgpack.unpackb(pong(theirs, greeting, their_salt, refusal))
    if not refusal:
        check_pong(last, ours, seen, salt)
        return ""
    with pytest.raises(ProtocolFault, match=refusal.replace("/", ".")):
        check_pong(last, ours, seen, salt)
    return refusal


def test_handshakes() -> None:
    """The right key passes, with users the right user and password too; all else is refused with its reason."""
    assert shaken(client(), server()) == ""
    assert shaken(client("wrong"), server()) == "shared_key mismatch"
    assert shaken(client(ann="pw"), server(ann="pw", bob="x")) == ""
    assert shaken(client(ann="no"), server(ann="pw")) == "username/password mismatch"
    assert shaken(client(eve=""), server(ann="pw")) == "username/password mismatch"
    assert shaken(client(), server(ann="pw")) == "username/password mismatch"
    assert shaken(client(ann="pw"), server()) == ""


def test_a_server_that_does_not_know_the_key_is_found_out() -> None:
    """It accepts everybody, but cannot answer with the digest."""
    greeting, _ = helo(with_users=False)
    _, salt = ping(client(), greeting)
    for forged in (pong(server("guess"), greeting, salt, ""), pong(client(), greeting, salt, "")):
        with pytest.raises(ProtocolFault):
            check_pong(msgpack.unpackb(forged), client(), greeting, salt)


@given(VALUES)
def test_any_handshake_message_is_a_fault(message: Any) -> None:
    """No message of the wrong form raises anything else."""
    greeting, _ = helo(with_users=True)
    for check in (
        lambda: parse_helo(message),
        lambda: check_ping(message, server(), greeting),
        lambda: check_pong(message, client(), greeting, b"salt"),
    ):
        with pytest.raises(ProtocolFault):
            check()
