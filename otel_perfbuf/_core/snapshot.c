/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c: reverse (overwritable) rings, copied while their writers go on, and the merge of rings by time.
 * What it is not: the walk (ring.c); it waits for no grace period, the caller does.
 * Source: Linux kernel/events/ring_buffer.c (__perf_output_begin, perf_output_put_handle); DESIGN.md section 5.
 *
 * Facts: the kernel writes downward from data_head, so it overwrites the oldest bytes, which lie at
 *   data_head + capacity and below; it publishes data_head behind the data.
 *
 *     position    h1        h0                              h1+capacity   h0+capacity
 *                 |<-------->|=================================|<---------->|
 *                  written     copied, whole               slack  overwritten meanwhile
 *                  meanwhile
 *
 * Meaning: what a copy from h0 on may have torn is what lies above h1 + capacity - (bytes in flight at h1).
 * Decision: bytes in flight are bounded by slack (the largest frame for each nesting level), or become nothing by a
 *   grace period before h1 is read again, since a writer runs with preemption off.
 * Cost: slack bytes of the oldest history, or 8-28 ms of waiting.
 */
#include <string.h>
#include "ring.h"

static uint64_t minimum(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Racy by design: a writer may change the oldest bytes under the copy; which ones is found out afterwards. memcpy and
 * not relaxed atomics: torn bytes are cut off, never looked at, and a word-wise copy would cost half the bandwidth. */
__attribute__((no_sanitize("thread"))) static void copy_racy(const struct pb_ring *ring, uint64_t start, uint64_t bytes,
                                                             uint8_t *to)
{
	uint64_t offset = start & (ring->capacity - 1);
	uint64_t first = minimum(ring->capacity - offset, bytes);

	memcpy(to, ring->data + offset, first);
	memcpy(to + first, ring->data, bytes - first);
}

/* Of a copy that began at state->head: what no writer can have touched by the time the head was `now`. */
static uint64_t untouched(const struct pb_ring_state *state, uint64_t now, uint64_t slack_bytes)
{
	uint64_t gone = state->head - now;

	if (gone > state->capacity || slack_bytes > state->capacity - gone || now & 7)
		return 0;
	return minimum(minimum(state->written_bytes, state->capacity), state->capacity - gone - slack_bytes);
}

enum pb_status pb_rings_snapshot_copy(const struct pb_ring *rings, uint32_t count, uint32_t everything,
                                      uint64_t slack_bytes, uint8_t *arena, struct pb_ring_state *states)
{
	uint64_t arena_offset = 0;

	if (slack_bytes & 7)
		return PB_INVALID;
	for (uint32_t i = 0; i < count; i++) {
		const struct pb_ring *ring = &rings[i];
		uint64_t head = pb_ring_head(ring), far_end = everything ? 0 : ring->cursor;
		struct pb_window window = pb_window_reverse(head, far_end, ring->capacity);
		struct pb_ring_state state = {
			.cpu = ring->cpu,
			.wrapped = 0 - head > ring->capacity,
			.capacity = ring->capacity,
			.head = head,
			.arena_offset = arena_offset,
			.written_bytes = head & 7 ? 0 : far_end - head,
		};

		copy_racy(ring, window.start, window.end - window.start, arena + arena_offset);
		/* Orders the copy's loads before the head's: partner is the smp_wmb between data and data_head. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		state.valid_bytes = untouched(&state, pb_ring_head(ring), slack_bytes);
		/* A head between frames is no head the kernel ever published: nothing of this ring can be walked. */
		state.walk.malformed = head & 7 ? 1 : 0;
		states[i] = state;
		arena_offset += ring->capacity;
	}
	return PB_OK;
}

enum pb_status pb_rings_snapshot_settle(const struct pb_ring *rings, uint32_t count, struct pb_ring_state *states)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t settled = untouched(&states[i], pb_ring_head(&rings[i]), 0);

		if (settled > states[i].valid_bytes)
			states[i].valid_bytes = settled;
	}
	return PB_OK;
}

