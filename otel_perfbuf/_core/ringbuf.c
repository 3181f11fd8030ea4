/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringbuf.c: see ringbuf.h.
 *
 * The overwritable ring's order (FACTS 16, and one step more). Facts: the kernel moves overwrite_pos, released, before
 *   it writes a byte over the oldest records, and producer_pos behind a new header; a commit clears BUSY.
 * Meaning: a live header is what it says only if overwrite_pos has not passed it after it was read; a byte of the copy
 *   is whole only if overwrite_pos has not passed it after the copy. BUSY bits inside the copy tell nothing: a record
 *   may have been committed between its body's and its header's copy.
 * Decision: walk live headers with that check up to the first BUSY: [start, end) is committed. Copy it, then read
 *   overwrite_pos again: what lies before it is cut off, and it is a record's start.
 */
#include <linux/perf_event.h>
#include <string.h>
#include "ringbuf.h"

#define BUSY (1U << 31)
#define DISCARD (1U << 30)
#define LENGTH (DISCARD - 1)

enum producer_word { PRODUCER_POS = 0, PENDING_POS = 1, OVERWRITE_POS = 2 };

static uint64_t producer_word(const struct pb_ringbuf *ring, enum producer_word word)
{
	/* Partner: smp_store_release in __bpf_ringbuf_reserve. */
	return __atomic_load_n((const uint64_t *)ring->producer + word, __ATOMIC_ACQUIRE);
}

static uint64_t consumer_pos(const struct pb_ringbuf *ring)
{
	return *(const uint64_t *)ring->consumer; /* nobody else writes it */
}

static void set_consumer_pos(const struct pb_ringbuf *ring, uint64_t position)
{
	/* Partner: smp_load_acquire in __bpf_ringbuf_reserve: our reads are done before the space is used again. */
	__atomic_store_n((uint64_t *)ring->consumer, position, __ATOMIC_RELEASE);
}

static uint32_t live_header(const struct pb_ringbuf *ring, uint64_t position)
{
	/* Partner: the xchg in bpf_ringbuf_commit. Headers are 8-aligned, so they never wrap. */
	return __atomic_load_n((const uint32_t *)(ring->data + (position & (ring->capacity - 1))), __ATOMIC_ACQUIRE);
}

static uint64_t record_bytes(uint32_t header)
{
	return ((uint64_t)(header & LENGTH) + PB_RINGBUF_HEADER_BYTES + 7) & ~7ULL;
}

static void copy_out(const struct pb_ringbuf *ring, uint64_t position, uint64_t bytes, uint8_t *to)
{
	uint64_t offset = position & (ring->capacity - 1);
	uint64_t first = ring->capacity - offset < bytes ? ring->capacity - offset : bytes;

	memcpy(to, ring->data + offset, first);
	memcpy(to + first, ring->data, bytes - first);
}

static uint64_t held_from(const struct pb_ringbuf *ring, uint32_t overwritable)
{
	return overwritable ? producer_word(ring, OVERWRITE_POS) : consumer_pos(ring);
}

uint64_t pb_ringbuf_available(const struct pb_ringbuf *ring, uint32_t overwritable)
{
	uint64_t from = held_from(ring, overwritable), bytes = producer_word(ring, PRODUCER_POS) - from;

	return bytes < ring->capacity ? bytes : ring->capacity;
}

enum pb_status pb_ringbuf_drain(const struct pb_ringbuf *ring, uint64_t slice_bytes, uint8_t *arena,
                                uint64_t arena_bytes, struct pb_frame *frames, uint64_t frame_capacity,
                                struct pb_ring_state *state, struct pb_ringbuf_rest *rest)
{
	uint64_t begin = consumer_pos(ring), at = begin, used = 0, end = producer_word(ring, PRODUCER_POS);
	struct pb_ring_state result = { .capacity = ring->capacity, .head = end };
	struct pb_ringbuf_rest left = { 0 };

	if (arena_bytes < ring->capacity || !slice_bytes || !frame_capacity)
		return PB_INVALID;
	if (end - at > ring->capacity || (end - at) & 7 || at & 7) {
		result.walk.malformed = 1;
		result.walk.stopped = 1;
		at = end;
	}
	while (at != end && at - begin < slice_bytes && result.walk.frames < frame_capacity) {
		uint32_t header = live_header(ring, at);
		uint64_t length = header & LENGTH, bytes = record_bytes(header);

		if (header & BUSY) {
			left.busy = 1;
			break;
		}
		if (bytes > end - at) {
			result.walk.malformed++;
			result.walk.malformed_bytes += end - at;
			result.walk.stopped = 1;
			at = end;
			break;
		}
		if (header & DISCARD) {
			left.discarded++;
		} else {
			if (bytes > arena_bytes - used)
				break;
			copy_out(ring, at + PB_RINGBUF_HEADER_BYTES, length, arena + used);
			frames[result.walk.frames++] = (struct pb_frame){
				.offset = used,
				.bytes = (uint32_t)length,
				.type = PERF_RECORD_SAMPLE,
			};
			used += (length + 7) & ~7ULL;
		}
		result.walk.bytes += bytes;
		at += bytes;
	}
	set_consumer_pos(ring, at);
	left.bytes = end - at;
	result.valid_bytes = result.walk.bytes;
	*state = result;
	*rest = left;
	return PB_OK;
}

