// SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
/* refused.bpf.c: a program that the verifier refuses. Source: tests/kernel/test_bpf_loader.py. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

int volatile nowhere;

SEC("tp_btf/sys_enter")
int wild(long long *context)
{
	return *(int *)(long)nowhere;
}

char LICENSE[] SEC("license") = "GPL";
