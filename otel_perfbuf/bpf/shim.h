/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shim.h: the few steps over libbpf that need more than one call of it, or a C callback.
 * Source: libbpf's <bpf/libbpf.h>, <bpf/btf.h> (1.1 and newer). What it is not: it holds no state but the caller's.
 */
#ifndef PERFBUF_SHIM_H
#define PERFBUF_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct bpf_object;
struct bpf_map;

/* cffi: begin */

/* Keeps libbpf from printing: what it would have printed on this thread goes to `text` (NUL-terminated, cut) until it is
 * called again; NULL drops it. */
void pb_shim_listen(char *text, size_t size);

/* Opens an object file; the verifier's log of a later load goes to `log`. NULL and errno on failure. */
struct bpf_object *pb_shim_open(const char *path, char *log, size_t log_size);

/* Where a global variable of .rodata, .data or .bss is: its map's initial value at *offset, *size bytes of it. 0, or
 * -ENOENT. */
int pb_shim_variable(struct bpf_object *object, const char *name, void **value, size_t *size);

/* The index-th variable's name of .rodata, or NULL behind the last. */
const char *pb_shim_variable_name(struct bpf_object *object, unsigned int index);

/* Before the load: makes a map, whatever it was declared as, a BPF ring buffer of `bytes` data bytes (a power of two of
 * pages) with these BPF_F_* flags. 0, or a negative errno. */
int pb_shim_make_ringbuf(struct bpf_map *map, uint32_t bytes, uint32_t flags);

/* Makes a map; its fd, or -errno. */
int pb_shim_map_create(uint32_t type, const char *name, uint32_t key_size, uint32_t value_size, uint32_t max_entries,
                       uint32_t flags);

/* Puts a map that exists already in the place of the object's map of this name; before the load. 0, or -errno. */
int pb_shim_map_reuse(struct bpf_object *object, const char *name, int fd);

/* cffi: end */
#endif
