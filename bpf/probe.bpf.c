/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * probe.bpf.c: one small program for each thing that a kernel may lack. It is there where its program loads (kprobe,
 * fentry: attaches). What it is not: ever left attached; user space loads them one at a time
 * (otel_perfbuf/bpf/features.py, which has the table of names).
 */
#define PERFBUF_HELD
#include "features.bpf.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} storage SEC(".maps");

u64 counter = 0;
u64 result = 0;

SEC("tp_btf/sys_enter")
int task_storage(u64 *ctx)
{
	return bpf_task_storage_get(&storage, current_task(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE) != NULL;
}

SEC("tp_btf/sys_enter")
int fetching_atomics(u64 *ctx)
{
	result = count_up(&counter);
	return 0;
}

/* Not static: what our programs call while they hold the CPU is such a function. */
__noinline int checked_alone(u32 number)
{
	return number + counter;
}

SEC("tp_btf/sys_enter")
int preemption_control(u64 *ctx)
{
	hold_cpu();
	result = checked_alone(1);
	release_cpu();
	return 0;
}

SEC("tp_btf/sys_enter")
int typed_tracepoints(u64 *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];

#if defined(__TARGET_ARCH_x86)
	result = regs->orig_ax;
#else
	result = regs->syscallno;
#endif
	return 0;
}

SEC("raw_tp/sys_enter")
int raw_tracepoints(struct bpf_raw_tracepoint_args *ctx)
{
	result = ctx->args[1];
	return 0;
}

/* The function of reboot(2) that halts: nobody calls it meanwhile. */
SEC("kprobe/kernel_halt")
int kprobes(void *ctx)
{
	return 0;
}

SEC("fentry/kernel_halt")
int fentry(void *ctx)
{
	return 0;
}
