/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys.h: the system calls that perf rings need and Python has not. All return a value >= 0, or -errno.
 * What it is not: it reads no ring memory (otel_perfbuf/_core) and decides nothing.
 * Source: perf_event_open(2), bpf(2), membarrier(2); Linux include/uapi/linux/perf_event.h, bpf.h.
 */
#ifndef PERFBUF_SYS_H
#define PERFBUF_SYS_H

#include <stdint.h>

/* cffi: begin */

enum pb_sys_constants {
	PB_SYS_SAMPLE_TID = 2, /* PERF_SAMPLE_*: checked against the kernel's header in sys.c */
	PB_SYS_SAMPLE_TIME = 4,
	PB_SYS_SAMPLE_CPU = 128,
	PB_SYS_SAMPLE_RAW = 1024,
	PB_SYS_MAP_PERF_EVENT_ARRAY = 4,
	PB_SYS_MAP_RINGBUF = 27,
	PB_SYS_RB_OVERWRITE = 1 << 19, /* BPF_F_RB_OVERWRITE, Linux 6.19: younger than the headers it is built with */
};

/* One PERF_COUNT_SW_BPF_OUTPUT event. */
struct pb_sys_event {
	uint64_t sample_type;
	uint32_t watermark_bytes; /* wake after so many bytes; 0: wakeup_events counts samples instead */
	uint32_t wakeup_events;
	uint32_t backward;
	uint32_t use_clockid;
	int32_t clockid;
	uint32_t count_lost; /* PERF_FORMAT_LOST, Linux 6.0 */
};

struct pb_sys_map {
	uint32_t type;
	uint32_t key_bytes;
	uint32_t value_bytes;
	uint32_t max_entries;
	uint32_t flags;
	uint32_t id;
	char name[16];
};

int pb_sys_perf_open(const struct pb_sys_event *event, int cpu);
/* The header page and `bytes` of data; where it is goes to *address. */
int pb_sys_ring_map(int fd, uint64_t bytes, int writable, void **address);
int pb_sys_ring_unmap(void *address, uint64_t bytes);
/* data_offset and data_size as the kernel wrote them; 0 on kernels before 4.1. */
int pb_sys_ring_layout(const void *address, uint64_t *data_offset, uint64_t *data_size);
int pb_sys_ring_pause(int fd, int pause);
int pb_sys_lost(int fd, uint64_t *lost);
/* Returns when every code that ran with preemption off, or inside rcu_read_lock, when it was called has ended. */
int pb_sys_grace_period(void);
int pb_sys_map_get(const char *path);
int pb_sys_map_info(int map_fd, struct pb_sys_map *map);
/* An fd of a new map without keys' and values' types. */
int pb_sys_map_create(uint32_t type, uint32_t key_bytes, uint32_t value_bytes, uint32_t max_entries, uint32_t flags);
/* A BPF ring buffer's three parts: the page that its reader writes, and (read-only) the page that its writers write
 * with the data behind it, twice. */
int pb_sys_ringbuf_map(int map_fd, uint64_t bytes, void **consumer, void **producer);
int pb_sys_ringbuf_unmap(void *consumer, void *producer, uint64_t bytes);
int pb_sys_map_set(int map_fd, uint32_t key, int fd);
int pb_sys_map_delete(int map_fd, uint32_t key);
/* cffi: end */
#endif
