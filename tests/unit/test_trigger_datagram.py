# SPDX-License-Identifier: Apache-2.0
"""Trigger datagrams: what is taken, what is refused and why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_perfbuf.triggers.datagram import (
    DATAGRAM_MAX_BYTES,
    Datagram,
    Refused,
    build_datagram,
    parse_datagram,
    printable,
)


def test_the_contracts_example() -> None:
    """The example of the contract, with ids filled in, is taken field for field."""
    datagram = parse_datagram(
        b'{"v": 1, "kind": "span_error", "trace_id": "%s", "span_id": "%s", "trace_flags": 1, "tid": 4711,'
        b' "start_unix_nano": 0, "end_unix_nano": 0, "service_name": "checkout", "name": "POST /pay",'
        b' "interleaved": false, "reason": "ConnectionRefusedError: ..."}' % (b"0a" * 16, b"0b" * 8)
    )
    assert datagram == Datagram(
        kind="span_error",
        trace_id=b"\x0a" * 16,
        span_id=b"\x0b" * 8,
        tid=4711,
        service_name="checkout",
        name="POST /pay",
        reason="ConnectionRefusedError: ...",
    )


def test_only_v_and_kind_are_needed() -> None:
    """All other fields may be missing."""
    assert parse_datagram(b'{"v":1,"kind":"manual"}') == Datagram(kind="manual")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "malformed"),
        (b"7", "malformed"),
        (b'{"v":1,"kind":"manual"', "malformed"),
        (b'{"v":1,"kind":"manual"} {}', "malformed"),
        (b'{"v":1,"v":1,"kind":"manual"}', "malformed"),
        (b'{"v":1,"kind":"manual","tid":NaN}', "malformed"),
        (b"[" * 5000, "malformed"),
        (b'{"v":1,"kind":"manual","tid":' + b"9" * 5000 + b"}", "malformed"),
        (b" " * (DATAGRAM_MAX_BYTES + 1), "oversized"),
        (b'{"kind":"manual"}', "version"),
        (b'{"v":2,"kind":"manual"}', "version"),
        (b'{"v":true,"kind":"manual"}', "version"),
        (b'{"v":1.0,"kind":"manual"}', "version"),
        (b'{"v":1}', "kind"),
        (b'{"v":1,"kind":"process_exit"}', "kind"),
        (b'{"v":1,"kind":["manual"]}', "kind"),
    ],
)
def test_what_is_no_datagram(data: bytes, cause: str) -> None:
    """Bytes that are not of the contract's form are refused under one of few causes."""
    refused = parse_datagram(data)
    assert isinstance(refused, Refused)
    assert refused.cause == cause


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trace_id", "0" * 32),
        ("trace_id", "a" * 31),
        ("trace_id", "g" * 32),
        ("trace_id", 5),
        ("trace_id", "٣" * 32),
        ("span_id", "0" * 16),
        ("span_id", "a" * 32),
        ("trace_flags", 256),
        ("trace_flags", True),
        ("tid", 0),
        ("tid", -1),
        ("tid", 1 << 32),
        ("tid", 4711.0),
        ("tid", "4711"),
        ("pid", None),
        ("start_unix_nano", -1),
        ("end_unix_nano", 1 << 63),
        ("service_name", 5),
        ("reason", "x" * 2049),
        ("interleaved", 1),
        ("unknown", 1),
    ],
)
def test_wrong_fields(key: str, value: object) -> None:
    """Each field's type and bounds are checked, and unknown keys are refused."""
    refused = parse_datagram(json.dumps({"v": 1, "kind": "span_error", key: value}).encode())
    assert isinstance(refused, Refused)
    assert refused.cause == "field"


def test_a_span_that_ends_before_it_starts_is_refused() -> None:
    """Times that contradict each other are not taken."""
    assert isinstance(parse_datagram(b'{"v":1,"kind":"manual","start_unix_nano":9,"end_unix_nano":8}'), Refused)


def test_texts_cannot_move_a_terminals_cursor() -> None:
    """Control characters, direction overrides and lone surrogates are replaced."""
    datagram = parse_datagram(rb'{"v":1,"kind":"manual","reason":"a\u001b[2J\u202eb\ud800c\n"}')
    assert isinstance(datagram, Datagram)
    assert datagram.reason == "a\ufffd[2J\ufffdb\ufffdc\ufffd"
    assert printable("plain ünïcode") == "plain ünïcode"


_texts = st.none() | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), max_size=99
)


@given(
    st.builds(
        Datagram,
        kind=st.sampled_from(["span_error", "log_severity", "manual", "register"]),
        trace_id=st.none() | st.binary(min_size=16, max_size=16).filter(any),
        span_id=st.none() | st.binary(min_size=8, max_size=8).filter(any),
        trace_flags=st.integers(0, 255),
        pid=st.none() | st.integers(1, 1 << 22),
        tid=st.none() | st.integers(1, 1 << 22),
        start_unix_nano=st.integers(0, 1 << 62),
        end_unix_nano=st.just(0) | st.integers(1 << 62, (1 << 63) - 1),
        service_name=_texts,
        name=_texts,
        interleaved=st.booleans(),
        reason=_texts,
    )
)
def test_what_is_built_is_parsed(datagram: Datagram) -> None:
    """build_datagram and parse_datagram are each other's inverse."""
    assert parse_datagram(build_datagram(datagram)) == datagram


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)
_keys = st.sampled_from(["v", "kind", "trace_id", "span_id", "tid", "pid", "reason", "name", "interleaved", "x"])


@given(
    st.binary(max_size=300)
    | st.dictionaries(_keys, _json | st.just("manual") | st.just(1)).map(json.dumps).map(str.encode)
)
def test_nothing_raises(data: bytes) -> None:
    """Whatever arrives is a datagram or a reason."""
    assert isinstance(parse_datagram(data), (Datagram, Refused))
