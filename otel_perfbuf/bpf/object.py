# SPDX-License-Identifier: Apache-2.0
"""A BPF object file: open, set its constants, load, attach, iterate, close.

What it is not: it knows none of our programs (syscalls.py, process.py). Source: libbpf; names: CONTRACT section 6.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from otel_perfbuf.errors import ConfigError, KernelError

from ._libbpf import ffi, lib
from .maps import BpfMap

__all__ = ["BpfObject", "builtin_object", "has_bpf"]

_LOG_BYTES = 1 << 20
_SAID_BYTES = 4096
_ELF_MACHINE_BPF = 247
_RB_OVERWRITE = 1 << 19  # BPF_F_RB_OVERWRITE, Linux 6.19
_OBJECTS = Path(__file__).parent / "objects"


def builtin_object(name: str) -> Path:
    """The path of a program that comes with the package ("syscalls", "process"); ConfigError when it is not there."""
    path = _OBJECTS / f"{name}.bpf.o"
    if not path.exists():
        raise ConfigError(f"opening the built-in BPF program {name}: {path} is missing; build it with `make build`")
    return path


def _check_elf(path: Path) -> None:
    """ConfigError for what cannot be a BPF object of this machine; libbpf's own words for that are for its authors."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError as error:
        raise ConfigError(f"opening the BPF object {path}: {error.strerror}") from error
    if len(head) < 20 or head[:4] != b"\x7fELF":
        raise ConfigError(f"opening the BPF object {path}: it is no ELF file; compile it with clang -target bpf -g")
    order = "little" if head[5] == 1 else "big"
    if order != sys.byteorder:
        raise ConfigError(
            f"opening the BPF object {path}: it is {order}-endian and this machine is {sys.byteorder}-endian"
        )
    machine = int.from_bytes(head[18:20], sys.byteorder)
    if machine != _ELF_MACHINE_BPF:
        raise ConfigError(
            f"opening the BPF object {path}: it is machine code for another processor (ELF machine {machine}), "
            f"not BPF ({_ELF_MACHINE_BPF}); compile it with clang -target bpf"
        )


