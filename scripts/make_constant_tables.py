# SPDX-License-Identifier: Apache-2.0
"""Writes otel_perfbuf/records/data/constants.tsv: the names of flags and values, in strace's order.

How: a child makes each system call once for every bit (or value) of the argument in question, with other arguments
that make it fail, under the installed strace; what strace calls the value is its row. So names and order are the
oracle's own. Values of Linux's generic ABI and x86-64; what aarch64 numbers otherwise is in the package's constants.py.

What it is not: it decides nothing about which syscall has which table (data/arguments.tsv does).
Use: make_constant_tables.py > otel_perfbuf/records/data/constants.tsv (as root, x86-64, strace 6.1 or newer; 1 minute).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from probe_tables import COMPOSITES, EXTRA, PROBES, STATIC, UNKNOWN, Probe

WORD = (1 << 64) - 1
SPLIT = re.compile(r'"(?:[^"\\]|\\.)*"(?:\.\.\.)?|[(\[{]|[)\]}]|,|[^"(\[{)\]},]+')

NAME = re.compile(r"[A-Z_][A-Za-z0-9_|]*( or [A-Z_][A-Za-z0-9_]*)*")


def call(number: int, argument: int, values: Iterable[int], base: tuple[int, ...]) -> None:
    """Runs in the traced child: one call for each value."""
    syscall = ctypes.CDLL(None).syscall
    for value in values:
        arguments = list(base) + [0] * (6 - len(base))
        arguments[argument] = value
        syscall(ctypes.c_long(number), *[ctypes.c_ulong(word & WORD) for word in arguments])


def arguments_of(line: str) -> list[str]:
    """The top-level arguments of one line of strace."""
    depth, current, found = 0, "", []
    for token in SPLIT.findall(line[line.index("(") + 1 :]):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
            if depth < 0:
                break
        if token == "," and depth == 0:
            found.append(current.strip())
            current = ""
        else:
            current += token
    return [*found, current.strip()]


def printed(probe: Probe, numbers: dict[str, int]) -> list[str]:
    """What strace prints for the probed argument, one text a value."""
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as output:
        code = (
            f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import make_constant_tables as m;"
            f"m.call({numbers['prctl']}, 1, [0], (15,)); m.call({numbers[probe.syscall]}, {probe.argument},"
            f" {list(probe.values)!r}, {probe.base!r})"
        )
        command = ["strace", "-qq", "-e", f"trace={probe.syscall},prctl", "-e", "signal=none", "-o", output.name]
        subprocess.run([*command, sys.executable, "-c", code], check=True, timeout=60)
        lines = output.read().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("prctl(PR_SET_NAME, NULL)"))
    calls = [line for line in lines[start + 1 :] if line.startswith(probe.syscall + "(")]
    texts = []
    for line in calls:
        arguments = arguments_of(line)
        texts.append(arguments[probe.shown] if probe.shown < len(arguments) else "")
    if len(texts) != len(probe.values):
        raise SystemExit(f"{probe.table}: {len(probe.values)} calls, {len(texts)} lines")
    return texts


def rows_of(probe: Probe, texts: list[str]) -> tuple[list[tuple[int, str]], str]:
    """The table's rows in strace's order, and its text for unknown values."""
    names = {name: value for value, name in probe.known}
    always = sum(names.values())
    unknown = "-"
    order: list[str] = []
    zero = ""
    for value, text in zip(probe.values, texts, strict=True):
        comment = re.search(r"/\* (.*?) \*/", text)
        if comment:
            unknown = comment[1]
        parts = [part.strip() for part in re.sub(r" /\*.*?\*/", "", text).split("|")]
        if probe.prefix:
            parts[0] = parts[0].removeprefix(probe.prefix)
            parts = [part for part in parts if part not in names or value.bit_count() > 4]
        parts = [part for part in parts if re.match(r"[A-Z_]", part) and part != "NULL" and "<<" not in part]
        if probe.kind == "flags" and value.bit_count() > 4:
            order = parts
        elif probe.kind == "enum" and not comment and NAME.fullmatch(text) and text != "NULL":
            names.setdefault(text, value)
        elif probe.kind in ("flags", "flags_value"):
            if value == 0 and parts:
                zero = parts[0]
            rest = [part for part in parts if part != zero]
            if value.bit_count() > 4 and value & ~probe.mask and probe.kind == "flags_value":
                order = [part for part in rest if part not in names or names[part] & ~probe.mask]
            elif len(rest) == 1:
                names.setdefault(rest[0], value & ~always)
    if probe.kind == "enum":
        rows = sorted((value & (0xFFFFFFFF if value < 0 else WORD), name) for name, value in names.items())
        return rows, unknown
    inside = [(0, zero)] if zero else []
    inside += sorted((value, name) for name, value in names.items() if value and not value & ~probe.mask)
    flags = {name: value for name, value in names.items() if value & ~probe.mask}
    result = []
    for name in order:
        if name in COMPOSITES:
            result.append((COMPOSITES[name], name))
            result += [(v, n) for n, v in flags.items() if n not in order and v & COMPOSITES[name] == v]
        elif name in flags:
            result.append((flags[name], name))
    seen = {name for _, name in result}
    result += [(value, name) for name, value in flags.items() if name not in seen]
    return inside + result, unknown


def main() -> int:
    """Prints the file."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header)}
    version = subprocess.run(["strace", "-V"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    print(f"# Names of flags and values, made by scripts/make_constant_tables.py from {version}; do not edit.")
    print("# @table kind mask unknown; then rows: value name, in the order in which they are shown")
    for probe in PROBES:
        rows, unknown = rows_of(probe, printed(probe, numbers))
        unknown = UNKNOWN.get(probe.table, unknown)
        print(f"@{probe.table}\t{probe.kind}\t{probe.mask:#x}\t{unknown}")
        extra = EXTRA.get(probe.table, [])
        if probe.kind == "flags":  # names of several bits stand in front of the single ones
            rows[1:1] = extra
        else:
            rows += extra
        for value, name in rows:
            print(f"{value:#x}\t{name}")
    for table, (kind, mask, unknown, static) in STATIC.items():
        print(f"@{table}\t{kind}\t{mask:#x}\t{unknown}")
        for value, name in static:
            print(f"{value:#x}\t{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
