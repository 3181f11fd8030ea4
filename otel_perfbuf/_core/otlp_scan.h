/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp_scan.h: which spans and log records of an OTLP request call for a dump, found in the request's own bytes.
 * Source: opentelemetry-proto trace/v1/trace.proto, logs/v1/logs.proto; protobuf.dev/programming-guides/encoding.
 * What it is not: a parser. It copies ids and times of hits only, keeps nothing, and walks no further than it must: of
 * a record that is no hit neither attributes nor texts are looked at, so damage inside these goes unnoticed.
 */
#ifndef PERFBUF_OTLP_SCAN_H
#define PERFBUF_OTLP_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"

/* cffi: begin */

enum pb_scan_signal {
	PB_SCAN_TRACES = 1, /* ExportTraceServiceRequest */
	PB_SCAN_LOGS = 2,   /* ExportLogsServiceRequest */
};

/* Why a record is a hit: bits of pb_hit.why. */
enum pb_hit_why {
	PB_HIT_ERROR = 1,  /* a span with status ERROR */
	PB_HIT_SLOW = 2,   /* a span of at least rules.longer_than_ns */
	PB_HIT_SEVERE = 4, /* a log record of at least rules.at_least */
};

/* Which of pb_hit's optional fields are there: bits of pb_hit.has. */
enum pb_hit_has {
	PB_HIT_TRACE_ID = 1, /* 16 bytes, not all zero */
	PB_HIT_SPAN_ID = 2,  /* 8 bytes, not all zero */
	PB_HIT_THREAD_ID = 4,
	PB_HIT_PROCESS_ID = 8,
	PB_HIT_EXCEPTION = 32, /* an event `exception`; looked for where a span's status has no message */
	PB_HIT_OWN = 16,       /* it has the attribute perfbuf.dump.id: a record of a dump that came back */
};

/* What is looked for; a record of the scope otel_perfbuf is never a hit. */
struct pb_scan_rules {
	uint64_t longer_than_ns; /* UINT64_MAX: no span is slow */
	int32_t at_least;        /* severity number; INT32_MAX: no log record is severe */
	uint32_t errors;         /* 1: spans with status ERROR */
};

/* A part of the request. */
struct pb_range {
	uint64_t offset;
	uint64_t bytes;
};

/* A span or log record that is looked for. */
struct pb_hit {
	uint64_t start_ns;                 /* a log record's time */
	uint64_t end_ns;                   /* a log record's observed time */
	int64_t thread_id;                 /* attribute thread.id */
	int64_t process_id;                /* attribute process.pid */
	struct pb_range resource;          /* its Resource message; where it comes in parts, the last one */
	struct pb_range name;              /* a span's name, a log record's event name */
	struct pb_range message;           /* a status's message, a log record's body if it is text */
	struct pb_range exception_type;    /* exception.type of the last such event */
	struct pb_range exception_message; /* exception.message of it */
	uint32_t why;
	uint32_t has;
	uint32_t flags;
	int32_t severity;
	uint8_t trace_id[16];
	uint8_t span_id[8];
};

struct pb_scan {
	uint64_t records; /* spans or log records in the request */
	uint64_t hits;    /* of them; those beyond the caller's capacity are counted and not written */
	uint64_t own;     /* those of the scope otel_perfbuf */
};

/* Scans one request. PB_MALFORMED: the bytes are no such message (*result is untouched, `hits` is of no use). */
enum pb_status pb_otlp_scan(const uint8_t *request, uint64_t bytes, enum pb_scan_signal signal,
                            const struct pb_scan_rules *rules, struct pb_hit *hits, uint64_t capacity,
                            struct pb_scan *result);
/* cffi: end */
#endif
