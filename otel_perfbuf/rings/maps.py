# SPDX-License-Identifier: Apache-2.0
"""From what a caller names as a map to one of the right type that is held open. What it is not: it creates no maps.

Source: bpf(2), BPF_OBJ_GET and BPF_OBJ_GET_INFO_BY_FD.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Protocol

from otel_perfbuf.errors import ConfigError, KernelError
from otel_perfbuf.rings._sys import ffi, lib
from otel_perfbuf.rings.ring import PerfMap

__all__ = ["HasFd", "MapLike", "open_map", "open_perf_map"]


class HasFd(Protocol):
    """Any library's map object."""

    @property
    def fd(self) -> int:
        """The map's open file descriptor; borrowed."""
        ...


MapLike = HasFd | int | str | os.PathLike[str]


def open_perf_map(map: MapLike) -> PerfMap:
    """The perf event array behind an object with ``fd``, an fd (both borrowed: duplicated), or a pinned path.

    Raises KernelError when it cannot be opened and ConfigError when it is a map of another type.
    """
    need = (
        f"perf rings need BPF_MAP_TYPE_PERF_EVENT_ARRAY ({lib.PB_SYS_MAP_PERF_EVENT_ARRAY}); name the map that the "
        "program gives to bpf_perf_event_output"
    )
    fd, info, _ = open_map(map, lib.PB_SYS_MAP_PERF_EVENT_ARRAY, need)
    name = ffi.string(info.name).decode("ascii", "replace") or f"with id {info.id}"
    return PerfMap(fd, name, info.max_entries)


def open_map(map: MapLike, type: int, need: str) -> tuple[int, Any, str]:
    """An own fd of the map, what the kernel says about it, and how to call it; raises as open_perf_map does.

    ``need`` ends the sentence where it is of another type.
    """
    fd, what = _open(map)
    try:
        info = ffi.new("struct pb_sys_map *")
        status = lib.pb_sys_map_info(fd, info)
        if status < 0:
            raise KernelError(-status, f"asking the kernel about {what} (is it a BPF map? needs CAP_BPF)")
        name = ffi.string(info.name).decode("ascii", "replace")
        if info.type != type:
            raise ConfigError(f"{what} ({name or 'without a name'}) is a BPF map of type {info.type}, and {need}")
        return fd, info, f"the map {name}" if name else what
    except BaseException:
        os.close(fd)
        raise


def _open(map: MapLike) -> tuple[int, str]:
    if isinstance(map, (str, os.PathLike)):
        path = os.fspath(map)
        fd = int(lib.pb_sys_map_get(os.fsencode(path)))
        if fd < 0:
            way_out = "needs CAP_BPF" if fd in (-errno.EPERM, -errno.EACCES) else "is it pinned there, in a bpffs?"
            raise KernelError(-fd, f"opening the pinned map {path} ({way_out})")
        return fd, f"the pinned map {path}"
    number = map if isinstance(map, int) else map.fd
    try:
        return os.dup(number), f"the map with fd {number}"
    except OSError as error:
        raise KernelError(error.errno or 0, f"taking the map with fd {number}: it is not open") from error
