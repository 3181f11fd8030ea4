# SPDX-License-Identifier: Apache-2.0
"""Runs of alike records folded in the text view."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_perfbuf.exporters.repeats import Folded, folded


def record(body: str, tid: int = 1) -> LogRecord:
    """A record of a thread."""
    return LogRecord(
        body=AnyValue(string_value=body), attributes=[KeyValue(key="thread.id", value=AnyValue(int_value=tid))]
    )


def shown(bodies: list[str]) -> list[str]:
    """Bodies and marks, in their order."""
    lines = folded(enumerate((record(body) for body in bodies), 1))
    return [line.item.text() if isinstance(line.item, Folded) else line.item.body.string_value for line in lines]


def test_a_run_is_shown_twice_and_then_counted() -> None:
    """Numbers and addresses may differ, strings may not."""
    reads = [f"read(3</x9>, 0x7f{number:04x}, 4096) = {number}" for number in range(414)]
    assert shown(["open", *reads, "close"]) == ["open", *reads[:2], "# ... 412 more like the last", "close"]


def test_a_loop_of_three_calls_is_folded_as_one() -> None:
    """Two rounds are shown; what breaks the loop is shown, and may begin another."""
    loop = ["socket(2) = 3", "connect(3) = -1 ECONNREFUSED", "close(3) = 0"]
    assert shown([*loop * 10, "exit(1)"]) == [*loop * 2, "# ... 24 more like the last 3", "exit(1)"]


def test_threads_and_results_are_told_apart() -> None:
    """Another thread's call is not alike, nor is an error."""
    lines = list(
        folded([(1, record("x(1)", 1)), (2, record("x(2)", 2)), (3, record("x(3)", 1)), (4, record("x(1) = -1 E"))])
    )
    assert all(not isinstance(line.item, Folded) for line in lines)


@given(st.lists(st.sampled_from(["a(1)", "a(2)", "b(1)", "c"]), max_size=60))
def test_every_record_is_shown_or_counted_once(bodies: list[str]) -> None:
    """Lines cover the numbers from 1 on without a gap."""
    at = 0
    for line in folded(enumerate(map(record, bodies), 1)):
        assert line.first == at + 1
        covered = line.last - line.first + 1
        assert covered == (line.item.count if isinstance(line.item, Folded) else 1)
        at = line.last
    assert at == len(bodies)
