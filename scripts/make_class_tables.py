# SPDX-License-Identifier: Apache-2.0
"""Writes otel_perfbuf/records/data/classes.tsv: which syscalls strace's classes (%file, %network, ...) stand for.

strace has no listing of them, but `strace --seccomp-bpf -d` prints the seccomp filter it makes of a class: that small
program is run here for every number. Numbers newer than the strace are in LATER, as newer straces have them.

Use: make_class_tables.py > otel_perfbuf/records/data/classes.tsv (x86-64, strace 5.3 or newer).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLASSES = ("file", "process", "network", "signal", "ipc", "desc", "memory", "creds", "clock", "pure")
ALIASES = {"net": "network"}
ARCH = 0xC000003E  # AUDIT_ARCH_X86_64
LATER = {
    "file": [
        "fchmodat2",
        "setxattrat",
        "getxattrat",
        "listxattrat",
        "removexattrat",
        "open_tree_attr",
        "file_getattr",
        "file_setattr",
    ],
    "desc": [
        "cachestat",
        "fchmodat2",
        "setxattrat",
        "getxattrat",
        "listxattrat",
        "removexattrat",
        "open_tree_attr",
        "file_getattr",
        "file_setattr",
    ],
    "memory": ["map_shadow_stack", "mseal"],
}
STATEMENT = re.compile(r"strace: (STMT|JUMP)\(BPF_(\w+)(?:, )?(.*)\)$")


def filter_of(class_: str) -> list[tuple[str, list[str]]]:
    """The filter's statements: (operation, operands)."""
    command = ["strace", "--seccomp-bpf", "-f", "-d", "-e", f"trace={class_}", "-o", "/dev/null", "true"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = [match for line in text.splitlines() if (match := STATEMENT.match(line))]
    return [(match[2], [part.strip() for part in match[3].split(",")]) for match in found]


def traced(program: list[tuple[str, list[str]]], number: int) -> bool:
    """Runs the filter for one x86-64 syscall."""
    a = x = at = 0
    while True:
        operation, operands = program[at]
        at += 1
        if operation == "LDWABS":
            a = {"data->arch": ARCH, "data->nr": number}[operands[0]]
        elif operation == "LDWIMM":
            a = int(operands[0], 0)
        elif operation == "TAX":
            x = a
        elif operation == "TXA":
            a = x
        elif operation in ("AND", "RSH", "LSH"):
            value = x if operands[0] == "X" else int(operands[0], 0)
            a = {"AND": a & value, "RSH": a >> value, "LSH": a << value}[operation] & 0xFFFFFFFF
        elif operation == "JA":
            at += int(operands[0])
        elif operation == "RET":
            return operands[0].endswith("TRACE")
        else:
            yes, no, value = (int(operand, 0) for operand in operands)
            holds = {"JEQ": a == value, "JGE": a >= value, "JGT": a > value, "JSET": bool(a & value)}[operation]
            at += yes if holds else no


def main() -> int:
    """Prints the file."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header)}
    always = filter_of("getpid")
    base = {name for name, number in numbers.items() if traced(always, number) and name != "getpid"}
    print("# strace's classes of system calls, made by scripts/make_class_tables.py; do not edit.")
    for name in CLASSES:
        program = filter_of(f"%{name}")
        members = {syscall for syscall, number in numbers.items() if traced(program, number)}
        members -= {syscall for syscall in base if not prints(name, syscall, numbers[syscall])}
        print(f"%{name}\t{' '.join(sorted(members | set(LATER.get(name, []))))}")
    for alias, name in ALIASES.items():
        print(f"%{alias}\t%{name}")
    return 0


def prints(class_: str, name: str, number: int) -> bool:
    """Whether strace prints a call of that name: every filter lets execve and execveat through."""
    call = f"import ctypes; ctypes.CDLL(None).syscall({number}, 0, 0, 0, 0, 0)"
    command = ["strace", "-qq", "-e", f"trace=%{class_}", "-e", "signal=none", sys.executable, "-c", call]
    return f"{name}(" in subprocess.run(command, capture_output=True, text=True, check=True).stderr


if __name__ == "__main__":
    raise SystemExit(main())
