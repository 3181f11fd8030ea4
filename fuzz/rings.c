/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rings.c: libFuzzer target of everything that walks ring bytes: the walk itself, drain, snapshot, both ring kinds.
 * What it is not: a test of what is right (tests/unit): here only the sanitizers and the sums below speak.
 * Input: 8 bytes of choices, then the ring's words and bytes. Source: otel_perfbuf/_core/ring.h, ringbuf.h.
 */
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include "ring.h"
#include "ringbuf.h"

#define MAX_CAPACITY 65536
#define CHECK(true)                       \
	do {                              \
		if (!(true))              \
			__builtin_trap(); \
	} while (0)

struct choices {
	uint8_t what;
	uint8_t capacity_log2;
	uint8_t metadata;
	uint8_t flags;
	uint8_t slack;
	uint8_t reserved[3];
};

static const uint64_t sample_types[] = {
	PERF_SAMPLE_RAW,
	PERF_SAMPLE_RAW | PERF_SAMPLE_TIME,
	PERF_SAMPLE_RAW | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU,
	PERF_SAMPLE_RAW | PERF_SAMPLE_CPU,
};

static uint64_t word(const uint8_t *data, size_t size, size_t index)
{
	uint64_t value = 0;

	if (size >= 8 * index + 8)
		memcpy(&value, data + 8 * index, 8);
	return value;
}

static void check_frames(const struct pb_frame *frames, uint64_t count, uint64_t arena_bytes)
{
	/* Zeroed before: a second walk that found fewer than the first would show. */
	for (uint64_t i = 0; i < count; i++) {
		CHECK(frames[i].type == PERF_RECORD_SAMPLE || frames[i].type == PERF_RECORD_LOST);
		CHECK(frames[i].offset <= arena_bytes && frames[i].bytes <= arena_bytes - frames[i].offset);
	}
}

static void walk(const uint8_t *data, size_t size, uint64_t sample_type, uint32_t flags)
{
	uint64_t bytes = size & ~7ULL, room = bytes / PB_FRAME_MIN_BYTES + 1;
	uint8_t *arena = malloc(bytes + 1); /* exactly sized: a byte too far is found */
	struct pb_frame *frames = calloc(room, sizeof(*frames));
	struct pb_walk counted = { 0 }, filled = { 0 };

	memcpy(arena, data, bytes);
	CHECK(pb_ring_walk(arena, 0, bytes, sample_type, 1, flags, NULL, 0, &counted) == PB_OK);
	CHECK(counted.bytes + counted.malformed_bytes + counted.truncated_bytes == bytes);
	CHECK(pb_ring_walk(arena, 0, bytes, sample_type, 1, flags, frames, counted.frames, &filled) == PB_OK);
	CHECK(!memcmp(&counted, &filled, sizeof(counted)));
	check_frames(frames, filled.frames, bytes);
	pb_frames_reverse(frames, filled.frames, sample_type);
	free(frames);
	free(arena);
}

static void perf_ring(const uint8_t *data, size_t size, const struct choices *choices, uint64_t sample_type)
{
	static struct perf_event_mmap_page page;
	uint64_t capacity = 8ULL << choices->capacity_log2 % 14, left;
	uint8_t *memory = calloc(1, capacity), *arena = malloc(capacity);
	struct pb_ring ring = {
		.page = &page, .data = memory, .capacity = capacity, .cursor = word(data, size, 2) & ~7ULL
	};
	struct pb_frame *frames = calloc(capacity / PB_FRAME_MIN_BYTES + 1, sizeof(*frames));
	struct pb_ring_state state;
	struct pb_walk total;

	page.data_head = word(data, size, 0);
	page.data_tail = word(data, size, 1);
	if (size > 24)
		memcpy(memory, data + 24, size - 24 < capacity ? size - 24 : capacity);
	if (choices->flags & 1) {
		CHECK(pb_rings_drain(&ring, 1, arena, capacity, sample_type, &state, &total, &left) == PB_OK);
		CHECK(pb_rings_drain_frames(&state, 1, arena, sample_type, frames, total.frames) == PB_OK);
		check_frames(frames, total.frames, capacity);
	} else {
		CHECK(pb_rings_snapshot_copy(&ring, 1, choices->flags & 2, choices->slack * 8, arena, &state) == PB_OK);
		CHECK(pb_rings_snapshot_settle(&ring, 1, &state) == PB_OK);
		CHECK(pb_rings_snapshot_count(&ring, 1, arena, sample_type, &state, &total) == PB_OK);
		CHECK(pb_rings_snapshot_frames(&ring, 1, arena, sample_type, frames, total.frames, &state) == PB_OK);
		check_frames(frames, total.frames, capacity);
	}
	free(frames);
	free(arena);
	free(memory);
}

static void ringbuf(const uint8_t *data, size_t size, const struct choices *choices)
{
	uint64_t capacity = 8ULL << choices->capacity_log2 % 14, words[3], consumer;
	uint8_t *memory = calloc(1, capacity), *arena = malloc(capacity);
	struct pb_frame *frames = calloc(capacity / 8 + 1, sizeof(*frames));
	struct pb_ringbuf ring = { .consumer = &consumer, .producer = words, .data = memory, .capacity = capacity };
	struct pb_ringbuf_rest rest;
	struct pb_ring_state state;

	for (int i = 0; i < 3; i++)
		words[i] = word(data, size, i);
	/* The kernel's and our own positions are multiples of 8 (the core itself sets them); the writers' words are any. */
	consumer = word(data, size, 3);
	ring.cursor = consumer & ~7ULL;
	if (size > 32)
		memcpy(memory, data + 32, size - 32 < capacity ? size - 32 : capacity);
	if (choices->flags & 1) {
		CHECK(pb_ringbuf_drain(&ring, capacity, arena, capacity, frames, capacity / 8 + 1, &state, &rest) ==
		      PB_OK);
	} else {
		CHECK(pb_ringbuf_snapshot_copy(&ring, choices->flags & 2, arena, &state) == PB_OK);
		CHECK(pb_ringbuf_snapshot_frames(&ring, arena, NULL, 0, &state) == PB_OK);
		CHECK(pb_ringbuf_snapshot_frames(&ring, arena, frames, state.walk.frames, &state) == PB_OK);
	}
	check_frames(frames, state.walk.frames, capacity);
	free(frames);
	free(arena);
	free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct choices choices;
	uint64_t sample_type;

	if (size < sizeof(choices) || size > MAX_CAPACITY + sizeof(choices))
		return 0;
	memcpy(&choices, data, sizeof(choices));
	data += sizeof(choices);
	size -= sizeof(choices);
	sample_type = sample_types[choices.metadata & 3];
	switch (choices.what % 3) {
	case 0:
		walk(data, size, sample_type, choices.flags & (PB_WALK_CUT | PB_WALK_REVERSE));
		break;
	case 1:
		perf_ring(data, size, &choices, sample_type);
		break;
	default:
		ringbuf(data, size, &choices);
	}
	return 0;
}
