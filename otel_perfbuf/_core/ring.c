/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c: the two windows, the checked walk over a copy, and the drain of forward rings.
 * What it is not: the snapshot of reverse rings (snapshot.c).
 * Source: Linux include/uapi/linux/perf_event.h (PERF_RECORD_SAMPLE's layout), kernel/events/ring_buffer.c.
 */
#include <linux/perf_event.h>
#include <string.h>
#include "ring.h"

_Static_assert(offsetof(struct perf_event_mmap_page, data_head) == 1024, "data_head as in FACTS 1");
_Static_assert(offsetof(struct perf_event_mmap_page, data_tail) == 1032, "data_tail as in FACTS 1");
_Static_assert(sizeof(struct perf_event_header) == 8, "the walk reads headers as 8 bytes");

#define KNOWN_SAMPLE_TYPE (PERF_SAMPLE_RAW | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU)
#define LOST_BYTES 24    /* header, id, lost */
#define CHUNK_BYTES 8192 /* a quarter of a small first-level data cache: the copy's both sides, and room */

struct pb_window pb_window_forward(uint64_t head, uint64_t tail, uint64_t capacity)
{
	uint64_t remaining = head - tail;

	if (remaining > capacity || remaining & 7)
		return (struct pb_window){ head, head };
	return (struct pb_window){ tail, head };
}

struct pb_window pb_window_reverse(uint64_t head, uint64_t previous_head, uint64_t capacity)
{
	uint64_t written = previous_head - head;

	if (head & 7)
		return (struct pb_window){ head, head };
	return (struct pb_window){ head, head + (written < capacity ? written : capacity) };
}

int pb_sample_type_known(uint64_t sample_type)
{
	return (sample_type & PERF_SAMPLE_RAW) && !(sample_type & ~(uint64_t)KNOWN_SAMPLE_TYPE);
}

/* Bytes of a sample before its raw data: header, what sample_type adds, raw.size. */
static uint32_t raw_offset(uint64_t sample_type)
{
	return 8 + 8 * !!(sample_type & PERF_SAMPLE_TID) + 8 * !!(sample_type & PERF_SAMPLE_TIME) +
	       8 * !!(sample_type & PERF_SAMPLE_CPU) + 4;
}

static uint64_t load_u64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static uint32_t load_u32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* One whole record. Returns 1 for a frame, 0 for another type, -1 for bytes that disagree. */
static inline int judge(const uint8_t *record, uint32_t type, uint64_t size, uint32_t raw)
{
	/* A payload above 65,516 bytes wraps header.size (FACTS 9): raw.size is 32 bit and tells. */
	if (type == PERF_RECORD_SAMPLE)
		return size > raw && load_u32(record + raw - 4) == size - raw ? 1 : -1;
	if (type == PERF_RECORD_LOST)
		return size >= LOST_BYTES ? 1 : -1;
	return 0;
}

/* A record that was judged to be one; `at` is its offset in the arena. What the kernel put between a sample's header and
 * raw.size stands in the order of perf_event.h: TID, TIME, CPU. */
static inline void fill_frame(struct pb_frame *frame, const uint8_t *record, uint64_t at, uint32_t type, uint32_t size,
                              uint64_t sample_type, uint16_t cpu)
{
	uint32_t raw = type == PERF_RECORD_SAMPLE ? raw_offset(sample_type) : 0;

	*frame = (struct pb_frame){ .offset = at + raw, .bytes = size - raw, .type = (uint16_t)type, .cpu = cpu };
	if (type == PERF_RECORD_LOST) {
		frame->lost = load_u64(record + 16);
		return;
	}
	record += 8;
	if (sample_type & PERF_SAMPLE_TID) {
		frame->pid = load_u32(record);
		frame->tid = load_u32(record + 4);
		record += 8;
	}
	if (sample_type & PERF_SAMPLE_TIME)
		frame->time_ns = load_u64(record);
}

/* LOST carries no time of its own: it gets that of the sample it came with, which follows it directly (FACTS 6), or else
 * of the frame before it. */
static void stamp_losses(struct pb_frame *frames, uint32_t count, uint64_t sample_type)
{
	for (uint32_t i = 0; i < count; i++) {
		struct pb_frame *lost = &frames[i];

		if (lost->type != PERF_RECORD_LOST)
			continue;
		if (i + 1 < count && lost[1].type == PERF_RECORD_SAMPLE &&
		    lost->offset + lost->bytes + raw_offset(sample_type) == lost[1].offset)
			lost->time_ns = lost[1].time_ns;
		else
			lost->time_ns = i ? lost[-1].time_ns : 0;
	}
}

/* The walk met bytes that are no record: what is left belongs to no one. */
static void stop(struct pb_walk *walk, uint64_t rest)
{
	walk->malformed++;
	walk->malformed_bytes += rest;
	walk->stopped = 1;
}

/* Inlined twice, so that counting does not pay for frames that nobody keeps. */
__attribute__((always_inline)) static inline enum pb_status
walk_records(const uint8_t *arena, uint64_t arena_offset, uint64_t bytes, uint64_t sample_type, uint16_t cpu,
             uint32_t flags, struct pb_frame *frames, uint32_t frame_capacity, struct pb_walk *result)
{
	const uint32_t raw = raw_offset(sample_type);
	struct pb_walk walk = { 0 };
	uint64_t at = 0, size;

	for (; at < bytes; at += size) {
		const uint8_t *record = arena + arena_offset + at;
		struct perf_event_header header;
		int kind;

		memcpy(&header, record, sizeof(header));
		size = header.size;
		if (size < sizeof(header) || size & 7 || (size > bytes - at && !(flags & PB_WALK_CUT))) {
			/* Nobody writes type 0: such a record is of no known type either. */
			walk.unknown += header.type == 0;
			stop(&walk, bytes - at);
			break;
		}
		if (size > bytes - at) {
			walk.truncated = 1;
			walk.truncated_bytes = bytes - at;
			break;
		}
		kind = judge(record, header.type, size, raw);
		if (kind < 0 && flags & PB_WALK_REVERSE) {
			/* What was written beyond its frame has destroyed the start of the next older one. */
			stop(&walk, bytes - at);
			break;
		}
		if (kind < 0) {
			/* Forward, size is what the kernel reserved: the next record begins there. */
			walk.malformed++;
			walk.malformed_bytes += size;
			continue;
		}
		walk.bytes += size;
		if (kind == 0) {
			walk.unknown++;
			continue;
		}
		if (header.type == PERF_RECORD_LOST) {
			walk.lost += load_u64(record + 16);
			walk.lost_frames++;
		}
		if (frames && walk.frames == frame_capacity)
			return PB_NO_ROOM;
		if (frames)
			fill_frame(&frames[walk.frames], record, arena_offset + at, header.type, header.size,
			           sample_type, cpu);
		walk.frames++;
	}
	if (frames && walk.lost_frames)
		stamp_losses(frames, walk.frames, sample_type);
	*result = walk;
	return PB_OK;
}

enum pb_status pb_ring_walk(const uint8_t *arena, uint64_t arena_offset, uint64_t bytes, uint64_t sample_type,
                            uint16_t cpu, uint32_t flags, struct pb_frame *frames, uint32_t frame_capacity,
                            struct pb_walk *walk)
{
	if ((bytes | arena_offset) & 7 || !pb_sample_type_known(sample_type))
		return PB_INVALID;
	if (!frames)
		return walk_records(arena, arena_offset, bytes, sample_type, cpu, flags, NULL, 0, walk);
	return walk_records(arena, arena_offset, bytes, sample_type, cpu, flags, frames, frame_capacity, walk);
}

void pb_walk_add(struct pb_walk *total, const struct pb_walk *walk)
{
	total->frames += walk->frames;
	total->malformed += walk->malformed;
	total->truncated += walk->truncated;
	total->unknown += walk->unknown;
	total->stopped += walk->stopped;
	total->lost_frames += walk->lost_frames;
	total->lost += walk->lost;
	total->bytes += walk->bytes;
	total->malformed_bytes += walk->malformed_bytes;
	total->truncated_bytes += walk->truncated_bytes;
}

void pb_frames_reverse(struct pb_frame *frames, uint64_t count, uint64_t sample_type)
{
	uint32_t raw = raw_offset(sample_type);
	struct pb_frame frame;

	for (uint64_t low = 0, high = count; low + 1 < high; low++, high--) {
		frame = frames[low];
		frames[low] = frames[high - 1];
		frames[high - 1] = frame;
	}
	/* The pair of FACTS 6 stood [LOST, sample] newest first and must stand so oldest first. */
	for (uint64_t i = 0; i + 1 < count; i++) {
		if (frames[i].type == PERF_RECORD_SAMPLE && frames[i + 1].type == PERF_RECORD_LOST &&
		    frames[i + 1].offset + frames[i + 1].bytes + raw == frames[i].offset) {
			frame = frames[i];
			frames[i] = frames[i + 1];
			frames[i + 1] = frame;
			i++;
		}
	}
}

uint64_t pb_ring_head(const struct pb_ring *ring)
{
	const struct perf_event_mmap_page *page = ring->page;

	/* Partner: the store of data_head in perf_output_put_handle, behind its smp_wmb. */
	return __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
}

uint64_t pb_rings_pending(const struct pb_ring *rings, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct perf_event_mmap_page *page = rings[i].page;
		uint64_t remaining = pb_ring_head(&rings[i]) - page->data_tail;

		bytes += remaining < rings[i].capacity ? remaining : rings[i].capacity;
	}
	return bytes;
}

