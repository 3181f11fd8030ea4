/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * process_table.bpf.h: map `processes`: who a process is (executable, OTEL_* environment, cgroup, parent, comm), kept
 * after its end, because the ring may have lost its exec long ago and /proc knows only the living.
 * Filled at exec, copied at fork, closed at the process's end. Source: fs/d_path.c (the walk), records.h.
 */
#ifndef PERFBUF_PROCESS_TABLE_BPF_H
#define PERFBUF_PROCESS_TABLE_BPF_H

#include "perfbuf.bpf.h"

enum {
	PATH_COMPONENTS = 48,
	NAME_BYTES = 255, /* NAME_MAX */
	CGROUP_DEPTH = 16,
	ENVIRONMENT_STRINGS = 256, /* environment strings looked at */
	ENVIRONMENT_CHUNK = 256,   /* longest piece of one read at a time */
};

/* (tgid, start_time of the leader) -> the process; the oldest unused goes first. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct pb_process_key);
	__type(value, struct pb_process);
} processes SEC(".maps");

/* tgid -> start_ns of the newest process with it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, u64);
} process_starts SEC(".maps");

struct process_scratch {
	struct pb_process process;
	u8 slack[NAME_BYTES + 1 + ENVIRONMENT_CHUNK];
	u64 chunk[ENVIRONMENT_CHUNK / 8];
	u32 environment_bytes;
	u64 environment_at;
	u32 inside; /* the next piece goes on with a string */
	u32 keep;   /* that string is kept */
};

/* How a process came to be known; says where its entry is made, too. */
enum process_found {
	FOUND_RUNNING = 0,   /* seen by a tracepoint, preemption off */
	FOUND_EXEC = 1,      /* current has just executed its program: its memory is the new one */
	FOUND_BY_SEEDER = 2, /* by the iterator, which a tracepoint on the same CPU may interrupt */
};

/* A process entry being made: too large for the stack. [0] for tracepoints, [1] for the seeder. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct process_scratch);
} process_scratches SEC(".maps");

static __always_inline struct pb_process_key process_key(struct task_struct *task)
{
	struct pb_process_key key = { .tgid = task->tgid, .start_ns = task->group_leader->start_time };

	return key;
}

static __always_inline u64 cgroup_of(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id;
}

/* Puts the path to the end of .executable, name by name from its last component, across mounts. Not static: checked by
 * the verifier once. `address` is of a struct file. */
__noinline int fill_executable(struct process_scratch *work, u64 address)
{
	struct file *file = (struct file *)address;
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);
	struct vfsmount *vfsmount = BPF_CORE_READ(file, f_path.mnt);
	struct mount *mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
	u32 start = PB_EXECUTABLE_BYTES;
	u8 *buffer;

	if (!work)
		return 0;
	buffer = work->process.executable;
	for (int i = 0; i < PATH_COMPONENTS; i++) {
		struct dentry *parent = BPF_CORE_READ(dentry, d_parent);
		const unsigned char *name;
		u32 length;

		if (dentry == BPF_CORE_READ(mount, mnt.mnt_root) || dentry == parent) {
			struct mount *above = BPF_CORE_READ(mount, mnt_parent);

			if (above == mount)
				break;
			dentry = BPF_CORE_READ(mount, mnt_mountpoint);
			mount = above;
			continue;
		}
		length = BPF_CORE_READ(dentry, d_name.len);
		name = BPF_CORE_READ(dentry, d_name.name);
		if (length > NAME_BYTES || length + 1 > start)
			break;
		start -= length + 1;
		if (start >= PB_EXECUTABLE_BYTES)
			break;
		buffer[start] = '/';
		length &= NAME_BYTES;
		bpf_probe_read_kernel(buffer + start + 1, length, name);
		dentry = parent;
	}
	work->process.executable_bytes = PB_EXECUTABLE_BYTES - start;
	return 0;
}

/* Eight characters as the word that they are in memory. */
static __always_inline u64 word(const char *text)
{
	u64 value = 0;

	for (int i = 0; i < 8; i++)
		value |= (u64)(u8)text[i] << (8 * i);
	return value;
}

static __always_inline int is_resource_variable(const u64 *text)
{
	if (text[0] == word("OTEL_SER"))
		return text[1] == word("VICE_NAM") && (text[2] & 0xffff) == ('E' | '=' << 8);
	return text[0] == word("OTEL_RES") && text[1] == word("OURCE_AT") && text[2] == word("TRIBUTES") &&
	       (text[3] & 0xff) == '=';
}

/* One piece of the environment: a string, or what one read of a long one gave. 0: that was the last. */
static __always_inline int add_environment(struct process_scratch *work)
{
	u32 used = work->environment_bytes, bytes, keep = work->keep;
	long got = bpf_probe_read_user_str(work->chunk, ENVIRONMENT_CHUNK, (void *)work->environment_at);

	if (got <= 0 || got > ENVIRONMENT_CHUNK)
		return 0;
	bytes = got;
	if (!work->inside)
		keep = is_resource_variable(work->chunk);
	work->inside = bytes == ENVIRONMENT_CHUNK; /* cut: its last byte is the helper's NUL, not the string's */
	bytes -= work->inside & 1;
	work->environment_at += bytes;
	work->keep = keep;
	if (keep && used < PB_ENVIRONMENT_BYTES) {
		work->environment_bytes = used + bytes;
		barrier_var(used); /* Linux 6.1's verifier forgets the bound when the compiler spills the value */
		used &= PB_ENVIRONMENT_BYTES - 1;
		bpf_probe_read_kernel(work->process.environment + used, bytes & (2 * ENVIRONMENT_CHUNK - 1),
		                      work->chunk);
	}
	return 1;
}

