# SPDX-License-Identifier: Apache-2.0
"""What the calls in flight point to: their input strings, read from the living process at the dump.

Facts: strings are captured in the kernel when a call ends (resident then); the call that hangs has not ended. Meaning:
its arguments' memory is still there, in the process that waits in it. Decision: read it from /proc/PID/mem as ENTRY
records of the same (instance, sequence), the form in which the programs send what they capture at enter, so the engine
joins both alike; then read the pages once more and keep only what belongs to calls that are still the same. Cost: a
second run of the task iterator (0.1 ms) and one pread a string.

Threads that were blocked since before recording have no open call in their page; the call is in /proc/PID/task/TID/
syscall and becomes a page of our own making (PB_FLAG_BEGAN_BEFORE: no start, no age).
Source: bpf/records.h; proc_pid_mem(5), proc_pid_syscall(5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from otel_perfbuf._core._core import ffi, lib

__all__ = ["EntryFrames", "OpenCall", "blocked_before", "open_calls", "page_processes", "read_entries"]

_HEAD = ffi.sizeof("struct pb_page_head")
_SAMPLE = ffi.sizeof("struct pb_sample")
_RECORD = ffi.sizeof("struct pb_record")
_SYSCALL = ffi.sizeof("struct pb_syscall")
_PERF_RECORD_SAMPLE = 9
_MAX_CALLS = 4096


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A page's call in flight; ``key`` is (instance, sequence)."""

    key: tuple[int, int]
    tid: int
    tgid: int
    process_start_ns: int
    comm: bytes
    number: int
    arguments: tuple[int, ...]


def _pages(data: bytes) -> Iterator[tuple[Any, Any]]:
    """(head, sample) of each page in the iterator's output; stops at bytes that cannot be a page."""
    buffer = ffi.from_buffer("uint8_t[]", data)
    at = 0
    while at + _HEAD + _SAMPLE <= len(data):
        head = ffi.cast("struct pb_page_head *", buffer + at)
        sample = ffi.cast("struct pb_sample *", buffer + at + _HEAD)
        if sample.version != lib.PB_VERSION or sample.bytes < _SAMPLE:
            return
        yield head, sample
        at += _HEAD + int(sample.bytes)


def open_calls(pages: bytes) -> list[OpenCall]:
    """The calls in flight of all pages that could be read in one piece."""
    calls = []
    for head, sample in _pages(pages):
        if not head.flags & lib.PB_PAGE_OPEN or head.flags & lib.PB_PAGE_TORN:
            continue
        call = head.open
        calls.append(
            OpenCall(
                (int(sample.instance), int(call.record.sequence)),
                int(sample.tid),
                int(sample.tgid),
                int(sample.process_start_ns),
                bytes(sample.comm),
                int(call.number),
                tuple(int(value) for value in call.args),
            )
        )
    return calls


def page_processes(pages: bytes) -> set[tuple[int, int]]:
    """(tgid, start) of every process that has a recorded thread in ``pages``: those were alive then."""
    return {
        (int(sample.tgid), int(sample.process_start_ns))
        for head, sample in _pages(pages)
        if head.flags & lib.PB_PAGE_TARGET
    }


def _rules(rules: Any, row: Any, call: OpenCall) -> Iterator[Any]:
    """The rules of the call's inputs: of each argument's own memory the first whose conditions hold."""
    done = set()
    for rule in rules.captures[row.first : row.first + row.count]:
        if rule.part or rule.argument in done or rule.when == lib.PB_AT_SUCCESS:
            continue
        pairs = zip(rule.if_argument, rule.if_mask, rule.if_value, strict=True)
        if all(call.arguments[argument] & mask == value for argument, mask, value in pairs):
            done.add(rule.argument)
            yield rule


def _capture(rule: Any, call: OpenCall, memory: int) -> bytes | None:
    """One input argument as a struct pb_capture with its data, or None for what the call itself writes."""
    address = call.arguments[rule.argument] + (0 if rule.behind else int(rule.offset))
    if rule.kind == lib.PB_CAPTURE_STRING:
        wanted = int(rule.max_bytes)
    elif rule.kind in (lib.PB_CAPTURE_BUFFER, lib.PB_CAPTURE_SOCKADDR, lib.PB_CAPTURE_STRUCT):
        if rule.length_from == lib.PB_LENGTH_FIXED:
            wanted = int(rule.length)
        elif rule.length_from == lib.PB_LENGTH_ARGUMENT:
            wanted = call.arguments[rule.length]
        elif rule.length_from in (lib.PB_LENGTH_UINT, lib.PB_LENGTH_INT):
            wanted = call.arguments[rule.length] & 0xFFFFFFFF
            if rule.length_from == lib.PB_LENGTH_INT and wanted >> 31:
                return None
        elif rule.length_from == lib.PB_LENGTH_BITS:
            wanted = ((call.arguments[rule.length] & 0x7FFFFFFF) + 63) // 64 * 8
        else:
            return None
        wanted *= int(rule.scale) or 1
    else:
        return None
    if not address or address >= 1 << 63:
        return None
    extent = min(wanted, 0xFFFF)
    try:
        data = _read(memory, address, min(wanted, int(rule.max_bytes)))
    except OSError:
        return None
    flags = 0
    if rule.kind == lib.PB_CAPTURE_STRING:
        text, terminator, _ = data.partition(b"\0")
        flags = 0 if terminator else lib.PB_CAPTURE_CUT
        data, extent = text, len(text)
    elif len(data) < wanted:
        flags = lib.PB_CAPTURE_CUT
    head = ffi.new("struct pb_capture *")
    head.argument, head.kind, head.flags = rule.argument, rule.kind, flags
    head.bytes, head.extent = len(data), extent
    return bytes(ffi.buffer(head)) + data + bytes(-len(data) % 8)


