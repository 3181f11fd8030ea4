# SPDX-License-Identifier: Apache-2.0
"""The guest's whole root as one initramfs: interpreter, .venv, project, tests and the programs that the tests run.

Every file keeps the path that it has on the host, so that nothing needs to be moved: the interpreter, .venv and the
editable install find themselves. What it is not: a distribution; what no test needs is left out.
Source: Linux Documentation/driver-api/early-userspace/buffer-format.rst (the "newc" archive).
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

__all__ = ["Archive"]

# Of the standard library and .venv: what no kernel test imports.
UNUSED = re.compile(
    r"/(test|tests|idlelib|tkinter|_tkinter[^/]*|turtledemo|lib2to3|ensurepip|distutils|config-[^/]*-linux-gnu)(/|$)"
    r"|/site-packages/(mypy|mypyc|ruff|pip|setuptools|clang_format|librt|ast_serialize|"
    r"[a-z]+-stubs|pkg_resources|[0-9a-f]{20}__mypyc|mypy_extensions|pathspec|grpc_tools)[^/]*(/|$)"
    r"|/__pycache__(/|$)|\.(a|la|h)$"
)


class Archive:
    """Written in one go: `add_tree`, `add_program`, ..., then `close`."""

    def __init__(self, target: Path) -> None:
        self._file = target.open("wb")
        self._done: set[str] = set()
        self._inode = 0
        self._elf: list[Path] = []
        self._scratch = tempfile.TemporaryDirectory()

    def _entry(self, name: str, mode: int, data: bytes, links: int = 1) -> None:
        self._inode += 1
        path = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        self._file.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))

    def _is_new(self, path: str) -> bool:
        new = path not in self._done
        self._done.add(path)
        return new

    def add_folder(self, path: Path | str, mode: int = 0o755) -> None:
        """An empty folder, and those above it; a link among them is kept with what it leads to."""
        path = Path(path)
        if str(path) == "/" or not self._is_new(str(path)):
            return
        self.add_folder(path.parent)
        if path.is_symlink():
            self._link(path)
        else:
            self._entry(str(path)[1:], stat.S_IFDIR | mode, b"", links=2)

    def _link(self, path: Path) -> None:
        self._entry(str(path)[1:], stat.S_IFLNK | 0o777, os.fsencode(path.readlink()))
        target = path.parent / path.readlink()
        if target.is_dir():
            self.add_folder(os.path.normpath(target))
        elif target.exists():
            self.add_file(Path(os.path.normpath(target)))

    def add_file(self, path: Path, at: Path | str | None = None) -> None:
        """A file of the host (a link with what it leads to); `close` adds the libraries of programs."""
        place = Path(at or path)
        if not self._is_new(str(place)):
            return
        self.add_folder(place.parent)
        if path.is_symlink() and at is None:
            self._link(path)
            return
        data = path.read_bytes()
        self._entry(str(place)[1:], stat.S_IFREG | (path.stat().st_mode & 0o777), data)
        if data[:4] == b"\x7fELF":
            self._elf.append(path)
        if place.suffix == ".py":
            self._add_compiled(path, place)

    def _add_compiled(self, source: Path, place: Path) -> None:
        """Byte code beside it: without, a guest compiles all that it imports, at a sixth of the speed.

        Valid by its flag (PEP 552), not by the source's time: not every kernel keeps an archive's times.
        """
        compiled = place.parent / "__pycache__" / f"{place.stem}.{sys.implementation.cache_tag}.pyc"
        if not self._is_new(str(compiled)):
            return
        status, code = source.stat(), b""
        kept = Path(importlib.util.cache_from_source(source))
        if kept.exists():
            code = kept.read_bytes()
        written = (int(status.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
        if code[:16] != importlib.util.MAGIC_NUMBER + bytes(4) + written:
            target = Path(self._scratch.name, "compiled")
            if not py_compile.compile(str(source), str(target), dfile=str(place), quiet=2):
                return  # not for this interpreter
            code = target.read_bytes()
        self.add_folder(compiled.parent)
        unchecked = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
        self._entry(str(compiled)[1:], stat.S_IFREG | 0o644, unchecked + code[16:])

    def add_tree(self, top: Path, leave_out: re.Pattern[str] = UNUSED) -> None:
        """A folder with all in it whose path does not match ``leave_out``."""
        for folder, names, files in os.walk(top):
            inner = [name for name in names if not leave_out.search(f"{folder}/{name}")]
            names[:] = [name for name in inner if not Path(folder, name).is_symlink()]
            self.add_folder(folder)
            for name in sorted(files) + sorted(set(inner) - set(names)):
                if not leave_out.search(f"{folder}/{name}"):
                    self.add_file(Path(folder, name))

    def add_program(self, name: str) -> None:
        """A program by its name on PATH."""
        found = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
        if found is None:
            raise FileNotFoundError(f"packing the guest: there is no program {name} on PATH")
        self.add_file(Path(found))

    def add_python(self, venv: Path) -> None:
        """The .venv and the interpreter behind it, which is this one."""
        for name in ("stdlib", "platstdlib"):
            self.add_tree(Path(sysconfig.get_path(name, vars={"base": sys.base_prefix, "platbase": sys.base_prefix})),
                          re.compile(UNUSED.pattern + r"|/(site|dist)-packages(/|$)"))  # fmt: skip
        self.add_file(venv / "bin" / "python")
        self.add_file(venv / "pyvenv.cfg")
        self.add_tree(Path(sysconfig.get_path("purelib")))
        self.add_tree(Path(sysconfig.get_path("platlib")))

    def _add_libraries(self) -> None:
        """What the dynamic linker maps for the programs and libraries that are in, closed under itself."""
        seen: set[Path] = set()
        while waiting := [path for path in self._elf if path not in seen]:
            seen.update(waiting)
            lines = subprocess.run(["ldd", *waiting], capture_output=True, text=True, check=False).stdout.splitlines()
            for line in lines:
                match = re.search(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)$", line)
                if match:
                    self.add_file(Path(match[1]))

    def close(self) -> None:
        """Adds the libraries and ends the archive."""
        self._add_libraries()
        self._entry("TRAILER!!!", 0, b"")
        self._file.close()
        self._scratch.cleanup()
