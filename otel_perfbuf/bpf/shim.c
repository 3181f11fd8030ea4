// SPDX-License-Identifier: Apache-2.0
/* shim.c: see shim.h. */
#include "shim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>

static _Thread_local char *listener;
static _Thread_local size_t listener_size;

static int keep_line(enum libbpf_print_level level, const char *format, va_list arguments)
{
	size_t used;
	int written;

	if (level == LIBBPF_DEBUG || !listener)
		return 0;
	used = strlen(listener);
	if (used + 1 >= listener_size)
		return 0;
	written = vsnprintf(listener + used, listener_size - used, format, arguments);
	return written;
}

void pb_shim_listen(char *text, size_t size)
{
	listener = size ? text : NULL;
	listener_size = size;
	if (listener)
		listener[0] = '\0';
	libbpf_set_print(keep_line);
}

struct bpf_object *pb_shim_open(const char *path, char *log, size_t log_size)
{
	LIBBPF_OPTS(bpf_object_open_opts, options);

	options.kernel_log_buf = log;
	options.kernel_log_size = log_size;
	return bpf_object__open_file(path, &options);
}

static const struct btf_type *section(struct bpf_object *object, const char *name)
{
	const struct btf *btf = bpf_object__btf(object);
	int id = btf ? btf__find_by_name_kind(btf, name, BTF_KIND_DATASEC) : -ENOENT;

	return id < 0 ? NULL : btf__type_by_id(btf, (uint32_t)id);
}

static const char *variable_name(struct bpf_object *object, const struct btf_var_secinfo *info)
{
	const struct btf *btf = bpf_object__btf(object);
	const struct btf_type *variable = btf__type_by_id(btf, info->type);

	return variable ? btf__name_by_offset(btf, variable->name_off) : NULL;
}

/* The map behind a section is named OBJECT.rodata, cut to the kernel's 15 bytes, so it is found by its ending. */
static struct bpf_map *section_map(struct bpf_object *object, const char *name)
{
	struct bpf_map *map;

	bpf_object__for_each_map(map, object)
	{
		const char *map_name = bpf_map__name(map);
		const char *dot = map_name ? strrchr(map_name, '.') : NULL;

		if (bpf_map__is_internal(map) && dot && !strcmp(dot, name))
			return map;
	}
	return NULL;
}

int pb_shim_variable(struct bpf_object *object, const char *name, void **value, size_t *size)
{
	static const char *const names[] = { ".rodata", ".data", ".bss" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct btf_type *type = section(object, names[i]);
		struct bpf_map *map = section_map(object, names[i]);
		const struct btf_var_secinfo *info;
		size_t map_size;
		char *start;

		if (!type || !map)
			continue;
		/* const in libbpf 1.1, not in 1.5: the memory is for the caller to write before the load */
		start = (char *)bpf_map__initial_value(map, &map_size);
		if (!start)
			continue;
		info = btf_var_secinfos(type);
		for (uint16_t k = 0; k < btf_vlen(type); k++, info++) {
			const char *found = variable_name(object, info);

			if (!found || strcmp(found, name) || (size_t)info->offset + info->size > map_size)
				continue;
			*value = start + info->offset;
			*size = info->size;
			return 0;
		}
	}
	return -ENOENT;
}

const char *pb_shim_variable_name(struct bpf_object *object, unsigned int index)
{
	const struct btf_type *type = section(object, ".rodata");

	if (!type || index >= btf_vlen(type))
		return NULL;
	return variable_name(object, btf_var_secinfos(type) + index);
}

int pb_shim_make_ringbuf(struct bpf_map *map, uint32_t bytes, uint32_t flags)
{
	int error = bpf_map__set_type(map, BPF_MAP_TYPE_RINGBUF);

	if (!error)
		error = bpf_map__set_key_size(map, 0);
	if (!error)
		error = bpf_map__set_value_size(map, 0);
	if (!error)
		error = bpf_map__set_map_flags(map, flags);
	/* last: libbpf rounds the size up for a ring buffer */
	return error ? error : bpf_map__set_max_entries(map, bytes);
}

int pb_shim_map_create(uint32_t type, const char *name, uint32_t key_size, uint32_t value_size, uint32_t max_entries,
                       uint32_t flags)
{
	LIBBPF_OPTS(bpf_map_create_opts, options);
	int fd;

	options.map_flags = flags;
	fd = bpf_map_create((enum bpf_map_type)type, name, key_size, value_size, max_entries, &options);
	return fd < 0 ? -errno : fd;
}

int pb_shim_map_reuse(struct bpf_object *object, const char *name, int fd)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, name);

	if (!map)
		return -ENOENT;
	return bpf_map__reuse_fd(map, fd) ? -errno : 0;
}
