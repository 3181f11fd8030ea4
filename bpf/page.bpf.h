/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * page.bpf.h: every thread's own page, and the policy of who has one and is recorded (DESIGN 4).
 * What it is not: it knows no syscall and no event; the handlers (syscalls.bpf.c) call it.
 *
 * Writers: only the thread itself (or its parent before it runs, or the seeder when the page is new), between
 * page_begin and page_end, which make .version odd and even again; the iterator takes a copy whose version was even
 * and the same before and after. An output costs more than everything else together, so records are collected and the
 * page goes as one sample when the next record does not fit.
 */
#ifndef PERFBUF_PAGE_BPF_H
#define PERFBUF_PAGE_BPF_H

#include "perfbuf.bpf.h"
#include "process_table.bpf.h"
#include "span.bpf.h"

/* Whom to record: 0 = the whole host, 1 = threads whose page says so (seeded, and their children). */
const volatile u8 filter_targets = 0;
/* 1: children of a target are targets. */
const volatile u8 follow_children = 1;
/* 1: every record is sent at once (forward rings) instead of page by page. */
const volatile u8 forward = 0;
/* 1: the map `history` was made a BPF ring buffer, one for all CPUs. */
const volatile u8 shared_history = 0;
/* 1: the map of the same name has entries; 0 saves its lookup. */
const volatile u8 use_target_comms = 0;
const volatile u8 use_target_cgroups = 0;
const volatile u8 use_exclude_comms = 0;

/* A whole record may be written at the end before it is cut to its arguments; copies go in steps of COPY_BYTES. */
#define PAGE_SLACK_BYTES 96
#define COPY_BYTES 32
#define PAGE_MASK_BYTES 1024
/* A page sent longer ago than this may have left the ring: at its thread's end it goes once more. */
#define SENT_LONG_AGO_NS 1000000000ULL

struct page {
	struct pb_page_head head;
	struct pb_sample sample;
	u8 records[PB_PAGE_RECORD_BYTES + PAGE_SLACK_BYTES];
	struct span_cache spans;
	/* What was sent last (.bytes = 0: nothing): a thread that waits right behind a full page has its last calls too. */
	struct pb_sample sent;
	u8 sent_records[PB_PAGE_RECORD_BYTES];
};

_Static_assert(PAGE_MASK_BYTES >= PB_PAGE_RECORD_BYTES &&
                       PAGE_MASK_BYTES - 1 + COPY_BYTES <= PB_PAGE_RECORD_BYTES + PAGE_SLACK_BYTES,
               "a masked copy stays inside");
_Static_assert(sizeof(struct pb_syscall) <= PAGE_SLACK_BYTES, "a whole record fits behind a full page");

#ifndef PERFBUF_PLAIN

/* A thread's own page; gone with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct page);
} pages SEC(".maps");

static __always_inline struct page *find_page(struct task_struct *task)
{
	return bpf_task_storage_get(&pages, task, NULL, 0);
}

static __always_inline struct page *make_page(struct task_struct *task)
{
	return bpf_task_storage_get(&pages, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* Most threads of a host have no task storage of anybody: that they have no page costs one load, no call. */
static __always_inline int has_no_storage(struct task_struct *task)
{
	return !READ(task, bpf_storage);
}

static __always_inline void drop_page(struct task_struct *task)
{
}

#else

