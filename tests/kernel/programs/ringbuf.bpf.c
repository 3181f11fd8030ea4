// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/*
 * ringbuf.bpf.c: a writer for the ring buffer tests: getpgid(n) of one process becomes a record of n bytes (8 to 4096),
 * its first 8 the number of the call. What it is not: part of the product. Source: tests/kernel/test_rings_ringbuf.py.
 *
 *   n < 2^16             submitted, with the kernel's adaptive wake-up
 *   n + 2^16             submitted with BPF_RB_NO_WAKEUP
 *   n + 2^17             discarded
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
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_RINGBUF = 27, BPF_RB_NO_WAKEUP = 1 };
#include <bpf/bpf_helpers.h>

#define GETPGID 121
#define MAX_BYTES 4096

const volatile __u32 target_tgid;
__u64 number;
__u64 refused; /* records that found no room */

struct pt_regs {
	unsigned long di;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[MAX_BYTES]);
} buffers SEC(".maps");

SEC("tp_btf/sys_enter")
int on_enter(__u64 *ctx)
{
	struct pt_regs *regs = (void *)ctx[0];
	__u64 what, bytes;
	__u32 zero = 0;
	__u8 *buffer;
	void *record;

	if (bpf_get_current_pid_tgid() >> 32 != target_tgid || ctx[1] != GETPGID)
		return 0;
	buffer = bpf_map_lookup_elem(&buffers, &zero);
	if (!buffer)
		return 0;
	what = regs->di >> 16;
	bytes = regs->di & 0xffff;
	*(__u64 *)buffer = number++;
	if (what == 2) {
		record = bpf_ringbuf_reserve(&events, 64, 0);
		if (record)
			bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
		return 0;
	}
	asm volatile("" : "+r"(bytes));
	if (bytes >= 8 && bytes <= MAX_BYTES &&
	    bpf_ringbuf_output(&events, buffer, bytes, what == 1 ? BPF_RB_NO_WAKEUP : 0))
		refused++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
