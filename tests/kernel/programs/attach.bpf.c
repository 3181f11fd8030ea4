// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/*
 * attach.bpf.c: one counter for each way to attach to a kernel function; all count getpgid(2).
 * What it is not: part of the product. Source: tests/kernel/test_attach.py. x86-64 only (the functions' names).
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum { KPROBE, KRETPROBE, FENTRY, FEXIT, WAYS };

const volatile __u32 target_tgid;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WAYS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline int count(__u32 way)
{
	__u64 *counter = bpf_map_lookup_elem(&counts, &way);

	if (counter && bpf_get_current_pid_tgid() >> 32 == target_tgid)
		++*counter;
	return 0;
}

SEC("kprobe/__x64_sys_getpgid")
int by_kprobe(void *ctx)
{
	return count(KPROBE);
}

SEC("kretprobe/__x64_sys_getpgid")
int by_kretprobe(void *ctx)
{
	return count(KRETPROBE);
}

SEC("fentry/__x64_sys_getpgid")
int by_fentry(void *ctx)
{
	return count(FENTRY);
}

SEC("fexit/__x64_sys_getpgid")
int by_fexit(void *ctx)
{
	return count(FEXIT);
}

char LICENSE[] SEC("license") = "GPL";
