/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * empty.bpf.c: programs that do nothing where the recorder's are attached: what being attached costs by itself.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("tp_btf/sys_enter")
int empty_enter(void *context)
{
	return 0;
}

SEC("tp_btf/sys_exit")
int empty_exit(void *context)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