class BpfObject:
    """One object file's maps and programs. ``close`` (or the end of a ``with`` block) detaches and frees everything.

    Not thread-safe while it is being loaded; maps may be used from any thread.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._object: Any = None
        self._links: dict[str, Any] = {}
        self._maps: dict[str, BpfMap] = {}
        self._pinned: list[Path] = []
        self._log = ffi.new("char[]", _LOG_BYTES)
        self._said = ffi.new("char[]", _SAID_BYTES)
        _check_elf(self._path)
        lib.pb_shim_listen(self._said, _SAID_BYTES)
        self._object = lib.pb_shim_open(os.fsencode(self._path), self._log, _LOG_BYTES)
        number = ffi.errno
        lib.pb_shim_listen(ffi.NULL, 0)
        if not self._object:
            self._object = None
            raise ConfigError(f"opening the BPF object {self._path}: {os.strerror(number)}{self._words()}")

    def _words(self) -> str:
        text = ffi.string(self._said).decode("utf-8", "replace").strip()
        return f"; libbpf says: {' / '.join(text.splitlines())}" if text else ""

    def _open_object(self) -> Any:
        if self._object is None:
            raise ValueError(f"the BPF object {self._path} is closed")
        return self._object

    @property
    def name(self) -> str:
        """The file's name without its endings."""
        return self._path.name.removesuffix(".bpf.o")

    def variables(self) -> list[str]:
        """Names of the constants that `set_rodata` can set."""
        names, index = [], 0
        while (name := lib.pb_shim_variable_name(self._open_object(), index)) != ffi.NULL:
            names.append(ffi.string(name).decode())
            index += 1
        return names

    def set_rodata(self, name: str, value: bytes | int) -> None:
        """Sets a ``const volatile`` global before `load`; an int is stored in the variable's own size, host order."""
        where, size = ffi.new("void **"), ffi.new("size_t *")
        if self._maps:
            raise ValueError(f"setting {name} of {self._path.name}: it is loaded; set constants before load()")
        if lib.pb_shim_variable(self._open_object(), name.encode(), where, size):
            known = ", ".join(self.variables()) or "none"
            raise ConfigError(f"setting {name} of {self._path.name}: there is no such variable; there are: {known}")
        if isinstance(value, int):
            if not -(1 << (8 * size[0] - 1)) <= value < 1 << (8 * size[0]):
                raise ConfigError(f"setting {name} of {self._path.name}: {value} does not fit its {size[0]} bytes")
            value = value.to_bytes(size[0], sys.byteorder, signed=value < 0)
        if len(value) != size[0]:
            raise ConfigError(f"setting {name} of {self._path.name}: it has {size[0]} bytes, not {len(value)}")
        ffi.memmove(where[0], value, size[0])

    def make_ringbuf(self, name: str, capacity: int, *, overwritable: bool = False) -> None:
        """Before `load`: makes the map ``name`` a BPF ring buffer of ``capacity`` bytes, whatever it was declared as.

        ``capacity``: a power of two of pages. ``overwritable``: BPF_F_RB_OVERWRITE; a kernel without it refuses `load`.
        """
        found = {ffi.string(lib.bpf_map__name(each)).decode(): each for each in self._each_map()}
        if self._maps or name not in found:
            why = "it is loaded" if self._maps else "there is no such map"
            raise ValueError(f"making {name} of {self._path.name} a ring buffer: {why}")
        failed = lib.pb_shim_make_ringbuf(found[name], capacity, _RB_OVERWRITE if overwritable else 0)
        if failed:
            raise KernelError(-failed, f"making {name} of {self._path.name} a ring buffer of {capacity} bytes")

    def _each_map(self) -> Iterator[Any]:
        each = lib.bpf_object__next_map(self._open_object(), ffi.NULL)
        while each:
            yield each
            each = lib.bpf_object__next_map(self._object, each)

    def load_only(self, programs: Iterable[str], maps: Iterable[str] | None = None) -> None:
        """`load` leaves out all other programs, and all other maps unless ``maps`` is None."""
        wanted = set(programs)
        for name, program in self._programs().items():
            lib.bpf_program__set_autoload(program, name in wanted)
        if maps is None:
            return
        wanted = set(maps)
        for each in self._each_map():
            if not lib.bpf_map__is_internal(each):
                lib.bpf_map__set_autocreate(each, ffi.string(lib.bpf_map__name(each)).decode() in wanted)

    def reuse_map(self, name: str, other: BpfMap) -> None:
        """Puts a map that exists already in the place of map ``name``, before `load`; KernelError when it cannot be."""
        error = lib.pb_shim_map_reuse(self._open_object(), name.encode(), other.fd)
        if error:
            raise KernelError(-error, f"taking map {other.name} for {name} of {self._path.name}")

    def load(self) -> None:
        """Creates the maps and loads the programs; KernelError with the verifier's log when the kernel refuses."""
        lib.pb_shim_listen(self._said, _SAID_BYTES)
        failed = lib.bpf_object__load(self._open_object())
        number = ffi.errno
        lib.pb_shim_listen(ffi.NULL, 0)
        if failed:
            # Locked down, the verifier knows no helper that reads the kernel: its EINVAL is a refusal too.
            raise KernelError(errno.EPERM if is_locked_down() else number, self._refused(number))
        for each in self._each_map():
            if not lib.bpf_map__is_internal(each) and lib.bpf_map__fd(each) >= 0:  # load_only leaves some out
                name = ffi.string(lib.bpf_map__name(each)).decode()
                self._maps[name] = BpfMap(lib.bpf_map__fd(each), name=name)

    def _refused(self, number: int) -> str:
        doing = f"loading the BPF object {self._path.name}"
        if number in (errno.EPERM, errno.EACCES) and not has_bpf():
            return f"{doing}: this needs root, or the capabilities CAP_BPF and CAP_PERFMON"
        if is_locked_down():
            return f"{doing}: BPF may not read this kernel's memory; boot it without lockdown=confidentiality"
        if number == errno.EPERM and (limit := resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]) >= 0:
            return (
                f"{doing}: refused although CAP_BPF and CAP_PERFMON are there; where BPF memory counts against "
                f"RLIMIT_MEMLOCK ({limit} bytes; before Linux 5.11), raise it{self._words()}"
            )
        log = ffi.string(self._log).decode("utf-8", "replace").strip()
        if log:
            return f"{doing}: the kernel's verifier refused it:\n{log}\n{doing}"
        return f"{doing}{self._words()}"

    @property
    def maps(self) -> Mapping[str, BpfMap]:
        """The maps by name, after `load`; without libbpf's own for global data."""
        return MappingProxyType(self._maps)

    @property
    def programs(self) -> list[str]:
        """Names of the programs in the object."""
        return list(self._programs())

    def _programs(self) -> dict[str, Any]:
        found = {}
        each = lib.bpf_object__next_program(self._open_object(), ffi.NULL)
        while each:
            found[ffi.string(lib.bpf_program__name(each)).decode()] = each
            each = lib.bpf_object__next_program(self._object, each)
        return found

    def _is_iterator(self, program: Any) -> bool:
        return bool(ffi.string(lib.bpf_program__section_name(program)).startswith(b"iter"))

    def program_fd(self, name: str) -> int:
        """The fd of a loaded program, the object's own."""
        return int(lib.bpf_program__fd(self._programs()[name]))

    def missed_events(self) -> int:
        """Events at which the kernel did not run a program of this object: on that CPU it was in the midst of a run.

        That happens where programs are preempted (Linux 7.0 and newer). Every task's events count; 0 before Linux 5.12.
        """
        missed = 0
        for program in self._programs().values():
            info, size = ffi.new("struct bpf_prog_info *"), ffi.new("__u32 *", ffi.sizeof("struct bpf_prog_info"))
            fd = lib.bpf_program__fd(program)
            if fd >= 0 and not lib.bpf_obj_get_info_by_fd(fd, info, size):
                missed += int(info.recursion_misses)
        return missed

    def attach(self, names: Iterable[str] | None = None) -> None:
        """Attaches the named programs, or all but iterators; all or none: a failure detaches what was attached."""
        programs = self._programs()
        wanted = list(names) if names is not None else [n for n, p in programs.items() if not self._is_iterator(p)]
        made: list[str] = []
        for name in wanted:
            if name not in programs:
                raise ConfigError(f"attaching {name} of {self._path.name}: there is no such program")
            try:
                self._links[name] = self._link(name, programs[name])
            except KernelError:
                for other in made:
                    lib.bpf_link__destroy(self._links.pop(other))
                raise
            made.append(name)

    def _link(self, name: str, program: Any) -> Any:
        lib.pb_shim_listen(self._said, _SAID_BYTES)
        link = lib.bpf_program__attach(program)
        number = ffi.errno
        lib.pb_shim_listen(ffi.NULL, 0)
        if not link:
            raise KernelError(number, f"attaching {name} of {self._path.name}{self._words()}")
        return link

    def read_iterator(self, name: str) -> bytes:
        """Runs an iterator program from its first element to its last; gives what it wrote."""
        programs = self._programs()
        if name not in self._links:
            self._links[name] = self._link(name, programs[name])
        fd = lib.bpf_iter_create(lib.bpf_link__fd(self._links[name]))
        if fd < 0:
            raise KernelError(ffi.errno, f"making the iterator {name} of {self._path.name}")
        with os.fdopen(fd, "rb", buffering=0) as file:
            parts = []
            while part := file.read(1 << 18):
                parts.append(part)
        return b"".join(parts)

    def pin_maps(self, directory: Path | str) -> None:
        """Pins every map at DIRECTORY/NAME (in a bpffs), all or none; `unpin_maps` removes them, `close` does not."""
        for name, each in self._maps.items():
            path = Path(directory) / name
            try:
                each.pin(path)
            except KernelError:
                self.unpin_maps()
                raise
            self._pinned.append(path)

    def unpin_maps(self) -> None:
        """Removes the pins that `pin_maps` made."""
        while self._pinned:
            self._pinned.pop().unlink(missing_ok=True)

    def close(self) -> None:
        """Detaches the programs and frees everything; twice is fine."""
        for link in self._links.values():
            lib.bpf_link__destroy(link)
        self._links.clear()
        self._maps.clear()
        if self._object is not None:
            lib.bpf_object__close(self._object)
            self._object = None

    def __enter__(self) -> Self:
        """The object itself, closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_locked_down() -> bool:
    """Whether the kernel forbids BPF to read kernel memory."""
    try:
        return "[confidentiality]" in Path("/sys/kernel/security/lockdown").read_text()
    except OSError:
        return False


def has_bpf() -> bool:
    """Whether this process has CAP_BPF (39) and CAP_PERFMON (38), or CAP_SYS_ADMIN (21), which stands for both."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return bool(effective >> 21 & 1) or effective >> 38 & 3 == 3
    return False
