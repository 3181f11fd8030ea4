/* SPDX-License-Identifier: Apache-2.0 */
/* sys.c: see sys.h. */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/membarrier.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "sys.h"

#ifndef PERF_FORMAT_LOST
#define PERF_FORMAT_LOST (1U << 4) /* Linux 6.0; Debian 12's headers have it, older ones have not */
#endif

#define SAME(ours, kernel) _Static_assert((int)(ours) == (int)(kernel), "as in the kernel's header")
SAME(PB_SYS_SAMPLE_TID, PERF_SAMPLE_TID);
SAME(PB_SYS_SAMPLE_TIME, PERF_SAMPLE_TIME);
SAME(PB_SYS_SAMPLE_CPU, PERF_SAMPLE_CPU);
SAME(PB_SYS_SAMPLE_RAW, PERF_SAMPLE_RAW);
SAME(PB_SYS_MAP_PERF_EVENT_ARRAY, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
SAME(PB_SYS_MAP_RINGBUF, BPF_MAP_TYPE_RINGBUF);

static int result(long value)
{
	return value < 0 ? -errno : (int)value;
}

int pb_sys_perf_open(const struct pb_sys_event *event, int cpu)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_BPF_OUTPUT,
		.sample_period = 1,
		.sample_type = event->sample_type,
		.read_format = event->count_lost ? PERF_FORMAT_LOST : 0,
		.write_backward = event->backward != 0,
		.use_clockid = event->use_clockid != 0,
		.clockid = event->clockid,
	};

	if (event->watermark_bytes) {
		attr.watermark = 1;
		attr.wakeup_watermark = event->watermark_bytes;
	} else {
		attr.wakeup_events = event->wakeup_events;
	}
	return result(syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC));
}

int pb_sys_ring_map(int fd, uint64_t bytes, int writable, void **address)
{
	void *mapped = mmap(NULL, (size_t)(bytes + (uint64_t)sysconf(_SC_PAGESIZE)),
	                    PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);

	if (mapped == MAP_FAILED)
		return -errno;
	*address = mapped;
	return 0;
}

int pb_sys_ring_unmap(void *address, uint64_t bytes)
{
	return result(munmap(address, (size_t)(bytes + (uint64_t)sysconf(_SC_PAGESIZE))));
}

int pb_sys_ring_layout(const void *address, uint64_t *data_offset, uint64_t *data_size)
{
	const struct perf_event_mmap_page *page = address;

	*data_offset = page->data_offset;
	*data_size = page->data_size;
	return 0;
}

int pb_sys_ring_pause(int fd, int pause)
{
	return result(ioctl(fd, PERF_EVENT_IOC_PAUSE_OUTPUT, pause ? 1 : 0));
}

int pb_sys_lost(int fd, uint64_t *lost)
{
	uint64_t values[2] = { 0 }; /* value, lost */
	ssize_t got = read(fd, values, sizeof(values));

	if (got < 0)
		return -errno;
	if (got != sizeof(values))
		return -EIO;
	*lost = values[1];
	return 0;
}

int pb_sys_grace_period(void)
{
	return result(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0));
}

static long bpf(enum bpf_cmd command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

int pb_sys_map_get(const char *path)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.pathname = (uint64_t)(uintptr_t)path;
	return result(bpf(BPF_OBJ_GET, &attr));
}

int pb_sys_map_info(int map_fd, struct pb_sys_map *map)
{
	struct bpf_map_info info;
	union bpf_attr attr;
	long got;

	memset(&attr, 0, sizeof(attr));
	memset(&info, 0, sizeof(info));
	attr.info.bpf_fd = (uint32_t)map_fd;
	attr.info.info_len = sizeof(info);
	attr.info.info = (uint64_t)(uintptr_t)&info;
	got = bpf(BPF_OBJ_GET_INFO_BY_FD, &attr);
	if (got < 0)
		return -errno;
	map->type = info.type;
	map->key_bytes = info.key_size;
	map->value_bytes = info.value_size;
	map->max_entries = info.max_entries;
	map->flags = info.map_flags;
	map->id = info.id;
	memcpy(map->name, info.name, sizeof(map->name));
	map->name[sizeof(map->name) - 1] = 0;
	return 0;
}

int pb_sys_map_create(uint32_t type, uint32_t key_bytes, uint32_t value_bytes, uint32_t max_entries, uint32_t flags)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_type = type;
	attr.key_size = key_bytes;
	attr.value_size = value_bytes;
	attr.max_entries = max_entries;
	attr.map_flags = flags;
	return result(bpf(BPF_MAP_CREATE, &attr));
}

int pb_sys_ringbuf_map(int map_fd, uint64_t bytes, void **consumer, void **producer)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *own, *theirs;
	int error;

	own = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);
	if (own == MAP_FAILED)
		return -errno;
	theirs = mmap(NULL, page + 2 * (size_t)bytes, PROT_READ, MAP_SHARED, map_fd, (off_t)page);
	if (theirs == MAP_FAILED) {
		error = errno;
		munmap(own, page);
		return -error;
	}
	*consumer = own;
	*producer = theirs;
	return 0;
}

int pb_sys_ringbuf_unmap(void *consumer, void *producer, uint64_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	munmap(consumer, page);
	return result(munmap(producer, page + 2 * (size_t)bytes));
}

int pb_sys_map_set(int map_fd, uint32_t key, int fd)
{
	uint32_t value = (uint32_t)fd;
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_fd = (uint32_t)map_fd;
	attr.key = (uint64_t)(uintptr_t)&key;
	attr.value = (uint64_t)(uintptr_t)&value;
	attr.flags = BPF_ANY;
	return result(bpf(BPF_MAP_UPDATE_ELEM, &attr));
}

int pb_sys_map_delete(int map_fd, uint32_t key)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_fd = (uint32_t)map_fd;
	attr.key = (uint64_t)(uintptr_t)&key;
	return result(bpf(BPF_MAP_DELETE_ELEM, &attr));
}
