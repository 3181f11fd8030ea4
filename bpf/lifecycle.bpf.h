/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * lifecycle.bpf.h: what happens to a recorded thread besides its calls: fork, exec, signals, its end, an OOM kill; and
 * the alert when a target process has ended. What happens inside a call is appended before the call.
 * Source: Linux kernel/{fork,exit,signal}.c, fs/exec.c, mm/oom_kill.c.
 */
#ifndef PERFBUF_LIFECYCLE_BPF_H
#define PERFBUF_LIFECYCLE_BPF_H

#include "page.bpf.h"
#include "condition.bpf.h"

enum { EXECUTABLE_CAPTURE_BYTES = 512 };
enum { SIGNAL_DELIVERED = 0, SIGNAL_LOSE_INFO = 4 }; /* TRACE_SIGNAL_*, trace/events/signal.h */
enum { SI_USER_CODE = 0, SI_KERNEL_CODE = 0x80 };

static __always_inline void add_fork(void *ctx, struct page *page, struct task_struct *parent,
                                     struct task_struct *child, u64 now)
{
	u32 flags = event_span(ctx, page, sizeof(struct pb_fork), now);
	struct pb_fork *fork = page_room(ctx, page, parent, sizeof(*fork), now);

	if (!fork)
		return;
	page_begin(page);
	fill_record(&fork->record, sizeof(*fork), PB_RECORD_FORK, flags, ++page->head.last_sequence, now);
	fork->child_tid = READ(child, pid);
	fork->child_tgid = READ(child, tgid);
	page_added(page, sizeof(*fork), 1, now);
	page_end(page);
	if (forward)
		flush_page(ctx, page, parent, now);
}

