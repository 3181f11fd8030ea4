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
    """What came of a call: ``captures`` are (argument, kind, bytes, extent, flags, part) at enter and at exit."""

    line: str
    args: list[int]
    result: int
    enter: list[list[Any]]
    exit: list[list[Any]]


class _Child:
    """The traced side. A rule is (kind, argument, when, length_from, length, max_bytes, scale, part, offset of the
    pointer that it is behind or None, conditions), kinds by name.
    """

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

    def word(self, address: int, size: int) -> int:
        """An unsigned integer in memory; 0 where there is none."""
        return int.from_bytes(self.read(address, size) or b"\0", sys.byteorder)

    def count(self, rule: list[Any], args: list[int], result: int) -> int:
        """How many the rule's memory has."""
        length, memory = rule[4], args[rule[1]]
        argument = args[length] if length < 6 else 0
        found = {
            "FIXED": lambda: length,
            "ARGUMENT": lambda: argument & WORD,
            "UINT": lambda: argument & 0xFFFFFFFF,
            "INT": lambda: ctypes.c_int(argument & 0xFFFFFFFF).value,
            "RESULT": lambda: result,
            "POINTER": lambda: self.word(argument, 4),
            "BITS": lambda: ((argument & 0x7FFFFFFF) + 63) // 64 * 8,
            "FIELD4": lambda: self.word(memory + length, 4),
            "FIELD8": lambda: self.word(memory + length, 8),
        }[rule[3]]()
        return min(int(found), 0x7FFFFFFF)

    def vector(self, address: int, count: int, most: int, left: int) -> bytes:
        """What an array of iovec points to, each with its length in front."""
        data = b""
        for index in range(min(count, 16)):
            base, size = self.word(address + 16 * index, 8), self.word(address + 16 * index + 8, 8)
            size, left = min(size, left), left - min(size, left)
            found = self.read(base, min(size, most)) if size else b""
            data += WORD.to_bytes(8, "little") if found is None else len(found).to_bytes(8, "little") + found
            data += bytes(-len(data) % 8)
        return data

    def capture(self, rule: list[Any], args: list[int], result: int) -> list[Any] | None:
        """One capture as the BPF program makes it."""
        kind, argument, when, _, _, most, scale, part, behind, _, offset = rule
        address = args[argument]
        if address:
            address = address + offset if behind is None else self.word(address + behind, 8)
        if address == 0:
            return None
        if kind in ("STRINGS", "COUNT"):
            strings = self.pointers(address)
            if strings is None:
                return [argument, kind, "", 0, 2, part]
            joined = b"" if kind == "COUNT" else b"".join(text + b"\0" for text in strings)
            return [argument, kind, joined[:most].hex(), len(strings), int(len(joined) > most), part]
        if kind == "STRING":
            found = self.read(address, 1 << 16)
            if found is None:
                return [argument, kind, "", 0, 2, part]
            text = found.split(b"\0")[0]
            return [argument, kind, text[:most].hex(), min(len(text), 65535), int(len(text) > most), part]
        size = 4 if kind == "WORD" else self.count(rule, args, result)
        if size < 0:
            return None
        if kind == "ENTRIES":
            return None  # no call here reads a directory
        if kind == "VECTOR":
            reads = when == "SUCCESS"
            data = self.vector(address, size, most, result if reads else WORD)
            return [argument, kind, data.hex(), min(size, 65535), int(reads), part]
        size *= scale
        found = self.read(address, min(size, most))
        if found is None:
            return [argument, kind, "", min(size, 65535), 2, part]
        return [argument, kind, found.hex(), min(size, 65535), int(size > most), part]

    def captures(self, rules: list[list[Any]], moments: tuple[str, ...], args: list[int], result: int) -> list[Any]:
        """All of one moment: of each memory the first rule that is due and holds."""
        done, found = set(), []
        for rule in rules:
            slot = (rule[1], rule[7])
            holds = all(
                args[argument] & mask == value if mask else not value or [*args, result][argument] >= value
                for argument, mask, value in rule[9]
            )
            if rule[2] not in moments or slot in done or not holds:
                continue
            done.add(slot)
            found.append(self.capture(rule, args, result))
        return [capture for capture in found if capture]

    def make(self, number: int, args: list[int], rules: list[list[Any]]) -> dict[str, Any]:
        """The call, between two captures."""
        words = [ctypes.c_ulong(word & WORD) for word in args]
        head = ctypes.c_long(number)
        enter = self.captures(rules, ("ENTER", "BOTH"), args, 0)
        self.libc.prctl(MARK, None)
        result = self.libc.syscall(head, *words)
        if result == -1:
            result = -ctypes.get_errno()
        when = ("EXIT", "BOTH") if result < 0 else ("EXIT", "BOTH", "SUCCESS")
        exit_ = self.captures(rules, when, args, result)
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