/* Keeps the OTEL_* strings that name a resource; the others may be secrets (OTEL_EXPORTER_OTLP_HEADERS).
 * Current's memory, in the exec tracepoint: the kernel has just written these pages, so they are resident.
 * All that changes from piece to piece is in the scratch, not in registers: the verifier checks one path a piece. */
__noinline int fill_environment(struct process_scratch *work, u64 at, u64 end)
{
	if (!work)
		return 0;
	work->environment_bytes = 0;
	work->environment_at = at;
	work->inside = 0;
	for (int i = 0; i < ENVIRONMENT_STRINGS; i++)
		if (work->environment_at >= end || !add_environment(work))
			break;
	if (work->environment_bytes >= PB_ENVIRONMENT_BYTES) {
		work->environment_bytes = PB_ENVIRONMENT_BYTES;
		work->process.environment[PB_ENVIRONMENT_BYTES - 1] = 0;
	}
	work->process.environment_bytes = work->environment_bytes;
	return 0;
}

/* What is of the task itself, not of its program. */
static __always_inline void fill_identity(struct pb_process *process, struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	struct pid *pid = leader->thread_pid;
	u32 level = BPF_CORE_READ(pid, level);

	process->parent_tgid = task->real_parent->tgid;
	process->start_ns = leader->start_time;
	process->cgroup_id = cgroup_of(task);
	process->exit_ns = 0;
	process->exit_status = 0;
	process->uid = task->cred->uid.val;
	process->reserved = 0;
	bpf_probe_read_kernel(process->comm, sizeof(process->comm), task->comm);
	bpf_probe_read_kernel(&process->namespace_pid, sizeof(u32),
	                      (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * sizeof(struct upid));
}

static __always_inline void store_process(struct process_scratch *work, struct task_struct *task)
{
	struct pb_process_key key = process_key(task);
	u32 tgid = key.tgid;

	if (bpf_map_update_elem(&processes, &key, &work->process, BPF_ANY))
		count_lost_process();
	bpf_map_update_elem(&process_starts, &tgid, &key.start_ns, BPF_ANY);
}

/* A process whose parent has ended is init's child by now: who forked it says its first entry. */
static __always_inline void keep_parent(struct process_scratch *work, struct task_struct *task)
{
	struct pb_process_key key = process_key(task);
	struct pb_process *known = bpf_map_lookup_elem(&processes, &key);

	if (known)
		work->process.parent_tgid = known->parent_tgid;
}

static __noinline void add_process(struct task_struct *task, int found)
{
	u32 slot = found == FOUND_BY_SEEDER;
	struct process_scratch *work = bpf_map_lookup_elem(&process_scratches, &slot);
	struct mm_struct *mm = task->mm;
	struct file *file = BPF_CORE_READ(mm, exe_file);

	if (!work)
		return;
	__builtin_memset(work->process.executable, 0, PB_EXECUTABLE_BYTES);
	__builtin_memset(work->process.environment, 0, PB_ENVIRONMENT_BYTES);
	work->process.executable_bytes = 0;
	work->process.environment_bytes = 0;
	fill_identity(&work->process, task);
	keep_parent(work, task);
	if (file)
		fill_executable(work, (u64)file);
	if (found == FOUND_EXEC && mm)
		fill_environment(work, BPF_CORE_READ(mm, env_start), BPF_CORE_READ(mm, env_end));
	store_process(work, task);
}

/* A forked process runs its parent's program in its parent's environment. */
static __always_inline void inherit_process(struct task_struct *parent, struct task_struct *child)
{
	struct pb_process_key key = process_key(parent);
	struct pb_process *known = bpf_map_lookup_elem(&processes, &key);
	u32 zero = 0;
	struct process_scratch *work = bpf_map_lookup_elem(&process_scratches, &zero);

	if (!known || !work) {
		add_process(child, FOUND_RUNNING);
		return;
	}
	bpf_probe_read_kernel(&work->process, sizeof(work->process), known);
	fill_identity(&work->process, child);
	store_process(work, child);
}

static __always_inline int is_known_process(struct task_struct *task)
{
	struct pb_process_key key = process_key(task);

	return bpf_map_lookup_elem(&processes, &key) != NULL;
}

/* 1: this call closed it. Two last threads may both see the group dead: exactly one of them gets 1. */
static __always_inline int close_process(struct task_struct *task, u64 now, s32 status)
{
	struct pb_process_key key = process_key(task);
	struct pb_process *process = bpf_map_lookup_elem(&processes, &key);

	if (!process)
		return 1;
	if (__sync_val_compare_and_swap(&process->exit_ns, 0, now) != 0)
		return 0;
	process->exit_status = status;
	return 1;
}

#endif
