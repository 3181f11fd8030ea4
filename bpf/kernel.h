/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * kernel.h: the kernel's structs, cut to the fields that the programs read. libbpf moves each access to where the running
 * kernel's BTF has the field (CO-RE), so that neither offsets nor the rest of a struct matter.
 * What it is not: a vmlinux.h (none is generated, so that a build needs no bpftool), nor our own format (records.h).
 * Source: Linux include/linux/{sched,sched/signal,mm_types,fs,dcache,mount,pid,cgroup-defs,kernfs}.h, fs/mount.h.
 */
#ifndef PERFBUF_KERNEL_H
#define PERFBUF_KERNEL_H

#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

#ifndef NULL
#define NULL ((void *)0)
#endif

enum { ENOENT = 2, EAGAIN = 11, ENOSPC = 28 }; /* asm-generic/errno-base.h */
enum { SIGKILL = 9, SIGNAL_GROUP_EXIT = 4 };   /* asm-generic/signal.h, linux/sched/signal.h */
enum { PF_KTHREAD = 0x00200000 };              /* linux/sched.h */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct qstr {
	u32 len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct path f_path;
};

struct mm_struct {
	unsigned long env_start;
	unsigned long env_end;
	struct file *exe_file;
};

struct upid {
	int nr;
	void *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

typedef struct {
	u32 val;
} kuid_t;

struct cred {
	kuid_t uid;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
};

struct kernfs_node {
	struct kernfs_node *__parent; /* Linux 6.15 */
	u64 id;
};

struct kernfs_node___parent {
	struct kernfs_node *parent; /* before */
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct thread_info {
	unsigned long flags;
	u32 status; /* x86 only */
};

struct seccomp {
	int mode;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	struct mm_struct *mm;
	int exit_code;
	s32 pid;
	s32 tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	u64 start_time;
	const struct cred *cred;
	char comm[16];
	struct signal_struct *signal;
	struct css_set *cgroups;
	unsigned int ptrace;
	struct seccomp seccomp; /* with CONFIG_SECCOMP */
	void *bpf_storage;      /* all task storages of the task; Linux 5.11 */
	void *stack;
};

union __sifields {
	int _pad[8];
};

struct kernel_siginfo {
	int si_signo;
	int si_errno;
	int si_code;
	union __sifields _sifields;
};

struct linux_binprm {
	const char *filename;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long bp, bx, r10, r9, r8, cx, dx, si, di, orig_ax, sp;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 regs[31];
	u64 sp;
	u64 orig_x0;
	s32 syscallno;
};
#endif

#pragma clang attribute pop

#endif
