# SPDX-License-Identifier: Apache-2.0
"""What this host can record, found by trying, never guessed from a version. Source: bpf(2), FACTS 14 and 15.

What it is not: it decides nothing; `otel-perfbuf check` prints it. It leaves no map and no program behind.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from otel_perfbuf.errors import ConfigError, KernelError

from .features import FEATURES, load_builtin, refusal
from .object import is_locked_down

__all__ = ["Finding", "probe_bpf"]

_CAPABILITIES = {39: "CAP_BPF", 38: "CAP_PERFMON", 19: "CAP_SYS_PTRACE", 2: "CAP_DAC_READ_SEARCH", 14: "CAP_IPC_LOCK"}
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Finding:
    """One capability of the host; ``required``: the syscall recorder cannot run without it."""

    name: str
    ok: bool
    required: bool
    detail: str
    way_out: str = ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _kernel() -> Finding:
    return Finding("kernel", True, False, f"Linux {platform.release()} {platform.machine()}")


def _btf() -> Finding:
    path = "/sys/kernel/btf/vmlinux"
    there = os.path.exists(path)
    return Finding(
        "btf", there, True, path if there else f"{path} is not there", "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
    )


def _capabilities() -> Finding:
    line = next((each for each in _read("/proc/self/status").splitlines() if each.startswith("CapEff:")), "CapEff: 0")
    effective = int(line.split()[1], 16)
    if effective >> _CAP_SYS_ADMIN & 1:
        return Finding("capabilities", True, True, "CAP_SYS_ADMIN, which stands for CAP_BPF and CAP_PERFMON")
    missing = [name for bit, name in _CAPABILITIES.items() if not effective >> bit & 1]
    needed = {"CAP_BPF", "CAP_PERFMON"}
    detail = f"missing {', '.join(missing)}" if missing else "all that are used"
    return Finding("capabilities", not needed & set(missing), True, detail, "run as root, or with these capabilities")


_FORMS = {
    "syscalls_held": "with task storage, holding the CPU",
    "syscalls": "with task storage",
    "syscalls_plain": "plainly: a hash table of threads",
}


def _recorder() -> Finding:
    """The programs are loaded for real (and freed), in the form that this kernel takes."""
    name = "flight recorder"
    try:
        with load_builtin("syscalls") as program:
            form = _FORMS[program.name]
    except (KernelError, ConfigError) as error:
        first = str(error).splitlines()[0]
        return Finding(name, False, True, f"the programs do not load: {first}", "needs root and Linux 5.10 with BTF")
    return Finding(name, True, True, f"the programs load ({form})")


def _feature(name: str) -> Finding:
    error = refusal(name)
    detail = "there" if error is None else f"refused: {os.strerror(error.errno or 0)}"
    return Finding(name, error is None, False, detail)


def _memlock() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
    per_cpu = _read("/proc/sys/kernel/perf_event_mlock_kb")
    return Finding("locked memory", True, False, f"RLIMIT_MEMLOCK {limit}, perf_event_mlock_kb {per_cpu or 'unknown'}")


def _tracefs() -> Finding:
    for path in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        if os.path.isdir(f"{path}/events/syscalls"):
            return Finding("tracefs", True, False, path)
    return Finding(
        "tracefs",
        False,
        False,
        "not mounted: the shipped syscall table is used",
        "mount -t tracefs none /sys/kernel/tracing",
    )


def _lockdown() -> Finding:
    text = _read("/sys/kernel/security/lockdown")
    closed = is_locked_down()
    return Finding(
        "lockdown",
        not closed,
        True,
        text or "not in this kernel",
        "boot without lockdown=confidentiality: it forbids BPF to read memory",
    )


def _unprivileged() -> Finding:
    return Finding(
        "unprivileged bpf",
        True,
        False,
        f"unprivileged_bpf_disabled {_read('/proc/sys/kernel/unprivileged_bpf_disabled') or 'unknown'}",
    )


def _pid_namespace() -> Finding:
    """The initial pid namespace has a fixed inode number (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""
    initial = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    return Finding(
        "pid namespace",
        initial,
        False,
        "the host's own" if initial else "a container's: the last calls of other namespaces' threads are not read",
        "run with hostPID: true (Kubernetes) or --pid=host",
    )


_PROBES: tuple[Callable[[], Finding], ...] = (
    _kernel,
    _btf,
    _capabilities,
    _lockdown,
    _recorder,
    *(partial(_feature, name) for name in FEATURES),
    _memlock,
    _tracefs,
    _unprivileged,
    _pid_namespace,
)


def probe_bpf() -> list[Finding]:
    """Every capability that is not of rings (otel_perfbuf/rings/probe.py), in the order in which they are shown."""
    return [probe() for probe in _PROBES]
