# SPDX-License-Identifier: Apache-2.0
"""How the C core is built: cffi in API mode, module ``otel_perfbuf._core._core``.

The declarations are cut from the headers (between ``/* cffi: begin */`` and ``/* cffi: end */``), so there is no second
copy of them. What it is not: it builds no BPF objects and not libbpf's binding (otel_perfbuf/bpf).

``ffibuilder`` and ``fast_extension`` are for setup.py; run as a program it builds both in place, and ``rings._sys``.
``OTEL_PERFBUF_SANITIZE=1`` builds with AddressSanitizer and UndefinedBehaviorSanitizer: such a module loads only in a
process that has libasan preloaded. All paths are relative to the checkout's root, as setuptools wants them.
Source: https://cffi.readthedocs.io/en/stable/cdef.html
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import cffi
from setuptools import Extension

__all__ = ["compile_args", "cut_declarations", "fast_extension", "ffibuilder", "link_args"]

ROOT = Path(__file__).resolve().parents[2]
CORE = Path("otel_perfbuf/_core")
# In the order of their includes: a declaration stands before its use.
HEADERS = (
    Path("bpf/records.h"),
    *(CORE / f"{name}.h" for name in ("status", "ring", "ringbuf", "history", "redact", "plan", "fd_names")),
    *(CORE / f"{name}.h" for name in ("reading", "otlp", "otlp_scan", "otlp_group")),
)
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


def cut_declarations(text: str, where: str) -> str:
    """The parts of a header between the cffi marks, in order; ValueError when there is none or a mark is alone."""
    parts = re.findall(r"/\* cffi: begin \*/(.*?)/\* cffi: end \*/", text, re.DOTALL)
    if not parts or len(parts) != text.count("/* cffi: begin") or len(parts) != text.count("/* cffi: end"):
        raise ValueError(f"{where}: the marks '/* cffi: begin */' and '/* cffi: end */' do not come in pairs")
    return "".join(parts)


def _sanitized() -> bool:
    return os.environ.get("OTEL_PERFBUF_SANITIZE", "") not in ("", "0")


def compile_args() -> list[str]:
    """Flags for all C, cffi's generated part too: warnings are errors."""
    warnings = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
    return [*warnings, "-O1", "-g", *SANITIZE] if _sanitized() else [*warnings, "-O2"]


def link_args() -> list[str]:
    """The sanitizers' run time where they were asked for."""
    return SANITIZE[:1] if _sanitized() else []


def _make_core() -> cffi.FFI:
    """The builder of the core: every C file beside this one but those with an underscore in front (_fast's)."""
    builder = cffi.FFI()
    for header in HEADERS:
        builder.cdef(cut_declarations((ROOT / header).read_text(encoding="utf-8"), str(header)))
    ours = [path.name for path in sorted((ROOT / CORE).glob("*.c")) if not path.name.startswith("_")]
    builder.set_source(
        "otel_perfbuf._core._core",
        "".join(f'#include "{header.name}"\n' for header in HEADERS),
        sources=[str(CORE / name) for name in ours],
        include_dirs=["bpf", str(CORE)],
        depends=[str(path.relative_to(ROOT)) for path in sorted([*(ROOT / CORE).glob("*.h"), ROOT / "bpf/records.h"])],
        libraries=["pcre2-8"],
        extra_compile_args=compile_args(),
        extra_link_args=link_args(),
    )
    return builder


ffibuilder = _make_core()

fast_extension = Extension(
    "otel_perfbuf._core._fast",
    sources=[str(CORE / "_fast.c"), str(CORE / "_fast_objects.c")],
    include_dirs=["bpf", str(CORE)],
    depends=[str(CORE / name) for name in ("_fast.h", "ring.h", "status.h")],
    extra_compile_args=compile_args(),
    extra_link_args=link_args(),
)


def _build_in_place() -> None:
    from setuptools import Distribution

    os.chdir(ROOT)
    extensions = [ffibuilder.distutils_extension(tmpdir="build/core")]
    extensions[0].sources = [os.path.relpath(source) for source in extensions[0].sources]
    if (ROOT / CORE / "_fast.c").exists():
        extensions.append(fast_extension)
    sys_builder = ROOT / "otel_perfbuf/rings/build_sys.py"
    if sys_builder.exists():
        extensions.append(runpy.run_path(str(sys_builder))["ffibuilder"].distutils_extension(tmpdir="build/core"))
    distribution = Distribution({"name": "otel_perfbuf", "ext_modules": extensions, "packages": []})
    command = distribution.get_command_obj("build_ext")
    command.inplace = True
    command.build_temp = "build/core/sanitized" if _sanitized() else "build/core/plain"
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    _build_in_place()
