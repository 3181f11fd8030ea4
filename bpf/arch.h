/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * arch.h: what differs between processors: where a syscall's number and arguments are, how the kernel tells 32-bit
 * calls, and the barrier of a page's version. One function each, one branch for each architecture; no other file asks.
 * Source: Linux arch/x86/include/asm/syscall.h, arch/arm64/include/asm/{syscall,thread_info}.h.
 */
#ifndef PERFBUF_ARCH_H
#define PERFBUF_ARCH_H

#include "kernel.h"

#define barrier() asm volatile("" ::: "memory")

#if defined(__TARGET_ARCH_x86)

enum { TS_COMPAT = 2 }; /* arch/x86/include/asm/thread_info.h */

static __always_inline int arch_is_compat(struct task_struct *task)
{
	return READ(task, thread_info.status) & TS_COMPAT;
}

static __always_inline s64 arch_number(struct pt_regs *regs)
{
	return (s64)regs->orig_ax;
}

static __always_inline void arch_arguments(struct pt_regs *regs, int compat, u64 *args)
{
	if (__builtin_expect(compat, 0)) {
		args[0] = (u32)regs->bx;
		args[1] = (u32)regs->cx;
		args[2] = (u32)regs->dx;
		args[3] = (u32)regs->si;
		args[4] = (u32)regs->di;
		args[5] = (u32)regs->bp;
		return;
	}
	args[0] = regs->di;
	args[1] = regs->si;
	args[2] = regs->dx;
	args[3] = regs->r10;
	args[4] = regs->r8;
	args[5] = regs->r9;
}

static __always_inline u64 arch_stack(struct pt_regs *regs)
{
	return regs->sp;
}

/* x86 keeps the order of stores, and of loads: the compiler alone must not move them. */
#define page_barrier(version) barrier()

#elif defined(__TARGET_ARCH_arm64)

enum { TIF_32BIT = 22 }; /* arch/arm64/include/asm/thread_info.h */

static __always_inline int arch_is_compat(struct task_struct *task)
{
	return (READ(task, thread_info.flags) >> TIF_32BIT) & 1;
}

static __always_inline s64 arch_number(struct pt_regs *regs)
{
	return regs->syscallno;
}

static __always_inline void arch_arguments(struct pt_regs *regs, int compat, u64 *args)
{
	args[0] = regs->orig_x0;
	args[1] = regs->regs[1];
	args[2] = regs->regs[2];
	args[3] = regs->regs[3];
	args[4] = regs->regs[4];
	args[5] = regs->regs[5];
	if (compat)
		args[5] = (u32)args[5];
}

static __always_inline u64 arch_stack(struct pt_regs *regs)
{
	return regs->sp;
}

/* An atomic whose result is used is a full barrier in the kernel's arm64 JIT; BPF has no plain one. */
#define page_barrier(version)                                  \
	do {                                                   \
		if (__sync_fetch_and_add(version, 0) == ~0ULL) \
			barrier();                             \
	} while (0)

#else
#error "no such architecture in arch.h: add its number, arguments and compat flag"
#endif

#endif
