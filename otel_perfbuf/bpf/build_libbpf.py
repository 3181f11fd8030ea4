# SPDX-License-Identifier: Apache-2.0
"""How the binding to libbpf is built: cffi in API mode, module ``otel_perfbuf.bpf._libbpf``.

The compiler checks the declarations below against libbpf's own headers; our shim's are cut from shim.h.
Source: libbpf's <bpf/libbpf.h> and <bpf/bpf.h> (1.1 and newer).
"""

from __future__ import annotations

import runpy
from pathlib import Path

import cffi

__all__ = ["ffibuilder"]

_ROOT = Path(__file__).resolve().parents[2]
_BPF = Path("otel_perfbuf/bpf")
_core = runpy.run_path(str(_ROOT / "otel_perfbuf/_core/build.py"), run_name="core_build")

_LIBBPF = """
struct bpf_object; struct bpf_map; struct bpf_program; struct bpf_link;
typedef uint32_t __u32; typedef uint64_t __u64;

const char *libbpf_version_string(void);
int bpf_object__load(struct bpf_object *obj);
void bpf_object__close(struct bpf_object *obj);
struct bpf_map *bpf_object__next_map(const struct bpf_object *obj, const struct bpf_map *map);
struct bpf_program *bpf_object__next_program(const struct bpf_object *obj, struct bpf_program *prog);

const char *bpf_map__name(const struct bpf_map *map);
int bpf_map__fd(const struct bpf_map *map);
_Bool bpf_map__is_internal(const struct bpf_map *map);
int bpf_map__set_autocreate(struct bpf_map *map, _Bool autocreate);
int bpf_map__set_max_entries(struct bpf_map *map, __u32 max_entries);
const char *bpf_program__name(const struct bpf_program *prog);
const char *bpf_program__section_name(const struct bpf_program *prog);
int bpf_program__fd(const struct bpf_program *prog);
int bpf_program__set_autoload(struct bpf_program *prog, _Bool autoload);
struct bpf_link *bpf_program__attach(const struct bpf_program *prog);
int bpf_link__destroy(struct bpf_link *link);
int bpf_link__fd(const struct bpf_link *link);
int bpf_iter_create(int link_fd);

int libbpf_num_possible_cpus(void);
int bpf_map_lookup_elem(int fd, const void *key, void *value);
int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags);
int bpf_map_delete_elem(int fd, const void *key);
int bpf_map_get_next_key(int fd, const void *key, void *next_key);
int bpf_obj_pin(int fd, const char *pathname);
int bpf_obj_get(const char *pathname);
int bpf_obj_get_info_by_fd(int bpf_fd, void *info, __u32 *info_len);

struct bpf_map_info {
    __u32 type; __u32 id; __u32 key_size; __u32 value_size; __u32 max_entries; __u32 map_flags; char name[16];
    ...;
};
struct bpf_prog_info {
    __u64 recursion_misses;
    ...;
};
"""


def _make() -> cffi.FFI:
    builder = cffi.FFI()
    builder.cdef(_LIBBPF)
    builder.cdef(_core["cut_declarations"]((_ROOT / _BPF / "shim.h").read_text(encoding="utf-8"), "shim.h"))
    builder.set_source(
        "otel_perfbuf.bpf._libbpf",
        "#include <bpf/bpf.h>\n#include <bpf/libbpf.h>\n#include <linux/bpf.h>\n" + '#include "shim.h"\n',
        sources=[str(_BPF / "shim.c")],
        include_dirs=[str(_BPF)],
        depends=[str(_BPF / "shim.h")],
        libraries=["bpf"],
        extra_compile_args=_core["compile_args"](),
        extra_link_args=_core["link_args"](),
    )
    return builder


ffibuilder = _make()
