/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * span.bpf.h: which span the current thread runs, as its process tells it in an array map of its own (records.h,
 * struct pb_span_bucket). What it is not: it stamps no record (page.bpf.h does) and knows no OpenTelemetry.
 *
 * Facts: a process cannot forge another's map (it got its own by a verified socket); a BPF program cannot delete from a
 * map of maps; pids are reused. So a plain hash, the gate, says whose map may be read, and the gate goes at the
 * process's exec and end. Only the thread itself writes its slot, and while it is in a system call it writes nothing:
 * a slot needs no lock, and one that a signal interrupted in the midst of being written says so (.active 0).
 * Cost: nobody registered: one lookup that the JIT inlines; registered: three lookups.
 */
#ifndef PERFBUF_SPAN_BPF_H
#define PERFBUF_SPAN_BPF_H

#include "perfbuf.bpf.h"

/* What a page remembers of its process's registration and of its own slot. */
struct span_cache {
	u64 changes; /* of span_state, when the gate was last looked at */
	u32 buckets; /* 0: not registered */
	u32 tid;     /* as its own pid namespace sees it */
	u32 bucket;  /* where the slot was found last */
	u32 slot;
	u32 written; /* 1: .last stands in the page, as a record */
	u32 reserved;
	struct pb_span_ids last;
};

/* Sizes and no types: up to 6.1 a map with BTF and one without are not each other's like (bpf_map_meta_equal). */
struct span_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct pb_span_bucket));
};

/* tgid -> the process's own map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, PB_SPAN_PROCESSES);
	__type(key, u32);
	__array(values, struct span_map);
} span_maps SEC(".maps");

/* tgid -> which process that is. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PB_SPAN_PROCESSES);
	__type(key, u32);
	__type(value, struct pb_span_gate);
} span_gates SEC(".maps");

/* One element: whether there is anything to look at. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pb_span_state);
} span_state SEC(".maps");

/* OpenTelemetry eBPF Instrumentation's own (OBI: bpffs otel/traces_ctx_v1), where it is pinned: user space puts that
 * map in the place of this one. Key: pid_tgid; value: begins with trace id and span id. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct pb_span_ids);
} obi_spans SEC(".maps");

const volatile u8 use_obi = 0;

/* The id that gettid() gives the task itself. */
static __always_inline u32 own_tid(struct task_struct *task)
{
	struct pid *pid = READ(task, thread_pid);
	u32 level = BPF_CORE_READ(pid, level), tid = 0;

	bpf_probe_read_kernel(&tid, sizeof(tid),
	                      (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * sizeof(struct upid));
	return tid;
}

static __always_inline struct pb_span_state *get_span_state(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&span_state, &zero);
}

/* Looks at the gate again. */
static __noinline void refresh_spans(struct span_cache *cache, const struct pb_sample *sample, u64 changes)
{
	u32 tgid = sample->tgid;
	struct pb_span_gate *gate = bpf_map_lookup_elem(&span_gates, &tgid);
	u64 start = sample->process_start_ns;

	cache->changes = changes;
	cache->buckets = 0;
	if (!gate)
		return;
	if (!gate->start_ns)
		replace_u64(&gate->start_ns, 0, start);
	if (gate->start_ns != start)
		return;
	cache->tid = own_tid(current_task());
	cache->buckets = gate->buckets;
}

/* The slot that the thread found last, or, where that is another's by now, the one of its two buckets that is its own. */
static __noinline struct pb_span_slot *find_slot(struct span_cache *cache, u32 tgid)
{
	void *spans = bpf_map_lookup_elem(&span_maps, &tgid);
	u32 tid = cache->tid, hash = PB_SPAN_HASH_1;
	struct pb_span_bucket *bucket;
	struct pb_span_slot *slot;

	if (!spans || !tid)
		return NULL;
	bucket = bpf_map_lookup_elem(spans, &cache->bucket);
	if (bucket) {
		slot = &bucket->slots[cache->slot & (PB_SPAN_SLOTS - 1)];
		if (slot->tid == tid)
			return slot;
	}
	for (int i = 0; i < 2; i++) {
		u32 index = (tid * hash) >> 16 & (cache->buckets - 1);

		hash = PB_SPAN_HASH_2;
		bucket = bpf_map_lookup_elem(spans, &index);
		if (!bucket)
			return NULL;
		for (u32 at = 0; at < PB_SPAN_SLOTS; at++) {
			slot = &bucket->slots[at];
			if (slot->tid != tid)
				continue;
			cache->bucket = index;
			cache->slot = at;
			return slot;
		}
	}
	return NULL;
}

/* What OBI says of the current thread; an entry of zeroes is none. */
static __noinline int read_obi(struct pb_span_ids *ids)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct pb_span_ids *found = bpf_map_lookup_elem(&obi_spans, &thread);

	if (!found || !ids)
		return 0;
	*ids = *found;
	return *(u64 *)ids->span_id != 0;
}

/* What the process itself says of the current thread. */
static __always_inline int read_own(struct span_cache *cache, const struct pb_sample *sample, struct pb_span_ids *ids)
{
	struct pb_span_state *state = get_span_state();
	struct pb_span_slot *slot;

	if (!state || !state->processes)
		return 0;
	if (cache->changes != state->changes)
		refresh_spans(cache, sample, state->changes);
	if (!cache->buckets)
		return 0;
	slot = find_slot(cache, sample->tgid);
	if (!slot || *(volatile u32 *)&slot->active != 1)
		return 0;
	*ids = slot->ids;
	barrier();
	return *(volatile u32 *)&slot->active == 1 && slot->tid == cache->tid;
}

/* The current thread's span into *ids. 0: it runs none, or nobody tells. */
static __always_inline int read_span(struct span_cache *cache, const struct pb_sample *sample, struct pb_span_ids *ids)
{
	return read_own(cache, sample, ids) || (use_obi && read_obi(ids));
}

/* At a thread's end: its slot is free, so that no later thread with its id finds it. */
static __always_inline void free_slot(struct span_cache *cache, u32 tgid)
{
	struct pb_span_slot *slot = cache->buckets ? find_slot(cache, tgid) : NULL;

	if (!slot)
		return;
	slot->active = 0;
	slot->tid = 0;
}

/* At a process's exec and end: its map is read no more. */
static __always_inline void close_gate(u32 tgid)
{
	struct pb_span_state *state = get_span_state();

	if (state && state->processes)
		bpf_map_delete_elem(&span_gates, &tgid);
}

#endif
