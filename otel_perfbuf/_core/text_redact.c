/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_redact.c: redaction of a record's captures. Source: redact.h. What it is not: it has no patterns of its own.
 */
#include <string.h>
#include "text.h"

enum { FAMILY_UNIX = 1, PATH_AT = 2 };

/* A Unix socket's path, up to its NUL; an abstract name has one in front. */
static bool redact_address(const struct pb_redaction *redaction, const struct pb_capture_view *view, uint8_t *space,
                           uint32_t capacity, uint32_t *written)
{
	uint32_t at = PATH_AT, bytes = view->head.bytes;
	uint16_t family;

	if (bytes <= PATH_AT)
		return false;
	memcpy(&family, view->data, sizeof(family));
	at += !view->data[PATH_AT];
	if (family != FAMILY_UNIX || bytes <= at || capacity <= at)
		return false;
	bytes = (uint32_t)strnlen((const char *)view->data + at, bytes - at);
	if (!pb_redact(redaction, view->data + at, bytes, space + at, capacity - at, written))
		return false;
	memcpy(space, view->data, at);
	*written += at;
	return true;
}

bool pb_view_redact(const struct pb_plan *plan, struct pb_capture_view *view, uint8_t *space, uint32_t capacity)
{
	uint32_t written = 0;
	bool found;

	if (!plan->redaction || !view->head.bytes || view->head.flags & PB_CAPTURE_FAULT)
		return false;
	if (view->head.kind == PB_CAPTURE_STRINGS)
		found = pb_redact_arguments(plan->redaction, view->data, view->head.bytes, space, capacity, &written);
	else if (view->head.kind == PB_CAPTURE_STRING || view->head.kind == PB_CAPTURE_BUFFER)
		found = pb_redact(plan->redaction, view->data, view->head.bytes, space, capacity, &written);
	else if (view->head.kind == PB_CAPTURE_SOCKADDR)
		found = redact_address(plan->redaction, view, space, capacity, &written);
	else
		return false;
	if (!found)
		return false;
	if (view->head.kind != PB_CAPTURE_STRINGS)
		view->head.extent = view->head.flags & PB_CAPTURE_CUT ? UINT16_MAX : (uint16_t)written;
	view->head.bytes = (uint16_t)written;
	view->data = space;
	return true;
}

static void redact(struct pb_call *call, struct pb_capture_view *view)
{
	uint8_t *space = call->redacted + call->redacted_bytes;

	if (!pb_view_redact(call->plan, view, space, PB_REDACTED_BYTES - call->redacted_bytes))
		return;
	call->redactions++;
	call->redacted_bytes += view->head.bytes;
}

void pb_call_redact(struct pb_call *call)
{
	for (uint32_t i = 0; i < 6; i++) {
		redact(call, &call->enter[i]);
		redact(call, &call->exit[i]);
	}
}

void pb_part_redact(const struct pb_call *call, struct pb_capture_view *view)
{
	redact((struct pb_call *)call, view); /* what is counted and its space are the call's alone */
}

bool pb_stream_redact(const struct pb_call *call, struct pb_stream *stream, const uint8_t **data, uint32_t *bytes)
{
	static const char all_of_it[] = "[REDACTED]";
	uint32_t before = stream->size, room = sizeof(stream->bytes) - before;

	if (!call->plan->redaction || !*bytes)
		return false;
	memcpy(stream->bytes + before, *data, *bytes < room ? *bytes : room);
	stream->size += *bytes < room ? *bytes : room;
	if (!before || !pb_redact_crosses(call->plan->redaction, stream->bytes, stream->size, before))
		return pb_bytes_redact(call, data, bytes);
	((struct pb_call *)call)->redactions++;
	*data = (const uint8_t *)all_of_it;
	*bytes = sizeof(all_of_it) - 1;
	return true;
}

uint64_t pb_history_redact(struct pb_history *history, const struct pb_redaction *redaction)
{
	uint64_t changed = 0;

	for (uint64_t i = 0; i < history->thread_count; i++) {
		struct pb_thread *thread = &history->threads[i];
		const uint8_t *end = memchr(thread->comm, 0, PB_COMM_BYTES);
		uint32_t written, bytes = end ? (uint32_t)(end - thread->comm) : PB_COMM_BYTES;
		uint8_t shown[PB_COMM_BYTES] = { 0 };

		if (!pb_redact(redaction, thread->comm, bytes, shown, sizeof(shown), &written))
			continue;
		memcpy(thread->comm, shown, sizeof(shown));
		changed++;
	}
	return changed;
}

bool pb_bytes_redact(const struct pb_call *call, const uint8_t **data, uint32_t *bytes)
{
	struct pb_call *own = (struct pb_call *)call; /* what is counted and its space are the call's alone */
	uint8_t *space = own->redacted + own->redacted_bytes;
	uint32_t written = 0;

	if (!call->plan->redaction || !*bytes ||
	    !pb_redact(call->plan->redaction, *data, *bytes, space, PB_REDACTED_BYTES - own->redacted_bytes, &written))
		return false;
	own->redactions++;
	own->redacted_bytes += written;
	*data = space;
	*bytes = written;
	return true;
}
