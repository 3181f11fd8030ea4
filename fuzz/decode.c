/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode.c: libFuzzer target of the engine: samples and thread pages of any bytes through join, select, text and OTLP.
 * What it is not: a test of what is right (tests/unit); its plan has one call of each argument kind, not the real tables
 * (tests/unit/test_history_fuzz.py has those, under the sanitizers with `make test-asan`).
 * Input: a byte (samples or pages), then frames: u16 length, bytes. Source: otel_perfbuf/_core/history.h, otlp.h.
 */
#include <stdlib.h>
#include <string.h>
#include "history.h"
#include "otlp.h"
#include "plan.h"

#define CHECK(true)                       \
	do {                              \
		if (!(true))              \
			__builtin_trap(); \
	} while (0)
#define MAX_FRAMES 64

static const struct pb_name names[] = { { 0, "ZERO" }, { 1, "ONE" }, { 2, "TWO" }, { 4, "FOUR" }, { 11, "ELEVEN" } };
static const struct pb_table tables[] = { { names, 5, 0, 3, "X_???" } };
static const struct pb_table codes[9] = {
	{ names, 5, 0, 0, NULL }, { names, 5, 0, 0, NULL }, { names, 5, 0, 0, NULL },
	{ names, 5, 0, 0, NULL }, { names, 5, 0, 0, NULL }, { names, 5, 0, 0, NULL },
	{ names, 5, 0, 0, NULL }, { names, 5, 0, 0, NULL }, { names, 5, 0, 0, NULL },
};
static const struct pb_field fields[] = {
	{ "a", 0, 4, PB_ARG_SIGNED, 0 },
	{ "b", 4, 4, PB_ARG_FLAGS, 0 },
	{ "c", 8, 8, PB_ARG_ENUM, 0 },
};
static const struct pb_struct structs[] = { { fields, 3, 16, 0, 1 }, { fields, 3, 16, 1, 0 } };
static const char *const texts[] = { "Zero", "One", "Two", "Four", "Eleven" };
static struct pb_syscall_plan calls[PB_ARG_KINDS];
static struct pb_plan plan = {
	.syscalls = calls,
	.syscall_count = PB_ARG_KINDS,
	.table_count = 1,
	.tables = tables,
	.errors = names + 1,
	.error_texts = texts + 1,
	.error_count = 4,
	.signal_count = 4,
	.signals = names + 1,
	.signal_codes = codes,
	.string_bytes = 32,
	.struct_count = 2,
	.structs = structs,
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	for (uint8_t kind = 0; kind < PB_ARG_KINDS; kind++) {
		calls[kind].name = "call";
		calls[kind].arguments = 6;
		calls[kind].result_kind = PB_ARG_LONG;
		for (uint8_t i = 0; i < 6; i++) {
			/* The kind itself, then its neighbours: OPEN_MODE looks back, structs come both ways. */
			calls[kind].args[i].name = "argument";
			calls[kind].args[i].kind = (uint8_t)((kind + i) % PB_ARG_KINDS);
			if (calls[kind].args[i].kind == PB_ARG_STRUCT)
				calls[kind].args[i].table = i & 1;
		}
	}
	return 0;
}

/* Copies the input's frames to an arena of exactly their size each, so that a byte too far is found. */
static uint32_t cut(const uint8_t *data, size_t size, uint8_t *arena, struct pb_frame *frames)
{
	uint32_t count = 0;
	uint64_t at = 0;

	while (size >= 2 && count < MAX_FRAMES) {
		uint16_t bytes;

		memcpy(&bytes, data, 2);
		data += 2;
		size -= 2;
		if (bytes > size)
			bytes = (uint16_t)size;
		memcpy(arena + at, data, bytes);
		frames[count++] = (struct pb_frame){ .offset = at, .bytes = bytes, .type = 9 };
		at += bytes;
		data += bytes;
		size -= bytes;
	}
	return count;
}

static void encode(struct pb_history *history)
{
	static uint8_t out[PB_CHUNK_BYTES], scratch[2 * PB_CHUNK_BYTES] __attribute__((aligned(8)));
	static char line[PB_LINE_BYTES];
	struct pb_bytes *resources = calloc(history->process_count + 1, sizeof(*resources));
	struct pb_encoding encoding = { .plan = &plan, .has_trace = 1, .resources = resources };
	uint64_t cursor = 0, bytes, selected, dropped;
	uint32_t records;

	for (uint64_t i = 0; i < history->process_count; i++)
		history->processes[i].scope = 1;
	CHECK(pb_history_select(history, 0, UINT64_MAX, 1 << 20, &selected, &dropped) == PB_OK);
	for (uint64_t i = 0; i < history->event_count; i++)
		(void)pb_text_line(history, &plan, i, line, sizeof(line), &bytes);
	do {
		if (pb_otlp_encode_chunk(history, &encoding, &cursor, scratch, sizeof(scratch), out, sizeof(out),
		                         &bytes, &records) != PB_OK)
			break;
	} while (bytes);
	free(resources);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct pb_frame frames[MAX_FRAMES];
	struct pb_history_size room = { 0 };
	struct pb_history history = { 0 };
	uint8_t *arena;
	uint32_t count = 0;
	int pages;

	if (size < 1 || size > 65536)
		return 0;
	pages = data[0] & 1;
	data++;
	size--;
	arena = malloc(size + 1);
	if (pages)
		memcpy(arena, data, size);
	else
		count = cut(data, size, arena, frames);
	CHECK((pages ? pb_history_count_pages(arena, size, &room)
	             : pb_history_count_samples(arena, frames, count, &room)) == PB_OK);
	history.event_capacity = room.events;
	history.thread_capacity = history.process_capacity = history.gap_capacity = room.samples;
	history.events = calloc(room.events + 1, sizeof(*history.events));
	history.threads = calloc(room.samples + 1, sizeof(*history.threads));
	history.processes = calloc(room.samples + 1, sizeof(*history.processes));
	history.gaps = calloc(room.samples + 1, sizeof(*history.gaps));
	history.workspace_bytes = 32 * (room.events + 1);
	history.workspace = malloc(history.workspace_bytes);
	if ((pages ? pb_history_add_pages(&history, arena, size)
	           : pb_history_add_samples(&history, arena, frames, count)) == PB_OK &&
	    pb_history_join(&history) == PB_OK)
		encode(&history);
	free(history.workspace);
	free(history.gaps);
	free(history.processes);
	free(history.threads);
	free(history.events);
	free(arena);
	return 0;
}
