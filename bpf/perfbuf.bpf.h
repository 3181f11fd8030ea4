/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * perfbuf.bpf.h: what all programs here share: the loss counters, the one function that sends a sample, unique
 * instances, and the per-CPU memory that a long record is built in.
 * What it is not: it holds no policy (whom to record: page.bpf.h) and no format (records.h).
 */
#ifndef PERFBUF_BPF_H
#define PERFBUF_BPF_H

#include "features.bpf.h"
#include <bpf/bpf_tracing.h>
#include "arch.h"
#include "records.h"

/* The largest record that can be sent, its span before it. */
#define RECORD_LIMIT (PB_SAMPLE_MAX_BYTES - sizeof(struct pb_sample) - sizeof(struct pb_span_record))
#define CAPTURE_LIMIT 4096 /* the largest capture */

/* The agent itself: never recorded. */
const volatile u32 agent_tgid = 0;

/* One element; every CPU counts for itself. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pb_stats);
} stats SEC(".maps");

/* A call as the capture functions see it, whatever memory it came from. */
struct captured_call {
	u64 args[6];
	s64 result;
};

/* The header of a sample whose one record has a span. */
struct spanned_head {
	struct pb_sample sample;
	struct pb_span_record span;
};

/* Where the capture of a vector's buffers, or of an argv's strings, is. */
struct vector_walk {
	u64 at;   /* the iovecs, or the strings' addresses */
	u64 left; /* bytes that the call moved and no buffer here has had yet */
	u32 count;
	u32 each; /* bytes of a buffer, or of all strings, at most */
	u32 used;
};

/* A record on its way: the sample header stands before it, with a span or without, so that it can be sent alone. The
 * slack lets the verifier see that any capture that begins inside .record ends inside the element. */
struct scratch {
	union {
		struct spanned_head spanned;
		struct {
			u8 lead[sizeof(struct pb_span_record)];
			struct pb_sample sample;
		};
	};
	u8 record[RECORD_LIMIT];
	u8 slack[2 * CAPTURE_LIMIT + 64];
	u32 at;       /* where the next capture begins in .record */
	u32 captures; /* how many there are */
	u64 done;     /* bits: memory that a rule has captured at this moment */
	u64 now;      /* when its event happened */
	struct captured_call call;
	struct vector_walk vector;
};

/* Used with preemption off (between hold_cpu and release_cpu), never by the iterators. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline struct pb_stats *get_stats(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&stats, &zero);
}

static __always_inline struct scratch *get_scratch(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

/* Copies a string of the process; gives its bytes with the NUL, negative where it cannot be read. */
static __always_inline long read_user_string(void *data, u32 room, u64 at)
{
	long got = bpf_probe_read_user_str(data, room, (void *)at);

	return got ? got : 1; /* an empty string: up to Linux 6.12 its NUL is written and not counted */
}

#ifndef PERFBUF_PLAIN

u64 last_instance = 0;

/* A time that was never given before: pages made in one nanosecond on two CPUs must differ. */
static __always_inline u64 new_instance(u64 now)
{
	for (int i = 0; i < 8; i++) {
		u64 last = *(volatile u64 *)&last_instance;
		u64 next = now > last ? now : last + 1;

		if (replace_u64(&last_instance, last, next))
			return next;
	}
	return now;
}

#else

enum { CPU_TIMES = 4096 };

/* The last instance that each CPU gave. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} last_instances SEC(".maps");

/* A time that was never given before: every CPU gives times of its own, by their lowest bits. Nothing interrupts it that
 * would make a page on the same CPU: tracepoints run with preemption off, and so do iterators before Linux 5.11. */
static __always_inline u64 new_instance(u64 now)
{
	u32 zero = 0;
	u64 *last = bpf_map_lookup_elem(&last_instances, &zero);
	u64 next = (now & ~(u64)(CPU_TIMES - 1)) | (bpf_get_smp_processor_id() & (CPU_TIMES - 1));

	if (!last)
		return now;
	if (next <= *last)
		next = *last + CPU_TIMES;
	*last = next;
	return next;
}

#endif

static __always_inline void count_lost_page(void)
{
	struct pb_stats *counts = get_stats();

	if (counts)
		counts->lost_no_page++;
}

static __always_inline void count_lost_process(void)
{
	struct pb_stats *counts = get_stats();

	if (counts)
		counts->lost_process++;
}

/* Sends `bytes` (header and records) to this CPU's perf ring, or (`shared`, a constant) into the one BPF ring buffer of
 * all CPUs. What fails is counted here and nowhere else. The count of what was sent is each CPU's own in a shared ring
 * too: no atomic, and exact, since a CPU's samples lie there in its order. */
static __always_inline void send_sample(void *ctx, void *ring, u8 shared, struct pb_sample *sample, u32 bytes)
{
	struct pb_stats *counts = get_stats();
	long error;

	if (!counts)
		return;
	hold_cpu();
	sample->bytes = bytes;
	sample->cpu = bpf_get_smp_processor_id();
	sample->ring_records = counts->ring_records;
	/* One copy from where the records were collected: a reservation would copy as much, and hold up readers longer. */
	if (shared)
		error = bpf_ringbuf_output(ring, sample, bytes, BPF_RB_NO_WAKEUP);
	else
		error = bpf_perf_event_output(ctx, ring, BPF_F_CURRENT_CPU, sample, bytes);
	if (!error)
		counts->ring_records += sample->records;
	else if (error == -ENOSPC || error == -EAGAIN)
		counts->lost_no_space += sample->records;
	else if (error == -ENOENT)
		counts->lost_no_ring += sample->records;
	else
		counts->lost_other += sample->records;
	release_cpu();
}

/* Header of a sample about `task`; instance, counts and times are the caller's. */
static __always_inline void fill_sample(struct pb_sample *sample, struct task_struct *task, u8 kind)
{
	sample->version = PB_VERSION;
	sample->kind = kind;
	sample->tid = READ(task, pid);
	sample->tgid = READ(task, tgid);
	sample->process_start_ns = READ(task, group_leader, start_time);
	bpf_probe_read_kernel(sample->comm, sizeof(sample->comm), task->comm);
}

/* The process's end as wait(2) reports it. */
static __always_inline s32 wait_status(struct task_struct *task)
{
	if (READ(task, signal, flags) & SIGNAL_GROUP_EXIT)
		return READ(task, signal, group_exit_code);
	return READ(task, group_leader, exit_code);
}

#endif