/* Kernel stack of a thread -> its page. A stack is of one thread while that lives, through an exec that changes the
 * thread's id too. Not LRU: a page is its thread's until that ends; full is counted as lost. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct page);
} pages SEC(".maps");

/* What a page begins as: too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct page);
} empty_page SEC(".maps");

static __always_inline struct page *find_page(struct task_struct *task)
{
	u64 key = (u64)READ(task, stack);

	return bpf_map_lookup_elem(&pages, &key);
}

static __always_inline struct page *make_page(struct task_struct *task)
{
	u64 key = (u64)READ(task, stack);
	u32 zero = 0;
	struct page *page = bpf_map_lookup_elem(&pages, &key), *empty;

	if (page)
		return page;
	empty = bpf_map_lookup_elem(&empty_page, &zero);
	if (empty)
		bpf_map_update_elem(&pages, &key, empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&pages, &key);
}

static __always_inline int has_no_storage(struct task_struct *task)
{
	return 0;
}

static __always_inline void drop_page(struct task_struct *task)
{
	u64 key = (u64)READ(task, stack);

	bpf_map_delete_elem(&pages, &key);
}

#endif

/* The flight recorder: one ring a CPU. Before the load user space may make it an overwritable BPF ring buffer
 * (shared_history): the verifier passes over the output that is not used, so one map serves both. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
} history SEC(".maps");

struct comm_key {
	char comm[PB_COMM_BYTES];
};

/* Names (NUL-padded) whose processes are targets; looked at when they exec, and by the seeder. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct comm_key);
	__type(value, u32);
} target_comms SEC(".maps");

/* cgroup ids (v2) whose processes, and those of cgroups below, are targets. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u32);
} target_cgroups SEC(".maps");

/* Names that are never recorded. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct comm_key);
	__type(value, u32);
} exclude_comms SEC(".maps");

static __always_inline void page_begin(struct page *page)
{
	page->head.version++;
	page_barrier(&page->head.version);
}

static __always_inline void page_end(struct page *page)
{
	page_barrier(&page->head.version);
	page->head.version++;
}

static __always_inline int is_recorded(u32 flags)
{
	return (flags & (PB_PAGE_TARGET | PB_PAGE_EXCLUDED | PB_PAGE_WAIT_EXEC)) == PB_PAGE_TARGET;
}

static __always_inline int comm_is_in(void *map, struct task_struct *task)
{
	struct comm_key key = {};

	/* as a string: what stands behind the kernel's NUL is of an earlier name */
	bpf_probe_read_kernel_str(key.comm, sizeof(key.comm), task->comm);
	return bpf_map_lookup_elem(map, &key) != NULL;
}

static __noinline int cgroup_is_target(struct task_struct *task)
{
	struct kernfs_node *node = READ(task, cgroups, dfl_cgrp, kn);

	for (int i = 0; i < CGROUP_DEPTH && node; i++) {
		u64 id = BPF_CORE_READ(node, id);

		if (bpf_map_lookup_elem(&target_cgroups, &id))
			return 1;
		if (bpf_core_field_exists(node->__parent))
			node = BPF_CORE_READ(node, __parent);
		else
			node = BPF_CORE_READ((struct kernfs_node___parent *)node, parent);
	}
	return 0;
}

/* Whether a name or a cgroup makes the task a target. */
static __always_inline int is_named_target(struct task_struct *task)
{
	return (use_target_comms && comm_is_in(&target_comms, task)) || (use_target_cgroups && cgroup_is_target(task));
}

/* What a task that no parent decides about is: flags of its page. */
static __always_inline u32 own_flags(struct task_struct *task)
{
	u32 flags = filter_targets ? 0 : PB_PAGE_TARGET;

	if (READ(task, tgid) == agent_tgid)
		flags |= PB_PAGE_EXCLUDED;
	else if (use_exclude_comms && comm_is_in(&exclude_comms, task))
		flags |= PB_PAGE_EXCLUDED;
	return flags;
}

/* Makes the page of a thread that has none. The flags come last: until then the page is nobody's. */
static __always_inline struct page *create_page(struct task_struct *task, u32 flags, u64 now)
{
	struct page *page = make_page(task);

	if (!page) {
		count_lost_page();
		return NULL;
	}
	fill_sample(&page->sample, task, PB_SAMPLE_PAGE);
	page->sample.instance = new_instance(now);
	page->sample.sent_ns = now;
	barrier();
	page->head.flags = flags;
	return page;
}

/* Slow path of a thread without a page. NULL: it is not recorded. */
static __noinline struct page *first_page(struct task_struct *task)
{
	struct page *page;

	if (filter_targets || (READ(task, flags) & PF_KTHREAD))
		return NULL;
	page = create_page(task, own_flags(task), bpf_ktime_get_ns());
	if (page && is_recorded(page->head.flags) && !is_known_process(task)) {
		hold_cpu();
		add_process(task, FOUND_RUNNING);
		release_cpu();
	}
	return page;
}

