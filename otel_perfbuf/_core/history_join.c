/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history_join.c: each record once, by (instance, sequence); threads and processes; the order by time.
 * What it is not: it reads no untrusted sizes (check.h has checked every record before it became an event).
 *
 * Sorting is a byte-wise radix sort of (key, index) pairs in the caller's workspace: stable, no compare, and digits
 * that are the same in all keys cost nothing, which is most of them for times of the last seconds.
 */
#include "history.h"
#include "check.h"

struct item {
	uint64_t key;
	uint32_t index;
	uint32_t reserved;
};

_Static_assert(2 * sizeof(struct item) == PB_WORKSPACE_BYTES, "the workspace holds the items twice");

struct items {
	struct item *now; /* sorted after sort_items */
	struct item *other;
	uint64_t count;
};

/* One pass: a stable distribution by the byte at `shift`. */
static void distribute(struct items *items, unsigned int shift, const uint32_t *counts)
{
	uint32_t starts[256], sum = 0;
	struct item *swap = items->now;

	for (unsigned int digit = 0; digit < 256; digit++) {
		starts[digit] = sum;
		sum += counts[digit];
	}
	for (uint64_t i = 0; i < items->count; i++)
		items->other[starts[items->now[i].key >> shift & 255]++] = items->now[i];
	items->now = items->other;
	items->other = swap;
}

static void sort_items(struct items *items)
{
	uint32_t counts[8][256];
	uint64_t first;

	if (items->count < 2)
		return;
	memset(counts, 0, sizeof(counts));
	for (uint64_t i = 0; i < items->count; i++) {
		for (unsigned int byte = 0; byte < 8; byte++)
			counts[byte][items->now[i].key >> 8 * byte & 255]++;
	}
	first = items->now[0].key;
	for (unsigned int byte = 0; byte < 8; byte++) {
		if (counts[byte][first >> 8 * byte & 255] != items->count)
			distribute(items, 8 * byte, counts[byte]);
	}
}

/* Puts the events into the items' order, in place, by following each cycle of the permutation once. */
static void permute(struct pb_event *events, struct item *items, uint64_t count)
{
	for (uint64_t start = 0; start < count; start++) {
		struct pb_event held = events[start];
		uint64_t at = start;

		if (items[start].index == start)
			continue;
		while (items[at].index != start) {
			uint64_t from = items[at].index;

			events[at] = events[from];
			items[at].index = (uint32_t)at;
			at = from;
		}
		events[at] = held;
		items[at].index = (uint32_t)at;
	}
}

static struct items items_of(const struct pb_history *history, uint64_t count)
{
	struct item *base = (struct item *)(void *)history->workspace;

	return (struct items){ base, base + count, count };
}

static void sort_by_instance(struct pb_history *history)
{
	struct items items = items_of(history, history->event_count);

	for (uint64_t i = 0; i < items.count; i++)
		items.now[i] = (struct item){ history->events[i].sequence, (uint32_t)i, 0 };
	sort_items(&items);
	for (uint64_t i = 0; i < items.count; i++)
		items.now[i].key = history->events[items.now[i].index].instance;
	sort_items(&items);
	permute(history->events, items.now, items.count);
}

/* Stable, so events of one time stay ordered by (instance, sequence). The gaps stand behind all others and go in first:
 * a gap has the time of the event behind it. */
static void sort_by_time(struct pb_history *history)
{
	struct items items = items_of(history, history->event_count);

	for (uint64_t i = 0; i < items.count; i++) {
		uint64_t index = (i + items.count - history->gap_count) % items.count;

		items.now[i] = (struct item){ history->events[index].time_ns, (uint32_t)index, 0 };
	}
	sort_items(&items);
	permute(history->events, items.now, items.count);
}

/* A finished record beats the same one in flight, of two in flight the one seen later (its age is the dump's), a page's
 * beats a ring's: so the order of inputs is of no effect. */
static bool better(const struct pb_event *event, const struct pb_event *best)
{
	if ((event->flags ^ best->flags) & PB_EVENT_LATER)
		return best->flags & PB_EVENT_LATER;
	if ((event->flags ^ best->flags) & PB_EVENT_IN_FLIGHT)
		return best->flags & PB_EVENT_IN_FLIGHT;
	if (event->flags & PB_EVENT_IN_FLIGHT)
		return event->seen_ns > best->seen_ns;
	return (event->flags & PB_EVENT_PAGE) > (best->flags & PB_EVENT_PAGE);
}

/* Makes one event of all that carry one (instance, sequence). False: only ENTRY records, no call. *end: the same call's
 * end when that was read after the snapshot, which shows it in flight; kind 0: none. */
