# SPDX-License-Identifier: Apache-2.0
"""Renders what traced_calls.py gives with the real plan: the other half of the comparison with strace.

What it is not: it expects nothing; the tests do. Source: bpf/records.h; otel_perfbuf/_core/otlp.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from samples import Capture, Engine, SampleWriter
from traced_calls import Answer, Call, trace

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.records import Plan, build_plan, syscall_rules

STRING_BYTES = 32  # as strace without -s


@cache
def plan() -> Plan:
    """The plan of this machine."""
    return build_plan(string_bytes=STRING_BYTES)


def _name_of(prefix: str, value: int, names: Sequence[str]) -> str:
    return next(name for name in names if getattr(lib, prefix + name) == value)


@cache
def rules() -> dict[str, list[list[Any]]]:
    """The capture rules of each syscall, kinds by name."""
    table = ffi.from_buffer("struct pb_rules *", syscall_rules(buffers="content"))
    found: dict[str, list[list[Any]]] = {}
    kinds = ("STRING", "BUFFER", "SOCKADDR", "WORD", "STRUCT", "STRINGS", "COUNT", "VECTOR", "ENTRIES")
    lengths = ("FIXED", "ARGUMENT", "RESULT", "POINTER", "FIELD4", "FIELD8", "BITS", "UINT", "INT")
    for number, decoding in plan().decodings.items():
        own = table.syscalls[number]
        rows = table.captures[own.first : own.first + own.count]
        found[decoding.syscall.name] = [
            [
                _name_of("PB_CAPTURE_", row.kind, kinds),
                row.argument,
                _name_of("PB_AT_", row.when, ("EXIT", "ENTER", "BOTH", "SUCCESS")),
                _name_of("PB_LENGTH_", row.length_from, lengths),
                row.length,
                row.max_bytes,
                row.scale or 1,
                row.part,
                row.offset if row.behind else None,
                [list(one) for one in zip(row.if_argument, row.if_mask, row.if_value, strict=True)],
                0 if row.behind else row.offset,
            ]
            for row in rows
        ]
    return found


def _captures(items: list[list[Any]]) -> list[Capture]:
    return [
        Capture(argument, getattr(lib, f"PB_CAPTURE_{kind}"), bytes.fromhex(data), extent, flags, part)
        for argument, kind, data, extent, flags, part in items
    ]


def rendered(name: str, answer: Answer) -> str:
    """The engine's line for that call."""
    number = numbers()[name]
    count = len(plan().decodings[number].arguments)
    writer = SampleWriter().syscall(1, 10, number, answer.args[:count], answer.result, captures=_captures(answer.exit))
    if answer.enter:
        writer.entry(1, 10, _captures(answer.enter))
    return Engine([writer.sample()]).join().line(plan().pointer)


@cache
def numbers() -> dict[str, int]:
    """Syscall numbers by strace's name."""
    return {decoding.syscall.name: number for number, decoding in plan().decodings.items()}


def compare(calls: Sequence[Call]) -> list[tuple[str, str]]:
    """For each call: (strace's line, ours)."""
    full = [Call(call.name, (*call.args, *(0,) * (6 - len(call.args))), call.room) for call in calls]
    answers = trace(full, numbers(), rules())
    return [(answer.line, rendered(call.name, answer)) for call, answer in zip(calls, answers, strict=True)]
