/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reading.h: what stands out among a dump's records, gathered while they are encoded: failures by what failed on what,
 * the longest call of each kind, ends and deaths. Source: CONTRACT.md section 4 (severities), issue "a reading of the
 * dump". What it is not: it ranks nothing and knows no rules (recorder/reading.py has them, as data).
 */
#ifndef PERFBUF_READING_H
#define PERFBUF_READING_H

#include <stdint.h>
#include "status.h"
#include "records.h"

/* cffi: begin */

enum pb_reading_limits { PB_FINDINGS = 1024, PB_FINDING_LINE_BYTES = 480 };

/* Records that failed alike: the same call with the same error on the same path or address; or a signal, an end, an OOM
 * kill of one kind. */
struct pb_finding {
	uint64_t key;
	uint64_t count;
	uint64_t last_ns;            /* monotonic, when the last began */
	uint64_t instance, sequence; /* of the last */
	uint64_t duration_ns;        /* of the last; in flight: its age */
	uint32_t tid, tgid;
	uint32_t number; /* of the syscall */
	uint32_t error;  /* errno; for getsockopt(SO_ERROR) the one that was read */
	uint32_t status; /* of an end: its wait status; of a signal its number */
	uint8_t kind;    /* enum pb_record_kind */
	uint8_t flags;   /* enum pb_record_flags of the last; PB_FLAG_IN_FLIGHT */
	uint16_t line_bytes;
	char line[PB_FINDING_LINE_BYTES]; /* the last's body, cut */
};

struct pb_reading {
	struct pb_finding findings[PB_FINDINGS];
	struct pb_finding waits[PB_SYSCALLS];     /* the longest complete call of each number; kind 0: none */
	struct pb_finding in_flight[PB_SYSCALLS]; /* the oldest call in flight of each number */
	uint64_t records;                         /* all that were encoded */
	uint64_t others;                          /* failures that found no room */
	uint64_t last_event;                      /* index + 1: a record may be encoded twice when a chunk is full */
	uint32_t finding_count;
	uint32_t reserved;
};

/* cffi: end */

struct pb_event;
struct pb_thread;
struct pb_call;

/* One encoded call or other record; `line` is its body. */
void pb_reading_call(struct pb_reading *reading, uint64_t index, const struct pb_event *event,
                     const struct pb_thread *thread, uint32_t tgid, const struct pb_call *call, const char *line,
                     uint32_t bytes);
void pb_reading_other(struct pb_reading *reading, uint64_t index, const struct pb_event *event,
                      const struct pb_thread *thread, uint32_t tgid, uint32_t status, const char *line, uint32_t bytes);

#endif
