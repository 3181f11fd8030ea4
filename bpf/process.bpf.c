/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * process.bpf.c: exec, fork and end of every process of the host as a forward stream: one record a sample, into `events`.
 * What it is not: it has no history and no filter but the agent itself. Source: Linux include/trace/events/sched.h.
 *
 * Instance is the process's start (its leader's start_time); sequences count the process's events from 1.
 */
#include "process_table.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum { PATH_CAPTURE_BYTES = 512 };

/* The live stream: one ring a CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
} events SEC(".maps");

/* A process's last sequence. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct pb_process_key);
	__type(value, u64);
} sequences SEC(".maps");

static __always_inline u64 next_sequence(struct task_struct *task)
{
	struct pb_process_key key = process_key(task);
	u64 first = 1, *last = bpf_map_lookup_elem(&sequences, &key);

	if (last)
		return count_up(last);
	bpf_map_update_elem(&sequences, &key, &first, BPF_ANY);
	return first;
}

static __always_inline struct scratch *begin_event(struct task_struct *task, u32 bytes, u8 kind)
{
	struct scratch *scratch = get_scratch();
	struct pb_record *record;
	u64 now = bpf_ktime_get_ns();

	if (!scratch)
		return NULL;
	record = (struct pb_record *)scratch->record;
	fill_sample(&scratch->sample, task, PB_SAMPLE_SINGLE);
	scratch->sample.records = 1;
	scratch->sample.instance = scratch->sample.process_start_ns;
	scratch->sample.sent_ns = now;
	record->bytes = bytes;
	record->kind = kind;
	record->flags = 0;
	record->cpu = bpf_get_smp_processor_id();
	record->arguments = 0;
	record->captures = 0;
	record->sequence = next_sequence(task);
	record->time_ns = now;
	return scratch;
}

static __always_inline void end_event(void *ctx, struct scratch *scratch, u32 bytes)
{
	send_sample(ctx, &events, 0, &scratch->sample, sizeof(scratch->sample) + (bytes & 1023));
}

static __always_inline void add_fork(void *ctx, struct task_struct *parent, struct task_struct *child)
{
	struct scratch *scratch;
	struct pb_fork *fork;

	if (READ(child, flags) & PF_KTHREAD || READ(child, tgid) == READ(parent, tgid))
		return;
	inherit_process(parent, child);
	if (READ(parent, tgid) == agent_tgid)
		return;
	scratch = begin_event(parent, sizeof(*fork), PB_RECORD_FORK);
	if (!scratch)
		return;
	fork = (struct pb_fork *)scratch->record;
	fork->child_tid = READ(child, pid);
	fork->child_tgid = READ(child, tgid);
	end_event(ctx, scratch, sizeof(*fork));
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child)
{
	hold_cpu();
	add_fork(ctx, parent, child);
	release_cpu();
	return 0;
}

static __always_inline void add_exec(void *ctx, struct task_struct *task, s32 old_tid, struct linux_binprm *bprm)
{
	u32 bytes = sizeof(struct pb_exec) + sizeof(struct pb_capture), length = 0;
	const char *name = BPF_CORE_READ(bprm, filename);
	struct scratch *scratch;
	struct pb_capture *capture;
	struct pb_exec *exec;
	long got;

	if (READ(task, tgid) == agent_tgid)
		return;
	add_process(task, FOUND_EXEC);
	scratch = begin_event(task, bytes, PB_RECORD_EXEC);
	if (!scratch)
		return;
	exec = (struct pb_exec *)scratch->record;
	exec->old_tid = old_tid;
	exec->reserved = 0;
	exec->record.captures = 1;
	capture = (struct pb_capture *)(exec + 1);
	*(u64 *)capture = 0;
	capture->kind = PB_CAPTURE_STRING;
	got = bpf_probe_read_kernel_str(capture + 1, PATH_CAPTURE_BYTES, name);
	if (got > 0 && got <= PATH_CAPTURE_BYTES)
		length = (got - 1) & (PATH_CAPTURE_BYTES - 1);
	if (length == PATH_CAPTURE_BYTES - 1)
		capture->flags = PB_CAPTURE_CUT;
	if (length & 7)
		*(u64 *)((u8 *)(capture + 1) + (length & ~7u)) &= (1ULL << (8 * (length & 7))) - 1;
	capture->bytes = length;
	capture->extent = length;
	bytes += (length + 7) & ~7u;
	exec->record.bytes = bytes;
	end_event(ctx, scratch, bytes);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec, struct task_struct *task, s32 old_tid, struct linux_binprm *bprm)
{
	hold_cpu();
	add_exec(ctx, task, old_tid, bprm);
	release_cpu();
	return 0;
}

static __always_inline void add_exit(void *ctx, struct task_struct *task)
{
	s32 status = wait_status(task);
	struct scratch *scratch;
	struct pb_exit *exit;

	if (READ(task, flags) & PF_KTHREAD || READ(task, signal, live.counter) || READ(task, tgid) == agent_tgid)
		return;
	if (!is_known_process(task))
		add_process(task, FOUND_RUNNING);
	if (!close_process(task, bpf_ktime_get_ns(), status))
		return;
	scratch = begin_event(task, sizeof(*exit), PB_RECORD_EXIT);
	if (!scratch)
		return;
	exit = (struct pb_exit *)scratch->record;
	exit->status = status;
	exit->reserved = 0;
	end_event(ctx, scratch, sizeof(*exit));
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit, struct task_struct *task)
{
	hold_cpu();
	add_exit(ctx, task);
	release_cpu();
	return 0;
}
