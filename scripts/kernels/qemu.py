# SPDX-License-Identifier: Apache-2.0
"""One guest: boots a kernel with the initramfs under QEMU's software CPU and takes what it writes on its serial ports.

Facts: KVM is not asked for by name nor by default (where it is nested it may hang on the kernel's first instructions).
QEMU 7.2 with thread=multi sometimes takes a trap that is already patched away ("int3: 0000", fixed in 8.1): that, and
nothing else, is tried once more. With thread=single both virtual CPUs take turns on one host thread: no data race
between them shows, so race tests run natively and once with thread=multi.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Boot", "boot"]

QEMU_FAULT = "int3: 0000"
MEMORY_MIB = 2048
# lockdown and bpf are compiled in everywhere but not in every kernel's default list.
APPEND = "console=ttyS0 panic=-1 quiet lsm=lockdown,capability,yama,bpf"


@dataclass(frozen=True)
class Boot:
    """What a guest left: the text of its console and of its ports (ttyS1, ttyS2), and how long it ran."""

    console: str
    ports: tuple[str, str]
    took_s: float
    in_time: bool


def _once(image: Path, initramfs: Path, folder: Path, append: str, thread: str, timeout_s: float) -> Boot:
    paths = [folder / name for name in ("console", "port1", "port2")]
    command = [
        *("qemu-system-x86_64", "-accel", f"tcg,thread={thread}", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB)),
        *("-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none"),
        *(word for path in paths for word in ("-serial", f"file:{path}")),
        *("-kernel", str(image), "-initrd", str(initramfs), "-append", f"{APPEND} {append}".strip()),
    ]
    began, in_time = time.monotonic(), True
    with (folder / "qemu").open("wb") as words:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            process.kill()
            process.wait()
    took_s = time.monotonic() - began
    console, *ports = (
        "" if not path.exists() else path.read_text(errors="replace").replace("\r", "") for path in paths
    )
    if not console:
        console = (folder / "qemu").read_text(errors="replace")
    return Boot(console, (ports[0], ports[1]), took_s, in_time)


def boot(image: Path, initramfs: Path, folder: Path, *, append: str, thread: str, timeout_s: float) -> Boot:
    """Boots once, or twice where QEMU's own fault ended the first; logs stay in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    found = _once(image, initramfs, folder, append, thread, timeout_s)
    if QEMU_FAULT in found.console:
        found = _once(image, initramfs, folder, append, thread, timeout_s)
    return found
