# SPDX-License-Identifier: Apache-2.0
"""The shape of the house: imports point one way, the application side stands alone, the README names what is public.

Source: DESIGN section 3 (who must not know what), STYLE points 3 and 5.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "otel_perfbuf"

# cli -> service -> recorder, exporters -> triggers, records -> rings -> bpf, _core -> errors: a part imports itself and
# parts of a lower level. bpf is above _core, whose cffi module has the structs of bpf/records.h. The recorder makes
# payloads and the exporters send them, so it may import exporters.payload. The spool keeps what a queue sends.
LEVELS = {
    "errors": 0,
    "units": 0,
    "fluent": 1,
    "plugins": 0,
    "_core": 1,
    "bpf": 2,
    "rings": 3,
    "testing": 4,
    "triggers": 4,
    "records": 4,
    "recorder": 5,
    "exporters": 5,
    "spool": 5,
    "receivers": 6,
    "service": 7,
    "cli": 8,
    "__main__": 9,
}
SEAMS = {("recorder", "exporters.payload"), ("spool", "exporters.payload"), ("spool", "exporters.item")}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module below otel_perfbuf) of every import in a file, those in functions and type checks too."""
    here = (*path.relative_to(ROOT).with_suffix("").parts,)
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(here[: len(here) - node.level]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from otel_perfbuf import x` names the part in x.
            targets = [f"{module}.{alias.name}" if module == "otel_perfbuf" else module for alias in node.names]
        else:
            continue
        for target in targets:
            if target.startswith("otel_perfbuf."):
                yield node.lineno, target.removeprefix("otel_perfbuf.")


def part_of(path: Path) -> str:
    """The part that a file belongs to: its folder below otel_perfbuf, or its own name."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def python_files() -> list[Path]:
    """Every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def test_imports_point_one_way() -> None:
    """No part imports one beside or above it."""
    wrong = []
    for path in python_files():
        part = part_of(path)
        if part in ("sdk", "__init__"):
            continue
        for line, target in imports_of(path):
            other = target.split(".")[0]
            if other != part and LEVELS[other] >= LEVELS[part] and (part, target) not in SEAMS:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {part} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_every_part_has_a_level() -> None:
    """A new part of the package must be given its place."""
    parts = {part_of(path) for path in python_files()} - {"sdk", "__init__"}
    assert parts <= set(LEVELS), parts - set(LEVELS)


def test_sdk_imports_nothing_of_the_agent() -> None:
    """The application side names no other part of this package in any import."""
    found = [
        f"{path.name}:{line}: {target}"
        for path in sorted((PACKAGE / "sdk").rglob("*.py"))
        for line, target in imports_of(path)
        if target.split(".")[0] != "sdk"
    ]
    assert not found, found


def test_the_package_itself_imports_nothing() -> None:
    """Importing otel_perfbuf.sdk runs otel_perfbuf/__init__.py, so that must stay without imports."""
    assert not list(imports_of(PACKAGE / "__init__.py"))


def test_importing_the_sdk_loads_neither_extension_nor_libbpf() -> None:
    """A fresh interpreter that imports the application side has no C part of ours, no cffi, no libbpf mapped."""
    program = (
        "import sys, otel_perfbuf.sdk\n"
        "ours = [m for m in sys.modules if m.startswith('otel_perfbuf.') and not m.startswith('otel_perfbuf.sdk')]\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(ours, 'cffi' in sys.modules, '_cffi_backend' in sys.modules, 'libbpf' in maps)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.split() == ["[]", "False", "False", "False"], result.stdout


def documented() -> dict[str, set[str]]:
    """Module -> names, from the README's table of the library."""
    rows = re.findall(r"^\| `(otel_perfbuf\.[a-z_.]+)` \| (.+?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)", names)) for module, names in rows}


@pytest.mark.parametrize("module", sorted(documented()))
def test_public_names_are_the_documented_ones(module: str) -> None:
    """`__all__` of a public package has exactly the names that the README lists."""
    assert set(importlib.import_module(module).__all__) == documented()[module]


def test_the_readme_documents_the_library() -> None:
    """The table that the comparison above reads is there."""
    assert {"otel_perfbuf.bpf", "otel_perfbuf.errors", "otel_perfbuf.rings", "otel_perfbuf.sdk"} <= set(documented())


def test_files_name_their_licence_first() -> None:
    """Every source file of the package and of the programs opens with its SPDX line."""
    sources = [*python_files(), *PACKAGE.rglob("*.[ch]"), *(ROOT / "bpf").glob("*.[ch]")]
    without = [str(path.relative_to(ROOT)) for path in sources if "SPDX-License-Identifier:" not in first_line(path)]
    assert not without, without


def first_line(path: Path) -> str:
    """A file's first line; an empty file (a package marker) counts as having one."""
    text = path.read_text()
    return text.split("\n", 1)[0] if text else "SPDX-License-Identifier: none"


def test_packaged_bpf_programs_may_use_gpl_helpers() -> None:
    """BPF sources are dual-licensed, since the kernel gives most helpers to GPL programs only."""
    programs = sorted((ROOT / "bpf").glob("*.bpf.c"))
    assert programs
    assert all("GPL-2.0-only OR Apache-2.0" in first_line(path) for path in programs)
