// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/*
 * rings.bpf.c: a writer for the ring tests: one process's getppid and getpgid calls become samples.
 * What it is not: part of the product. Source: tests/kernel/test_rings_*.py.
 *
 *   getppid()    a sample of 3 to 62 words, its size by its number: number, words, then words that hold number ^ index
 *   getpgid(n)   a sample of exactly n bytes, the first 8 its number (n >= 8); payload bytes are number & 255
 *
 * One single-threaded process writes, so one buffer and one counter are enough.
 */
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef int __s32;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
enum {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_F_CURRENT_CPU = 0xffffffff,
	BPF_RB_NO_WAKEUP = 1
};
#include <bpf/bpf_helpers.h>

#define MAX_BYTES 65536
#define GETPPID 110
#define GETPGID 121

const volatile __u32 target_tgid;
const volatile __u8 shared; /* 1: user space made `events` a BPF ring buffer */

struct pt_regs {
	unsigned long di;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} events SEC(".maps");

struct buffer {
	__u64 number; /* attempts so far: numbers that nobody sees were lost */
	__u64 words[MAX_BYTES / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct buffer);
} buffers SEC(".maps");

/* Sends what the verifier can follow: the compiler, which knows the bound, must not drop the test. */
static void send(void *ctx, struct buffer *buffer, __u64 bytes)
{
	asm volatile("" : "+r"(bytes));
	if (bytes < 1 || bytes >= MAX_BYTES)
		return;
	if (shared)
		bpf_ringbuf_output(&events, buffer->words, bytes, BPF_RB_NO_WAKEUP);
	else
		bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, buffer->words, bytes);
}

static void send_mixed(void *ctx, struct buffer *buffer)
{
	__u64 number = buffer->number++;
	__u32 words = 3 + (__u32)((number * 7) % 60);

	buffer->words[0] = number;
	buffer->words[1] = words;
	for (__u32 i = 2; i < 62; i++) {
		if (i >= words)
			break;
		buffer->words[i] = number ^ i;
	}
	send(ctx, buffer, words * 8);
}

static void send_sized(void *ctx, struct buffer *buffer, __u64 bytes)
{
	buffer->words[0] = buffer->number++;
	send(ctx, buffer, bytes);
}

SEC("tp_btf/sys_enter")
int on_enter(__u64 *ctx)
{
	struct pt_regs *regs = (void *)ctx[0];
	__u32 zero = 0;
	struct buffer *buffer;

	if (bpf_get_current_pid_tgid() >> 32 != target_tgid || (ctx[1] != GETPPID && ctx[1] != GETPGID))
		return 0;
	buffer = bpf_map_lookup_elem(&buffers, &zero);
	if (!buffer)
		return 0;
	if (ctx[1] == GETPPID)
		send_mixed(ctx, buffer);
	else
		send_sized(ctx, buffer, regs->di);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