/* Nothing writes between tail and head while the tail stands: a plain copy, in two parts at the ring's end. */
static void copy_window(const struct pb_ring *ring, uint64_t start, uint64_t bytes, uint8_t *to)
{
	uint64_t offset = start & (ring->capacity - 1);
	uint64_t first = ring->capacity - offset < bytes ? ring->capacity - offset : bytes;

	memcpy(to, ring->data + offset, first);
	memcpy(to + first, ring->data, bytes - first);
}

/* Copies a window and counts what is in it, a chunk at a time: the walk finds in the nearest cache what was just copied.
 * A record that a chunk cuts is looked at again with the next one; `flags` are for the window's end. */
static void copy_and_walk(const struct pb_ring *ring, uint64_t start, uint64_t bytes, uint32_t flags, uint8_t *arena,
                          uint64_t sample_type, struct pb_ring_state *state)
{
	uint64_t copied = 0, walked = 0;

	while (copied < bytes && !state->walk.stopped) {
		uint64_t chunk = bytes - copied < CHUNK_BYTES ? bytes - copied : CHUNK_BYTES;
		struct pb_walk walk;

		copy_window(ring, start + copied, chunk, arena + state->arena_offset + copied);
		copied += chunk;
		/* Cannot fail: the caller checked sample_type, alignment and room. */
		(void)pb_ring_walk(arena, state->arena_offset + walked, copied - walked, sample_type,
		                   (uint16_t)ring->cpu, copied < bytes ? PB_WALK_CUT : flags, NULL, 0, &walk);
		walked = copied - walk.truncated_bytes;
		if (copied < bytes) {
			walk.truncated = 0;
			walk.truncated_bytes = 0;
		}
		pb_walk_add(&state->walk, &walk);
	}
	state->valid_bytes = copied - state->walk.truncated_bytes;
	state->walk.malformed_bytes += bytes - copied;
}