static bool merge(struct pb_history *history, uint64_t from, uint64_t to, struct pb_event *merged, struct pb_event *end)
{
	const void *entry = NULL;
	const struct pb_event *best = NULL;
	uint8_t page = 0;

	end->kind = 0;
	for (uint64_t i = from; i < to; i++) {
		const struct pb_event *event = &history->events[i];

		page |= event->flags & PB_EVENT_PAGE;
		if (event->kind == PB_RECORD_ENTRY) {
			entry = entry ? entry : event->record;
		} else if (!best) {
			best = event;
		} else {
			history->duplicates += !(event->flags & PB_EVENT_LATER);
			if (better(event, best))
				best = event;
		}
	}
	if (!best) {
		history->orphans += !(history->events[from].flags & PB_EVENT_LATER);
		return false;
	}
	for (uint64_t i = from; i < to && best->flags & PB_EVENT_IN_FLIGHT; i++) {
		if (history->events[i].flags & PB_EVENT_LATER && history->events[i].kind != PB_RECORD_ENTRY)
			*end = history->events[i];
	}
	*merged = *best;
	merged->entry = entry;
	merged->flags |= page;
	return true;
}

static void newest(struct pb_thread *thread, const void *sample)
{
	struct pb_sample now, before;

	memcpy(&now, sample, sizeof(now));
	if (thread->sample) {
		memcpy(&before, thread->sample, sizeof(before));
		if (now.sent_ns < before.sent_ns || (now.sent_ns == before.sent_ns && now.tid <= before.tid))
			return;
	}
	thread->sample = sample;
	thread->tid = now.tid;
	memcpy(thread->comm, now.comm, sizeof(thread->comm));
}

static void add_gap(struct pb_history *history, uint64_t first, uint64_t count, const struct pb_event *behind)
{
	struct pb_lost *gap;

	if (!history->gap_capacity)
		return;
	if (history->gap_count == history->gap_capacity) {
		history->gaps[history->gap_count - 1].count += count;
		return;
	}
	gap = &history->gaps[history->gap_count++];
	*gap = (struct pb_lost){
		.record = { .bytes = sizeof(*gap),
		            .kind = PB_RECORD_LOST,
		            .cpu = behind->cpu,
		            .sequence = first,
		            .time_ns = behind->time_ns },
		.count = count,
		.reason = PB_LOST_OVERWRITTEN,
		.reserved = behind->thread,
	};
}

/* `before`: the thread's event before this one, NULL: it is the first. */
static void count_event(struct pb_history *history, struct pb_thread *thread, const struct pb_event *event,
                        struct pb_event *before)
{
	if (event->flags & PB_EVENT_LATER) {
		if (before && event->sequence > before->sequence + 1)
			before->flags |= PB_EVENT_BEFORE_GAP;
		if (!thread->first_sequence)
			thread->first_sequence = event->sequence;
		return;
	}
	thread->events++;
	if (!event->sequence) /* it has none: an OOM kill that no page owns */
		return;
	if (event->sequence > thread->last_sequence + 1) {
		thread->gap_end_ns = event->time_ns;
		if (thread->first_sequence) {
			before->flags |= PB_EVENT_BEFORE_GAP;
			add_gap(history, thread->last_sequence + 1, event->sequence - thread->last_sequence - 1, event);
		}
	}
	if (!thread->first_sequence)
		thread->first_sequence = event->sequence;
	thread->last_sequence = event->sequence;
	thread->missing++; /* here: how many are not missing */
}

/* Joins the events [from, to) of one instance to one thread; they move down to *out. */
static void join_thread(struct pb_history *history, uint64_t from, uint64_t to, uint64_t *out)
{
	struct pb_thread thread = { .instance = history->events[from].instance };
	struct pb_event *before = NULL;
	uint64_t end, given = 0;

	for (uint64_t at = from; at < to; at = end) {
		struct pb_event merged = history->events[at], later;

		newest(&thread, merged.sample);
		end = at + 1;
		if (merged.flags & PB_EVENT_MARK) {
			given = merged.time_ns > given ? merged.time_ns : given;
			continue;
		}
		while (merged.sequence && end < to && history->events[end].sequence == merged.sequence)
			newest(&thread, history->events[end++].sample);
		if (!merge(history, at, end, &merged, &later))
			continue;
		merged.thread = (uint32_t)history->thread_count;
		count_event(history, &thread, &merged, before);
		before = &history->events[(*out)++];
		*before = merged;
		if (later.kind) {
			later.thread = merged.thread;
			history->events[(*out)++] = later;
		}
	}
	if (given > thread.last_sequence) {
		thread.last_sequence = given;
		if (before)
			before->flags |= PB_EVENT_BEFORE_GAP;
	}
	thread.missing = thread.last_sequence - thread.missing;
	if (thread.events || thread.last_sequence || before)
		history->threads[history->thread_count++] = thread;
}