static __always_inline struct page *get_page(struct task_struct *task)
{
	struct page *page;

	if (filter_targets && has_no_storage(task))
		return NULL;
	page = find_page(task);
	if (!page && !filter_targets)
		page = first_page(task);
	return page;
}

/* Sends the page into the ring and empties it. The copy in the ring is there before the page is empty: a dump
 * that reads pages first and rings second sees each record at least once. Outside of page_begin and page_end: while the
 * output runs, the page can be read. */
static __always_inline void flush_page(void *ctx, struct page *page, struct task_struct *task, u64 now)
{
	u32 used = page->head.used;

	if (!used || used > PB_PAGE_RECORD_BYTES)
		return;
	bpf_probe_read_kernel(page->sample.comm, sizeof(page->sample.comm), task->comm);
	page->sample.sent_ns = now;
	send_sample(ctx, &history, shared_history, &page->sample, sizeof(page->sample) + used);
	page_begin(page);
	if (!forward)
		bpf_probe_read_kernel(&page->sent, sizeof(page->sample) + used, &page->sample);
	page->sample.records = 0;
	page->head.used = 0;
	page->spans.written = 0;
	page_end(page);
}

/* At the thread's end: what the page sent last goes into the ring once more if the ring may have lost it. */
static __always_inline void send_again(void *ctx, struct page *page, u64 now)
{
	u32 bytes = page->sent.bytes;

	if (bytes <= sizeof(page->sent) || bytes > sizeof(page->sent) + PB_PAGE_RECORD_BYTES ||
	    now - page->sent.sent_ns < SENT_LONG_AGO_NS)
		return;
	page->sent.kind = PB_SAMPLE_AGAIN;
	page->sent.records = 0;
	page->sent.sent_ns = now - 1; /* the thread's page behind it is newer */
	send_sample(ctx, &history, shared_history, &page->sent, bytes);
}

/* Room for a record of `bytes` (at most PAGE_SLACK_BYTES) at the page's end, after sending it if there is none.
 * NULL is for the verifier: it does not happen. */
static __always_inline void *page_room(void *ctx, struct page *page, struct task_struct *task, u32 bytes, u64 now)
{
	u32 used;

	if (page->head.used + bytes > PB_PAGE_RECORD_BYTES)
		flush_page(ctx, page, task, now);
	used = page->head.used;
	if (used > PB_PAGE_RECORD_BYTES)
		return NULL;
	return page->records + used;
}

/* The record at the page's end is whole: it counts. `owned`: how many sequences it owns (0, 1). */
static __always_inline void page_added(struct page *page, u32 bytes, u32 owned, u64 now)
{
	page->head.used += bytes;
	page->sample.records += owned;
	page->sample.sent_ns = now;
}

static __always_inline void fill_record(struct pb_record *record, u32 bytes, u8 kind, u8 flags, u64 sequence,
                                        u64 time_ns)
{
	record->bytes = bytes;
	record->kind = kind;
	record->flags = flags;
	record->cpu = bpf_get_smp_processor_id();
	record->arguments = 0;
	record->captures = 0;
	record->sequence = sequence;
	record->time_ns = time_ns;
}

static __always_inline int same_span(const struct pb_span_ids *a, const struct pb_span_ids *b)
{
	const u64 *x = (const u64 *)a, *y = (const u64 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2];
}

/* Before a record of `bytes` with PB_FLAG_SPAN: room for both, and the span's own record unless it stands in the page
 * already. */
static __noinline void put_span(void *ctx, struct page *page, const struct pb_span_ids *ids, u32 bytes, u64 now)
{
	struct task_struct *task = current_task();
	int same = page->spans.written && same_span(ids, &page->spans.last);
	struct pb_span_record *span;

	if (page->head.used + bytes + (same ? 0 : sizeof(*span)) > PB_PAGE_RECORD_BYTES) {
		flush_page(ctx, page, task, now);
		same = 0;
	}
	if (same)
		return;
	span = page_room(ctx, page, task, sizeof(*span), now);
	if (!span)
		return;
	page_begin(page);
	fill_record(&span->record, sizeof(*span), PB_RECORD_SPAN, 0, page->head.last_sequence, now);
	span->ids = *ids;
	page->spans.last = *ids;
	page->spans.written = 1;
	page_added(page, sizeof(*span), 0, now);
	page_end(page);
}

