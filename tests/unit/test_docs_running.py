# SPDX-License-Identifier: Apache-2.0
"""docs/running.md says what is: its redactions are tried, its capabilities and files are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_perfbuf.records import Redaction, argument_patterns, default_patterns
from otel_perfbuf.service import privileges

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "running.md").read_text()
PATTERNS = Redaction([*default_patterns(), *argument_patterns()])


def rows(header: str) -> list[tuple[str, str]]:
    """Both cells of each row of the table with this header."""
    table = TEXT.split(f"| {header} | shown |\n", 1)[1].split("\n\n", 1)[0]
    found = re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", table, re.MULTILINE)
    return [(captured.replace("\\0", "\0"), shown.replace("\\0", "\0")) for captured, shown in found]


@pytest.mark.parametrize(("captured", "shown"), rows("captured"))
def test_strings_are_redacted_as_the_table_says(captured: str, shown: str) -> None:
    """Each row of the first table."""
    assert PATTERNS.redact(captured.encode()).decode() == shown


@pytest.mark.parametrize(("arguments", "shown"), rows("arguments"))
def test_arguments_are_redacted_as_the_table_says(arguments: str, shown: str) -> None:
    """Each row of the second table, its words as a program gets them."""
    captured = b"".join(word.encode() + b"\0" for word in arguments.split())
    assert PATTERNS.redact(captured, arguments=True).decode().rstrip("\0").split("\0") == shown.split()


def test_every_default_pattern_has_a_row() -> None:
    """A pattern that is added is shown; and what is said not to be redacted is not."""
    tables = [captured for header in ("captured", "arguments") for captured, _ in rows(header)]
    for pattern in default_patterns():
        alone = Redaction([pattern])
        assert any(alone.redact(row.encode()) != row.encode() for row in tables), pattern
    for pattern in argument_patterns():
        alone = Redaction([pattern])
        words = [b"".join(word.encode() + b"\0" for word in row.split()) for row in tables]
        assert any(alone.redact(row, arguments=True) != row for row in words), pattern
    for text in ("login hunter2", "PGPASS hunter2"):
        assert f"`{text}`" in TEXT
        assert PATTERNS.redact(text.encode()).decode() == text


def test_the_capabilities_are_those_that_are_kept() -> None:
    """The first table has the four, the second those that a configuration may need."""
    first, second = TEXT.split("## Privileges", 1)[1].split("is\nkept, and one line", 1)
    four = {number for name, number in vars(privileges).items() if name in re.findall(r"CAP_\w+", first)}
    assert four == set(privileges.KEPT)
    needed = set(re.findall(r"^\| (CAP_\w+) \|", second, re.MULTILINE))
    assert needed == {"CAP_DAC_OVERRIDE", "CAP_NET_BIND_SERVICE", "CAP_IPC_LOCK", "CAP_SYS_ADMIN"}


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", TEXT))
def test_links_lead_somewhere(target: str) -> None:
    """Each is a file or folder of the checkout."""
    assert (DOCS / target).exists()
