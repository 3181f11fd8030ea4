# SPDX-License-Identifier: Apache-2.0
"""The shipped tables: syscalls, constants, errors and signals, against Python's own modules and themselves.

What it is not: the comparison with the running kernel (tests/kernel/test_tables.py) and with strace
(test_records_strace.py).
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
import types

import pytest

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.records.arguments import argument_by_rules, load_decodings
from otel_perfbuf.records.constants import Table, load_tables
from otel_perfbuf.records.errnos import error_rows, signal_rows
from otel_perfbuf.records.structs import load_structs
from otel_perfbuf.records.syscalls import MACHINES, Parameter, load_syscalls, parse_format, shipped_syscalls

FORMAT = """name: sys_enter_openat
ID: 782
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;
\tfield:int dirfd;\toffset:16;\tsize:8;\tsigned:0;
\tfield:const char * path;\toffset:24;\tsize:8;\tsigned:0;
\tfield:int flags;\toffset:32;\tsize:8;\tsigned:0;
\tfield:umode_t mode;\toffset:40;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] __path_val;\toffset:48;\tsize:4;\tsigned:0;

print fmt: "dfd: 0x%08lx", ((unsigned long)(REC->dfd))
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_syscalls_have_one_number_and_one_name_each(machine: str) -> None:
    """Names are unique, numbers fit the BPF side's table, arguments are six at most."""
    table = shipped_syscalls(machine)
    assert len({syscall.name for syscall in table.values()}) == len(table) > 300
    assert all(number < 512 and len(syscall.parameters) <= 6 for number, syscall in table.items())


@pytest.mark.parametrize(("machine", "openat", "exit_group"), [("x86_64", 257, 231), ("aarch64", 56, 94)])
def test_numbers_are_the_machines(machine: str, openat: int, exit_group: int) -> None:
    """Two numbers known from the manuals of each machine."""
    table = shipped_syscalls(machine)
    assert (table[openat].name, table[exit_group].name) == ("openat", "exit_group")


def test_a_machine_without_tables_is_an_error() -> None:
    """The sentence names the machines that have one."""
    with pytest.raises(ConfigError, match="x86_64 and aarch64"):
        shipped_syscalls("vax")


def test_a_format_gives_names_and_types_without_the_common_fields() -> None:
    """Only the call's own arguments are left, in order."""
    assert parse_format(FORMAT) == (
        Parameter("int", "dirfd"),
        Parameter("const char *", "path"),
        Parameter("int", "flags"),
        Parameter("umode_t", "mode"),
    )


def test_tracefs_wins_over_the_shipped_table_and_may_lack_calls() -> None:
    """A call that tracefs has takes its names from there; the others stay as shipped; rubbish changes nothing."""
    table = load_syscalls("x86_64", parameters={"openat": FORMAT, "openat2": "rubbish"})
    assert [p.name for p in table[257].parameters] == ["dirfd", "path", "flags", "mode"]
    assert table[437] == shipped_syscalls("x86_64")[437]
    assert table[0] == shipped_syscalls("x86_64")[0]


def test_a_format_with_another_number_of_arguments_is_not_taken() -> None:
    """The rows of arguments.tsv go by position: a count that they were not written for stays as shipped."""
    table = load_syscalls("x86_64", parameters={"fcntl": FORMAT})
    assert table[72] == shipped_syscalls("x86_64")[72]
    assert load_decodings(table, load_tables())[72].arguments[1].table == "fcntl_cmd"


@pytest.mark.parametrize(
    ("type_", "name", "kind"),
    [
        ("const char *", "pathname", "path"),
        ("char *", "filename", "path"),
        ("const char *", "_type", "string"),
        ("char *", "buf", "pointer"),
        ("struct stat *", "statbuf", "pointer"),
        ("int", "dfd", "dirfd"),
        ("unsigned int", "fd", "fd"),
        ("int", "pidfd", "fd"),
        ("int", "sig", "signal"),
        ("umode_t", "mode", "mode"),
        ("size_t", "count", "ulong"),
        ("loff_t", "pos", "offset"),
        ("unsigned long", "addr", "hex"),
        ("unsigned int", "flags", "flags"),
        ("pid_t", "pid", "signed"),
        ("unsigned int", "count", "unsigned"),
    ],
)
def test_arguments_of_calls_nobody_has_described_follow_type_and_name(type_: str, name: str, kind: str) -> None:
    """The general rules alone give a new syscall sensible kinds."""
    assert argument_by_rules(Parameter(type_, name)).kind == kind