def _read(memory: int, address: int, size: int) -> bytes:
    """Up to ``size`` bytes; what lies before an unmapped page when the rest is not there."""
    try:
        return os.pread(memory, size, address)
    except OSError:
        in_page = 4096 - address % 4096
        if in_page >= size:
            raise
        return os.pread(memory, in_page, address)


def _entry_sample(call: OpenCall, captures: list[bytes]) -> bytes:
    body = b"".join(captures)
    record = ffi.new("struct pb_record *")
    record.bytes, record.kind, record.captures = _RECORD + len(body), lib.PB_RECORD_ENTRY, len(captures)
    record.sequence = call.key[1]
    sample = ffi.new("struct pb_sample *")
    sample.version, sample.kind = lib.PB_VERSION, lib.PB_SAMPLE_SINGLE
    sample.bytes = _SAMPLE + _RECORD + len(body)
    sample.tid, sample.tgid = call.tid, call.tgid
    sample.instance, sample.process_start_ns = call.key[0], call.process_start_ns
    sample.comm = call.comm
    return bytes(ffi.buffer(sample)) + bytes(ffi.buffer(record)) + body


class EntryFrames:
    """ENTRY samples of our own making, in the form of a reader's batch (history.Frames)."""

    def __init__(self, samples: list[bytes]) -> None:
        self._data = b"".join(samples) or b"\0"
        self.arena: Any = ffi.from_buffer("uint8_t[]", self._data)
        self.frame_count = len(samples)
        self.frames: Any = ffi.new("struct pb_frame[]", max(len(samples), 1))
        at = 0
        for frame, sample in zip(self.frames, samples, strict=False):
            frame.offset, frame.bytes, frame.type = at, len(sample), _PERF_RECORD_SAMPLE
            at += len(sample)


def read_entries(pages: bytes, syscall_rules: bytes, read_pages: Callable[[], bytes]) -> EntryFrames:
    """Input strings and buffers of the calls in flight in ``pages``, of those that are still in the same call.

    ``syscall_rules`` is the programs' rodata (struct pb_rules). Processes that are gone, or whose
    memory may not be read, are passed over: their arguments stay addresses.
    """
    rules = ffi.from_buffer("struct pb_rules *", syscall_rules)
    read: list[tuple[OpenCall, list[bytes]]] = []
    memories: dict[int, int] = {}
    try:
        for call in open_calls(pages)[:_MAX_CALLS]:
            if call.number >= lib.PB_SYSCALLS:
                continue
            row = rules.syscalls[call.number]
            if row.enter_rules or not row.exit_rules:
                continue
            try:
                if call.tgid not in memories:
                    memories[call.tgid] = os.open(f"/proc/{call.tgid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            captures = [_capture(rule, call, memories[call.tgid]) for rule in _rules(rules, row, call)]
            if found := [capture for capture in captures if capture is not None]:
                read.append((call, found))
    finally:
        for memory in memories.values():
            os.close(memory)
    if not read:
        return EntryFrames([])
    still = {call.key for call in open_calls(read_pages())}
    return EntryFrames([_entry_sample(call, captures) for call, captures in read if call.key in still])


def blocked_before(pages: bytes, syscall_rules: bytes, *, record_unknown: bool) -> bytes:
    """Pages of our own making for threads that have been in one call since before recording began.

    ``syscall_rules`` and ``record_unknown`` as the program has them: a call that it filters out is none here either.
    """
    rules = ffi.from_buffer("struct pb_rules *", syscall_rules)
    made = []
    for head, sample in _pages(pages):
        if head.flags & lib.PB_PAGE_OPEN or head.last_sequence or not head.flags & lib.PB_PAGE_TARGET:
            continue
        # ENTERED without a sequence: it is in a call that is filtered out, or between two of them.
        if head.flags & (lib.PB_PAGE_WAIT_EXEC | lib.PB_PAGE_TORN | lib.PB_PAGE_FRESH | lib.PB_PAGE_ENTERED):
            continue
        try:
            with open(f"/proc/{sample.tgid}/task/{sample.tid}/syscall", encoding="ascii") as file:
                words = file.read().split()
        except OSError:
            continue
        if len(words) < 7 or not words[0].isdigit():
            continue
        number = int(words[0])
        recorded = record_unknown
        if number < lib.PB_SYSCALLS:
            recorded = bool(rules.syscalls[number].flags & lib.PB_SYSCALL_RECORDED)
        if not recorded:
            continue
        new = ffi.new("struct pb_page_head *")
        ffi.memmove(new, head, _HEAD)
        new.flags = head.flags | lib.PB_PAGE_OPEN
        call = new.open
        call.record.bytes, call.record.kind = _SYSCALL, lib.PB_RECORD_SYSCALL
        call.record.flags, call.record.arguments = lib.PB_FLAG_BEGAN_BEFORE, 6
        call.record.sequence, call.record.time_ns = 1, sample.instance
        call.number = number
        for index in range(6):
            call.args[index] = int(words[1 + index], 16)
        alone = ffi.new("struct pb_sample *")
        ffi.memmove(alone, sample, _SAMPLE)
        alone.bytes, alone.records = _SAMPLE, 0
        new.used = 0
        made.append(bytes(ffi.buffer(new)) + bytes(ffi.buffer(alone)))
    return b"".join(made)
