/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp_group.c: see otlp_group.h. Two open hash tables in the caller's memory, origins and groups, then a counting sort:
 * groups by origin, spans by group; both keep the request's order.
 */
#include "otlp_group.h"
#include <string.h>

enum { HASH_FIRST = 0x811c9dc5, HASH_PRIME = 0x01000193 /* FNV-1a */ };
enum { PROBES_MAX = 64 };
enum { NUMBER = 256, TEXT_END = 257 }; /* beside the 256 bytes */

struct text {
	const uint8_t *begin;
	const uint8_t *at;
	const uint8_t *end;
};

static bool is_digit(uint8_t byte)
{
	return byte >= '0' && byte <= '9';
}

static bool is_hex(uint8_t byte)
{
	return is_digit(byte) || ((byte | 32) >= 'a' && (byte | 32) <= 'f');
}

static bool is_word(uint8_t byte)
{
	return is_digit(byte) || ((byte | 32) >= 'a' && (byte | 32) <= 'z') || byte == '_';
}

/* The next byte, or NUMBER for 0x and hex digits, a word of hex digits with a decimal one, or decimal digits. */
static uint32_t next_byte(struct text *text)
{
	const uint8_t *at = text->at, *after;
	bool digits = false;

	if (at == text->end)
		return TEXT_END;
	if (!is_hex(*at)) { /* most of them */
		text->at++;
		return *at;
	}
	if (text->end - at > 2 && *at == '0' && (at[1] | 32) == 'x' && is_hex(at[2])) {
		for (after = at + 2; after < text->end && is_hex(*after); after++)
			;
		text->at = after;
		return NUMBER;
	}
	if (at == text->begin || !is_word(at[-1])) {
		for (after = at; after < text->end && is_hex(*after); after++)
			digits |= is_digit(*after);
		if (digits && after - at >= 2 && (after == text->end || !is_word(*after))) {
			text->at = after;
			return NUMBER;
		}
	}
	for (after = at; after < text->end && is_digit(*after); after++)
		;
	text->at = after == at ? at + 1 : after;
	return after == at ? *at : NUMBER;
}

static struct text text_of(const uint8_t *request, const struct pb_range *range)
{
	const uint8_t *at = request + range->offset;

	return (struct text){ at, at, at + range->bytes };
}

/* What the hit's reason says: one text, or an exception's two. Mirrors `_reason` of triggers/telemetry.py. */
static uint32_t reason_of(const struct pb_hit *hit, const struct pb_range *parts[2])
{
	parts[0] = &hit->name;
	if (hit->why == PB_HIT_SLOW)
		return 1;
	if (hit->message.bytes) {
		parts[0] = &hit->message;
	} else if (hit->has & PB_HIT_EXCEPTION) {
		parts[0] = &hit->exception_type;
		parts[1] = &hit->exception_message;
		return 2;
	}
	return 1;
}

static uint32_t mixed(uint32_t hash, uint32_t value)
{
	return (hash ^ value) * HASH_PRIME;
}

static uint32_t reason_hash(const uint8_t *request, const struct pb_hit *hit, uint32_t hash)
{
	const struct pb_range *parts[2];
	uint32_t count = reason_of(hit, parts), byte;

	hash = mixed(hash, count);
	for (uint32_t i = 0; i < count; i++) {
		struct text text = text_of(request, parts[i]);

		do {
			byte = next_byte(&text);
			hash = mixed(hash, byte);
		} while (byte != TEXT_END);
	}
	return hash;
}

static bool same_reason(const uint8_t *request, const struct pb_hit *one, const struct pb_hit *other)
{
	const struct pb_range *parts[2], *others[2];
	uint32_t count = reason_of(one, parts), byte;

	if (reason_of(other, others) != count || !one->message.bytes != !other->message.bytes)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		struct text left = text_of(request, parts[i]), right = text_of(request, others[i]);

		do {
			byte = next_byte(&left);
			if (byte != next_byte(&right))
				return false;
		} while (byte != TEXT_END);
	}
	return true;
}

enum { ORIGIN_HAS = PB_HIT_THREAD_ID | PB_HIT_PROCESS_ID | PB_HIT_OWN };

/* Which trigger it is: a failed span is one however long it took. */
static uint32_t kind_of(const struct pb_hit *hit)
{
	return hit->why & PB_HIT_SLOW && hit->why != PB_HIT_SLOW ? hit->why & ~PB_HIT_SLOW : hit->why;
}

static bool same_origin(const uint8_t *request, const struct pb_hit *one, const struct pb_hit *other)
{
	if (kind_of(one) != kind_of(other) || (one->has ^ other->has) & ORIGIN_HAS ||
	    one->resource.bytes != other->resource.bytes)
		return false;
	if (one->has & PB_HIT_THREAD_ID && one->thread_id != other->thread_id)
		return false;
	if (one->has & PB_HIT_PROCESS_ID && one->process_id != other->process_id)
		return false;
	return one->resource.offset == other->resource.offset ||
	       !memcmp(request + one->resource.offset, request + other->resource.offset, one->resource.bytes);
}

/* One hash table; `table` has 0 (free) or an index + 1 into `entries`. */
struct lookup {
	const uint8_t *request;
	const struct pb_hit *hits;
	struct pb_hit_group *entries;
	uint64_t *found;
	uint32_t *table;
	uint32_t mask;
};

