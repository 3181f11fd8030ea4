# SPDX-License-Identifier: Apache-2.0
"""What is in a guest: the project as it is built here, its tests, the programs that they run, and tests/vm/init.

What it is not: the archive's format (archive.py).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from archive import Archive

__all__ = ["pack"]

# What the kernel tests and those end-to-end tests that need neither network nor compiler run.
PROGRAMS = (
    *("sh", "bash", "busybox", "bpftool", "strace", "true", "false", "cat", "ls", "sleep", "grep", "kill", "dd", "env"),
    *("mount", "umount", "unshare", "setpriv", "wc", "test", "head", "tail", "sort", "prlimit", "taskset", "echo"),
)
FILES = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf")
LEFT_OUT = re.compile(r"/(\.git|\.venv|\.cache|build|dist|docs|fuzz|bench|\.[a-z]+_cache|__pycache__)(/|$)")
SLOWNESS = 10
SNAPSHOTS = "OTEL_PERFBUF_SNAPSHOTS"  # how many a race test takes: set outside, it holds in the guest


def pack(project: Path, target: Path, pytest: list[str], slowness: int = SLOWNESS) -> None:
    """Writes the initramfs; ``pytest`` are its arguments in the guest."""
    archive = Archive(target)
    try:
        for folder in ("bin", "sbin", "proc", "sys", "dev", "run", "root", "etc", "var/tmp"):
            archive.add_folder(f"/{folder}")
        archive.add_folder("/tmp", 0o1777)
        for name in PROGRAMS:
            archive.add_program(name)
        for file in FILES:
            if os.path.exists(file):
                archive.add_file(Path(file))
        archive.add_python(project / ".venv")
        archive.add_tree(project, LEFT_OUT)
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run([sys.executable, project / "tests" / "building.py", scratch], check=True)
            for program in Path(scratch).iterdir():
                archive.add_file(program, Path("/test-programs", program.name))
            text = (project / "tests/vm/init").read_text()
            settings = {
                "OTEL_PERFBUF_KERNEL_TESTS": "1",
                "OTEL_PERFBUF_TEST_PROGRAMS": "/test-programs",
                "OTEL_PERFBUF_TEST_DISPOSABLE": "1",
                "OTEL_PERFBUF_TEST_SLOWNESS": str(slowness),
            }
            if SNAPSHOTS in os.environ:
                settings[SNAPSHOTS] = os.environ[SNAPSHOTS]
            text = text.replace("@PATH@", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            text = text.replace("@PROJECT@", str(project)).replace("@PYTEST@", shlex.join(pytest))
            lines = [f"export {name}={value}" for name, value in settings.items()]
            init = Path(scratch, "init")
            init.write_text(text.replace("\ncd ", "\n" + "\n".join(lines) + "\ncd ", 1))
            init.chmod(0o755)
            archive.add_file(init, "/init")
    finally:
        archive.close()