static uint32_t walk_flags(const struct pb_ring_state *state)
{
	/* The far end is a record's end unless something of the window is missing there. */
	return PB_WALK_REVERSE | (state->valid_bytes < state->written_bytes ? PB_WALK_CUT : 0);
}

enum pb_status pb_rings_snapshot_count(const struct pb_ring *rings, uint32_t count, const uint8_t *arena,
                                       uint64_t sample_type, struct pb_ring_state *states, struct pb_walk *total)
{
	struct pb_walk sum = { 0 };

	if (!pb_sample_type_known(sample_type))
		return PB_INVALID;
	for (uint32_t i = 0; i < count; i++) {
		struct pb_ring_state *state = &states[i];
		uint32_t bad_head = state->head & 7 ? 1 : 0;
		uint64_t since_cursor = bad_head ? 0 : rings[i].cursor - state->head, whole;
		struct pb_walk walk;

		(void)pb_ring_walk(arena, state->arena_offset, state->valid_bytes, sample_type, (uint16_t)state->cpu,
		                   walk_flags(state), NULL, 0, &walk);
		walk.malformed += bad_head;
		whole = state->valid_bytes - walk.truncated_bytes;
		state->walk = walk;
		state->overwritten_bytes = since_cursor > whole ? since_cursor - whole : 0;
		state->first_frame = sum.frames;
		pb_walk_add(&sum, &walk);
	}
	*total = sum;
	return PB_OK;
}

enum pb_status pb_rings_snapshot_frames(struct pb_ring *rings, uint32_t count, const uint8_t *arena,
                                        uint64_t sample_type, struct pb_frame *frames, uint64_t frame_capacity,
                                        const struct pb_ring_state *states)
{
	enum pb_status status = pb_frames_check(states, count, sample_type, frame_capacity);
	struct pb_walk walk;

	if (status != PB_OK)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		const struct pb_ring_state *state = &states[i];
		struct pb_frame *own = frames + state->first_frame;

		(void)pb_ring_walk(arena, state->arena_offset, state->valid_bytes, sample_type, (uint16_t)state->cpu,
		                   walk_flags(state), own, state->walk.frames, &walk);
		pb_frames_reverse(own, state->walk.frames, sample_type);
		if (!(state->head & 7))
			rings[i].cursor = state->head;
	}
	return PB_OK;
}

/* ---- merge by time: a binary heap of runs, the one with the earliest next frame on top ---- */

static int earlier(const struct pb_frame *frames, const struct pb_run *a, const struct pb_run *b)
{
	uint64_t time_a = frames[a->next].time_ns, time_b = frames[b->next].time_ns;

	/* Equal times: by ring, so that the order is the same every time. */
	return time_a < time_b || (time_a == time_b && a->next < b->next);
}

static void sift_down(const struct pb_frame *frames, struct pb_run *heap, uint32_t count, uint32_t at)
{
	for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
		struct pb_run moved = heap[at];

		if (child + 1 < count && earlier(frames, &heap[child + 1], &heap[child]))
			child++;
		if (!earlier(frames, &heap[child], &moved))
			return;
		heap[at] = heap[child];
		heap[child] = moved;
		at = child;
	}
}

void pb_frames_merge(const struct pb_frame *frames, const struct pb_ring_state *states, uint32_t count,
                     struct pb_run *heap, struct pb_frame *merged)
{
	uint32_t runs = 0;
	uint64_t at = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (states[i].walk.frames)
			heap[runs++] =
				(struct pb_run){ states[i].first_frame, states[i].first_frame + states[i].walk.frames };
	}
	for (uint32_t i = runs / 2; i-- > 0;)
		sift_down(frames, heap, runs, i);
	while (runs) {
		merged[at++] = frames[heap[0].next++];
		if (heap[0].next == heap[0].end)
			heap[0] = heap[--runs];
		sift_down(frames, heap, runs, 0);
	}
}
