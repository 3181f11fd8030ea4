/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp_group.h: a request's hits, those that are alike together, so that a storm of one failure is looked at once.
 * Two hits are alike if they are of one origin (kind, resource, ids of process and thread) and their reasons differ in
 * numbers only: as in a hold-off's key. Source: otlp_scan.h; otel_perfbuf/triggers/manners.py, `without_numbers`.
 * What it is not: it decides nothing, and knows no dump.
 */
#ifndef PERFBUF_OTLP_GROUP_H
#define PERFBUF_OTLP_GROUP_H

#include <stdbool.h>
#include "otlp_scan.h"

/* cffi: begin */

/* What of a hit is kept of each. */
struct pb_hit_span {
	uint64_t start_ns;
	uint64_t end_ns;
	uint8_t trace_id[16];
	uint8_t span_id[8];
	uint32_t flags;
	uint32_t has; /* enum pb_hit_has */
};

/* Alike hits, or all of an origin. */
struct pb_hit_group {
	uint32_t hit;    /* the first of them */
	uint32_t first;  /* where their spans begin, in the order of the request */
	uint32_t spans;  /* how many they are */
	uint32_t within; /* of an origin: where its groups begin; of a group: its origin */
	uint32_t groups; /* of an origin: how many groups it has */
	uint32_t hash;
};

/* The caller's memory, for `capacity` hits, a power of two: each array has so many, `table` four times as many. */
struct pb_hit_groups {
	struct pb_hit_group *origins;
	struct pb_hit_group *groups; /* those of an origin stand together, and so do their spans */
	struct pb_hit_group *scratch;
	struct pb_hit_span *spans;
	uint32_t *table;
	uint32_t *group_of;
	uint32_t *moved;
	uint64_t capacity;
	uint64_t origins_found;
	uint64_t groups_found;
};

/* Groups the first `count` hits of a scan of `request`, at most `capacity`; not `alike`: each is a group of its own. */
void pb_hits_group(const uint8_t *request, const struct pb_hit *hits, uint64_t count, bool alike,
                   struct pb_hit_groups *into);
/* cffi: end */
#endif
