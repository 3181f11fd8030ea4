/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h: from samples (rings) and thread pages (task iterator) to one list of events:
 * each record once, by (instance, sequence); sorted by time; what was captured at enter joined to its call.
 * The caller owns all memory; events borrow the sample bytes they were made from.
 * Source: bpf/records.h. What it is not: it knows no OTel and no text.
 *
 * Order of use: pb_history_count for each input -> allocate -> pb_history_init -> pb_history_add_* (pages first,
 * then rings; order does not change the result) -> pb_history_join -> [Python reads threads and processes, sets
 * .scope of each process] -> pb_history_select -> encoder.
 */
#ifndef PERFBUF_HISTORY_H
#define PERFBUF_HISTORY_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"
#include "records.h"
#include "ring.h"

/* cffi: begin */

enum pb_event_flags {
	PB_EVENT_PAGE = 1,      /* from a thread's own page: never outside the window, never dropped */
	PB_EVENT_IN_FLIGHT = 2, /* the page's open call */
	PB_EVENT_SELECTED = 4,
	PB_EVENT_MARK = 8,        /* before the join only: a page's end, carries its last sequence */
	PB_EVENT_BEFORE_GAP = 16, /* its thread's next record is missing */
	PB_EVENT_LATER = 32,      /* from pages read after the snapshot: tells of fds, is in no dump and no count */
};

enum pb_history_limits {
	PB_WORKSPACE_BYTES = 32, /* of workspace, an event: what the sorts need */
};

struct pb_event {
	uint64_t time_ns; /* when it began */
	uint64_t instance;
	uint64_t sequence;
	/* Bytes, no structs: ring data lie at 4 modulo 8, and so they are loaded by memcpy only. */
	const void *record; /* struct pb_record, checked: its bytes lie inside the input */
	const void *entry;  /* struct pb_record of the captures taken at enter, or NULL */
	const void *sample; /* struct pb_sample that it came in; checked like record */
	const void *span;   /* struct pb_span_ids that its thread ran, or NULL; inside the same sample or page */
	uint64_t seen_ns;   /* in flight: when the page was read (age = seen - time) */
	uint32_t thread;    /* index into threads */
	uint16_t cpu;
	uint8_t flags; /* enum pb_event_flags */
	uint8_t kind;  /* enum pb_record_kind; 0: a mark */
};

/* One instance of a thread. */
struct pb_thread {
	uint64_t instance;
	uint32_t tid;                /* the newest it had (an exec from another thread changes it) */
	uint32_t process;            /* index into processes */
	uint8_t comm[PB_COMM_BYTES]; /* the newest */
	uint64_t first_sequence;     /* of the events here */
	uint64_t last_sequence;      /* of the events here, or as its page tells */
	uint64_t events;
	uint64_t missing;    /* sequences from 1 to last that are not here: overwritten or lost */
	uint64_t gap_end_ns; /* time of the first event behind its last gap; 0: no gap */
	const void *sample;  /* struct pb_sample: the newest, where tid and comm are from */
	/* set by the caller before encoding: events that lie in [span_start_ns, span_end_ns) are thread_window */
	uint64_t span_start_ns;
	uint64_t span_end_ns; /* 0: none */
};

struct pb_process_entry {
	uint32_t tgid;
	uint32_t scope; /* set by the caller: 1 = in the dump's scope */
	uint64_t start_ns;
	uint64_t events;
	uint64_t selected;   /* by pb_history_select */
	uint32_t exited;     /* 1: its end is among the events */
	int32_t exit_status; /* then: a wait status */
};

