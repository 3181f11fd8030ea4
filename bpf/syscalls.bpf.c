/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * syscalls.bpf.c: the flight recorder: every recorded thread's system calls, signals, exec, fork and end (DESIGN 4).
 * What it is not: who has a page (page.bpf.h), what is captured (capture.bpf.h, rules in rodata), the format
 * (records.h). Source: Linux include/trace/events/{syscalls,sched,signal,oom}.h.
 *
 * The hot path is sys_enter and sys_exit: one task storage lookup and one clock read each, no hash lookup, no call.
 */
#include "page.bpf.h"
#include "capture.bpf.h"
#include "condition.bpf.h"
#include "lifecycle.bpf.h"
#include "iterators.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* 1: calls without a row in the tables (numbers from 512 on, 32-bit calls) are recorded. */
const volatile u8 record_unknown = 1;

/* Never used: puts the structs that only casts name into the object's BTF, where a test and other readers find them. */
union records {
	struct pb_record record;
	struct pb_capture capture;
	struct pb_syscall syscall;
	struct pb_signal signal;
	struct pb_exec exec;
	struct pb_fork fork;
	struct pb_exit exit;
	struct pb_oom_kill oom_kill;
	struct pb_alert alert;
	struct pb_span_record span;
	struct pb_span_bucket bucket;
};
union records *records = NULL;

static __always_inline int waits_for(u32 flags, u64 number)
{
	return (flags & (PB_PAGE_WAIT_EXEC | PB_PAGE_EXCLUDED)) == PB_PAGE_WAIT_EXEC && number < PB_SYSCALLS &&
	       rules.syscalls[number].flags & PB_SYSCALL_EXEC;
}

/* Begins the call in the page's fixed place. 0: it is filtered out. */
static __always_inline int fill_open(struct page *page, struct task_struct *task, struct pt_regs *regs, u64 number,
                                     u8 flags)
{
	struct pb_syscall *open = &page->head.open;
	u32 arguments = 6, at_exit = 0, stack = 0;
	int compat = arch_is_compat(task);

	if (number < PB_SYSCALLS && !compat) {
		const volatile struct pb_syscall_rule *rule = &rules.syscalls[number];

		if (!(rule->flags & PB_SYSCALL_RECORDED))
			return 0;
		arguments = rule->arguments;
		at_exit = rule->exit_rules | watched_call(rule->flags);
		stack = rule->flags & PB_SYSCALL_STACK;
		if (arguments > 6)
			arguments = 6;
	} else if (!record_unknown) {
		return 0;
	}
	open->record.bytes = sizeof(*open) - sizeof(open->args) + 8 * arguments;
	open->record.kind = PB_RECORD_SYSCALL;
	open->record.flags = flags | (compat ? PB_FLAG_COMPAT : 0);
	open->record.arguments = arguments;
	open->record.sequence = page->head.last_sequence + 1;
	open->number = number;
	open->reserved = at_exit; /* for sys_exit; records have 0 here */
	arch_arguments(regs, compat, open->args);
	if (stack)
		open->args[0] = arch_stack(regs);
	if (read_span(&page->spans, &page->sample, &page->head.open_span))
		open->record.flags |= PB_FLAG_SPAN;
	page->head.last_sequence++;
	return 1;
}

/* What must be known while the call blocks, or what the call changes: a record of its own before the call's. */
static __noinline void capture_at_enter(void *ctx, struct page *page, u64 number)
{
	struct scratch *scratch = get_scratch();
	struct pb_record *record;
	u32 bytes;

	if (!scratch)
		return;
	__builtin_memcpy(scratch->call.args, page->head.open.args, sizeof(scratch->call.args));
	scratch->call.result = 0;
	scratch->now = page->head.open.record.time_ns;
	bytes = capture_all(scratch, number, PB_AT_ENTER, sizeof(*record));
	if (!scratch->captures)
		return;
	record = (struct pb_record *)scratch->record;
	fill_record(record, bytes, PB_RECORD_ENTRY, 0, page->head.open.record.sequence, scratch->now);
	record->captures = scratch->captures;
	append_scratch(ctx, page, scratch, bytes, 0);
}

/* The arguments are read late and not by BPF_PROG: most threads of a host end at the first two checks. */
SEC("tp_btf/sys_enter")
int perfbuf_sys_enter(u64 *ctx)
{
	struct task_struct *task = current_task();
	struct page *page = get_page(task);
	struct pt_regs *regs;
	u64 number;
	u32 flags;

	if (!page)
		return 0;
	regs = (struct pt_regs *)ctx[0];
	number = ctx[1];
	flags = page->head.flags;
	if (!is_recorded(flags) && !waits_for(flags, number))
		return 0;
	page_begin(page);
	flags = (flags & ~(PB_PAGE_FRESH | PB_PAGE_OPEN)) | PB_PAGE_ENTERED;
	if (fill_open(page, task, regs, number, 0)) {
		page->head.open.record.time_ns = bpf_ktime_get_ns();
		flags |= PB_PAGE_OPEN;
	}
	page->head.flags = flags;
	page_end(page);
	if (flags & PB_PAGE_OPEN && number < PB_SYSCALLS && rules.syscalls[number].enter_rules &&
	    !(page->head.open.record.flags & PB_FLAG_COMPAT)) {
		hold_cpu();
		capture_at_enter(ctx, page, number);
		release_cpu();
	}
	return 0;
}