/* The entry of `within` that hit `index` belongs to, a new one if there is none. */
static uint32_t entry_of(const struct lookup *in, uint32_t index, uint32_t within, uint32_t hash,
                         bool (*same)(const uint8_t *, const struct pb_hit *, const struct pb_hit *))
{
	uint32_t *free = NULL;

	/* Who makes hashes alike on purpose gets entries that are not found again. */
	for (uint32_t probe = 0; probe < PROBES_MAX; probe++) {
		uint32_t *slot = &in->table[(hash + probe) & in->mask];
		const struct pb_hit_group *entry = &in->entries[*slot ? *slot - 1 : 0];

		if (!*slot) {
			free = slot;
			break;
		}
		if (entry->hash == hash && entry->within == within &&
		    same(in->request, &in->hits[index], &in->hits[entry->hit]))
			return *slot - 1;
	}
	in->entries[*in->found] = (struct pb_hit_group){ .hit = index, .within = within, .hash = hash };
	++*in->found;
	if (free)
		*free = (uint32_t)*in->found;
	return (uint32_t)*in->found - 1;
}

static uint32_t resource_hash(const uint8_t *request, const struct pb_hit *hit)
{
	uint32_t hash = HASH_FIRST;

	for (uint64_t i = 0; i < hit->resource.bytes; i++)
		hash = mixed(hash, request[hit->resource.offset + i]);
	return hash;
}

static uint32_t origin_hash(const struct pb_hit *hit, uint32_t hash)
{
	hash = mixed(mixed(hash, kind_of(hit)), hit->has & ORIGIN_HAS);
	if (hit->has & PB_HIT_PROCESS_ID)
		hash = mixed(mixed(hash, (uint32_t)hit->process_id), (uint32_t)(hit->process_id >> 32));
	if (hit->has & PB_HIT_THREAD_ID)
		hash = mixed(mixed(hash, (uint32_t)hit->thread_id), (uint32_t)(hit->thread_id >> 32));
	return hash;
}

/* Groups by origin, and where the spans of each begin. */
static void order_groups(struct pb_hit_groups *into)
{
	uint32_t at = 0;

	for (uint64_t i = 0; i < into->groups_found; i++)
		into->origins[into->scratch[i].within].groups++;
	for (uint64_t i = 0; i < into->origins_found; i++) {
		into->origins[i].within = at;
		at += into->origins[i].groups;
	}
	for (uint64_t i = 0; i < into->groups_found; i++) {
		struct pb_hit_group *origin = &into->origins[into->scratch[i].within];

		into->moved[i] = origin->within + origin->first++; /* `first` counts until it is set below */
		into->groups[into->moved[i]] = into->scratch[i];
	}
	at = 0;
	for (uint64_t i = 0; i < into->origins_found; i++) {
		struct pb_hit_group *origin = &into->origins[i];

		origin->first = at;
		for (uint32_t j = origin->within; j < origin->within + origin->groups; j++) {
			into->groups[j].first = at;
			at += into->groups[j].spans;
		}
		origin->spans = at - origin->first;
	}
}

/* Puts each hit into its origin and group, in the order of the request. */
static void assign_hits(const uint8_t *request, const struct pb_hit *hits, uint32_t count, bool alike,
                        struct pb_hit_groups *into)
{
	struct lookup origins = { request, hits, into->origins, &into->origins_found, into->table };
	struct lookup groups = { request, hits, into->scratch, &into->groups_found };
	uint64_t size = 1;
	uint32_t hash = 0;

	while (size < 2 * (uint64_t)count)
		size <<= 1;
	memset(into->table, 0, 2 * size * sizeof(*into->table));
	origins.mask = groups.mask = (uint32_t)size - 1;
	groups.table = into->table + size;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t origin, group = (uint32_t)into->groups_found;

		/* Once a resource: many hits are of one, which may be large. */
		if (!i || hits[i].resource.offset != hits[i - 1].resource.offset)
			hash = resource_hash(request, &hits[i]);
		origin = entry_of(&origins, i, 0, origin_hash(&hits[i], hash), same_origin);
		if (alike)
			group = entry_of(&groups, i, origin, reason_hash(request, &hits[i], origin), same_reason);
		else
			into->scratch[into->groups_found++] = (struct pb_hit_group){ .hit = i, .within = origin };
		into->scratch[group].spans++;
		into->group_of[i] = group;
	}
}

void pb_hits_group(const uint8_t *request, const struct pb_hit *hits, uint64_t count, bool alike,
                   struct pb_hit_groups *into)
{
	if (count > into->capacity)
		count = into->capacity;
	into->origins_found = into->groups_found = 0;
	assign_hits(request, hits, (uint32_t)count, alike, into);
	order_groups(into);
	memset(into->table, 0, into->groups_found * sizeof(*into->table)); /* now: how many of a group are in place */
	for (uint64_t i = 0; i < count; i++) {
		uint32_t group = into->moved[into->group_of[i]];
		struct pb_hit_span *span = &into->spans[into->groups[group].first + into->table[group]++];

		*span = (struct pb_hit_span){ .start_ns = hits[i].start_ns,
			                      .end_ns = hits[i].end_ns,
			                      .flags = hits[i].flags,
			                      .has = hits[i].has };
		memcpy(span->trace_id, hits[i].trace_id, sizeof(span->trace_id));
		memcpy(span->span_id, hits[i].span_id, sizeof(span->span_id));
	}
}
