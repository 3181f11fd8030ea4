# SPDX-License-Identifier: Apache-2.0
"""BPF objects and maps on a real kernel: layouts, constants, errors, pins, and that nothing stays behind."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from bpf_recording import wait_until
from building import program as build

from otel_perfbuf._core._core import ffi
from otel_perfbuf.bpf import BpfObject, builtin_object, open_pinned_map
from otel_perfbuf.bpf.features import load_builtin
from otel_perfbuf.errors import ConfigError, KernelError

STRUCTS = [
    "pb_sample", "pb_record", "pb_syscall", "pb_capture", "pb_signal", "pb_exec", "pb_fork", "pb_exit", "pb_oom_kill",
    "pb_page_head", "pb_process_key", "pb_process", "pb_stats", "pb_capture_rule", "pb_syscall_rule", "pb_alert",
]  # fmt: skip
INT, STRUCT, VOLATILE, DATASEC, VAR = 1, 4, 9, 15, 14
EXTRA = {1: 4, 3: 12, 14: 4, 17: 4}  # bytes behind a type: int, array, var, decl_tag; the others by their vlen
BY_VLEN = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}


def _section(data: bytes, wanted: str) -> bytes:
    """A section of an ELF64 file (elf.h)."""
    offset, size, count, names = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + size * index) for index in range(count)]
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        if data[start : data.index(b"\0", start)] == wanted.encode():
            return data[header[4] : header[4] + header[5]]
    raise LookupError(wanted)


def _btf_structs(path: Path) -> dict[str, tuple[int, dict[str, int]]]:
    """Structs of an object's BTF: name -> (size, member -> offset in bytes). Source: Documentation/bpf/btf.rst."""
    data = _section(path.read_bytes(), ".BTF")
    header, types, types_size, strings = struct.unpack_from("<IIII", data, 4)
    structs, at, end = {}, header + types, header + types + types_size

    def name(offset: int) -> str:
        start = header + strings + offset
        return data[start : data.index(b"\0", start)].decode()

    while at < end:
        name_at, info, size = struct.unpack_from("<III", data, at)
        kind, vlen = info >> 24 & 31, info & 0xFFFF
        at += 12
        if kind == STRUCT:
            members = [struct.unpack_from("<III", data, at + 12 * index) for index in range(vlen)]
            structs[name(name_at)] = (size, {name(each): (bits & 0xFFFFFF) // 8 for each, _, bits in members})
        at += EXTRA.get(kind, 0) + BY_VLEN.get(kind, 0) * vlen
    return structs


def test_python_and_c_see_what_the_programs_write() -> None:
    """Every struct of records.h that is in the objects' BTF has the core's size and member offsets."""
    found = {**_btf_structs(builtin_object("process")), **_btf_structs(builtin_object("syscalls"))}
    for name in STRUCTS:
        size, members = found[name]
        kind = ffi.typeof(f"struct {name}")
        assert size == ffi.sizeof(kind) and size % 8 == 0, name
        assert members == {field: ffi.offsetof(kind, field) for field, _ in kind.fields}, name


# As they are built; recording takes the form that the kernel has everything for.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(program + form, marks=pytest.mark.needs(*features))
        for program in ("syscalls", "process")
        for form, features in (
            ("_held", ["task storage", "fetching atomics", "preemption control"]),
            ("", ["task storage", "fetching atomics"]),
            ("_plain", []),
        )
        if form != "_plain" or platform.machine() == "x86_64"
    ],
)
def test_the_built_in_programs_load_and_are_freed(name: str) -> None:
    """Loading twice, closing twice; no fd stays open."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        program = BpfObject(builtin_object(name))
        program.load()
        assert "stats" in program.maps
        program.close()
        program.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_constants_are_set_before_the_load_and_checked() -> None:
    """An unknown name lists the known ones; size and moment are checked."""

    def check(program: BpfObject) -> None:
        with pytest.raises(ConfigError, match=r"no such variable; there are: .*agent_tgid"):
            program.set_rodata("nothing", 1)
        with pytest.raises(ConfigError, match="has 4 bytes, not 3"):
            program.set_rodata("agent_tgid", b"abc")
        with pytest.raises(ConfigError, match="256 does not fit its 1 bytes"):
            program.set_rodata("filter_targets", 256)
        program.set_rodata("filter_targets", 1)

    with load_builtin("syscalls", check) as program, pytest.raises(ValueError, match="set constants before load"):
        program.set_rodata("filter_targets", 1)


def test_what_is_no_bpf_object_gets_a_sentence(tmp_path: Path) -> None:
    """A missing file, text, this Python's own machine code, a cut object: ConfigError, nothing printed."""
    with pytest.raises(ConfigError, match="No such file"):
        BpfObject(tmp_path / "missing.bpf.o")
    (tmp_path / "text.bpf.o").write_text("hello " * 10)
    with pytest.raises(ConfigError, match="no ELF file"):
        BpfObject(tmp_path / "text.bpf.o")
    with pytest.raises(ConfigError, match="machine code for another processor"):
        BpfObject(sys.executable)
    (tmp_path / "cut.bpf.o").write_bytes(builtin_object("process").read_bytes()[:5000])
    with pytest.raises(ConfigError, match=r"opening the BPF object .*cut\.bpf\.o"):
        BpfObject(tmp_path / "cut.bpf.o")


