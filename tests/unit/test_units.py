# SPDX-License-Identifier: Apache-2.0
"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from otel_perfbuf.units import Duration, Size, format_duration, format_size, parse_duration, parse_size


class _Options(BaseModel):
    every: Duration = 5.0
    room: Size = 4096


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("5s", 5.0), ("1m", 60.0), ("1h", 3600.0), (0, 0.0), ("0", 0.0), ("1m30s", 90.0), ("1.5s", 1.5)],
)
def test_durations_of_the_contract(text: object, seconds: float) -> None:
    """Every form that the contract names is read."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "wrong", ["5", 5, 5.0, True, None, "-1s", "1d", "s", "1 s", "", "1e3s", [], "9" * 15 + "h", "٣s"]
)
def test_what_is_no_duration(wrong: object) -> None:
    """A number without a unit, another unit or a sign is refused with a sentence."""
    with pytest.raises(ValueError, match=r"duration|hundred"):
        parse_duration(wrong)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64KiB", 65536), ("4MiB", 4 << 20), ("1GiB", 1 << 30), (123, 123), ("123", 123), ("1.5KiB", 1536), ("0", 0)],
)
def test_sizes_of_the_contract(text: object, size: int) -> None:
    """Every form that the contract names is read."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "wrong", ["64KB", "64kib", -1, "-1", 1.5, True, None, "", "KiB", "0.3B", "1.0001KiB", "9" * 18 + "TiB"]
)
def test_what_is_no_size(wrong: object) -> None:
    """Another unit, a sign or a part of a byte is refused with a sentence."""
    with pytest.raises(ValueError, match=r"size|bytes"):
        parse_size(wrong)


@given(st.integers(min_value=0, max_value=10**17))
def test_a_written_duration_reads_back(nanoseconds: int) -> None:
    """What format_duration writes is the same duration to a microsecond's part in a float."""
    seconds = nanoseconds / 1e9
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@given(st.integers(min_value=0, max_value=1 << 61))
def test_a_written_size_reads_back(size: int) -> None:
    """What format_size writes is the same number of bytes."""
    assert parse_size(format_size(size)) == size


def test_fields_read_and_write_what_people_write() -> None:
    """As pydantic fields they hold numbers and are dumped for people as text."""
    options = _Options.model_validate({"every": "1m30s", "room": "4MiB"})
    assert (options.every, options.room) == (90.0, 4 << 20)
    assert options.model_dump(mode="json") == {"every": "1m30s", "room": "4MiB"}
    assert _Options(room=100).model_dump(mode="json")["room"] == 100
    with pytest.raises(ValidationError, match="needs a unit"):
        _Options.model_validate({"every": 5})