/* Whether position a lies before b; positions are running counters. */
static int before(uint64_t a, uint64_t b)
{
	return (int64_t)(a - b) < 0;
}

/* From *start on, where the committed records end. *start moves on when it is overwritten meanwhile; it ends as the
 * last overwrite_pos that was met on the way, or as it was. */
static uint64_t committed_end(const struct pb_ringbuf *ring, uint64_t *start, uint64_t end, uint32_t *malformed)
{
	uint64_t at = *start;

	while (before(at, end)) {
		uint32_t header = live_header(ring, at);
		uint64_t passed;

		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		passed = producer_word(ring, OVERWRITE_POS);
		if (before(at, passed)) {
			at = *start = passed;
			continue;
		}
		if (header & BUSY)
			break;
		if (record_bytes(header) > end - at) {
			*malformed = 1;
			break;
		}
		at += record_bytes(header);
	}
	return at;
}

enum pb_status pb_ringbuf_snapshot_copy(const struct pb_ringbuf *ring, uint32_t everything, uint8_t *arena,
                                        struct pb_ring_state *state)
{
	uint64_t produced = producer_word(ring, PRODUCER_POS), start = producer_word(ring, OVERWRITE_POS), end, passed;
	uint64_t wanted = everything ? start : ring->cursor, cut;
	struct pb_ring_state result = { .capacity = ring->capacity };
	uint32_t malformed = 0;

	/* overwrite_pos is read later, and the writers may have been faster than this thread: seen on two CPUs. */
	if (before(produced, start))
		produced = start;
	/* The words disagree (a ring that was never the kernel's): nothing can be walked. */
	if (produced - start > ring->capacity || (produced | start) & 7) {
		result.walk.malformed = 1;
		result.head = ring->cursor;
		*state = result;
		return PB_OK;
	}
	if (!before(wanted, start) && !before(produced, wanted))
		start = wanted;
	end = committed_end(ring, &start, produced, &malformed);
	if (before(end, start))
		end = start;
	if (end - start > ring->capacity)
		start = end - ring->capacity; /* cannot be whole either: overwrite_pos has passed it */
	copy_out(ring, start, end - start, arena);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	passed = producer_word(ring, OVERWRITE_POS);
	cut = before(start, passed) ? passed - start : 0;
	if (cut > end - start)
		cut = end - start;
	result.arena_offset = cut;
	result.valid_bytes = end - start - cut;
	result.written_bytes = end - ring->cursor;
	result.head = end;
	result.wrapped = passed != 0;
	result.walk.malformed = malformed;
	if (result.written_bytes > result.valid_bytes)
		result.overwritten_bytes = result.written_bytes - result.valid_bytes;
	*state = result;
	return PB_OK;
}

enum pb_status pb_ringbuf_snapshot_frames(struct pb_ringbuf *ring, const uint8_t *arena, struct pb_frame *frames,
                                          uint64_t frame_capacity, struct pb_ring_state *state)
{
	struct pb_walk walk = { .malformed = state->walk.malformed };
	uint64_t at = 0;

	while (at < state->valid_bytes) {
		const uint8_t *record = arena + state->arena_offset + at;
		uint32_t header;

		memcpy(&header, record, sizeof(header));
		if (header & BUSY || record_bytes(header) > state->valid_bytes - at) {
			walk.malformed++;
			walk.malformed_bytes += state->valid_bytes - at;
			walk.stopped = 1;
			break;
		}
		if (!(header & DISCARD)) {
			if (frames && walk.frames == frame_capacity)
				return PB_NO_ROOM;
			if (frames)
				frames[walk.frames] = (struct pb_frame){
					.offset = state->arena_offset + at + PB_RINGBUF_HEADER_BYTES,
					.bytes = header & LENGTH,
					.type = PERF_RECORD_SAMPLE,
				};
			walk.frames++;
		}
		walk.bytes += record_bytes(header);
		at += record_bytes(header);
	}
	if (frames) {
		ring->cursor = state->head;
		set_consumer_pos(ring, state->head); /* what poll reports is acknowledged */
	} else {
		state->walk = walk;
	}
	return PB_OK;
}
