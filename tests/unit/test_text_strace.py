# SPDX-License-Identifier: Apache-2.0
"""The shipped tables and the renderer against strace itself: each program runs twice at the same addresses, once with
raw arguments, which the engine renders, and once as strace prints them.

What it is not: captured memory (strings, structs), which needs the BPF programs: there an address stands for it here.
"""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from samples import Engine, SampleWriter

from otel_perfbuf._core._core import ffi, lib
from otel_perfbuf.records import build_plan

STRACE = shutil.which("strace")
SETARCH = shutil.which("setarch")
CALL = re.compile(r"(\w+)\((.*)\)\s+= (.*)")
TABLES_OF = "strace -- version 6.1"
MEMORY = re.compile(r'["\[{]|/\*.* vars? \*/')
PROGRAMS = [
    ["true"],
    ["ls", "-l", "/proc/self/nowhere", "/etc/hostname"],
    ["cat", "/etc/hostname", "/nowhere"],
    ["dd", "if=/dev/zero", "of=/dev/null", "bs=4k", "count=3", "status=none"],
    ["stat", "/", "/nowhere"],
    ["sort", "/etc/group"],
    ["sleep", "0.01"],
    ["mkdir", "/", "/nowhere/deep"],
]


def strace(folder: Path, options: list[str], program: list[str]) -> list[str]:
    """The calls of one run, without address randomization."""
    out = folder / "strace.txt"
    command = [str(SETARCH), "-R", str(STRACE), "-o", str(out), *options, *program]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, env={"PATH": "/usr/bin:/bin"})
    if not out.exists() or "PTRACE" in run.stderr or "personality" in run.stderr:
        pytest.skip(f"strace cannot trace here: {run.stderr.strip()}")
    return [text for text in out.read_text().splitlines() if CALL.match(text)]


def split(text: str) -> list[str]:
    """Arguments at the commas that stand in no quotes and brackets."""
    parts, depth, quoted, begin, at = [], 0, False, 0, 0
    while at < len(text):
        match text[at]:
            case "\\":
                at += 1
            case '"':
                quoted = not quoted
            case "[" | "{" | "(" if not quoted:
                depth += 1
            case "]" | "}" | ")" if not quoted:
                depth -= 1
            case "," if not quoted and not depth:
                parts.append(text[begin:at].strip())
                begin = at + 1
        at += 1
    return [*parts, text[begin:].strip()] if text.strip() else []


def result_of(text: str) -> int | None:
    """The raw result; None: it never came or has a name that Python does not know."""
    if failed := re.match(r"-1 (E\w+)", text):
        return -int(getattr(errno, failed[1]))
    return int(text.split()[0], 0) if text[0] != "?" else None


def same(ours: str, theirs: str, newer: bool) -> bool:
    """Equal, or strace shows memory where we have the address only, or a newer one knows a name that 6.1 did not."""
    if ours == theirs or (newer and ("_???" in ours or "|0x" in ours)):
        return True
    return bool(MEMORY.search(theirs)) and ours.split("=")[-1].startswith("0x")


@pytest.mark.skipif(not STRACE or not SETARCH, reason="needs strace and setarch (packages strace, util-linux)")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda words: words[0])
def test_what_needs_no_memory_reads_as_strace_prints_it(program: list[str], tmp_path: Path) -> None:
    """Names, flags, modes, descriptors, results and errors of every call of an ordinary program."""
    newer = not subprocess.check_output([str(STRACE), "--version"], text=True).startswith(TABLES_OF + "\n")
    plan = build_plan()
    calls = plan.pointer
    numbers = {
        ffi.string(calls.syscalls[i].name).decode(): i for i in range(calls.syscall_count) if calls.syscalls[i].name
    }
    raw = strace(tmp_path, ["-e", "raw=all"], program)
    cooked = strace(tmp_path, [], program)
    assert len(raw) == len(cooked)
    compared, different = 0, []
    for one, other in zip(raw, cooked, strict=True):
        (name, values, result), (_, shown, ended) = CALL.findall(one)[0], CALL.findall(other)[0]
        number, value = numbers[name], result_of(result)
        args = [int(text.split()[0], 0) for text in split(values)]
        args += [0] * (calls.syscalls[number].arguments - len(args))
        flags = lib.PB_FLAG_NO_RETURN if value is None else 0
        line = Engine([SampleWriter().syscall(1, 1, number, args, value or 0, flags=flags).sample()]).join().line(calls)
        _, our_shown, our_ended = CALL.findall(line)[0]
        pairs = list(zip(split(our_shown), split(shown), strict=False))
        wrong = len(split(our_shown)) != len(split(shown)) or not all(same(a, b, newer) for a, b in pairs)
        if result.split()[0] == ended.split()[0]:  # a process id differs from run to run
            wrong |= our_ended != ended
        if wrong:
            different.append((line, other))
        compared += 1
    assert compared > 10
    assert different == []
