# SPDX-License-Identifier: Apache-2.0
"""Tables of flag and value names, in strace's order and words.

Rows come from data/struct_constants.tsv (names that stand in structs) and data/constants.tsv (made by
scripts/make_constant_tables.py with the installed strace as oracle; a test compares the values with Python's os,
socket, signal and mmap). Here is only what differs on aarch64.
Source: strace 6.1's output; include/uapi of Linux for the values.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_perfbuf.records.syscalls import data_lines

__all__ = ["Table", "load_tables"]

# arch/arm64/include/uapi/asm/fcntl.h: these four are numbered otherwise than on x86-64.
_AARCH64 = {
    "O_DIRECTORY": 0o40000,
    "O_NOFOLLOW": 0o100000,
    "O_DIRECT": 0o200000,
    "O_LARGEFILE": 0o400000,
    "O_TMPFILE": 0o20000000 | 0o40000,
}
# x86-64 has them, arm64 has not.
_X86_ONLY = frozenset({"MAP_32BIT"})


@dataclass(frozen=True, slots=True)
class Table:
    """One table. ``kind``: ``flags``, ``flags_value`` (bits under ``mask`` are a value) or ``enum``.

    ``rows`` are (value, name): flags in the order shown, those of the value first; enum ascending by value.
    ``unknown`` is what strace writes beside a value without a name (``MAP_???``), or None.
    """

    name: str
    kind: str
    mask: int
    unknown: str | None
    rows: tuple[tuple[int, str], ...]

    def value_of(self, name: str) -> int:
        """The value of a name in this table; KeyError when it has none."""
        for value, row_name in self.rows:
            if row_name == name:
                return value
        raise KeyError(name)


def load_tables(machine: str = "x86_64") -> dict[str, Table]:
    """All tables by name, with the numbers of that machine."""
    heads: list[tuple[str, str, int, str | None]] = []
    rows: list[list[tuple[int, str]]] = []
    own = _AARCH64 if machine == "aarch64" else {}
    for line in [*data_lines("constants.tsv"), *data_lines("struct_constants.tsv")]:
        if line.startswith("@"):
            name, kind, mask, unknown = line[1:].split("\t")
            heads.append((name, kind, int(mask, 16), None if unknown == "-" else unknown))
            rows.append([])
            continue
        value, name = line.split("\t")
        if value == "=":
            rows[-1] += rows[[head[0] for head in heads].index(name)]
            continue
        if machine == "aarch64" and name in _X86_ONLY:
            continue
        rows[-1].append((own.get(name, int(value, 16)), name))
    tables = {}
    for head, found in zip(heads, rows, strict=True):
        title, shape, bits, comment = head
        tables[title] = Table(title, shape, bits, comment, tuple(sorted(found) if shape == "enum" else found))
    return tables
