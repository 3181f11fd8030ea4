# SPDX-License-Identifier: Apache-2.0
"""Builds what is not Python: the BPF objects, the cffi modules and the small CPython extension.

Not the metadata: that is pyproject.toml's. `OTEL_PERFBUF_SDK_ONLY=1` builds none of this, for applications that only
need `otel_perfbuf.sdk`. A missing system package ends the build with one sentence that names it.
Source: setuptools' sub-command protocol (`setuptools.command.build`), cffi's `cffi_modules` in its C-extension form.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SDK_ONLY = os.environ.get("OTEL_PERFBUF_SDK_ONLY", "") not in ("", "0")
CORE_BUILD = Path("otel_perfbuf/_core/build.py")
CFFI_BUILDS = (CORE_BUILD, Path("otel_perfbuf/rings/build_sys.py"), Path("otel_perfbuf/bpf/build_libbpf.py"))

# What a build needs -> the Debian and Ubuntu package that has it.
HEADERS = {"stdio.h": "libc6-dev", "Python.h": "python3-dev", "bpf/libbpf.h": "libbpf-dev", "pcre2.h": "libpcre2-dev"}


def extensions() -> list[Extension]:
    """The C extensions of this checkout; headers are dependencies, so that a changed one rebuilds them."""
    if SDK_ONLY:
        return []
    sys.path.insert(0, str(ROOT))  # one build script may take helpers from another
    Path("build").mkdir(exist_ok=True)
    found: list[Extension] = [runpy.run_path(str(CORE_BUILD))["fast_extension"]]
    for script in CFFI_BUILDS:
        builder = runpy.run_path(str(script))["ffibuilder"]
        # Writes the generated C when it has changed, and tells so; the compiler runs in build_ext.
        with contextlib.redirect_stdout(None):
            found.append(builder.distutils_extension(tmpdir="build/cffi"))
    for extension in found:
        extension.depends = [*extension.depends, *c_sources()]
    return found


def c_sources() -> list[str]:
    """Every C file that an extension may include or be built from."""
    return sorted(str(path) for folder in ("bpf", "otel_perfbuf/*") for path in Path().glob(f"{folder}/*.[ch]"))


def require_packages() -> None:
    """Ends the build in one sentence when something of the system is missing: all of it, with the packages' names.

    SystemExit, because setuptools prints a traceback for any Exception.
    """
    missing = {tool: tool for tool in ("make", "clang") if shutil.which(tool) is None}
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        missing |= {f"the C compiler {compiler[0]}": "gcc", **HEADERS}
    else:
        missing |= {header: package for header, package in HEADERS.items() if not has_header(compiler, header)}
    if missing:
        raise SystemExit(
            f"Building otel-perfbuf stopped: {', '.join(missing)} not found; on Debian or Ubuntu run "
            f"`apt-get install {' '.join(missing.values())}` "
            "(or set OTEL_PERFBUF_SDK_ONLY=1 to install otel_perfbuf.sdk alone)."
        )


def has_header(compiler: list[str], header: str) -> bool:
    """Whether the compiler finds a header; it is asked, since only it knows its own paths."""
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [*compiler, "-E", include, "-DPCRE2_CODE_UNIT_WIDTH=8", "-x", "c", "-o", os.devnull, "-"]
    return subprocess.run(command, input=f"#include <{header}>\n", text=True, capture_output=True).returncode == 0


class BuildBpf(Command):
    """`build_bpf`: makes otel_perfbuf/bpf/objects/*.bpf.o, before build_py collects them as package data."""

    description = "compile the BPF programs"
    user_options: ClassVar[list[tuple[str, str, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        """Has no options."""

    def finalize_options(self) -> None:
        """Has no options."""

    def run(self) -> None:
        """Runs bpf/Makefile, which is incremental."""
        if SDK_ONLY:
            return
        require_packages()
        if subprocess.run(["make", "--no-print-directory", "-s", "-C", "bpf"]).returncode:
            raise SystemExit(
                "Building otel-perfbuf stopped: the BPF programs did not compile; clang's words are above."
            )

    def get_source_files(self) -> list[str]:
        """What an sdist needs of this command: MANIFEST.in names it."""
        return []

    def get_outputs(self) -> list[str]:
        """None of its own: build_py copies the objects as package data."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """None of its own."""
        return {}


class Build(build):
    """`build` with the BPF objects first."""

    sub_commands: ClassVar = [("build_bpf", None), *build.sub_commands]


class BuildExt(build_ext):
    """`build_ext` that first says what is missing."""

    def run(self) -> None:
        """Builds the extensions."""
        if self.extensions:
            require_packages()
        super().run()


os.chdir(ROOT)
setup(ext_modules=extensions(), cmdclass={"build": Build, "build_bpf": BuildBpf, "build_ext": BuildExt})
