# SPDX-License-Identifier: Apache-2.0
"""Redaction: what patterns leave of strings and arguments, against Python's re; and through a record to its text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Arena, Capture, SampleWriter, string

from otel_perfbuf._core._core import lib
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.recorder.history import Encoding, History
from otel_perfbuf.records import Redact, Redaction, argument_patterns, build_plan, default_patterns

DEFAULTS = Redaction([*default_patterns(), *argument_patterns()])
FOREVER = (1 << 63) - 1


def argv(*words: str) -> bytes:
    """As it is captured: each with its NUL."""
    return b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("password=hunter2 x", "password=[REDACTED] x"),
        ("GET /?TOKEN=abc&x=1 HTTP", "GET /?TOKEN=[REDACTED] HTTP"),
        ("Authorization: Bearer abc.def", "Authorization: [REDACTED]"),
        ('{"password": "a b", "user": "x"}', '{"password": "[REDACTED]", "user": "x"}'),
        ("postgres://joe:pw@db/x", "postgres://joe:[REDACTED]@db/x"),
        ("redis://:hunter2@cache:6379/0", "redis://:[REDACTED]@cache:6379/0"),
        ("AWS_SECRET_ACCESS_KEY=abc/+d x", "AWS_SECRET_ACCESS_KEY=[REDACTED] x"),
        ('password="correct horse" x', "password=[REDACTED] x"),
        ("X-Api-Key: abc\r\nHost: h", "X-Api-Key: [REDACTED]\r\nHost: h"),
        ("Cookie: session=abc; b=c\r\nHost: h", "Cookie: [REDACTED]\r\nHost: h"),
        ('{"access_token":"abc","n":1}', '{"access_token":"[REDACTED]","n":1}'),
        ('{"password": "a\\"b", "n": 1}', '{"password": "[REDACTED]", "n": 1}'),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE", "-----BEGIN RSA PRIVATE KEY-----[REDACTED]"),
        ("postgres://joe:the-captu", "postgres://joe:[REDACTED]"),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
        ("http://[::1]:4318/v1/logs", "http://[::1]:4318/v1/logs"),
        ("/etc/passwd", "/etc/passwd"),
        ("secretary", "secretary"),
    ],
)
def test_what_is_redacted_by_default(given_text: str, shown: str) -> None:
    """Secrets by their names, credentials in headers, JSON and URLs; nothing that only looks alike."""
    assert DEFAULTS.redact(given_text.encode()).decode() == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["mysql", "-phunter2", "db"], ["mysql", "-p[REDACTED]", "db"]),
        (["x", "--password", "hunter2", "y"], ["x", "--password", "[REDACTED]", "y"]),
        (["x", "--token=a b", "-v"], ["x", "--token=[REDACTED]", "-v"]),
        (["curl", "-H", "Authorization: Basic abc"], ["curl", "-H", "Authorization: [REDACTED]"]),
        (["x", "--db-password", "hunter2", "y"], ["x", "--db-password", "[REDACTED]", "y"]),
        (["x", "--password=a\nb"], ["x", "--password=[REDACTED]"]),
        (["env", "DB_PASSWORD=a b", "x"], ["env", "DB_PASSWORD=[REDACTED]", "x"]),
        (["mysql", "-p12345678"], ["mysql", "-p[REDACTED]"]),
        (["x", "--password-file", "/run/pw"], ["x", "--password-file", "/run/pw"]),
        (["ssh", "-p2222", "host"], ["ssh", "-p2222", "host"]),
        (["mkdir", "-p", "a/b"], ["mkdir", "-p", "a/b"]),
        (["x", "--password"], ["x", "--password"]),
    ],
)
def test_what_is_redacted_of_arguments(words: list[str], shown: list[str]) -> None:
    """-pSECRET, --password X, --token=X; not a port, not -p alone."""
    assert DEFAULTS.redact(argv(*words), arguments=True) == argv(*shown)


@given(
    st.sampled_from([r"a(b*)c", r"(?i)(pass|tok)=\S+", r"\d{2,}", r"(x)|(y)z", r"[^\0-\x7f]+"]),
    st.sampled_from(["[REDACTED]", r"<\1>", r"\\\1", ""]),
    st.lists(st.sampled_from(["a", "b", "c", "x", "yz", "pass=", "tok=1", " ", "12", "é", "="]), max_size=30),
)
def test_a_replacement_is_what_pythons_re_makes(pattern: str, replace: str, parts: list[str]) -> None:
    """The same dialect for what people write, all matches, groups that took no part are empty."""
    text = "".join(parts).encode()
    if r"\1" in replace and "(" not in pattern:
        return
    expected = re.sub(pattern.encode(), lambda found: found.expand(replace.encode()), text)
    assert Redaction([Redact(pattern, replace)]).redact(text) == expected


@pytest.mark.parametrize(
    ("pattern", "replace", "why"),
    [("(", "", "missing closing parenthesis"), ("x*", "", "empty string"), ("x", r"\1", "names group 1")],
)
def test_a_pattern_that_cannot_work_is_refused(pattern: str, replace: str, why: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(ConfigError, match=why):
        Redaction([Redact(pattern, replace)])


def test_a_match_that_takes_too_long_hides_the_whole_string() -> None:
    """Catastrophic backtracking is bounded, and nobody knows what is in there: better nothing than a secret."""
    slow = Redaction([Redact(r"(a+)+$")])
    assert slow.redact(b"a" * 2000 + b"!") == b"[REDACTED]"


def test_a_result_that_is_too_long_is_cut() -> None:
    """A replacement that grows the text stays within its bound."""
    long = Redaction([Redact("a", "b" * 100)])
    assert long.redact(b"a" * 4000) == b"b" * lib.PB_REDACTED_BYTES


def test_a_record_shows_the_redacted_text_everywhere_and_it_is_counted() -> None:
    """In the body and in the arguments' attributes, argv of an execve, a path, a socket's."""
    plan = build_plan(redaction=DEFAULTS)
    numbers = {decoding.syscall.name: number for number, decoding in plan.decodings.items()}
    writer = SampleWriter()
    writer.syscall(1, 10, numbers["openat"], [0, 1, 0, 0], -2, captures=[string(1, b"/x?token=hunter2")])
    words = Capture(1, lib.PB_CAPTURE_STRINGS, argv("mysql", "-phunter2"), 2)
    writer.syscall(2, 20, numbers["execve"], [1, 1, 0], -2)
    writer.entry(2, 20, [string(0, b"/bin/my?secret=hunter2"), words])
    address = b"\1\0/run/token=hunter2\0"
    writer.syscall(3, 30, numbers["connect"], [3, 1, 20], -2, captures=[Capture(1, lib.PB_CAPTURE_SOCKADDR, address)])
    history = History([Arena([writer.sample()])], [])
    history.select([True], 0, FOREVER, 10)
    chunks = [chunk for chunk, _ in history.encode(plan.pointer, [b""], Encoding(1, 1, b""))]
    assert b"hunter2" not in b"".join(chunks)
    assert b'openat(0, "/x?token=[REDACTED]", O_RDONLY) = -1 ENOENT' in chunks[0]
    assert b'execve("/bin/my?secret=[REDACTED]", ["mysql", "-p[REDACTED]"]' in chunks[0]
    assert b'sun_path="/run/token=[REDACTED]"' in chunks[0]
    assert history.redactions == 4
