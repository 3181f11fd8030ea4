# SPDX-License-Identifier: Apache-2.0
"""Redaction: what patterns leave of strings and arguments, against Python's re; and through a record to its text."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Arena, Capture, SampleWriter, string

from otel_perfbuf._core._core import lib
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.recorder.history import Encoding, History
from otel_perfbuf.recorder.processes import Process, process_resource
from otel_perfbuf.recorder.redacted import Redacted
from otel_perfbuf.records import Plan, Redact, Redaction, argument_patterns, build_plan, default_patterns

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
        ("postgres://joe:p@ss/w@db/x", "postgres://joe:[REDACTED]@db/x"),
        ("https://ghp_0123456789abcdefghij@github.com/x", "https://[REDACTED]@github.com/x"),
        ("https://joe@github.com:443/@x", "https://joe@github.com:443/@x"),
        ("HOME=/root\0DB_PASS=a b\0USER=joe", "HOME=/root\0DB_PASS=[REDACTED]\0USER=joe"),
        ("TOKEN=a b\0PWD=/x\0", "TOKEN=[REDACTED]\0PWD=/x\0"),
        ("x\0TOKEN=a b", "x\0TOKEN=[REDACTED]"),
        ("password = hunter2\nuser = x", "password = [REDACTED]\nuser = x"),
        ('-e password=\\"a b\\" x', "-e password=[REDACTED] x"),
        ('password: "a b" x', "password: [REDACTED] x"),
        ("{'password': 'a b', 'x': 1}", "{'password': [REDACTED], 'x': 1}"),
        ('{"pin_token": 12345, "token": null}', '{"pin_token": [REDACTED], "token": null}'),
        ('{"password": "a\\", b", "n": 1}', '{"password": "[REDACTED]", "n": 1}'),
        ('"{\\"password\\": \\"a\\\\\\"b\\", \\"n\\": 1}"', '"{\\"password\\": \\"[REDACTED]\\", \\"n\\": 1}"'),
        ('{"password": "cut he', '{"password": "[REDACTED]'),
        ("Authorization: Bearer cut", "Authorization: [REDACTED]"),
        ("Authorization: abc\r\nHost: h", "Authorization: [REDACTED]\r\nHost: h"),
        ('Authorization: Digest username="j", response="abc"\r\nA: b', "Authorization: [REDACTED]\r\nA: b"),
        ('{"Authorization": "Bearer abc", "n": 1}', '{"Authorization": "[REDACTED]", "n": 1}'),
        ("curl -H 'Authorization: Bearer abc' h", "curl -H 'Authorization: [REDACTED]' h"),
        ("PWD=/root OLDPWD=/x", "PWD=/root OLDPWD=/x"),
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


def test_an_argument_that_takes_too_long_is_hidden_and_the_next_as_well() -> None:
    """Nobody knows whether it names a secret, nor whether it holds one."""
    slow = Redaction([Redact(r"^(a+)+$", scope="next_argument")])
    words = ["x", "a" * 2000 + "!", "hunter2", "y"]
    assert slow.redact(argv(*words), arguments=True) == argv("x", "[REDACTED]", "[REDACTED]", "y")


@pytest.mark.parametrize("filler", ["password", "token=", "://u:", '"secret":"', "\\", "\0token-", "=", " token", "'"])
@pytest.mark.parametrize(
    "end", [" password=hunter2", ' "token": "hunter2', " x://u:hunter2@h", " Authorization: hunter2"]
)
def test_no_long_string_shows_the_secret_at_its_end(filler: str, end: str) -> None:
    """Names in a row are many places where a match may begin: what takes too long is hidden whole."""
    redacted = DEFAULTS.redact(((filler * 8000)[: 8000 - len(end)] + end).encode())
    assert b"hunter2" not in redacted


def cut_texts() -> list[tuple[str, str]]:
    """Texts whose secret is whole, and where the secret begins."""
    texts = (
        "x password=hunter2",
        '{"password": "hunter2',
        "Authorization: Basic hunter2",
        "a://joe:hunter2",
        "A\0PASSWORD=hunter2",
    )
    return [(text, text[: text.index("hunter2")]) for text in texts]


@pytest.mark.parametrize(("text", "before"), cut_texts())
@pytest.mark.parametrize("shown", range(1, 8))
def test_a_secret_that_is_cut_is_a_secret(text: str, before: str, shown: int) -> None:
    """However few of its bytes were captured: nothing of them is shown."""
    redacted = DEFAULTS.redact((text[: len(before) + shown]).encode()).decode()
    assert redacted.endswith("[REDACTED]")
    assert "hu"[:shown] not in redacted.removeprefix("Authorization").replace("password", "")


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


SECRET = b"hunter2"


def encoded(writer: SampleWriter, plan: Plan) -> tuple[bytes, int]:
    """One chunk, and how often something was redacted."""
    history = History([Arena([writer.sample()])], [])
    history.select([True], 0, FOREVER, 10)
    chunks = b"".join(chunk for chunk, _ in history.encode(plan.pointer, [b""], Encoding(1, 1, b"")))
    return chunks, history.redactions


@pytest.mark.parametrize(
    ("buffers", "shown"),
    [
        ([b"password=", b"hunter2"], [b"password=", b"[REDACTED]"]),
        ([b"pass", b"word", b"=hun", b"ter2 "], [b"pass", b"word", b"[REDACTED]", b"[REDACTED]"]),
        ([b"Authorization: Basic ", b"hunter2", b"\r\n"], [b"Authorization: [REDACTED] ", b"[REDACTED]", b"\\r\\n"]),
        ([b"token=hunter2 ", b"x=1"], [b"token=[REDACTED] ", b"x=1"]),
    ],
)
def test_a_secret_that_is_split_over_the_buffers_of_one_call(buffers: list[bytes], shown: list[bytes]) -> None:
    """Buffers are one stream: the next one is hidden when a secret that began before reaches into it."""
    plan = build_plan(redaction=DEFAULTS)
    numbers = {decoding.syscall.name: number for number, decoding in plan.decodings.items()}
    array = b"".join(struct.pack("=QQ", 0x1000, len(data)) for data in buffers)
    vector = b"".join(struct.pack("=Q", len(data)) + data + bytes(-len(data) % 8) for data in buffers)
    writer = SampleWriter()
    captures = [
        Capture(1, lib.PB_CAPTURE_STRUCT, array, len(array)),
        Capture(1, lib.PB_CAPTURE_VECTOR, vector, len(vector), part=1),
    ]
    writer.syscall(1, 10, numbers["writev"], [3, 1, len(buffers)], 16, captures=captures)
    chunk, redactions = encoded(writer, plan)
    expected = [b'{iov_base="%s", iov_len=%d}' % (text, len(data)) for text, data in zip(shown, buffers, strict=True)]
    assert b"[%s]" % b", ".join(expected) in chunk
    assert redactions == sum(b"REDACTED" in text for text in shown)


def test_a_messages_address_and_its_threads_name_are_redacted() -> None:
    """sendmsg's msg_name is a Unix socket's path; a thread is named by its program."""
    plan = build_plan(redaction=DEFAULTS)
    numbers = {decoding.syscall.name: number for number, decoding in plan.decodings.items()}
    path = b"\1\0/run/token=hunter2\0"
    writer = SampleWriter(comm=b"token=hunter2")
    captures = [
        Capture(1, lib.PB_CAPTURE_STRUCT, struct.pack("=QQQQQQQ", 0x1000, len(path), 0, 0, 0, 0, 0), 56),
        Capture(1, lib.PB_CAPTURE_SOCKADDR, path, len(path), part=1),
    ]
    writer.syscall(1, 10, numbers["sendmsg"], [3, 1, 0], -111, captures=captures)
    chunk, redactions = encoded(writer, plan)
    assert SECRET not in chunk
    assert b'msg_name={sa_family=AF_UNIX, sun_path="/run/token=[REDACTED]"}' in chunk
    assert redactions == 2


def test_a_dump_says_nothing_secret_of_its_processes_and_reason() -> None:
    """Paths, names, what OTEL_RESOURCE_ATTRIBUTES says, by value or by name; each text is counted once."""
    redacted = Redacted(DEFAULTS)
    environment = {"OTEL_RESOURCE_ATTRIBUTES": "db.url=redis://:hunter2@h,api_key=hunter2,region=eu"}
    process = Process(7, executable="/opt/token=hunter2", environment=environment)
    resource = redacted.resource(process_resource(process))
    assert SECRET not in resource.SerializeToString()
    assert {"eu", "redis://:[REDACTED]@h"} < {pair.value.string_value for pair in resource.attributes}
    assert redacted.text("login failed: password=hunter2") == "login failed: password=[REDACTED]"
    assert redacted.text("login failed: password=hunter2") == "login failed: password=[REDACTED]"
    assert redacted.count == 6
