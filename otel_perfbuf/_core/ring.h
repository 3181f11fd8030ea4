/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h: one CPU's perf ring in memory: windows, the checked walk, drain and snapshot.
 * Source: Linux include/uapi/linux/perf_event.h (struct perf_event_mmap_page, PERF_RECORD_*),
 * kernel/events/ring_buffer.c. What it is not: it opens, maps and waits for nothing (otel_perfbuf/rings).
 *
 * Positions are 64-bit running counters, all arithmetic modulo 2^64; offset = position & (capacity - 1).
 * A window is half-open, [start, end), and is always walked upward.
 */
#ifndef PERFBUF_RING_H
#define PERFBUF_RING_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"

/* cffi: begin */

struct pb_window {
	uint64_t start;
	uint64_t end;
};

/* One record of a ring, found by the walk. Offsets are into the arena it was copied to. */
struct pb_frame {
	uint64_t offset;		/* of the raw data (sample) or of the frame (other types) */
	uint32_t bytes;			/* raw data as the kernel padded it; other types: the whole frame */
	uint16_t type;			/* PERF_RECORD_* */
	uint16_t cpu;
	uint64_t time_ns;		/* PERF_SAMPLE_TIME, else 0 */
	uint32_t pid;			/* PERF_SAMPLE_TID, else 0 */
	uint32_t tid;
	uint64_t lost;			/* PERF_RECORD_LOST: how many */
};

/* What one walk found out about its ring. */
struct pb_walk {
	uint32_t frames;		/* written to the caller's array */
	uint32_t malformed;		/* places where the walk met bytes that are no record, and stopped */
	uint32_t truncated;		/* 1: the oldest record was cut */
	uint32_t unknown;		/* whole records of other types */
	uint64_t lost;			/* sum over PERF_RECORD_LOST */
	uint64_t lost_frames;
};

/* One ring as a snapshot or a drain left it. */
struct pb_ring_state {
	uint32_t cpu;
	uint32_t wrapped;		/* reverse: bytes were overwritten at some time */
	uint64_t capacity;
	uint64_t head;			/* position that the copy began at */
	uint64_t arena_offset;		/* where this ring's bytes begin in the arena */
	uint64_t valid_bytes;		/* of them, walked */
	uint64_t overwritten_bytes;	/* since the last snapshot, exact */
	struct pb_walk walk;
};

/* The pure functions of the two directions. */
struct pb_window pb_window_forward(uint64_t head, uint64_t tail, uint64_t capacity);
struct pb_window pb_window_reverse(uint64_t head, uint64_t previous_head, uint64_t capacity);

/* Walks [0, bytes) of linear memory (a copy, arena + state->arena_offset), checks every frame before it is touched,
 * and fills at most frame_capacity frames in address order (PB_NO_ROOM when there are more). sample_type: the perf
 * attr's PERF_SAMPLE_* bits (RAW always; TIME, TID, CPU optional). */
enum pb_status pb_ring_walk(const uint8_t *arena, uint64_t arena_offset, uint64_t bytes, uint64_t sample_type,
			    uint16_t cpu, struct pb_frame *frames, uint32_t frame_capacity, struct pb_walk *walk);

/* Forward: copies what lies between tail and head (at most arena_bytes, whole records only) to arena + arena_offset,
 * walks it, then release-stores the new tail. `page` is the mapping's first page. */
enum pb_status pb_ring_drain(void *page, uint8_t *arena, uint64_t arena_offset, uint64_t arena_bytes,
			     uint64_t sample_type, struct pb_frame *frames, uint32_t frame_capacity,
			     struct pb_ring_state *state);

/* Reverse, un-paused (DESIGN 5), first half: copies the whole ring from data_head on, re-reads the head, and leaves in
 * state what is valid with `slack_bytes` of writers in flight. Second half (where the slack is not known): after a
 * grace period call pb_ring_snapshot_settle, which reads the head again and takes the larger valid part. */
enum pb_status pb_ring_snapshot_copy(const void *page, uint8_t *arena, uint64_t arena_offset, uint64_t previous_head,
				     uint64_t slack_bytes, struct pb_ring_state *state);
enum pb_status pb_ring_snapshot_settle(const void *page, struct pb_ring_state *state);
/* cffi: end */
#endif
