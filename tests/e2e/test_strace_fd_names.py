# SPDX-License-Identifier: Apache-2.0
"""fds by name against `strace -f -y`, in one run: what the recorder shows is what strace saw in /proc, or nothing.

strace asks the kernel at every call; the recorder has the records alone. So a name may be missing, but never another.
Known differences: a path is the one that was asked for, strace's has no symbolic links; pipes and sockets have no
inode here (strace: <pipe:[17]>), and are compared by their kind.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from recording import record
from strace_log import read_strace
from test_strace import calls_of_both, read_chunks

_NAMED = re.compile(r"(?<![\w\"])(-?\d+|AT_FDCWD)(<(?:[^<>\"]|\\.)*>(?:\(deleted\))?)?")
_INODE = re.compile(r":\[(\d+)\]>$")
_PYTHON = """
import os, select, socket, subprocess, sys, threading
open(sys.argv[1] + '/a<b', 'w').write('x')
pair = socket.socketpair(); pair[0].send(b'a'); pair[1].recv(1)
r, w = os.pipe(); os.write(w, b'y'); os.read(r, 1)
event, poll, memory = os.eventfd(1), select.epoll(), os.memfd_create('hello')
os.write(memory, b'z'); copy = os.dup(memory); os.lseek(copy, 0, 0)
folder = os.open(sys.argv[1], os.O_RDONLY); file = os.open('a<b', os.O_RDONLY, dir_fd=folder); os.read(file, 5)
os.chdir(sys.argv[1]); other = os.open('a<b', os.O_RDONLY); os.dup2(other, 50); os.read(50, 3)
os.set_inheritable(50, True)
def work(number):
    for _ in range(50):
        with open('t%d' % number, 'w') as out: out.write('1')
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
subprocess.run(['/bin/cat', '/etc/hostname'], close_fds=False, stdout=subprocess.DEVNULL)
os.close(file); os.lseek(50, 0, 0)
"""
_SHELL = "cd /etc; (cat hostname; exec 5<hosts; cat <&5 | wc -l) >/dev/null 2>&1; echo x >/dev/null"


def _names(line: str) -> list[tuple[str, str]]:
    """(fd, name) of everything in a line that looks like an fd with or without a name, strings left out."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
    return [(fd, name) for fd, name in _NAMED.findall(bare)]


def _plain(name: str) -> str:
    """A pipe or socket without its inode; a path without symbolic links."""
    if name.startswith("</") and name.endswith(">"):
        path = re.sub(r"^/proc/(?:self|\d+)/", "/proc/PID/", name[1:-1])
        return f"<{os.path.realpath(path)}>"
    return _INODE.sub(">", name).replace("<socket>", "<UNIX-STREAM>")


@pytest.mark.parametrize("command", ["python", "shell", "grep"])
def test_names_are_straces_or_missing(command: str, tmp_path: Path) -> None:
    """Files, copies, pipes, event fds, a changed directory, threads, children with inherited and closed fds."""
    (tmp_path / "p.py").write_text(_PYTHON)
    words = {
        "python": [sys.executable, "-S", "-E", str(tmp_path / "p.py"), str(tmp_path)],
        "shell": ["/bin/sh", "-c", _SHELL],
        "grep": ["grep", "-r", "root", "/etc/apt"],
    }[command]
    assert shutil.which("strace"), "strace is needed: make .cache/stamp/system-test"
    output, dump_file = tmp_path / "strace.txt", tmp_path / "dump.binpb"
    options = ["--on", "always", "--window", "all", "--per-cpu-bytes", "16MiB", "--format", "otlp_proto", "-s", "32"]
    record(*options, "-o", dump_file, command=["strace", "-f", "-y", "-a1", "-o", output, *words], cwd=tmp_path)
    both = calls_of_both(read_chunks(dump_file.read_bytes()), read_strace(output.read_text(errors="replace")))
    counts: Counter[str] = Counter()
    wrong = []
    for theirs, ours in both:
        for (fd, expected), (our_fd, shown) in zip(_names(theirs), _names(ours), strict=False):
            if fd != our_fd or not expected:
                continue
            counts["all"] += 1
            if _plain(shown) == _plain(expected):
                counts["equal"] += 1
            elif shown:
                wrong.append((theirs, ours))
    assert not wrong, wrong[:5]
    assert counts["all"] > 20
    assert counts["equal"] >= 0.95 * counts["all"], counts