static uint64_t count_instances(const struct pb_history *history)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < history->event_count; i++)
		count += !i || history->events[i].instance != history->events[i - 1].instance;
	return count;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* How many gaps can become events: a gap never makes the join fail. */
static uint64_t gap_room(const struct pb_history *history)
{
	uint64_t events = least(history->event_capacity, history->workspace_bytes / PB_WORKSPACE_BYTES);

	return history->gaps ? least(history->gap_capacity, events - history->event_count) : 0;
}

/* The gaps become events behind all others. */
static void append_gaps(struct pb_history *history)
{
	for (uint64_t i = 0; i < history->gap_count; i++) {
		const struct pb_lost *gap = &history->gaps[i];

		history->events[history->event_count++] = (struct pb_event){
			.time_ns = gap->record.time_ns,
			.instance = history->threads[gap->reserved].instance,
			.sequence = gap->record.sequence,
			.record = &gap->record,
			.sample = history->threads[gap->reserved].sample,
			.thread = gap->reserved,
			.cpu = gap->record.cpu,
			.kind = PB_RECORD_LOST,
		};
	}
}

static void join_threads(struct pb_history *history)
{
	uint64_t out = 0, end;

	history->thread_count = 0;
	history->gap_count = 0;
	for (uint64_t at = 0; at < history->event_count; at = end) {
		end = at + 1;
		while (end < history->event_count && history->events[end].instance == history->events[at].instance)
			end++;
		join_thread(history, at, end, &out);
	}
	history->event_count = out;
}

/* Processes in the order of (tgid, start). Threads share one when both are the same. */
static void join_processes(struct pb_history *history)
{
	struct items items = items_of(history, history->thread_count);
	struct pb_process_entry *process = NULL;
	struct pb_sample sample;

	for (uint64_t i = 0; i < items.count; i++) {
		memcpy(&sample, history->threads[i].sample, sizeof(sample));
		items.now[i] = (struct item){ sample.process_start_ns, (uint32_t)i, 0 };
	}
	sort_items(&items);
	for (uint64_t i = 0; i < items.count; i++) {
		memcpy(&sample, history->threads[items.now[i].index].sample, sizeof(sample));
		items.now[i].key = sample.tgid;
	}
	sort_items(&items);
	history->process_count = 0;
	for (uint64_t i = 0; i < items.count; i++) {
		struct pb_thread *thread = &history->threads[items.now[i].index];

		memcpy(&sample, thread->sample, sizeof(sample));
		if (!process || process->tgid != sample.tgid || process->start_ns != sample.process_start_ns) {
			process = &history->processes[history->process_count++];
			*process =
				(struct pb_process_entry){ .tgid = sample.tgid, .start_ns = sample.process_start_ns };
		}
		process->events += thread->events;
		thread->process = (uint32_t)(history->process_count - 1);
	}
}

static void find_exits(struct pb_history *history)
{
	for (uint64_t i = 0; i < history->event_count; i++) {
		const struct pb_event *event = &history->events[i];
		struct pb_process_entry *process;
		struct pb_exit record;

		if (event->kind != PB_RECORD_EXIT)
			continue;
		memcpy(&record, event->record, sizeof(record));
		process = &history->processes[history->threads[event->thread].process];
		process->exited = 1;
		process->exit_status = record.status;
	}
}

enum pb_status pb_history_join(struct pb_history *history)
{
	uint64_t instances;

	if (!history || history->joined || history->event_count > UINT32_MAX)
		return PB_INVALID;
	if (history->event_count && (!history->events || !history->workspace || !history->threads ||
	                             !history->processes || (uintptr_t)history->workspace % 8))
		return PB_INVALID;
	if (history->workspace_bytes < history->event_count * PB_WORKSPACE_BYTES)
		return PB_NO_ROOM;
	sort_by_instance(history);
	instances = count_instances(history);
	if (instances > history->thread_capacity || instances > history->process_capacity)
		return PB_NO_ROOM;
	history->gap_capacity = gap_room(history);
	join_threads(history);
	join_processes(history);
	append_gaps(history);
	sort_by_time(history);
	find_exits(history);
	history->joined = 1;
	return PB_OK;
}