/* What the child of a thread with `flags` is. */
static __always_inline u32 child_flags(u32 flags, struct task_struct *parent, struct task_struct *child)
{
	flags &= PB_PAGE_TARGET | PB_PAGE_EXCLUDED | PB_PAGE_WAIT_EXEC;
	if (READ(child, tgid) == READ(parent, tgid))
		return flags;
	if (!follow_children)
		flags = 0;
	flags = (flags & ~PB_PAGE_EXCLUDED) | own_flags(child);
	if (use_target_cgroups && !(flags & PB_PAGE_TARGET) && cgroup_is_target(child))
		flags |= PB_PAGE_TARGET;
	return flags;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(perfbuf_fork, struct task_struct *parent, struct task_struct *child)
{
	struct page *page;
	u32 parent_flags, flags;
	u64 now;

	if (READ(child, flags) & PF_KTHREAD)
		return 0;
	page = get_page(parent);
	if (!page && filter_targets && !use_target_cgroups)
		return 0;
	now = bpf_ktime_get_ns();
	parent_flags = page ? page->head.flags : 0;
	flags = child_flags(parent_flags, parent, child);
	if (flags & (PB_PAGE_TARGET | PB_PAGE_WAIT_EXEC)) {
		if (READ(child, tgid) != READ(parent, tgid)) {
			hold_cpu();
			inherit_process(parent, child);
			release_cpu();
		}
		create_page(child, flags | PB_PAGE_FRESH, now);
	}
	if (page && is_recorded(parent_flags))
		add_fork(ctx, page, parent, child, now);
	return 0;
}

static __noinline void add_exec(void *ctx, struct page *page, struct linux_binprm *bprm, u32 old_tid)
{
	struct scratch *scratch = get_scratch();
	const char *name = BPF_CORE_READ(bprm, filename);
	struct pb_capture *capture;
	struct pb_exec *exec;
	u32 bytes = sizeof(*exec) + sizeof(*capture), length = 0;
	long got;

	if (!scratch)
		return;
	exec = (struct pb_exec *)scratch->record;
	capture = (struct pb_capture *)(exec + 1);
	*(u64 *)capture = 0;
	capture->kind = PB_CAPTURE_STRING;
	got = bpf_probe_read_kernel_str(capture + 1, EXECUTABLE_CAPTURE_BYTES, name);
	if (got > 0 && got <= EXECUTABLE_CAPTURE_BYTES)
		length = (got - 1) & (EXECUTABLE_CAPTURE_BYTES - 1);
	if (length == EXECUTABLE_CAPTURE_BYTES - 1)
		capture->flags = PB_CAPTURE_CUT;
	if (length & 7)
		*(u64 *)((u8 *)(capture + 1) + (length & ~7u)) &= (1ULL << (8 * (length & 7))) - 1;
	capture->bytes = length;
	capture->extent = length;
	bytes += (length + 7) & ~7u;
	scratch->now = bpf_ktime_get_ns();
	fill_record(&exec->record, bytes, PB_RECORD_EXEC, page->head.open.record.flags & PB_FLAG_SPAN,
	            ++page->head.last_sequence, scratch->now);
	if (!(page->head.flags & PB_PAGE_OPEN))
		exec->record.flags = 0; /* the span is the call's: its memory is gone */
	exec->record.captures = 1;
	exec->old_tid = old_tid;
	exec->reserved = 0;
	append_scratch(ctx, page, scratch, bytes, 0);
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(perfbuf_exec, struct task_struct *task, s32 old_tid, struct linux_binprm *bprm)
{
	struct page *page = get_page(task);
	int named = (use_target_comms || use_target_cgroups) && is_named_target(task);
	u32 flags;

	close_gate(READ(task, tgid));
	if (!page && named)
		page = create_page(task, own_flags(task), bpf_ktime_get_ns());
	if (!page)
		return 0;
	flags = (page->head.flags & ~(PB_PAGE_WAIT_EXEC | PB_PAGE_EXCLUDED)) | own_flags(task);
	if (named || page->head.flags & PB_PAGE_WAIT_EXEC)
		flags |= PB_PAGE_TARGET;
	if (!is_recorded(flags))
		flags &= ~PB_PAGE_OPEN;
	if (page->sample.tid != READ(task, pid))
		flush_page(ctx, page, task, bpf_ktime_get_ns()); /* those records were of the old thread id */
	page_begin(page);
	page->head.flags = flags;
	page->sample.tid = READ(task, pid);
	page->spans.buckets = 0;
	page_end(page);
	if (!(flags & PB_PAGE_TARGET))
		return 0;
	hold_cpu();
	add_process(task, FOUND_EXEC);
	if (is_recorded(flags))
		add_exec(ctx, page, bprm, old_tid);
	release_cpu();
	return 0;
}

/* Keeps who sent a signal: a fatal one is delivered as SIGKILL without siginfo. The sender holds siglock, which the
 * delivery takes: it cannot come first. May run in an interrupt. */
SEC("tp_btf/signal_generate")
int BPF_PROG(perfbuf_signal_generate, int number, struct kernel_siginfo *info, struct task_struct *task, int group,
             int result)
{
	struct page *page;
	u32 sender[2] = {};
	s32 code = SI_KERNEL_CODE;

	if (result != SIGNAL_DELIVERED && result != SIGNAL_LOSE_INFO)
		return 0;
	page = find_page(task);
	if (!page)
		return 0;
	if (!info) { /* SEND_SIG_NOINFO */
		code = SI_USER_CODE;
		sender[0] = bpf_get_current_pid_tgid() >> 32;
		sender[1] = bpf_get_current_uid_gid();
	} else if ((unsigned long)info > 1) { /* 1: SEND_SIG_PRIV */
		bpf_probe_read_kernel(&code, sizeof(code), &info->si_code);
		bpf_probe_read_kernel(sender, sizeof(sender), &info->_sifields);
	}
	page->head.kill_code = code;
	page->head.kill_pid = sender[0];
	page->head.kill_uid = sender[1];
	page->head.has_kill = number;
	return 0;
}

/* The signal that a SIGKILL without siginfo stands for; 0: none, the process or an exec just ends its threads. */
static __always_inline u32 true_signal(struct task_struct *task, struct page *page)
{
	u32 signal = READ(task, signal, flags) & SIGNAL_GROUP_EXIT ? READ(task, signal, group_exit_code) & 0x7f : 0;

	return signal == SIGKILL || signal == page->head.has_kill ? signal : 0;
}

SEC("tp_btf/signal_deliver")
int BPF_PROG(perfbuf_signal_deliver, int number, struct kernel_siginfo *info)
{
	struct task_struct *task = current_task();
	struct page *page = get_page(task);
	int bare = (unsigned long)info <= 1;
	struct pb_signal *signal;
	u32 spanned;
	u64 now;

	if (!page || !is_recorded(page->head.flags))
		return 0;
	if (number == SIGKILL && bare)
		number = true_signal(task, page);
	if (!number)
		return 0;
	now = bpf_ktime_get_ns();
	spanned = event_span(ctx, page, sizeof(*signal), now);
	signal = page_room(ctx, page, task, sizeof(*signal), now);
	if (!signal)
		return 0;
	page_begin(page);
	fill_record(&signal->record, sizeof(*signal), PB_RECORD_SIGNAL, spanned, ++page->head.last_sequence, now);
	signal->number = number;
	signal->code = 0;
	signal->error = 0;
	signal->has_info = 0;
	__builtin_memset(signal->fields, 0, sizeof(signal->fields));
	if (!bare) {
		bpf_probe_read_kernel(&signal->code, sizeof(s32), &info->si_code);
		bpf_probe_read_kernel(&signal->error, sizeof(s32), &info->si_errno);
		bpf_probe_read_kernel(signal->fields, sizeof(signal->fields), &info->_sifields);
		signal->has_info = 1;
	} else if (page->head.has_kill == number) {
		signal->code = page->head.kill_code;
		*(u32 *)signal->fields = page->head.kill_pid;
		*(u32 *)(signal->fields + 4) = page->head.kill_uid;
		signal->has_info = 1;
	}
	if (page->head.has_kill == number)
		page->head.has_kill = 0; /* told; a later death by the same signal is another one */
	page_added(page, sizeof(*signal), 1, now);
	page_end(page);
	if (forward)
		flush_page(ctx, page, task, now);
	return 0;
}

/* A call that is still open when its thread ends never returns: exit, exit_group. */
static __always_inline void add_no_return(void *ctx, struct page *page, struct task_struct *task, u64 now)
{
	struct pb_syscall *open = &page->head.open, *call;
	u32 bytes = open->record.bytes;

	if (open->record.flags & PB_FLAG_SPAN)
		put_span(ctx, page, &page->head.open_span, bytes, now);
	call = page_room(ctx, page, task, bytes, now);
	if (!call)
		return;
	page_begin(page);
	__builtin_memcpy(call, open, sizeof(*call));
	call->record.flags |= PB_FLAG_NO_RETURN;
	call->record.cpu = bpf_get_smp_processor_id();
	call->reserved = 0;
	call->result = 0;
	call->duration_ns = now - open->record.time_ns;
	page_added(page, bytes, 1, now);
	page->head.flags &= ~PB_PAGE_OPEN;
	page_end(page);
}

static __always_inline void add_exit(void *ctx, struct page *page, struct task_struct *task, s32 status, u64 now)
{
	u32 flags = event_span(ctx, page, sizeof(struct pb_exit), now);
	struct pb_exit *exit = page_room(ctx, page, task, sizeof(*exit), now);

	if (!exit)
		return;
	page_begin(page);
	fill_record(&exit->record, sizeof(*exit), PB_RECORD_EXIT, flags, ++page->head.last_sequence, now);
	exit->status = status;
	exit->reserved = 0;
	page_added(page, sizeof(*exit), 1, now);
	page_end(page);
}

/* The thread's last records, and with the last thread the process's. */
static __always_inline void end_thread(void *ctx, struct page *page, struct task_struct *task, int dead, s32 status,
                                       u64 now)
{
	struct pb_span_ids ids;
	int spanned = 0;

	if (dead && is_alert(status))
		spanned = current_span(page, &ids);
	if (page->head.flags & PB_PAGE_OPEN)
		add_no_return(ctx, page, task, now);
	if (dead)
		add_exit(ctx, page, task, status, now);
	send_again(ctx, page, now);
	flush_page(ctx, page, task, now);
	if (dead && is_alert(status))
		alert_exit(ctx, page, spanned ? &ids : NULL, status, now);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(perfbuf_exit, struct task_struct *task)
{
	struct page *page = get_page(task);
	int dead = READ(task, signal, live.counter) == 0;
	s32 status = wait_status(task);
	u32 flags;
	u64 now;

	if (!page) {
		if (dead)
			close_gate(READ(task, tgid));
		return 0;
	}
	flags = page->head.flags;
	now = bpf_ktime_get_ns();
	dead = dead && close_process(task, now, status);
	if (is_recorded(flags))
		end_thread(ctx, page, task, dead, status, now);
	free_slot(&page->spans, page->sample.tgid);
	if (dead)
		close_gate(page->sample.tgid);
	drop_page(task);
	return 0;
}

/* The victim's page is another thread's: the record goes alone, under an instance of its own. The tracepoint's argument
 * was a pid until Linux 6.9 and is a task since. */
static __always_inline void add_oom_kill(void *ctx, u64 victim)
{
	struct scratch *scratch = get_scratch();
	u64 *start;
	struct pb_process_key key = { .tgid = victim };
	struct pb_process *process = NULL;
	struct pb_oom_kill *kill;

	if (!scratch)
		return;
	if (victim > 0xffffffff)
		key.tgid = BPF_CORE_READ((struct task_struct *)victim, tgid);
	start = bpf_map_lookup_elem(&process_starts, &key.tgid);
	if (start) {
		key.start_ns = *start;
		process = bpf_map_lookup_elem(&processes, &key);
	}
	if (key.tgid == agent_tgid || (filter_targets && !process))
		return;
	__builtin_memset(&scratch->sample, 0, sizeof(scratch->sample));
	scratch->sample.version = PB_VERSION;
	scratch->sample.kind = PB_SAMPLE_SINGLE;
	scratch->sample.records = 1;
	scratch->sample.tid = key.tgid;
	scratch->sample.tgid = key.tgid;
	scratch->sample.process_start_ns = key.start_ns;
	scratch->sample.sent_ns = bpf_ktime_get_ns();
	scratch->sample.instance = new_instance(scratch->sample.sent_ns);
	kill = (struct pb_oom_kill *)scratch->record;
	fill_record(&kill->record, sizeof(*kill), PB_RECORD_OOM_KILL, 0, 1, scratch->sample.sent_ns);
	kill->victim_tgid = key.tgid;
	kill->reserved = 0;
	kill->cgroup_id = 0;
	if (process) {
		kill->cgroup_id = process->cgroup_id;
		__builtin_memcpy(scratch->sample.comm, process->comm, sizeof(process->comm));
	}
	send_sample(ctx, &history, shared_history, &scratch->sample, sizeof(scratch->sample) + sizeof(*kill));
	if (alert_oom_kill)
		alert_oom(ctx, &scratch->sample);
}

SEC("raw_tp/mark_victim")
int perfbuf_oom_kill(struct bpf_raw_tracepoint_args *ctx)
{
	hold_cpu();
	add_oom_kill(ctx, ctx->args[0]);
	release_cpu();
	return 0;
}

#endif