/* Returns how many bytes it left for the next time. */
static uint64_t drain_one(const struct pb_ring *ring, uint8_t *arena, uint64_t slice_bytes, uint64_t sample_type,
                          struct pb_ring_state *state)
{
	struct perf_event_mmap_page *page = ring->page;
	uint64_t head = pb_ring_head(ring), tail = page->data_tail;
	struct pb_window window = pb_window_forward(head, tail, ring->capacity);
	uint64_t remaining = window.end - window.start;
	uint64_t bytes = remaining < slice_bytes ? remaining : slice_bytes;

	state->head = head;
	if (head == tail)
		return 0;
	if (!remaining) {
		state->walk.malformed = 1;
		state->walk.stopped = 1;
	} else {
		copy_and_walk(ring, window.start, bytes, bytes < remaining ? PB_WALK_CUT : 0, arena, sample_type,
		              state);
	}
	if (state->walk.stopped) {
		state->walk.malformed_bytes += remaining - bytes;
		tail = head;
	} else {
		/* What the slice cut is whole in the ring: it stays for the next drain. */
		tail += bytes - state->walk.truncated_bytes;
		state->walk.truncated = 0;
		state->walk.truncated_bytes = 0;
	}
	/* Partner: the load of data_tail in __perf_output_begin: our reads are done before the kernel may overwrite. */
	__atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
	return head - tail;
}

enum pb_status pb_rings_drain(const struct pb_ring *rings, uint32_t count, uint8_t *arena, uint64_t slice_bytes,
                              uint64_t sample_type, struct pb_ring_state *states, struct pb_walk *total,
                              uint64_t *left_bytes)
{
	struct pb_walk sum = { 0 };
	uint64_t left = 0;

	if (!pb_sample_type_known(sample_type) || slice_bytes & 7)
		return PB_INVALID;
	for (uint32_t i = 0; i < count; i++) {
		if (slice_bytes < PB_FRAME_MAX_BYTES && slice_bytes < rings[i].capacity)
			return PB_INVALID;
	}
	for (uint32_t i = 0; i < count; i++) {
		states[i] = (struct pb_ring_state){
			.cpu = rings[i].cpu,
			.capacity = rings[i].capacity,
			.arena_offset = i * slice_bytes,
			.first_frame = sum.frames,
		};
		left += drain_one(&rings[i], arena, slice_bytes, sample_type, &states[i]);
		pb_walk_add(&sum, &states[i].walk);
	}
	*total = sum;
	*left_bytes = left;
	return PB_OK;
}

enum pb_status pb_frames_check(const struct pb_ring_state *states, uint32_t count, uint64_t sample_type,
                               uint64_t frame_capacity)
{
	if (!pb_sample_type_known(sample_type))
		return PB_INVALID;
	for (uint32_t i = 0; i < count; i++) {
		if (states[i].first_frame + states[i].walk.frames > frame_capacity)
			return PB_NO_ROOM;
	}
	return PB_OK;
}

enum pb_status pb_rings_drain_frames(const struct pb_ring_state *states, uint32_t count, const uint8_t *arena,
                                     uint64_t sample_type, struct pb_frame *frames, uint64_t frame_capacity)
{
	enum pb_status status = pb_frames_check(states, count, sample_type, frame_capacity);
	struct pb_walk walk;

	if (status != PB_OK)
		return status;
	for (uint32_t i = 0; i < count; i++)
		(void)pb_ring_walk(arena, states[i].arena_offset, states[i].valid_bytes, sample_type,
		                   (uint16_t)states[i].cpu, 0, frames + states[i].first_frame, states[i].walk.frames,
		                   &walk);
	return PB_OK;
}