/* The span of what happens now. Inside a call it is the call's own: its thread cannot have changed it meanwhile. */
static __always_inline int current_span(struct page *page, struct pb_span_ids *ids)
{
	if (!(page->head.flags & PB_PAGE_OPEN))
		return read_span(&page->spans, &page->sample, ids);
	if (!(page->head.open.record.flags & PB_FLAG_SPAN))
		return 0;
	*ids = page->head.open_span;
	return 1;
}

/* The same for a record of `bytes` that is appended next; gives the record's flag. */
static __noinline u32 event_span(void *ctx, struct page *page, u32 bytes, u64 now)
{
	struct pb_span_ids ids;

	if (!current_span(page, &ids))
		return 0;
	put_span(ctx, page, &ids, bytes, now);
	return PB_FLAG_SPAN;
}

/* Sends the record in the scratch as a sample of its own, under the header of the thread's page. */
static __always_inline void send_single(void *ctx, struct page *page, struct scratch *scratch, u32 bytes, u32 owned)
{
	struct task_struct *task = current_task();
	struct pb_record *record = (struct pb_record *)scratch->record;
	int spanned = record->flags & PB_FLAG_SPAN;
	struct pb_sample *sample = spanned ? &scratch->spanned.sample : &scratch->sample;

	if (bytes > RECORD_LIMIT)
		return;
	__builtin_memcpy(sample, &page->sample, sizeof(*sample));
	sample->kind = PB_SAMPLE_SINGLE;
	sample->records = owned;
	sample->sent_ns = scratch->now;
	bpf_probe_read_kernel(sample->comm, sizeof(sample->comm), task->comm);
	if (!spanned) {
		send_sample(ctx, &history, shared_history, sample, sizeof(*sample) + bytes);
		return;
	}
	fill_record(&scratch->spanned.span.record, sizeof(scratch->spanned.span), PB_RECORD_SPAN, 0, record->sequence,
	            scratch->now);
	scratch->spanned.span.ids = page->head.open_span;
	send_sample(ctx, &history, shared_history, sample, sizeof(scratch->spanned) + bytes);
}

/* Appends the record of `bytes` (a multiple of 8) that stands in the scratch; one that no page can hold goes alone.
 * Leaves the flags `clear` out of the page's, together with the append. */
static __noinline void append_scratch(void *ctx, struct page *page, struct scratch *scratch, u32 bytes, u32 clear)
{
	struct task_struct *task = current_task();
	u32 owned = ((struct pb_record *)scratch->record)->kind != PB_RECORD_ENTRY;
	struct pb_record *record = (struct pb_record *)scratch->record;
	u32 used, spanned = record->flags & PB_FLAG_SPAN;

	if (bytes + (spanned ? sizeof(struct pb_span_record) : 0) > PB_PAGE_RECORD_BYTES) {
		send_single(ctx, page, scratch, bytes, owned);
		page_begin(page);
		page->head.flags &= ~clear;
		page_end(page);
		return;
	}
	if (spanned)
		put_span(ctx, page, &page->head.open_span, bytes, scratch->now);
	page_room(ctx, page, task, bytes, scratch->now);
	used = page->head.used;
	page_begin(page);
	for (u32 i = 0; i < PB_PAGE_RECORD_BYTES; i += COPY_BYTES) {
		u64 *from, *to;

		barrier_var(i); /* else counted from -32, in a pointer before the element: Linux 7.3 refuses that */
		if (i >= bytes)
			break;
		from = (u64 *)(scratch->record + i);
		/* the mask is for the verifier: used + bytes fit, page_room has seen to it */
		to = (u64 *)(page->records + ((used + i) & (PAGE_MASK_BYTES - 1)));
		to[0] = from[0];
		to[1] = from[1];
		to[2] = from[2];
		to[3] = from[3];
	}
	page_added(page, bytes, owned, scratch->now);
	page->head.flags &= ~clear;
	page_end(page);
	if (forward)
		flush_page(ctx, page, task, scratch->now);
}

#endif
