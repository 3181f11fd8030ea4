/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp_scan.c: libFuzzer target of the scan of OTLP requests: any bytes, both signals, all rules.
 * What it is not: a test of what is right (tests/unit/test_otlp_scan.py has protobuf's parser for that).
 * Input: a byte of choices, then the request. Source: otel_perfbuf/_core/otlp_scan.h.
 */
#include <stdlib.h>
#include <string.h>
#include "otlp_group.h"

#define CHECK(true)                       \
	do {                              \
		if (!(true))              \
			__builtin_trap(); \
	} while (0)
#define CAPACITY 16

static void check_range(const struct pb_range *range, uint64_t size)
{
	CHECK(range->offset <= size && range->bytes <= size - range->offset);
}

/* Each hit is in exactly one group, each group in one origin; they stand one behind the other. */
static void check_groups(const uint8_t *request, const struct pb_hit *hits, uint64_t count, bool alike)
{
	struct pb_hit_group origins[CAPACITY], groups[CAPACITY], scratch[CAPACITY];
	struct pb_hit_span spans[CAPACITY];
	uint32_t table[4 * CAPACITY], group_of[CAPACITY], moved[CAPACITY], group = 0, span = 0;
	struct pb_hit_groups found = { origins, groups, scratch, spans, table, group_of, moved, CAPACITY };

	pb_hits_group(request, hits, count, alike, &found);
	CHECK(found.groups_found <= count && found.origins_found <= found.groups_found);
	for (uint64_t i = 0; i < found.origins_found; i++) {
		CHECK(origins[i].first == span && origins[i].within == group && origins[i].groups);
		for (uint32_t j = 0; j < origins[i].groups; j++, group++) {
			CHECK(groups[group].first == span && groups[group].spans && groups[group].within == i);
			CHECK(groups[group].hit < count);
			span += groups[group].spans;
		}
		CHECK(origins[i].first + origins[i].spans == span);
	}
	CHECK(span == count && group == found.groups_found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pb_scan_rules rules = { .longer_than_ns = UINT64_MAX, .at_least = INT32_MAX };
	struct pb_hit hits[CAPACITY];
	struct pb_scan scan = { 0 };
	uint8_t *request;

	if (size < 1)
		return 0;
	rules.errors = data[0] >> 1 & 1;
	rules.longer_than_ns = data[0] & 4 ? 1 : UINT64_MAX;
	rules.at_least = data[0] & 8 ? 17 : INT32_MAX;
	request = malloc(size); /* exactly sized: a byte too far is found */
	memcpy(request, data + 1, size - 1);
	request = realloc(request, size - 1 ? size - 1 : 1);
	if (pb_otlp_scan(request, size - 1, data[0] & 1 ? PB_SCAN_LOGS : PB_SCAN_TRACES, &rules, hits, CAPACITY,
	                 &scan) == PB_OK) {
		CHECK(scan.hits + scan.own <= scan.records && scan.records <= size);
		for (uint64_t i = 0; i < scan.hits && i < CAPACITY; i++) {
			check_range(&hits[i].resource, size - 1);
			check_range(&hits[i].name, size - 1);
			check_range(&hits[i].message, size - 1);
			check_range(&hits[i].exception_type, size - 1);
			check_range(&hits[i].exception_message, size - 1);
		}
		check_groups(request, hits, scan.hits < CAPACITY ? scan.hits : CAPACITY, data[0] & 16);
	}
	free(request);
	return 0;
}
