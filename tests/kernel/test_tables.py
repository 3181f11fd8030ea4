# SPDX-License-Identifier: Apache-2.0
"""The shipped syscall tables against the running kernel: names and types by tracefs, numbers by making the calls.

Calls are made by a child in its own trace instance, filtered to its pid; the instance is removed afterwards.
Source: /sys/kernel/tracing/events/syscalls.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_perfbuf.records.syscalls import TRACEFS_ROOTS, load_syscalls, parse_format, shipped_syscalls

ROOT = next((root for root in TRACEFS_ROOTS if (root / "events/syscalls").is_dir()), None)
pytestmark = [
    pytest.mark.skipif(
        ROOT is None, reason="needs tracefs with syscall events: mount -t tracefs tracefs /sys/kernel/tracing"
    ),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="makes calls by x86-64 numbers"),
]


def events() -> Path:
    """The directory of the syscall events."""
    assert ROOT is not None
    return ROOT / "events/syscalls"


def test_tracefs_and_the_shipped_table_have_the_same_arguments() -> None:
    """Every event of the running kernel is in the table, under its kernel name, with the same types and names."""
    by_kernel_name = {syscall.kernel_name: syscall for syscall in shipped_syscalls("x86_64").values()}
    different, missing = {}, []
    for path in sorted(events().glob("sys_enter_*")):
        name = path.name.removeprefix("sys_enter_")
        if name not in by_kernel_name:
            missing.append(name)
            continue
        parameters = parse_format((path / "format").read_text())
        if parameters != by_kernel_name[name].parameters:
            different[name] = (parameters, by_kernel_name[name].parameters)
    major, minor = map(int, platform.release().split(".")[:2])
    assert missing == [] or (major, minor) > (6, 18)  # newer than the kernel that the table was made on
    assert len(missing) < 20
    assert len(by_kernel_name) > 350
    if platform.release().startswith("6.18."):
        # the kernel that the table was made on; stable releases of it tell kexec_load's entry as a number or an address
        assert different.keys() <= {"kexec_load"}
    else:
        changed_count = {name for name, (ours, theirs) in different.items() if len(ours) != len(theirs)}
        assert changed_count <= {"bpf"}  # 7.3 has two more behind the three; the shipped row stays


def test_the_running_kernels_names_are_taken() -> None:
    """load_syscalls reads tracefs: openat's second argument has the kernel's name for it."""
    text = (events() / "sys_enter_openat/format").read_text()
    assert load_syscalls()[257].parameters == parse_format(text)
    assert len(parse_format(text)) == 4


@pytest.fixture
def instance() -> Iterator[Path]:
    """A trace instance of our own."""
    assert ROOT is not None
    path = ROOT / "instances" / f"perfbuf_test_{os.getpid()}"
    path.mkdir()
    yield path
    (path / "events/enable").write_text("0")
    path.rmdir()


# Calls that would end, stop, change or wait for something even with impossible arguments, by number.
NEVER = {
    "exit", "exit_group", "pause", "fork", "vfork", "clone", "clone3", "rt_sigreturn", "rt_sigsuspend", "kill",
    "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "vhangup", "reboot", "seccomp", "ppoll", "pselect6",
    "select", "poll", "close_range", "uretprobe", "uprobe", "restart_syscall", "sync", "syncfs", "munlockall",
    "ptrace", "arch_prctl", "prctl", "msgget", "setsid", "sched_setscheduler", "personality", "unshare", "iopl",
    "userfaultfd", "acct", "syslog",
}  # fmt: skip

CHILD = """
import ctypes, sys
syscall = ctypes.CDLL(None).syscall
print(flush=True)
sys.stdin.readline()
for number in map(int, sys.argv[1:]):
    syscall(ctypes.c_long(number), *[ctypes.c_ulong((1 << 64) - 1)] * 6)
"""


def test_numbers_are_the_kernels(instance: Path) -> None:
    """Each number, called, is announced by the event of the name that the table gives it."""
    table = {number: s for number, s in shipped_syscalls("x86_64").items() if s.name not in NEVER}
    # without an event nothing would be seen: not in this kernel
    numbers = [number for number, s in table.items() if (events() / f"sys_enter_{s.kernel_name}").exists()]
    command = [sys.executable, "-S", "-E", "-c", CHILD, *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (instance / "set_event_pid").write_text(str(child.pid))
        (instance / "buffer_size_kb").write_text("2048")
        (instance / "events/syscalls/enable").write_text("1")
        child.communicate(b"\n", timeout=60)
        assert child.returncode == 0
    (instance / "events/syscalls/enable").write_text("0")
    text = (instance / "trace").read_text()
    seen = re.findall(r": sys_(\w+)\(", text)
    wanted = [table[number].kernel_name for number in numbers]
    remaining = iter(seen)
    absent = [name for name in wanted if not any(name == found for found in remaining)]
    assert absent == []
    assert {451, 462, 469} <= set(numbers) or not platform.release().startswith("6.18.")