def _known(modules: tuple[types.ModuleType, ...], name: str) -> int | None:
    for module in modules:
        value = getattr(module, name, None)
        if isinstance(value, int):
            return int(value)
    return None


# What the C library calls otherwise than the kernel does.
LIBC_DIFFERS = {"O_LARGEFILE", "O_SYNC", "O_RSYNC", "MSG_PROXY"}


@pytest.mark.parametrize("name", sorted(load_tables()))
def test_constants_have_the_values_that_python_knows(name: str) -> None:
    """Every name that os, socket, signal or mmap have too has their value."""
    modules = (os, socket, signal, mmap)
    table = load_tables(os.uname().machine)[name]
    found = [(row, value, _known(modules, row)) for value, row in table.rows]
    wrong = [(row, value, known) for row, value, known in found if known is not None and row not in LIBC_DIFFERS
             and value != known & (0xFFFFFFFF if known < 0 else (1 << 64) - 1)]  # fmt: skip
    assert wrong == []


def test_python_knows_many_of_the_constants() -> None:
    """The comparison above is not empty."""
    rows = [row for table in load_tables().values() for _, row in table.rows]
    assert sum(_known((os, socket, signal, mmap), row) is not None for row in rows) > 300


@pytest.mark.parametrize("table", load_tables().values(), ids=lambda table: str(table.name))
def test_tables_are_in_the_order_that_the_engine_needs(table: Table) -> None:
    """Enums ascend without doubles; rows of a flags_value's value come first; a row's name is never empty."""
    values = [value for value, _ in table.rows]
    assert all(name and value >= 0 for value, name in table.rows)
    if table.kind == "enum":
        assert values == sorted(set(values))
    else:
        outside = [bool(value & ~table.mask) for value in values]
        assert table.mask == 0 or outside == sorted(outside)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_row_of_the_argument_table_is_of_a_known_call(machine: str) -> None:
    """All decodings load, and each table name in them exists."""
    tables = load_tables(machine)
    names = {*tables, *load_structs(tables, machine)}
    decodings = load_decodings(shipped_syscalls(machine), tables, machine)
    for decoding in decodings.values():
        named = [argument.table for argument in decoding.arguments] + [decoding.result.table]
        for variant in decoding.variants:
            named += [argument.table for argument in variant.arguments] + [variant.result.table]
        assert all(name in names for name in named if name)


def test_clone_differs_on_aarch64() -> None:
    """arm64 has tls in front of child_tidptr."""
    names = {
        machine: [a.name for a in load_decodings(shipped_syscalls(machine), load_tables(machine), machine)[n].arguments]
        for machine, n in (("x86_64", 56), ("aarch64", 220))
    }
    assert names["x86_64"][3:] == ["child_tidptr", "tls"]
    assert names["aarch64"][3:] == ["tls", "child_tidptr"]


def test_open_flags_differ_on_aarch64() -> None:
    """Four of the O_ flags are numbered otherwise there; MAP_32BIT is x86's."""
    x86, arm = load_tables("x86_64"), load_tables("aarch64")
    assert x86["open_flags"].value_of("O_DIRECTORY") == 0o200000
    assert arm["open_flags"].value_of("O_DIRECTORY") == 0o40000
    assert "MAP_32BIT" not in [name for _, name in arm["mmap_flags"].rows]


def test_errors_have_the_systems_names_and_texts() -> None:
    """Ascending, each once; 512 and up are the kernel's own."""
    rows = error_rows()
    numbers = [number for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    by_number = {number: (name, text) for number, name, text in rows}
    assert by_number[2] == ("ENOENT", os.strerror(errno.ENOENT))
    assert by_number[11][0] == "EAGAIN"
    assert by_number[95][0] == "EOPNOTSUPP"
    assert by_number[35][0] == "EDEADLK"
    assert by_number[512] == ("ERESTARTSYS", "To be restarted if SA_RESTART is set")
    assert {513, 514, 515, 516} <= set(numbers)


def test_signals_have_their_names() -> None:
    """1 to 31, each once."""
    rows = dict(signal_rows())
    assert sorted(rows) == list(range(1, 32))
    assert rows[signal.SIGSEGV] == "SIGSEGV"
    assert rows[17] == "SIGCHLD"
    assert rows[29] == "SIGIO"
