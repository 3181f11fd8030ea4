/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp.h: events of a history to ExportLogsServiceRequest chunks (protobuf bytes), and to text lines.
 * Source: opentelemetry-proto logs/v1/logs.proto, collector/logs/v1/logs_service.proto; CONTRACT.md section 4.
 * What it is not: it chooses nothing (history.h selects) and sends nothing.
 */
#ifndef PERFBUF_OTLP_H
#define PERFBUF_OTLP_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"
#include "fd_names.h"
#include "history.h"
#include "plan.h"
#include "reading.h"

/* cffi: begin */

enum pb_otlp_limits {
	PB_CHUNK_BYTES = 3670016, /* 3.5 MiB */
	PB_CHUNK_RECORDS = 8192,
	PB_LINE_BYTES = 16384, /* a body is cut here, on a UTF-8 boundary */
};

struct pb_bytes {
	const uint8_t *data;
	uint64_t size;
};

/* What is the same for every record of one dump or live batch. */
struct pb_encoding {
	const struct pb_plan *plan;
	int64_t unix_offset_ns; /* unix = monotonic + this */
	uint64_t observed_unix_ns;
	uint8_t has_trace; /* 0: live stream: no trace id, no span id, no dump id, no correlation */
	uint8_t trace_flags;
	uint8_t reserved[6];
	uint8_t trace_id[16];
	uint8_t dump_span_id[8]; /* of records whose correlation is `dump` */
	uint8_t span_id[8];      /* of records whose correlation is thread_window */
	char dump_id[33];        /* 32 hex digits, NUL */
	uint8_t reserved2[7];
	const struct pb_bytes *resources; /* by process index: an encoded opentelemetry.proto.resource.v1.Resource */
	struct pb_bytes scope;            /* an encoded InstrumentationScope */
	struct pb_fd_names *fds;          /* NULL: fds are bare numbers */
	struct pb_reading *reading;       /* NULL: nobody reads; else zero at the first chunk */
	uint64_t redactions;              /* counted while encoding: strings and buffers that a pattern changed */
};

/* Redacts the threads' names, once before the first chunk; gives how many were changed (not in .redactions). */
uint64_t pb_history_redact(struct pb_history *history, const struct pb_redaction *redaction);

/* Encodes the next chunk: a time slice of the selected events from event index *cursor on (in the history's time
 * order), inside it one ResourceLogs per process, ascending in time. Writes one ExportLogsServiceRequest of at most
 * PB_CHUNK_BYTES and PB_CHUNK_RECORDS to `out` (capacity >= PB_CHUNK_BYTES) using `scratch` (>= 2 * PB_CHUNK_BYTES).
 * *bytes = 0 when no selected event was left. *cursor is moved behind the last event that was encoded. */
enum pb_status pb_otlp_encode_chunk(const struct pb_history *history, struct pb_encoding *encoding, uint64_t *cursor,
                                    uint8_t *scratch, uint64_t scratch_capacity, uint8_t *out, uint64_t out_capacity,
                                    uint64_t *bytes, uint32_t *records);

/* The Body of one event: one line in strace's form, UTF-8, no newline, no NUL counted in *bytes. */
enum pb_status pb_text_line(const struct pb_history *history, const struct pb_plan *plan, uint64_t event, char *out,
                            uint64_t capacity, uint64_t *bytes);
/* cffi: end */
#endif
