/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redact.h: patterns over captured strings and buffers, applied where a record is read for its text, so before anything
 * of it leaves the ring's copy. What it is not: it knows no syscalls, and it changes no captured byte in place.
 * Source: pcre2api(3), whose dialect patterns have (Python's `re` for what people write: (?i), \S, groups, \1).
 *
 * The one part of the core that allocates: PCRE2 does when a pattern is compiled (pb_pattern_free gives it back).
 * Nothing is allocated while redacting.
 */
#ifndef PERFBUF_REDACT_H
#define PERFBUF_REDACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "status.h"

/* cffi: begin */

enum pb_redact_limits { PB_REDACTED_BYTES = 8192, PB_PATTERN_ERROR_BYTES = 160 };

/* Where a pattern is looked for. */
enum pb_pattern_scope {
	PB_PATTERN_ANY = 0,           /* in every string and buffer, in each element of argv */
	PB_PATTERN_ARGUMENT = 1,      /* in each element of argv only */
	PB_PATTERN_NEXT_ARGUMENT = 2, /* in each element of argv: what follows one that matches is replaced whole */
};

struct pb_pattern {
	void *code;  /* pcre2_code * */
	void *match; /* pcre2_match_data *: one thread at a time */
	void *context;
	const char *replace; /* borrowed; \1 to \9 stand for groups, \\ for a backslash */
	uint32_t replace_bytes;
	uint32_t scope; /* enum pb_pattern_scope */
};

struct pb_redaction {
	struct pb_pattern *patterns; /* in the order in which they are applied */
	uint32_t count;
	uint32_t reserved;
};

/* Compiles into *pattern (whose replace and scope the caller sets). PB_INVALID: `error` has the cause and *at where in
 * the text; a pattern that matches the empty string is refused. */
enum pb_status pb_pattern_compile(struct pb_pattern *pattern, const char *text, uint64_t bytes, char *error,
                                  uint64_t *at);
/* How many groups it has. */
uint32_t pb_pattern_groups(const struct pb_pattern *pattern);
void pb_pattern_free(struct pb_pattern *pattern);
/* Redacts one string. False: nothing matched, nothing was written. Else *written bytes at `out`; what does not fit there
 * is left out. A match that takes too long replaces the whole string: nobody knows what is in there. */
bool pb_redact(const struct pb_redaction *redaction, const uint8_t *bytes, uint32_t size, uint8_t *out,
               uint32_t capacity, uint32_t *written);
/* The same for argv: strings, each with its NUL (the last one perhaps without). */
bool pb_redact_arguments(const struct pb_redaction *redaction, const uint8_t *bytes, uint32_t size, uint8_t *out,
                         uint32_t capacity, uint32_t *written);
/* Whether something that a pattern redacts begins before position `at` and ends behind it (or nobody knows, since a
 * match takes too long): what stands behind `at` may not be shown by itself. */
bool pb_redact_crosses(const struct pb_redaction *redaction, const uint8_t *bytes, uint32_t size, uint32_t at);

/* cffi: end */
#endif
