# SPDX-License-Identifier: Apache-2.0
"""The plan as the C engine gets it, and the rules as the BPF program gets them.

What it is not: the lines (test_records_strace.py). Source: _core/plan.h, bpf/records.h.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import time
from typing import Any

import pytest

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records import build_plan, syscall_rules
from otel_perfbuf.records.classes import load_classes, select_syscalls

NUMBERS = {decoding.syscall.name: number for number, decoding in build_plan(machine="x86_64").decodings.items()}


class Rule:
    """A syscall's row and its capture rules."""

    def __init__(self, all_rules: Any, number: int) -> None:
        self.row = all_rules.syscalls[number]
        self.captures = list(all_rules.captures[self.row.first : self.row.first + self.row.count])
        self.flags, self.arguments = self.row.flags, self.row.arguments


def rules(**options: Any) -> list[Rule]:
    """The rules of x86-64, by number."""
    data = ffi.from_buffer("struct pb_rules *", syscall_rules(machine="x86_64", **options))
    return [Rule(data, number) for number in range(lib.PB_SYSCALLS)]


def captures(rule: Rule) -> list[tuple[int, int, int, int, int, int]]:
    """(kind, argument, when, length_from, length, max_bytes) of each."""
    return [(r.kind, r.argument, r.when, r.length_from, r.length, r.max_bytes) for r in rule.captures]


def recorded(**options: Any) -> set[str]:
    """Names of the syscalls whose rule says so."""
    table = rules(**options)
    return {name for name, number in NUMBERS.items() if table[number].flags & lib.PB_SYSCALL_RECORDED}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_plan_holds_every_syscall(machine: str) -> None:
    """Names, counts and kinds arrive in the C structs; numbers without a call have no name."""
    plan = build_plan(machine=machine, string_bytes=77)
    gc.collect()  # what the structs point to must be owned by the plan
    c = plan.pointer
    assert c.string_bytes == 77
    for number in range(c.syscall_count):
        row, decoding = c.syscalls[number], plan.decodings.get(number)
        if decoding is None:
            assert row.name == ffi.NULL
            continue
        assert ffi.string(row.name).decode() == decoding.syscall.name == plan.syscall_name(number)
        assert row.arguments == len(decoding.arguments)
        for index, argument in enumerate(decoding.arguments):
            assert ffi.string(row.args[index].name).decode() == argument.name
            assert row.args[index].kind < lib.PB_ARG_KINDS
            assert row.args[index].table < c.table_count
    assert plan.syscall_name(511) == "syscall_511"


def test_errors_and_signals_ascend_as_the_engine_searches_them() -> None:
    """Binary search needs strictly ascending numbers, in every enum table and list of names."""
    plan = build_plan()
    c = plan.pointer
    for rows, count in [(c.errors, c.error_count), (c.signals, c.signal_count)]:
        values = [rows[n].value for n in range(count)]
        assert values == sorted(set(values))
    for table in c.signal_codes[0:9]:
        values = [table.rows[n].value for n in range(table.count)]
        assert values == sorted(set(values))


def test_the_plan_is_built_quickly() -> None:
    """Below 100 ms of CPU, tracefs included: the best of three on a busy machine."""
    times = []
    for _ in range(3):
        start = time.process_time()
        build_plan()
        times.append(time.process_time() - start)
    assert min(times) < 0.1


def test_counts_of_rules_agree_with_the_rules() -> None:
    """enter_rules and exit_rules are what a reader of the captures would count; no rule reads beyond its bounds."""
    for rule in rules(buffers="content"):
        when = [row.when for row in rule.captures]
        assert rule.row.enter_rules == sum(w in (lib.PB_AT_ENTER, lib.PB_AT_BOTH) for w in when)
        assert rule.row.exit_rules == sum(w != lib.PB_AT_ENTER for w in when)
        assert rule.arguments <= 6
        assert len(rule.captures) <= lib.PB_SYSCALL_CAPTURES
        parts = [(row.argument, row.part) for row in rule.captures if row.part >= lib.PB_PARTS]
        assert len(parts) == len(set(parts))
        reached = [bool(row.if_value[0] and not row.if_mask[0]) for row in rule.captures]
        assert reached == sorted(reached)  # the program leaves off at the first that is not
        for row in rule.captures:
            assert row.kind != lib.PB_CAPTURE_NONE
            assert row.argument < rule.arguments
            assert row.max_bytes <= 4096
            assert row.argument * lib.PB_PARTS + min(row.part, lib.PB_PARTS - 1) <= 63  # the program's word of bits
            if row.length_from in (
                lib.PB_LENGTH_ARGUMENT,
                lib.PB_LENGTH_POINTER,
                lib.PB_LENGTH_UINT,
                lib.PB_LENGTH_INT,
            ):
                assert row.length < rule.arguments


def test_rules_of_variants_stand_in_front_of_their_rows() -> None:
    """The first rule of an argument that holds is taken: those under conditions must come first."""
    for rule in rules(buffers="content"):
        for argument in range(6):
            own = [bool(row.if_mask[0]) for row in rule.captures if (row.argument, row.part) == (argument, 0)]
            assert own == sorted(own, reverse=True)


