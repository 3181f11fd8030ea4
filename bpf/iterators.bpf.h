/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * iterators.bpf.h: the task iterators: one reads all thread pages at a dump, one gives pages to threads that are already
 * there, one tells which calls have been in flight for too long. They run in the reader's process, preemptible, beside the threads that write their pages.
 * Source: Linux kernel/bpf/task_iter.c. One reader at a time: user space holds a lock (otel_perfbuf/bpf/syscalls.py).
 */
#ifndef PERFBUF_ITERATORS_BPF_H
#define PERFBUF_ITERATORS_BPF_H

#include "page.bpf.h"
#include "condition.bpf.h"

enum {
	READ_TRIES = 512, /* copies of a page that is being written; one takes some 100 ns */
	EVERY_TASK = 0,   /* key of target_tgids that stands for all */
};

/* tgid -> flags for its threads' pages: PB_PAGE_TARGET, or PB_PAGE_WAIT_EXEC. Read by the seeder only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, u32);
} target_tgids SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct page);
} page_copies SEC(".maps");

/* An element of its own, before the page's: what the page sent last. */
static __always_inline void write_sent(struct seq_file *seq, struct page *copy)
{
	u32 flags = copy->head.flags, used = copy->head.used, bytes = copy->sent.bytes;

	if (bytes <= sizeof(copy->sent) || bytes > sizeof(copy->sent) + PB_PAGE_RECORD_BYTES)
		return;
	copy->head.flags = flags & ~PB_PAGE_OPEN;
	copy->head.used = bytes - sizeof(copy->sent);
	bpf_seq_write(seq, &copy->head, sizeof(copy->head));
	bpf_seq_write(seq, &copy->sent, bytes);
	copy->head.flags = flags;
	copy->head.used = used;
}

SEC("iter/task")
int read_pages(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct page *page, *copy;
	u32 zero = 0, used;
	int torn = 1;

	if (!task)
		return 0;
	page = find_page(task);
	if (!page || !is_recorded(page->head.flags))
		return 0;
	copy = bpf_map_lookup_elem(&page_copies, &zero);
	if (!copy)
		return 0;
	for (int i = 0; i < READ_TRIES; i++) {
		u64 version = *(volatile u64 *)&page->head.version;

		page_barrier(&page->head.version);
		bpf_probe_read_kernel(copy, sizeof(*copy), page);
		page_barrier(&page->head.version);
		if (!(version & 1) && version == *(volatile u64 *)&page->head.version) {
			torn = 0;
			break;
		}
	}
	used = copy->head.used;
	if (torn || used > PB_PAGE_RECORD_BYTES) {
		/* the header tells whose page it is; what follows may be half written */
		copy->head.flags |= PB_PAGE_TORN;
		copy->head.flags &= ~PB_PAGE_OPEN;
		copy->head.used = 0;
		copy->sample.records = 0;
		copy->sent.bytes = 0;
		used = 0;
	}
	copy->head.open.reserved = 0;
	copy->head.seen_ns = bpf_ktime_get_ns();
	copy->sample.bytes = sizeof(copy->sample) + used;
	copy->sample.ring_records = 0;
	write_sent(ctx->meta->seq, copy);
	bpf_probe_read_kernel(copy->sample.comm, sizeof(copy->sample.comm), task->comm);
	bpf_seq_write(ctx->meta->seq, copy, sizeof(copy->head) + sizeof(copy->sample) + used);
	return 0;
}

/* Writes one struct pb_alert for each call that is in flight for too long: at every look once more. */
SEC("iter/task")
int slow_calls(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u64 now = bpf_ktime_get_ns(), sequence;
	struct pb_alert alert = {};
	struct page *page;

	if (!task)
		return 0;
	page = find_page(task);
	if (!page || !is_recorded(page->head.flags) || !is_slow_call(&page->head, now))
		return 0;
	sequence = *(volatile u64 *)&page->head.open.record.sequence;
	fill_alert(&alert, &page->sample, PB_ALERT_SYSCALL_LATENCY, now);
	bpf_probe_read_kernel(alert.comm, sizeof(alert.comm), task->comm);
	alert.sequence = sequence;
	alert.duration_ns = now - page->head.open.record.time_ns;
	alert.number = page->head.open.number;
	alert.flags = PB_ALERT_IN_FLIGHT;
	if (page->head.open.record.flags & PB_FLAG_SPAN) {
		alert.flags |= PB_ALERT_SPAN;
		alert.span = page->head.open_span;
	}
	/* it ended while it was read: its end is judged by itself */
	if (!is_slow_call(&page->head, now) || *(volatile u64 *)&page->head.open.record.sequence != sequence)
		return 0;
	bpf_seq_write(ctx->meta->seq, &alert, sizeof(alert));
	return 0;
}

/* Writes one u32, the thread's id, for each page that it made or changed: user space runs it until there is none. */
SEC("iter/task")
int seed_targets(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 tgid, tid, every = EVERY_TASK, flags = 0, *wanted;
	struct page *page;

	if (!task || READ(task, flags) & PF_KTHREAD || !READ(task, mm))
		return 0;
	tgid = READ(task, tgid);
	wanted = bpf_map_lookup_elem(&target_tgids, &tgid);
	if (!wanted)
		wanted = bpf_map_lookup_elem(&target_tgids, &every);
	if (wanted)
		flags = *wanted;
	else if ((use_target_comms || use_target_cgroups) && is_named_target(task))
		flags = PB_PAGE_TARGET;
	if (!flags)
		return 0;
	page = find_page(task);
	if (page && page->head.flags & (PB_PAGE_TARGET | PB_PAGE_WAIT_EXEC))
		return 0;
	if (!is_known_process(task))
		add_process(task, FOUND_BY_SEEDER);
	if (page)
		set_bits(&page->head.flags, flags);
	else if (!create_page(task, own_flags(task) | flags, bpf_ktime_get_ns()))
		return 0;
	tid = READ(task, pid);
	bpf_seq_write(ctx->meta->seq, &tid, sizeof(tid));
	return 0;
}

#endif
