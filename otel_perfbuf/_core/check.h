/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h: the checked walk over a sample's records and a record's captures. Nothing of a record is touched before
 * its size is known to lie inside what is left.
 * Source: bpf/records.h. What it is not: it keeps nothing and joins nothing (history.c).
 *
 * Ring data lie at 4 modulo 8 (perf puts a 32-bit size in front), so structs are loaded by memcpy and never read
 * through a pointer.
 */
#ifndef PERFBUF_CHECK_H
#define PERFBUF_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "records.h"

/* One captured argument as it lies in a record. */
struct pb_capture_view {
	struct pb_capture head;
	const uint8_t *data; /* head.bytes of them */
};

/* A place in a sample: the records not yet seen. */
struct pb_cursor {
	const uint8_t *next;
	uint32_t left;
};

/* Bytes of a record's fixed part, 0 for a kind that is not known. */
static inline uint32_t pb_record_fixed_bytes(const struct pb_record *record)
{
	switch (record->kind) {
	case PB_RECORD_SYSCALL:
		return 48u + 8u * record->arguments;
	case PB_RECORD_ENTRY:
		return sizeof(struct pb_record);
	case PB_RECORD_SIGNAL:
		return sizeof(struct pb_signal);
	case PB_RECORD_EXEC:
		return sizeof(struct pb_exec);
	case PB_RECORD_FORK:
		return sizeof(struct pb_fork);
	case PB_RECORD_EXIT:
		return sizeof(struct pb_exit);
	case PB_RECORD_OOM_KILL:
		return sizeof(struct pb_oom_kill);
	case PB_RECORD_LOST:
		return sizeof(struct pb_lost);
	case PB_RECORD_SPAN:
		return sizeof(struct pb_span_record);
	default:
		return 0;
	}
}

_Static_assert(sizeof(struct pb_record) == 24, "records.h: the record header is 24 bytes");
_Static_assert(sizeof(struct pb_syscall) == 48 + 6 * 8, "records.h: captures begin at 48 + 8 * arguments");
_Static_assert(sizeof(struct pb_sample) == 64, "records.h: the sample header is 64 bytes");
_Static_assert(sizeof(struct pb_capture) == 8, "records.h: the capture header is 8 bytes");

/* The capture at *offset of a record of `bytes` bytes; moves *offset behind it. False: it does not fit. */
static inline bool pb_capture_next(const uint8_t *record, uint32_t bytes, uint32_t *offset,
                                   struct pb_capture_view *view)
{
	uint32_t padded;

	if (*offset > bytes || bytes - *offset < sizeof(struct pb_capture))
		return false;
	memcpy(&view->head, record + *offset, sizeof(view->head));
	padded = (view->head.bytes + 7u) & ~7u;
	if (view->head.argument > 5 || bytes - *offset - sizeof(struct pb_capture) < padded)
		return false;
	view->data = record + *offset + sizeof(struct pb_capture);
	*offset += (uint32_t)sizeof(struct pb_capture) + padded;
	return true;
}

/* Takes the next record. False: the bytes disagree with themselves, and nothing behind them can be trusted. */
static inline bool pb_record_next(struct pb_cursor *cursor, struct pb_record *head, const uint8_t **record)
{
	struct pb_capture_view view;
	uint32_t fixed, offset;

	if (cursor->left < sizeof(*head))
		return false;
	memcpy(head, cursor->next, sizeof(*head));
	fixed = pb_record_fixed_bytes(head);
	if (!fixed || head->arguments > 6 || head->bytes % 8 || head->bytes < fixed || head->bytes > cursor->left ||
	    head->sequence == UINT64_MAX)
		return false;
	offset = fixed;
	for (uint32_t i = 0; i < head->captures; i++) {
		if (!pb_capture_next(cursor->next, head->bytes, &offset, &view))
			return false;
	}
	*record = cursor->next;
	cursor->next += head->bytes;
	cursor->left -= head->bytes;
	return true;
}

/* Checks a sample's header in `size` bytes and opens a cursor on its records. */
static inline bool pb_sample_open(const uint8_t *bytes, uint64_t size, struct pb_sample *head, struct pb_cursor *cursor)
{
	if (size < sizeof(*head))
		return false;
	memcpy(head, bytes, sizeof(*head));
	if (head->version != PB_VERSION || head->kind < PB_SAMPLE_PAGE || head->kind > PB_SAMPLE_AGAIN ||
	    head->bytes < sizeof(*head) || head->bytes % 8 || head->bytes > size)
		return false;
	cursor->next = bytes + sizeof(*head);
	cursor->left = head->bytes - (uint32_t)sizeof(*head);
	return true;
}

#endif
