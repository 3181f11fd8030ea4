# SPDX-License-Identifier: Apache-2.0
"""No secret leaves: one program that holds it in every place that is recorded, and everything that `record` writes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from recording import parse_lines, record

SECRET = "hunter2-is-the-secret"
PROGRAM = f"""
import os, socket, subprocess, sys, threading
SECRET = "{SECRET}"
print("password=" + SECRET, flush=True)
os.writev(1, [b"Authorization: Basic ", SECRET.encode(), b"\\r\\n"])
os.write(1, ('{{"password": "' + SECRET + '", "n": 1}}\\n').encode())
os.write(1, b"HOME=/\\0DB_PASS=" + SECRET.encode() + b" x\\0")
os.write(1, b"-" * 40 + b" postgres://joe:" + SECRET.encode() * 20)
for path in ("/no/token=" + SECRET, "\\0token=" + SECRET):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        for act in (lambda: sock.connect(path), lambda: sock.sendmsg([b"x"], [], 0, path)):
            try:
                act()
            except OSError:
                pass
try:
    open("/no/such?api_key=" + SECRET)
except OSError:
    pass
with open(os.path.join(sys.argv[1], "token=" + SECRET), "w") as file:
    file.write("x")
open("/proc/self/comm", "w").write("pwd_token=" + SECRET[:5])
try:
    os.execvp("/no/program", ["program", "--password", SECRET, "--token=" + SECRET, "-p" + SECRET])
except OSError:
    pass
subprocess.run([os.path.join(sys.argv[1], "secret=" + SECRET), "-c", "exit 0"])
sys.exit(3)
"""


@pytest.mark.parametrize("form", ["otlp_json", "otlp_proto", "text"])
def test_no_secret_is_in_what_record_writes(tmp_path: Path, form: str) -> None:
    """Strings, buffers, buffers of one writev, argv, addresses, fds' names, a thread's and an executable's: all."""
    folder = tmp_path / "work"
    folder.mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    shutil.copy(shutil.which("sh") or "/bin/sh", folder / f"secret={SECRET}")
    output = tmp_path / "dump"
    options = ["--on", "exit", "--window", "all", "--buffers", "content", "-o", output, "--format", form]
    done = record(*options, command=[sys.executable, program, folder])
    assert done.returncode == 3, done.stderr
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith("dump"))
    assert b"pwd_token=[REDA" in written or form == "text"
    assert b"--token=[REDACTED]" in written
    for part in range(5, len(SECRET) + 1):
        assert SECRET[:part].encode() not in written
    assert SECRET[:5] not in done.stderr
    if form == "otlp_json":
        header = parse_lines(output.read_text()).header
        redactions = header["perfbuf.dump.redactions"]
        assert isinstance(redactions, int)
        assert redactions > 15