def test_paths_strings_and_exec_are_captured_as_they_must_be() -> None:
    """Paths at exit with their own limit; execve's three at enter, for its memory is gone afterwards."""
    table = rules(max_path_bytes=300, max_string_bytes=50)
    fixed = lib.PB_LENGTH_FIXED
    assert captures(table[NUMBERS["openat"]]) == [(lib.PB_CAPTURE_STRING, 1, lib.PB_AT_EXIT, fixed, 300, 300)]
    assert captures(table[NUMBERS["memfd_create"]]) == [(lib.PB_CAPTURE_STRING, 0, lib.PB_AT_EXIT, fixed, 50, 50)]
    kinds = [(row[0], row[1], row[2]) for row in captures(table[NUMBERS["execve"]])]
    assert kinds == [
        (lib.PB_CAPTURE_STRING, 0, lib.PB_AT_ENTER),
        (lib.PB_CAPTURE_STRINGS, 1, lib.PB_AT_ENTER),
        (lib.PB_CAPTURE_COUNT, 2, lib.PB_AT_ENTER),
    ]
    assert table[NUMBERS["execve"]].flags & lib.PB_SYSCALL_EXEC
    assert table[NUMBERS["exit_group"]].flags & lib.PB_SYSCALL_NO_RETURN


def test_addresses_are_captured_with_their_lengths() -> None:
    """Connect at enter with the length given; accept at success with the word behind the pointer, seen twice."""
    table = rules()
    assert captures(table[NUMBERS["connect"]]) == [
        (lib.PB_CAPTURE_SOCKADDR, 1, lib.PB_AT_ENTER, lib.PB_LENGTH_INT, 2, 128)
    ]
    assert captures(table[NUMBERS["accept4"]]) == [
        (lib.PB_CAPTURE_SOCKADDR, 1, lib.PB_AT_SUCCESS, lib.PB_LENGTH_POINTER, 2, 128),
        (lib.PB_CAPTURE_WORD, 2, lib.PB_AT_BOTH, lib.PB_LENGTH_FIXED, 4, 4),
    ]


@pytest.mark.parametrize("buffers", ["none", "sizes"])
def test_contents_are_captured_only_when_asked(buffers: str) -> None:
    """Read and write capture nothing by default; what readlink gives is a name."""
    table = rules(buffers=buffers)
    assert captures(table[NUMBERS["read"]]) == captures(table[NUMBERS["write"]]) == []
    assert captures(table[NUMBERS["readlink"]])[1][:2] == (lib.PB_CAPTURE_BUFFER, 1)
    content = rules(buffers="content", max_string_bytes=99)
    assert captures(content[NUMBERS["read"]]) == [
        (lib.PB_CAPTURE_BUFFER, 1, lib.PB_AT_SUCCESS, lib.PB_LENGTH_RESULT, 0, 99)
    ]
    assert captures(content[NUMBERS["write"]]) == [
        (lib.PB_CAPTURE_BUFFER, 1, lib.PB_AT_EXIT, lib.PB_LENGTH_ARGUMENT, 2, 99)
    ]


def test_numbers_without_a_call_are_recorded_with_all_arguments() -> None:
    """A syscall newer than the tables shows as syscall_N(...) unless names were chosen."""
    assert rules()[511].flags & lib.PB_SYSCALL_RECORDED
    assert rules()[511].arguments == 6
    assert not rules(include=["%file"])[511].flags & lib.PB_SYSCALL_RECORDED


def test_choices_mean_what_straces_do() -> None:
    """Names, classes and exclusions, alone and together."""
    assert recorded() == set(NUMBERS)
    assert recorded(include=["openat", "read"]) == {"openat", "read"}
    assert recorded(include=["%network", "!sendto"]) == set(load_classes()["%network"]) - {"sendto"}
    assert recorded(include=["!%desc"]) == set(NUMBERS) - load_classes()["%desc"]
    assert recorded(exclude=["%memory", "futex"]) == set(NUMBERS) - load_classes()["%memory"] - {"futex"}
    assert "openat" in recorded(include=["%file"], exclude=["stat"])


def test_unknown_names_are_listed_with_close_ones() -> None:
    """All at once, each with its place and what was probably meant."""
    with pytest.raises(ConfigError, match=r"'opennat' is no system call.*openat") as caught:
        select_syscalls(NUMBERS, include=["read", "opennat"], exclude=["%netwrok", "qqqqqq"])
    assert [key for key, _ in caught.value.problems] == ["include.1", "exclude.0", "exclude.1"]
    assert "%network" in caught.value.problems[1][1]


@pytest.mark.parametrize("options", [{"max_string_bytes": 0}, {"max_path_bytes": 5000}])
def test_sizes_out_of_bounds_are_refused(options: dict[str, int]) -> None:
    """The sentence has the bounds."""
    with pytest.raises(ConfigError, match="1 to 4096"):
        rules(**options)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
@pytest.mark.parametrize("class_", ["file", "network", "process", "desc", "memory", "signal"])
def test_classes_are_straces(class_: str) -> None:
    """Of all calls of one program, strace prints for the class exactly those that the table has in it."""
    program = ["sh", "-c", "ls /etc >/dev/null; kill -0 $$; exec cat /etc/hostname"]

    def calls(trace: str) -> set[str]:
        command = ["strace", "-f", "-qq", "-e", "signal=none", "-e", f"trace={trace}", *program]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
        words = [line.removeprefix("[pid").split("] ")[-1] for line in lines]
        return {word.split("(")[0] for word in words if "(" in word and word[0].isalpha()}

    every = calls("all")
    assert len(every) > 15
    assert calls(f"%{class_}") == every & load_classes()[f"%{class_}"]
