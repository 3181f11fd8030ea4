# SPDX-License-Identifier: Apache-2.0
"""How ``otel_perfbuf.rings._sys`` is built: sys.c through cffi.

Why cffi and not ctypes: ``perf_event_attr`` is bit fields and grows with kernels, and the compiler takes it from the
kernel's own header; a second copy in Python would be ours to keep right. It stands beside the core and not in it, since
the core knows no files. Source: sys.h, whose marked part is the declaration.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import cffi

ROOT = Path(__file__).resolve().parents[2]
RINGS = Path("otel_perfbuf/rings")
_core_build = runpy.run_path(str(ROOT / "otel_perfbuf/_core/build.py"))

ffibuilder = cffi.FFI()
ffibuilder.cdef(_core_build["cut_declarations"]((ROOT / RINGS / "sys.h").read_text(encoding="utf-8"), "sys.h"))
ffibuilder.set_source(
    "otel_perfbuf.rings._sys",
    '#include "sys.h"\n',
    sources=[str(RINGS / "sys.c")],
    include_dirs=[str(RINGS)],
    depends=[str(RINGS / "sys.h")],
    extra_compile_args=_core_build["compile_args"](),
    extra_link_args=_core_build["link_args"](),
)
