/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redact.c: see redact.h. Each pattern goes over what the one before it has left, in two buffers that change places.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include "redact.h"

enum { MATCH_LIMIT = 100000, HEAP_LIMIT_KIB = 1024 };

static const char all_of_it[] = "[REDACTED]";

struct bounded {
	uint8_t *data;
	uint32_t size, capacity;
};

static void append(struct bounded *out, const uint8_t *bytes, uint64_t size)
{
	uint32_t room = out->capacity - out->size;

	if (size > room)
		size = room;
	memcpy(out->data + out->size, bytes, size);
	out->size += (uint32_t)size;
}

enum pb_status pb_pattern_compile(struct pb_pattern *pattern, const char *text, uint64_t bytes, char *error,
                                  uint64_t *at)
{
	PCRE2_SIZE offset = 0;
	int code = 0;

	pattern->match = pattern->context = NULL;
	pattern->code = pcre2_compile((PCRE2_SPTR)text, bytes, PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
	if (!pattern->code) {
		*at = offset;
		if (pcre2_get_error_message(code, (PCRE2_UCHAR *)error, PB_PATTERN_ERROR_BYTES) < 0)
			error[0] = 0;
		return PB_INVALID;
	}
	pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it matches are slower, no other */
	pattern->match = pcre2_match_data_create_from_pattern(pattern->code, NULL);
	pattern->context = pcre2_match_context_create(NULL);
	if (!pattern->match || !pattern->context) {
		pb_pattern_free(pattern);
		return PB_NO_ROOM;
	}
	pcre2_set_match_limit(pattern->context, MATCH_LIMIT);
	pcre2_set_heap_limit(pattern->context, HEAP_LIMIT_KIB);
	if (pcre2_match(pattern->code, (PCRE2_SPTR) "", 0, 0, 0, pattern->match, pattern->context) >= 0) {
		pb_pattern_free(pattern);
		*at = 0;
		memcpy(error, "it matches the empty string", sizeof("it matches the empty string"));
		return PB_INVALID;
	}
	return PB_OK;
}

uint32_t pb_pattern_groups(const struct pb_pattern *pattern)
{
	uint32_t groups = 0;

	pcre2_pattern_info(pattern->code, PCRE2_INFO_CAPTURECOUNT, &groups);
	return groups;
}

void pb_pattern_free(struct pb_pattern *pattern)
{
	pcre2_match_context_free(pattern->context);
	pcre2_match_data_free(pattern->match);
	pcre2_code_free(pattern->code);
	pattern->code = pattern->match = pattern->context = NULL;
}

/* The replacement with its groups filled in. */
static void append_replacement(struct bounded *out, const struct pb_pattern *pattern, const uint8_t *bytes)
{
	const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(pattern->match);
	uint32_t groups = pcre2_get_ovector_count(pattern->match);

	for (uint32_t i = 0; i < pattern->replace_bytes; i++) {
		char c = pattern->replace[i], next = i + 1 < pattern->replace_bytes ? pattern->replace[i + 1] : 0;

		if (c != '\\' || (next != '\\' && (next < '1' || next > '9'))) {
			append(out, (const uint8_t *)&c, 1);
			continue;
		}
		i++;
		if (next == '\\')
			append(out, (const uint8_t *)"\\", 1);
		else if ((uint32_t)(next - '0') < groups && ends[2 * (next - '0')] != PCRE2_UNSET)
			append(out, bytes + ends[2 * (next - '0')],
			       ends[2 * (next - '0') + 1] - ends[2 * (next - '0')]);
	}
}

/* One pattern over one string. True: something was replaced, and the whole result is behind out's size. */
static bool replace_all(const struct pb_pattern *pattern, const uint8_t *bytes, uint32_t size, struct bounded *out)
{
	uint32_t start = out->size, from = 0, at = 0;
	bool found = false;

	while (at <= size) {
		int result = pcre2_match(pattern->code, bytes, size, at, 0, pattern->match, pattern->context);
		const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(pattern->match);

		if (result == PCRE2_ERROR_NOMATCH)
			break;
		if (result < 0) { /* it takes too long: nobody knows what is in there */
			out->size = start;
			append(out, (const uint8_t *)all_of_it, sizeof(all_of_it) - 1);
			return true;
		}
		if (ends[1] <= ends[0] || ends[0] < from) { /* empty (a lookahead), or \K went back */
			at++;
			continue;
		}
		found = true;
		append(out, bytes + from, ends[0] - from);
		append_replacement(out, pattern, bytes);
		from = at = (uint32_t)ends[1];
	}
	if (found)
		append(out, bytes + from, size - from);
	return found;
}

/* All patterns up to `scope` over one string; the result replaces what stands at out from `start` on. */
static bool redact_one(const struct pb_redaction *redaction, uint32_t scope, const uint8_t *bytes, uint32_t size,
                       struct bounded *out)
{
	uint8_t space[PB_REDACTED_BYTES];
	uint32_t start = out->size;
	bool found = false;

	for (uint32_t i = 0; i < redaction->count; i++) {
		struct bounded next = { space, 0, sizeof(space) };

		if (redaction->patterns[i].scope > scope || !replace_all(&redaction->patterns[i], bytes, size, &next))
			continue;
		found = true;
		out->size = start;
		append(out, space, next.size);
		bytes = out->data + start;
		size = out->size - start;
	}
	return found;
}

bool pb_redact(const struct pb_redaction *redaction, const uint8_t *bytes, uint32_t size, uint8_t *out,
               uint32_t capacity, uint32_t *written)
{
	struct bounded result = { out, 0, capacity };

	if (!redact_one(redaction, PB_PATTERN_ANY, bytes, size, &result))
		return false;
	*written = result.size;
	return true;
}

bool pb_redact_crosses(const struct pb_redaction *redaction, const uint8_t *bytes, uint32_t size, uint32_t at)
{
	for (uint32_t i = 0; i < redaction->count; i++) {
		const struct pb_pattern *pattern = &redaction->patterns[i];
		const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(pattern->match);
		PCRE2_SIZE from = 0;

		while (pattern->scope == PB_PATTERN_ANY && from < at) {
			int result = pcre2_match(pattern->code, bytes, size, from, 0, pattern->match, pattern->context);

			if (result == PCRE2_ERROR_NOMATCH)
				break;
			if (result < 0 || (ends[0] < at && ends[1] > at))
				return true;
			from = ends[1] > from ? ends[1] : from + 1;
		}
	}
	return false;
}

enum secret { NO_SECRET, NAMES_SECRET, NOBODY_KNOWS };

/* Whether the next argument is a secret; NOBODY_KNOWS: a match took too long, so this one may be one as well. */
static enum secret names_secret(const struct pb_redaction *redaction, const uint8_t *bytes, uint32_t size)
{
	enum secret found = NO_SECRET;

	for (uint32_t i = 0; i < redaction->count; i++) {
		const struct pb_pattern *pattern = &redaction->patterns[i];
		int result;

		if (pattern->scope != PB_PATTERN_NEXT_ARGUMENT)
			continue;
		result = pcre2_match(pattern->code, bytes, size, 0, 0, pattern->match, pattern->context);
		if (result >= 0)
			found = NAMES_SECRET;
		else if (result != PCRE2_ERROR_NOMATCH)
			return NOBODY_KNOWS;
	}
	return found;
}

bool pb_redact_arguments(const struct pb_redaction *redaction, const uint8_t *bytes, uint32_t size, uint8_t *out,
                         uint32_t capacity, uint32_t *written)
{
	struct bounded result = { out, 0, capacity };
	enum secret secret = NO_SECRET;
	bool found = false;
	uint32_t at = 0;

	while (at < size) {
		const uint8_t *end = memchr(bytes + at, 0, size - at);
		uint32_t length = end ? (uint32_t)(end - bytes) - at : size - at;

		bool behind = secret != NO_SECRET;

		secret = behind ? NO_SECRET : names_secret(redaction, bytes + at, length);
		if (behind || secret == NOBODY_KNOWS) {
			append(&result, (const uint8_t *)all_of_it, sizeof(all_of_it) - 1);
			found = true;
		} else if (redact_one(redaction, PB_PATTERN_ARGUMENT, bytes + at, length, &result)) {
			found = true;
		} else {
			append(&result, bytes + at, length);
		}
		if (end)
			append(&result, (const uint8_t *)"", 1);
		at += length + 1;
	}
	*written = result.size;
	return found;
}