/* The call in the page's fixed place, finished in the scratch with what the rules capture. */
static __noinline void finish_with_captures(void *ctx, struct page *page, s64 result, u64 now)
{
	struct scratch *scratch = get_scratch();
	struct pb_syscall *call;
	u32 bytes;

	if (!scratch)
		return;
	call = (struct pb_syscall *)scratch->record;
	__builtin_memcpy(call, &page->head.open, sizeof(*call));
	__builtin_memcpy(scratch->call.args, call->args, sizeof(call->args));
	scratch->call.result = result;
	call->record.cpu = bpf_get_smp_processor_id();
	call->reserved = 0;
	call->result = result;
	call->duration_ns = now - call->record.time_ns;
	scratch->now = now;
	bytes = capture_all(scratch, call->number, PB_AT_EXIT, call->record.bytes & 127);
	call->record.bytes = bytes;
	call->record.captures = scratch->captures;
	append_scratch(ctx, page, scratch, bytes, PB_PAGE_OPEN);
}

/* Appends the call in the page's fixed place as it is, with its result. */
static __always_inline void finish_call(void *ctx, struct page *page, struct task_struct *task, s64 result, u64 now)
{
	struct pb_syscall *open = &page->head.open;
	u32 bytes = open->record.bytes;
	struct pb_syscall *call;

	if (open->record.flags & PB_FLAG_SPAN)
		put_span(ctx, page, &page->head.open_span, bytes, now);
	call = page_room(ctx, page, task, bytes, now);
	if (!call)
		return;
	page_begin(page);
	__builtin_memcpy(call, open, sizeof(*call));
	call->record.cpu = bpf_get_smp_processor_id();
	call->reserved = 0;
	call->result = result;
	call->duration_ns = now - open->record.time_ns;
	page_added(page, bytes, 1, now);
	page->head.flags &= ~PB_PAGE_OPEN;
	page_end(page);
	if (forward)
		flush_page(ctx, page, task, now);
}

/* Whether somebody may have denied the call before its tracepoint: only then is a missing sys_enter a denial. Since Linux
 * 7.0 the kernel may have passed our program over (features.bpf.h). */
static __always_inline int may_be_denied(struct task_struct *task)
{
	if (READ(task, ptrace))
		return 1;
	return bpf_core_field_exists(task->seccomp) && READ(task, seccomp.mode);
}

/* sys_exit without sys_enter: a clone's child side, a call that began before recording, or a denial. 1: a record. */
static __noinline int open_at_exit(struct page *page, struct pt_regs *regs, s64 result, u64 now)
{
	struct task_struct *task = current_task();
	u32 flags = page->head.flags;
	s32 number = arch_number(regs);
	int fresh = flags & PB_PAGE_FRESH && !result, denied;

	page->head.flags = (flags & ~PB_PAGE_FRESH) | PB_PAGE_ENTERED;
	if (fresh || number < 0)
		return 0;
	denied = flags & PB_PAGE_ENTERED && may_be_denied(task);
	if (!fill_open(page, task, regs, number, denied ? PB_FLAG_EXIT_ONLY : PB_FLAG_BEGAN_BEFORE))
		return 0;
	page->head.open.record.time_ns = now;
	return 1;
}

/* A failed try of the exec that a target begins with: it never was. */
static __noinline void forget_exec(struct page *page, u64 now)
{
	page_begin(page);
	page->head.flags &= ~PB_PAGE_OPEN;
	page->head.used = 0;
	page->head.last_sequence = 0;
	page->sample.records = 0;
	page->sent.bytes = 0;
	page->spans.written = 0;
	page->sample.instance = new_instance(now); /* an ENTRY record that went alone is of the old one */
	page_end(page);
}

SEC("tp_btf/sys_exit")
int perfbuf_sys_exit(u64 *ctx)
{
	struct task_struct *task = current_task();
	struct page *page = get_page(task);
	struct pt_regs *regs;
	s64 result;
	u32 flags;
	u64 now;

	if (!page)
		return 0;
	regs = (struct pt_regs *)ctx[0];
	result = ctx[1];
	flags = page->head.flags;
	if (!is_recorded(flags)) {
		if (flags & PB_PAGE_WAIT_EXEC && flags & PB_PAGE_OPEN)
			forget_exec(page, bpf_ktime_get_ns());
		return 0;
	}
	if (flags & PB_PAGE_OPEN) {
		now = bpf_ktime_get_ns();
	} else {
		/* a filtered call ends here, before the clock is read */
		u64 number = arch_number(regs);

		if (flags & PB_PAGE_ENTERED && number < PB_SYSCALLS &&
		    !(rules.syscalls[number].flags & PB_SYSCALL_RECORDED))
			return 0;
		now = bpf_ktime_get_ns();
		if (!open_at_exit(page, regs, result, now))
			return 0;
	}
	if (page->head.open.reserved & CALL_CAPTURES) {
		hold_cpu();
		finish_with_captures(ctx, page, result, now);
		release_cpu();
	} else {
		finish_call(ctx, page, task, result, now);
	}
	if (page->head.open.reserved & ~CALL_CAPTURES)
		judge_call(ctx, page, result, now);
	return 0;
}
