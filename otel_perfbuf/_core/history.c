/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c: counts and collects the events of samples and thread pages. Inputs are untrusted bytes: what disagrees
 * with itself is counted as malformed, the rest of that sample is passed over, the next one is read.
 * Source: bpf/records.h. What it is not: it orders and joins nothing (history_join.c).
 */
#include "history.h"
#include "check.h"

enum { SAMPLE_FRAME = 9 }; /* PERF_RECORD_SAMPLE */

/* Passes over a sample's records; how many there are before the first that cannot be trusted. */
static uint64_t count_records(struct pb_cursor cursor)
{
	struct pb_record head;
	const uint8_t *record;
	uint64_t count = 0;

	while (cursor.left && pb_record_next(&cursor, &head, &record))
		count++;
	return count;
}

enum pb_status pb_history_count_samples(const uint8_t *arena, const struct pb_frame *frames, uint64_t frame_count,
                                        struct pb_history_size *size)
{
	struct pb_history_size sum = { 0, 0 };

	if (!size || (frame_count && (!arena || !frames)))
		return PB_INVALID;
	for (uint64_t i = 0; i < frame_count; i++) {
		struct pb_sample head;
		struct pb_cursor cursor;

		if (frames[i].type != SAMPLE_FRAME ||
		    !pb_sample_open(arena + frames[i].offset, frames[i].bytes, &head, &cursor))
			continue;
		sum.samples++;
		sum.events += count_records(cursor) + 1; /* a gap in front of it */
	}
	size->events += sum.events;
	size->samples += sum.samples;
	return PB_OK;
}

/* One element of the iterator's output: the page's head and its sample. False: the rest cannot be trusted. */
static bool page_open(const uint8_t *bytes, uint64_t left, struct pb_page_head *page, struct pb_sample *sample,
                      struct pb_cursor *cursor)
{
	if (left < sizeof(*page))
		return false;
	memcpy(page, bytes, sizeof(*page));
	return pb_sample_open(bytes + sizeof(*page), left - sizeof(*page), sample, cursor);
}

enum pb_status pb_history_count_pages(const uint8_t *pages, uint64_t bytes, struct pb_history_size *size)
{
	struct pb_history_size sum = { 0, 0 };
	uint64_t at = 0;

	if (!size || (bytes && !pages))
		return PB_INVALID;
	while (at < bytes) {
		struct pb_page_head page;
		struct pb_sample sample;
		struct pb_cursor cursor;

		if (!page_open(pages + at, bytes - at, &page, &sample, &cursor))
			break;
		sum.samples++;
		sum.events += count_records(cursor) + 3; /* its open call, its mark, a gap */
		at += sizeof(page) + sample.bytes;
	}
	size->events += sum.events;
	size->samples += sum.samples;
	return PB_OK;
}

static struct pb_event *push(struct pb_history *history)
{
	if (history->event_count == history->event_capacity)
		return NULL;
	return &history->events[history->event_count++];
}

/* All records of one checked sample become events. */
static enum pb_status add_records(struct pb_history *history, const uint8_t *at, const struct pb_sample *sample,
                                  struct pb_cursor cursor, uint8_t flags, uint64_t seen_ns)
{
	const void *span = NULL;
	uint64_t own = 0;
	bool all_own = true;

	while (cursor.left) {
		struct pb_record head;
		const uint8_t *record;
		struct pb_event *event;

		if (!pb_record_next(&cursor, &head, &record)) {
			history->malformed++;
			return PB_OK;
		}
		if (head.kind == PB_RECORD_SPAN) {
			span = record + offsetof(struct pb_span_record, ids);
			continue;
		}
		event = push(history);
		if (!event)
			return PB_NO_ROOM;
		*event = (struct pb_event){
			.time_ns = head.time_ns,
			.instance = sample->instance,
			.sequence = head.sequence,
			.record = record,
			.sample = at,
			.span = head.flags & PB_FLAG_SPAN ? span : NULL,
			.seen_ns = seen_ns,
			.cpu = head.cpu,
			.flags = flags,
			.kind = head.kind,
		};
		own += head.kind != PB_RECORD_ENTRY;
		all_own = all_own && head.sequence;
	}
	if (all_own && own != sample->records && sample->kind != PB_SAMPLE_AGAIN)
		history->malformed++;
	return PB_OK;
}

static enum pb_status add_frame(struct pb_history *history, const uint8_t *bytes, uint64_t size)
{
	struct pb_sample sample;
	struct pb_cursor cursor;

	if (!pb_sample_open(bytes, size, &sample, &cursor)) {
		history->malformed++;
		return PB_OK;
	}
	return add_records(history, bytes, &sample, cursor, 0, 0);
}

