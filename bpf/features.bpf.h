/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * features.bpf.h: what a kernel may lack, one inline function each, so that no other file asks: the current task as a
 * typed pointer, atomics that give the old value, keeping the CPU; and who keeps threads' pages (page.bpf.h).
 *
 * Facts: programs that use such an atomic do not load before Linux 5.12, even where it is never reached; task storage in
 * tracing programs and bpf_get_current_task_btf came with 5.11. Decision: every program is built a second time with
 * PERFBUF_PLAIN, and the loader takes that one where a small program with the features does not load (probe.bpf.c).
 * Cost: a hash lookup for each event in the plain form, memory for all its threads at once, x86 only (docs/decisions).
 *
 * Fact: since Linux 7.0 tracepoints call their programs with preemption on, so another task may run another of our
 * programs on this CPU in the midst of one. What is each CPU's is used between hold_cpu and release_cpu, which do
 * something in the form built with PERFBUF_HELD: kernels from about 6.14 take it. The program that is interrupted is
 * not run again meanwhile: the kernel counts such misses (`missed_events`, otel_perfbuf/bpf/object.py).
 */
#ifndef PERFBUF_FEATURES_BPF_H
#define PERFBUF_FEATURES_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* What a function that is checked alone has returned may be any number for the verifier, and of a loop's step it wants
 * 0 or 1; the compiler knows that it is one of them, and must not. */
static __always_inline long is_last(int returned)
{
	barrier_var(returned);
	return returned != 0;
}

/* REPEAT(bound, step, context) calls step(index, context), at most `bound` times, until it returns 1. What changes from
 * call to call has its place in a map's element: the verifier walks a loop once for each value that it knows. With
 * bpf_loop (Linux 5.17) it walks it once in all, which makes a load several times faster. */
enum bpf_func_id___loop { BPF_FUNC_loop___loop = 181 }; /* libbpf passes over what follows ___ */

#define REPEAT_UNROLLED(bound, step, context)         \
	for (u32 index = 0; index < (bound); index++) \
		if (step(index, context))             \
	break

#ifdef PERFBUF_HELD

void bpf_preempt_disable(void) __ksym __weak;
void bpf_preempt_enable(void) __ksym __weak;

static __always_inline void hold_cpu(void)
{
	bpf_preempt_disable();
}

static __always_inline void release_cpu(void)
{
	bpf_preempt_enable();
}

#else

static __always_inline void hold_cpu(void)
{
}

static __always_inline void release_cpu(void)
{
}

#endif

#ifndef PERFBUF_PLAIN

#define REPEAT(bound, step, context)                                                             \
	do {                                                                                     \
		if (bpf_core_enum_value_exists(enum bpf_func_id___loop, BPF_FUNC_loop___loop)) { \
			bpf_loop(bound, step, context, 0);                                       \
		} else {                                                                         \
			REPEAT_UNROLLED(bound, step, context);                                   \
		}                                                                                \
	} while (0)

static __always_inline struct task_struct *current_task(void)
{
	return bpf_get_current_task_btf();
}

/* READ(task, signal, flags): a field of a task or behind it. A typed pointer is read by one load. */
#define READ(task, ...) ___arrow(task, __VA_ARGS__)

/* Sets *place to `value` if it holds `expected`. 1: it did. */
static __always_inline int replace_u64(u64 *place, u64 expected, u64 value)
{
	return __sync_val_compare_and_swap(place, expected, value) == expected;
}

/* Adds one; gives the sum, to nobody else. */
static __always_inline u64 count_up(u64 *counter)
{
	return __sync_fetch_and_add(counter, 1) + 1;
}

static __always_inline void set_bits(u32 *flags, u32 bits)
{
	__sync_fetch_and_or(flags, bits);
}

#else

static __always_inline struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task();
}

#define REPEAT(bound, step, context) REPEAT_UNROLLED(bound, step, context)

/* The helper gives a bare number: the verifier lets only other helpers read there. */
#define READ(task, ...) BPF_CORE_READ(task, __VA_ARGS__)

/* Not atomic: of one process's threads, which all set the same. */
static __always_inline int replace_u64(u64 *place, u64 expected, u64 value)
{
	if (*(volatile u64 *)place != expected)
		return 0;
	*(volatile u64 *)place = value;
	return 1;
}

/* Not atomic: two threads that fork in one instant may count alike. */
static __always_inline u64 count_up(u64 *counter)
{
	return ++*(volatile u64 *)counter;
}

/* Not atomic: the seeder, which is the one to call it, looks again until nothing changes. */
static __always_inline void set_bits(u32 *flags, u32 bits)
{
	*(volatile u32 *)flags |= bits;
}

#endif

#endif