struct pb_history {
	struct pb_event *events;
	uint64_t event_count,
		event_capacity; /* after the join: records only (no ENTRY, no SPAN, no doubles, no marks) */
	struct pb_thread *threads;
	uint64_t thread_count, thread_capacity;
	struct pb_process_entry *processes;
	uint64_t process_count, process_capacity;
	uint64_t malformed;   /* samples or records whose bytes disagree with themselves */
	uint64_t duplicates;  /* records that came from a page and from a ring */
	uint64_t torn;        /* pages that changed during every try of the iterator: their records are not here */
	uint64_t orphans;     /* ENTRY records whose call is not here */
	struct pb_lost *gaps; /* may be NULL: then gaps inside threads make no events */
	uint64_t gap_count, gap_capacity; /* the last takes the counts of those that found no
						 * room; the join lowers the capacity to what
						 * events and workspace have room for */
	uint64_t gaps_selected;           /* LOST events (gaps' and inputs') among the selected */
	uint8_t *workspace; /* aligned to 8; >= PB_WORKSPACE_BYTES * event_count bytes at the join; for the
					 * gaps too: PB_WORKSPACE_BYTES * event_capacity */
	uint64_t workspace_bytes;
	uint64_t joined; /* 1 after pb_history_join */
};

/* One input's size: how many events it gives at most and how many samples or pages it holds; added to *size.
 * event_capacity: the sum of events; thread_capacity and process_capacity: one for each thread instance (the sum of
 * samples is always enough; PB_NO_ROOM of pb_history_join says when less was not: grow both and join again). */
struct pb_history_size {
	uint64_t events;
	uint64_t samples;
};

enum pb_status pb_history_count_samples(const uint8_t *arena, const struct pb_frame *frames, uint64_t frame_count,
                                        struct pb_history_size *size);
enum pb_status pb_history_count_pages(const uint8_t *pages, uint64_t bytes, struct pb_history_size *size);

/* Frames of a snapshot or drain; lost frames and other types are passed over (the caller has their counts). */
enum pb_status pb_history_add_samples(struct pb_history *history, const uint8_t *arena, const struct pb_frame *frames,
                                      uint64_t frame_count);
/* What the task iterator gave: pb_page_head + pb_sample + records, one after the other. The open call becomes an
 * event with PB_EVENT_IN_FLIGHT that borrows head->open. */
enum pb_status pb_history_add_pages(struct pb_history *history, const uint8_t *pages, uint64_t bytes);
/* The same, of what was read after the snapshot only to know what happened since (PB_EVENT_LATER). */
enum pb_status pb_history_add_later_pages(struct pb_history *history, const uint8_t *pages, uint64_t bytes);
/* Once, after all inputs. A gap inside an instance's sequence (between two events that are here) becomes an event of
 * kind PB_RECORD_LOST: its sequence the first that is missing, its time that of the event behind the gap.
 * Sorts by (instance, sequence), removes doubles, joins ENTRY records, fills the threads' and processes' counts and
 * gaps, then sorts by (time, instance, sequence). */
enum pb_status pb_history_join(struct pb_history *history);
/* Marks what goes into the dump: events of processes with scope 1 in [start_ns, end_ns] (a call that began before the
 * window and ended in it is in) and, whatever their age, events from pages; at most max_records, the oldest of the
 * others dropped. Can be called again. */
enum pb_status pb_history_select(struct pb_history *history, uint64_t start_ns, uint64_t end_ns, uint64_t max_records,
                                 uint64_t *selected, uint64_t *dropped);

/* One CPU's samples among the frames of a ring that all CPUs share. */
struct pb_sender {
	uint64_t samples;  /* 0: it has none, and nothing else here is set */
	uint64_t records;  /* in them */
	uint64_t before;   /* records that it had sent before the oldest of them */
	uint64_t end;      /* ... before and in all of them */
	uint64_t first_ns; /* when it sent the oldest */
	uint64_t later_ns; /* when it sent the first that was sent after the oldest lay in the ring; 0: none */
};

/* senders[cpu] for frames of a snapshot, oldest first; samples of CPUs from cpu_count on are passed over. */
enum pb_status pb_history_senders(const uint8_t *arena, const struct pb_frame *frames, uint64_t frame_count,
                                  struct pb_sender *senders, uint32_t cpu_count);
/* cffi: end */
#endif