/* Untouched on a fault: the counts go back to what they were. */
static enum pb_status restored(struct pb_history *history, const struct pb_history *before, enum pb_status status)
{
	if (status != PB_OK)
		*history = *before;
	return status;
}

enum pb_status pb_history_add_samples(struct pb_history *history, const uint8_t *arena, const struct pb_frame *frames,
                                      uint64_t frame_count)
{
	enum pb_status status = PB_OK;
	struct pb_history before;

	if (!history || history->joined || (frame_count && (!arena || !frames)))
		return PB_INVALID;
	before = *history;
	for (uint64_t i = 0; i < frame_count && status == PB_OK; i++) {
		if (frames[i].type == SAMPLE_FRAME)
			status = add_frame(history, arena + frames[i].offset, frames[i].bytes);
	}
	return restored(history, &before, status);
}

static enum pb_status add_open(struct pb_history *history, const uint8_t *at, const struct pb_page_head *page,
                               const struct pb_sample *sample)
{
	const struct pb_record *open = &page->open.record;
	struct pb_event *event;

	if (open->kind != PB_RECORD_SYSCALL || open->arguments > 6 || open->sequence == UINT64_MAX) {
		history->malformed++;
		return PB_OK;
	}
	event = push(history);
	if (!event)
		return PB_NO_ROOM;
	*event = (struct pb_event){
		.time_ns = open->time_ns,
		.instance = sample->instance,
		.sequence = open->sequence,
		.record = at + offsetof(struct pb_page_head, open),
		.sample = at + sizeof(*page),
		.span = open->flags & PB_FLAG_SPAN ? at + offsetof(struct pb_page_head, open_span) : NULL,
		.seen_ns = page->seen_ns,
		.cpu = open->cpu,
		.flags = PB_EVENT_PAGE | PB_EVENT_IN_FLIGHT,
		.kind = PB_RECORD_SYSCALL,
	};
	return PB_OK;
}

/* Of a later page the records alone count; one that is torn leaves a gap, or nothing. */
static enum pb_status add_later_page(struct pb_history *history, const uint8_t *at, const struct pb_page_head *page,
                                     const struct pb_sample *sample, struct pb_cursor cursor)
{
	if (page->flags & PB_PAGE_TORN)
		return PB_OK;
	return add_records(history, at + sizeof(*page), sample, cursor, PB_EVENT_LATER, page->seen_ns);
}

static enum pb_status add_page(struct pb_history *history, const uint8_t *at, const struct pb_page_head *page,
                               const struct pb_sample *sample, struct pb_cursor cursor)
{
	enum pb_status status;
	struct pb_event *mark;

	if (page->flags & PB_PAGE_TORN) {
		history->torn++;
		return PB_OK;
	}
	mark = push(history);
	if (!mark)
		return PB_NO_ROOM;
	*mark = (struct pb_event){
		.time_ns = page->last_sequence,
		.instance = sample->instance,
		.sequence = UINT64_MAX,
		.sample = at + sizeof(*page),
		.flags = PB_EVENT_MARK,
	};
	status = add_records(history, at + sizeof(*page), sample, cursor, PB_EVENT_PAGE, page->seen_ns);
	if (status == PB_OK && page->flags & PB_PAGE_OPEN)
		status = add_open(history, at, page, sample);
	return status;
}

typedef enum pb_status add_one(struct pb_history *history, const uint8_t *at, const struct pb_page_head *page,
                               const struct pb_sample *sample, struct pb_cursor cursor);

static enum pb_status add_pages(struct pb_history *history, const uint8_t *pages, uint64_t bytes, add_one *add)
{
	enum pb_status status = PB_OK;
	struct pb_history before;
	uint64_t at = 0;

	if (!history || history->joined || (bytes && !pages))
		return PB_INVALID;
	before = *history;
	while (at < bytes && status == PB_OK) {
		struct pb_page_head page;
		struct pb_sample sample;
		struct pb_cursor cursor;

		if (!page_open(pages + at, bytes - at, &page, &sample, &cursor)) {
			history->malformed++;
			break;
		}
		status = add(history, pages + at, &page, &sample, cursor);
		at += sizeof(page) + sample.bytes;
	}
	return restored(history, &before, status);
}

enum pb_status pb_history_add_pages(struct pb_history *history, const uint8_t *pages, uint64_t bytes)
{
	return add_pages(history, pages, bytes, add_page);
}

enum pb_status pb_history_add_later_pages(struct pb_history *history, const uint8_t *pages, uint64_t bytes)
{
	return add_pages(history, pages, bytes, add_later_page);
}
