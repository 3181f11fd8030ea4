/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_read.h: protobuf's wire format, read field by field from untrusted bytes.
 * Source: protobuf.dev/programming-guides/encoding. What it is not: it knows no message. Nothing is touched before its
 * size is checked, and what protobuf's own parsers accept (long varints, groups, unknown fields) is accepted here.
 */
#ifndef PERFBUF_WIRE_READ_H
#define PERFBUF_WIRE_READ_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "wire.h"

enum { PB_WIRE_GROUP = 3, PB_WIRE_GROUP_END = 4, PB_GROUP_DEPTH_MAX = 100 /* as in protobuf's parsers */ };

/* A message, or what is left of it. */
struct pb_view {
	const uint8_t *at;
	const uint8_t *end;
};

struct pb_field_view {
	uint32_t number;
	uint32_t type;
	uint64_t value;      /* of a varint or a fixed number */
	struct pb_view data; /* of bytes, texts and messages */
};

enum pb_field_found { PB_FIELD_MALFORMED = -1, PB_FIELD_END = 0, PB_FIELD_FOUND = 1 };

static inline uint64_t pb_view_bytes(const struct pb_view *view)
{
	return (uint64_t)(view->end - view->at);
}

static inline bool pb_varint_read(struct pb_view *view, uint64_t *value)
{
	uint64_t bits = 0;

	if (view->at < view->end && *view->at < 128) { /* nearly all of them */
		*value = *view->at++;
		return true;
	}
	for (uint32_t shift = 0; shift < 70 && view->at < view->end; shift += 7) {
		uint8_t byte = *view->at++;

		bits |= shift < 64 ? (uint64_t)(byte & 127) << shift : 0;
		if (byte < 128) {
			*value = bits;
			return true;
		}
	}
	return false;
}

static inline bool pb_tag_read(struct pb_view *view, struct pb_field_view *field)
{
	uint64_t tag;

	if (!pb_varint_read(view, &tag) || tag > UINT32_MAX || tag < 8)
		return false;
	*field = (struct pb_field_view){ .number = (uint32_t)tag >> 3, .type = (uint32_t)tag & 7 };
	return true;
}

/* What follows a tag that begins no group. */
static inline bool pb_value_read(struct pb_view *view, struct pb_field_view *field)
{
	uint32_t number;

	switch (field->type) {
	case PB_WIRE_VARINT:
		return pb_varint_read(view, &field->value);
	case PB_WIRE_FIXED64:
		if (pb_view_bytes(view) < 8)
			return false;
		memcpy(&field->value, view->at, 8);
		view->at += 8;
		return true;
	case PB_WIRE_FIXED32:
		if (pb_view_bytes(view) < 4)
			return false;
		memcpy(&number, view->at, 4);
		field->value = number;
		view->at += 4;
		return true;
	case PB_WIRE_BYTES:
		if (!pb_varint_read(view, &field->value) || field->value > pb_view_bytes(view))
			return false;
		field->data = (struct pb_view){ view->at, view->at + field->value };
		view->at += field->value;
		return true;
	default:
		return false;
	}
}

/* Goes behind the end of group `number`, whose beginning was just read; groups inside it too. */
static inline bool pb_group_skip(struct pb_view *view, uint32_t number)
{
	uint32_t open[PB_GROUP_DEPTH_MAX], depth = 1;
	struct pb_field_view field;

	open[0] = number;
	while (depth) {
		if (!pb_tag_read(view, &field))
			return false;
		if (field.type == PB_WIRE_GROUP) {
			if (depth == PB_GROUP_DEPTH_MAX)
				return false;
			open[depth++] = field.number;
		} else if (field.type == PB_WIRE_GROUP_END) {
			if (open[--depth] != field.number)
				return false;
		} else if (!pb_value_read(view, &field)) {
			return false;
		}
	}
	return true;
}

/* The next field of a message; groups, which no OTLP message has, are passed over. */
static inline enum pb_field_found pb_field_next(struct pb_view *view, struct pb_field_view *field)
{
	while (view->at < view->end) {
		if (!pb_tag_read(view, field))
			return PB_FIELD_MALFORMED;
		if (field->type != PB_WIRE_GROUP)
			return pb_value_read(view, field) ? PB_FIELD_FOUND : PB_FIELD_MALFORMED;
		if (!pb_group_skip(view, field->number))
			return PB_FIELD_MALFORMED;
	}
	return PB_FIELD_END;
}

static inline bool pb_view_is(const struct pb_view *view, const char *text, uint64_t bytes)
{
	return pb_view_bytes(view) == bytes && !memcmp(view->at, text, bytes);
}

#endif