def test_a_refused_program_comes_with_the_verifiers_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The log is in the error, and neither libbpf nor we print anything."""
    with BpfObject(build("refused.bpf.o", tmp_path)) as program, pytest.raises(KernelError, match="invalid mem access"):
        program.load()
    assert capfd.readouterr() == ("", "")


def test_without_privilege_the_capabilities_are_named() -> None:
    """An ordinary user who loads: EPERM and the names of what is missing."""
    code = (
        "import os\nfrom otel_perfbuf.errors import KernelError\n"
        "from otel_perfbuf.bpf import BpfObject, builtin_object\n"
        "p = BpfObject(builtin_object('syscalls')); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: p.load()\nexcept KernelError as e: print(e.errno, e)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.stdout.startswith("1 "), result.stderr
    assert "CAP_BPF and CAP_PERFMON" in result.stdout


def test_maps_are_pinned_and_opened_again(tmp_path: Path) -> None:
    """pin_maps in a bpffs; another handle sees the same map; unpin removes every pin."""
    folder = Path(f"/sys/fs/bpf/otel-perfbuf-test-{os.getpid()}")
    if not os.path.ismount("/sys/fs/bpf"):
        pytest.skip("no bpf file system at /sys/fs/bpf")
    folder.mkdir()
    try:
        with load_builtin("process") as program:
            program.pin_maps(folder)
            again = open_pinned_map(folder / "sequences")
            key = struct.pack("=IIQ", 1, 0, 2)
            program.maps["sequences"].update(key, struct.pack("=Q", 77))
            assert again.lookup(key) == struct.pack("=Q", 77)
            assert dict(again.items()) == {key: struct.pack("=Q", 77)}
            assert again.delete(key) and not again.delete(key)
            again.close()
            program.unpin_maps()
            assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()


def _program_ids(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds, from its fds' own information."""
    ids = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        for line in entry.read_text().splitlines():
            if line.startswith("prog_id:"):
                ids.add(int(line.split()[1]))
    return ids


def _all_program_ids() -> set[int]:
    libbpf, ids, following = ctypes.CDLL("libbpf.so.1"), set(), ctypes.c_uint32(0)
    while libbpf.bpf_prog_get_next_id(following, ctypes.byref(following)) == 0:
        ids.add(following.value)
    return ids


def test_kill_9_leaves_nothing_attached() -> None:
    """A recorder that is killed: its programs are gone from the kernel, since no pin and no process holds them."""
    code = (
        "from otel_perfbuf.bpf.syscalls import SyscallProgram; from otel_perfbuf.records import syscall_rules\n"
        "p = SyscallProgram(syscall_rules=syscall_rules(), filter_targets=True); p.attach(); print('up', flush=True)\n"
        "import signal; signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        try:
            ids = _program_ids(child.pid)
            there = _all_program_ids()
        finally:
            child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(ids) >= 8
    assert ids <= there
    wait_until(lambda: not ids & _all_program_ids(), "the end of the killed recorder's programs")
