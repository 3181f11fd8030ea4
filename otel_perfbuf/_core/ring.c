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
#define LOST_BYTES 24 /* header, id, lost */

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

/* What the kernel put between header and raw.size, in the order of perf_event.h: TID, TIME, CPU. */
static void read_metadata(const uint8_t *at, uint64_t sample_type, struct pb_frame *frame)
{
	if (sample_type & PERF_SAMPLE_TID) {
		frame->pid = load_u32(at);
		frame->tid = load_u32(at + 4);
		at += 8;
	}
	if (sample_type & PERF_SAMPLE_TIME)
		frame->time_ns = load_u64(at);
}

/* One whole record of `size` bytes. Returns 1 for a frame, 0 for another type, -1 for bytes that disagree. */
static int read_record(const uint8_t *record, uint32_t type, uint32_t size, uint64_t sample_type,
                       struct pb_frame *frame)
{
	uint32_t raw = raw_offset(sample_type);

	if (type == PERF_RECORD_SAMPLE) {
		/* A payload above 65,516 bytes wraps header.size (FACTS 9): raw.size is 32 bit and tells. */
		if (size <= raw || load_u32(record + raw - 4) != size - raw)
			return -1;
		frame->offset = raw;
		frame->bytes = size - raw;
		read_metadata(record + 8, sample_type, frame);
		return 1;
	}
	if (type == PERF_RECORD_LOST) {
		if (size < LOST_BYTES)
			return -1;
		frame->bytes = size;
		frame->lost = load_u64(record + 16);
		return 1;
	}
	return 0;
}

/* The walk met bytes that are no record: what is left belongs to no one. */
static void stop(struct pb_walk *walk, uint64_t rest)
{
	walk->malformed++;
	walk->malformed_bytes += rest;
	walk->stopped = 1;
}

/* LOST carries no time of its own: it gets that of the sample it came with, which follows it directly (FACTS 6). */
static void stamp_lost(struct pb_frame *lost, const struct pb_frame *frame, uint64_t sample_type)
{
	if (lost->type == PERF_RECORD_LOST && frame->type == PERF_RECORD_SAMPLE &&
	    lost->offset + lost->bytes + raw_offset(sample_type) == frame->offset)
		lost->time_ns = frame->time_ns;
}

static void keep(struct pb_walk *walk, const struct pb_frame *frame, struct pb_frame *frames, uint64_t sample_type)
{
	if (frame->type == PERF_RECORD_LOST) {
		walk->lost += frame->lost;
		walk->lost_frames++;
	}
	if (frames) {
		frames[walk->frames] = *frame;
		if (walk->frames)
			stamp_lost(&frames[walk->frames - 1], frame, sample_type);
	}
	walk->frames++;
}

enum pb_status pb_ring_walk(const uint8_t *arena, uint64_t arena_offset, uint64_t bytes, uint64_t sample_type,
                            uint16_t cpu, uint32_t flags, struct pb_frame *frames, uint32_t frame_capacity,
                            struct pb_walk *result)
{
	struct pb_walk walk = { 0 };
	uint64_t at = 0, last_time_ns = 0;

	if ((bytes | arena_offset) & 7 || !pb_sample_type_known(sample_type))
		return PB_INVALID;
	while (at < bytes) {
		const uint8_t *record = arena + arena_offset + at;
		struct perf_event_header header;
		struct pb_frame frame = { .cpu = cpu, .time_ns = last_time_ns };
		int kind;

		memcpy(&header, record, sizeof(header));
		if (header.size < sizeof(header) || header.size & 7) {
			stop(&walk, bytes - at);
			break;
		}
		if (header.size > bytes - at) {
			if (!(flags & PB_WALK_CUT)) {
				stop(&walk, bytes - at);
			} else {
				walk.truncated = 1;
				walk.truncated_bytes = bytes - at;
			}
			break;
		}
		kind = read_record(record, header.type, header.size, sample_type, &frame);
		if (kind < 0 && flags & PB_WALK_REVERSE) {
			/* What was written beyond its frame has destroyed the start of the next older one. */
			stop(&walk, bytes - at);
			break;
		}
		if (kind < 0) {
			/* Forward, header.size is what the kernel reserved: the next record begins there. */
			walk.malformed++;
			walk.malformed_bytes += header.size;
		} else {
			walk.bytes += header.size;
			walk.unknown += kind == 0;
		}
		if (kind > 0) {
			if (frames && walk.frames == frame_capacity)
				return PB_NO_ROOM;
			frame.type = header.type;
			frame.offset += arena_offset + at;
			last_time_ns = frame.time_ns;
			keep(&walk, &frame, frames, sample_type);
		}
		at += header.size;
	}
	*result = walk;
	return PB_OK;
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

/* Returns how many bytes it left for the next time. */
static uint64_t drain_one(const struct pb_ring *ring, uint8_t *arena, uint64_t slice_bytes, uint64_t sample_type,
                          struct pb_frame *frames, struct pb_ring_state *state)
{
	struct perf_event_mmap_page *page = ring->page;
	uint64_t head = pb_ring_head(ring), tail = page->data_tail;
	struct pb_window window = pb_window_forward(head, tail, ring->capacity);
	uint64_t remaining = window.end - window.start;
	uint64_t bytes = remaining < slice_bytes ? remaining : slice_bytes;

	state->head = head;
	state->valid_bytes = bytes;
	if (head == tail)
		return 0;
	if (!remaining) {
		state->walk.malformed = 1;
		state->walk.stopped = 1;
	} else {
		copy_window(ring, window.start, bytes, arena + state->arena_offset);
		/* Cannot fail: the caller checked sample_type, alignment and room. */
		(void)pb_ring_walk(arena, state->arena_offset, bytes, sample_type, (uint16_t)ring->cpu,
		                   bytes < remaining ? PB_WALK_CUT : 0, frames, UINT32_MAX, &state->walk);
	}
	if (state->walk.stopped) {
		state->walk.malformed_bytes += remaining - bytes;
		tail = head;
	} else {
		/* What the slice cut is whole in the ring: it stays for the next drain. */
		tail += bytes - state->walk.truncated_bytes;
		state->valid_bytes -= state->walk.truncated_bytes;
		state->walk.truncated = 0;
		state->walk.truncated_bytes = 0;
	}
	/* Partner: the load of data_tail in __perf_output_begin: our reads are done before the kernel may overwrite. */
	__atomic_store_n(&page->data_tail, tail, __ATOMIC_RELEASE);
	return head - tail;
}

enum pb_status pb_rings_drain(const struct pb_ring *rings, uint32_t count, uint8_t *arena, uint64_t slice_bytes,
                              uint64_t sample_type, struct pb_frame *frames, uint64_t frame_capacity,
                              struct pb_ring_state *states, struct pb_walk *total, uint64_t *left_bytes)
{
	struct pb_walk sum = { 0 };
	uint64_t left = 0;

	if (!pb_sample_type_known(sample_type) || slice_bytes & 7 ||
	    frame_capacity < count * (slice_bytes / PB_FRAME_MIN_BYTES))
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
		left += drain_one(&rings[i], arena, slice_bytes, sample_type, frames + sum.frames, &states[i]);
		pb_walk_add(&sum, &states[i].walk);
	}
	*total = sum;
	*left_bytes = left;
	return PB_OK;
}
