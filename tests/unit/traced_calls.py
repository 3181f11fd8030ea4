# SPDX-License-Identifier: Apache-2.0
"""Makes system calls in a child under strace: each call's line, and what the BPF program would have captured of it.

The oracle for the tables: the same arguments, result and memory are rendered by the C engine with the real plan and
must read as strace's line. As a program it is the child: jobs on stdin, one JSON answer a call on stdout's file.

What it is not: the recorder; it plays bpf/syscalls.bpf.c by the same rules (struct pb_syscall_rule).
Source: strace's output; bpf/records.h.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORD = (1 << 64) - 1
MARK = 15  # PR_SET_NAME with an unreadable name: a line that nobody else makes


@dataclass(frozen=True)
class Call:
    """A call: integers as they are, bytes as the address of memory that begins so (and zeros
    up to ``room``), a tuple of bytes as the address of an argv.
    """

    name: str
    args: tuple[int | bytes | tuple[bytes, ...], ...] = ()
    room: int = 64


@dataclass(frozen=True)
class Answer:
    """What came of a call: ``captures`` are (argument, kind, bytes, extent, flags) at enter and at exit."""

    line: str
    args: list[int]
    result: int
    enter: list[list[Any]]
    exit: list[list[Any]]


class _Child:
    """The traced side. A rule is (kind, argument, when, length_from, length, max_bytes), kinds by name."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.syscall.restype = ctypes.c_long
        self.memory: list[ctypes.Array[ctypes.c_char]] = []

    def address(self, data: bytes, room: int) -> int:
        """Memory of the child that begins with ``data``."""
        self.memory.append(ctypes.create_string_buffer(data, max(len(data) + 1, room)))
        return ctypes.addressof(self.memory[-1])

    def read(self, address: int, size: int) -> bytes | None:
        """Memory of our own at an address; None where there is none."""
        for memory in self.memory:
            start = ctypes.addressof(memory)
            if start <= address < start + len(memory):
                return memory.raw[address - start :][:size]
        return b"" if size == 0 else None

    def pointers(self, address: int) -> list[bytes] | None:
        """The strings of an argv."""
        found = []
        while (word := self.read(address, 8)) is not None and int.from_bytes(word, sys.byteorder):
            text = self.read(int.from_bytes(word, sys.byteorder), 1 << 16)
            found.append((text or b"").split(b"\0")[0])
            address += 8
        return None if word is None else found

    def capture(self, rule: list[Any], args: list[int], result: int) -> list[Any] | None:
        """One capture as the BPF program makes it."""
        kind, argument, _, length_from, length, most = rule
        address = args[argument]
        if address == 0:
            return None
        if kind in ("STRINGS", "COUNT"):
            strings = self.pointers(address)
            if strings is None:
                return [argument, kind, "", 0, 2]
            joined = b"" if kind == "COUNT" else b"".join(text + b"\0" for text in strings)
            return [argument, kind, joined[:most].hex(), len(strings), int(len(joined) > most)]
        if kind == "STRING":
            found = self.read(address, 1 << 16)
            if found is None:
                return [argument, kind, "", 0, 2]
            text = found.split(b"\0")[0]
            return [argument, kind, text[:most].hex(), min(len(text), 65535), int(len(text) > most)]
        size = length
        if length_from == "ARGUMENT":
            size = args[length] & 0xFFFFFFFF
        elif length_from == "RESULT":
            size = result
        elif length_from == "POINTER":
            size = int.from_bytes(self.read(args[length], 4) or b"\0", sys.byteorder)
        size = max(size, 0)
        data = self.read(address, min(size, most))
        if data is None:
            return [argument, kind, "", min(size, 65535), 2]
        return [argument, kind, data.hex(), min(size, 65535), int(size > most)]

    def make(self, number: int, args: list[int], rules: list[list[Any]]) -> dict[str, Any]:
        """The call, between two captures."""
        words = [ctypes.c_ulong(word & WORD) for word in args]
        head = ctypes.c_long(number)
        enter = [c for rule in rules if rule[2] in ("ENTER", "BOTH") and (c := self.capture(rule, args, 0))]
        self.libc.prctl(MARK, None)
        result = self.libc.syscall(head, *words)
        if result == -1:
            result = -ctypes.get_errno()
        when = ("EXIT", "BOTH") if result < 0 else ("EXIT", "BOTH", "SUCCESS")
        exit_ = [c for rule in rules if rule[2] in when and (c := self.capture(rule, args, result))]
        return {"args": [word & WORD for word in args], "result": result, "enter": enter, "exit": exit_}

    def run(self, jobs: list[Any]) -> list[dict[str, Any]]:
        """All calls in turn; a list as argument is an argv of strings."""
        answers = []
        for number, args, rules, room in jobs:
            words = []
            for argument in args:
                if isinstance(argument, str):
                    words.append(self.address(bytes.fromhex(argument), room))
                elif isinstance(argument, list):
                    inner = [self.address(bytes.fromhex(text), 0) for text in argument]
                    words.append(self.address(b"".join(w.to_bytes(8, sys.byteorder) for w in [*inner, 0]), 0))
                else:
                    words.append(argument)
            answers.append(self.make(number, words, rules))
        return answers


def _line(text: str) -> str:
    """The line without strace's padding in front of `=`."""
    head, _, tail = text.rpartition(" = ")
    return f"{head.rstrip()} = {tail}" if head else text


def trace(
    calls: Sequence[Call], numbers: dict[str, int], rules: dict[str, list[list[Any]]], *, options: Sequence[str] = ()
) -> list[Answer]:
    """Makes the calls under strace with those options (``-s 64``), by the rules of each name."""
    jobs = []
    for call in calls:
        args = [
            argument.hex() if isinstance(argument, bytes)
            else [text.hex() for text in argument] if isinstance(argument, tuple)
            else argument
            for argument in call.args
        ]  # fmt: skip
        jobs.append([numbers[call.name], args, rules[call.name], call.room])
    with tempfile.TemporaryDirectory() as directory:
        output, answers, inputs = (Path(directory) / name for name in ("strace", "answers", "jobs"))
        inputs.write_text(json.dumps(jobs))
        names = sorted({call.name for call in calls} | {"prctl"})
        command = ["strace", "-qq", "-e", "signal=none", "-e", f"trace={','.join(names)}", *options, "-o", str(output)]
        command += [sys.executable, "-S", "-E", __file__, str(inputs), str(answers)]
        subprocess.run(command, check=True, timeout=60, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        lines = output.read_text(encoding="utf-8").splitlines()
        found = json.loads(answers.read_text())
    marks = [n for n, line in enumerate(lines) if re.match(r"prctl\(PR_SET_NAME, NULL\)", line)]
    assert len(marks) == len(calls) == len(found)
    return [Answer(_line(lines[n + 1]), **answer) for n, answer in zip(marks, found, strict=True)]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(_Child().run(json.loads(Path(sys.argv[1]).read_text()))))
