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
	u64 environment_end;
	u64 dentry; /* of the path's next name */
	u64 mount;
	u32 path_start;
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
	struct pb_process_key key = { .tgid = READ(task, tgid), .start_ns = READ(task, group_leader, start_time) };

	return key;
}

static __always_inline u64 cgroup_of(struct task_struct *task)
{
	return READ(task, cgroups, dfl_cgrp, kn, id);
}

static __always_inline struct process_scratch *get_process_scratch(u32 slot)
{
	return bpf_map_lookup_elem(&process_scratches, &slot);
}

/* The next name of the path, from its last one on, across mounts. 1: there is none. */
__noinline int put_component(u32 slot)
{
	struct process_scratch *work = get_process_scratch(slot);
	struct dentry *dentry, *parent;
	struct mount *mount;
	const unsigned char *name;
	u32 length, start;

	if (!work)
		return 1;
	dentry = (struct dentry *)work->dentry;
	mount = (struct mount *)work->mount;
	parent = BPF_CORE_READ(dentry, d_parent);
	if (dentry == BPF_CORE_READ(mount, mnt.mnt_root) || dentry == parent) {
		struct mount *above = BPF_CORE_READ(mount, mnt_parent);

		if (above == mount)
			return 1;
		work->dentry = (u64)BPF_CORE_READ(mount, mnt_mountpoint);
		work->mount = (u64)above;
		return 0;
	}
	length = BPF_CORE_READ(dentry, d_name.len);
	name = BPF_CORE_READ(dentry, d_name.name);
	start = work->path_start;
	if (length > NAME_BYTES || length + 1 > start)
		return 1;
	start -= length + 1;
	if (start >= PB_EXECUTABLE_BYTES)
		return 1;
	work->path_start = start;
	work->process.executable[start] = '/';
	length &= NAME_BYTES;
	bpf_probe_read_kernel(work->process.executable + start + 1, length, name);
	work->dentry = (u64)parent;
	return 0;
}

static long add_component(u32 index, u32 *slot)
{
	return is_last(put_component(*slot));
}

/* Not static, as those that it calls: each is checked by the verifier once, and called with numbers only (pointers need
 * Linux 5.12). Puts the path to the end of .executable. `address` is of a struct file. */
__noinline int fill_executable(u32 slot, u64 address)
{
	struct process_scratch *work = get_process_scratch(slot);
	struct file *file = (struct file *)address;
	u64 vfsmount;

	if (!work)
		return 0;
	vfsmount = (u64)BPF_CORE_READ(file, f_path.mnt);
	work->dentry = (u64)BPF_CORE_READ(file, f_path.dentry);
	work->mount = vfsmount - bpf_core_field_offset(struct mount, mnt);
	work->path_start = PB_EXECUTABLE_BYTES;
	REPEAT(PATH_COMPONENTS, add_component, &slot);
	work->process.executable_bytes = PB_EXECUTABLE_BYTES - work->path_start;
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

/* One piece of the environment: a string, or what one read of a long one gave. 1: that was the last. */
__noinline int put_environment(u32 slot)
{
	struct process_scratch *work = get_process_scratch(slot);
	u32 used, bytes, keep;
	long got;

	if (!work || work->environment_at >= work->environment_end)
		return 1;
	got = read_user_string(work->chunk, ENVIRONMENT_CHUNK, work->environment_at);
	if (got <= 0 || got > ENVIRONMENT_CHUNK)
		return 1;
	used = work->environment_bytes;
	keep = work->keep;
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
	return 0;
}

static long add_environment(u32 index, u32 *slot)
{
	return is_last(put_environment(*slot));
}

/* Keeps the OTEL_* strings that name a resource; the others may be secrets (OTEL_EXPORTER_OTLP_HEADERS).
 * Current's memory, in the exec tracepoint: the kernel has just written these pages, so they are resident.
 * All that changes from piece to piece is in the scratch, not in registers: the verifier checks one path a piece. */
__noinline int fill_environment(u32 slot, u64 at, u64 end)
{
	struct process_scratch *work = get_process_scratch(slot);

	if (!work)
		return 0;
	work->environment_bytes = 0;
	work->environment_at = at;
	work->environment_end = end;
	work->inside = 0;
	REPEAT(ENVIRONMENT_STRINGS, add_environment, &slot);
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
	struct task_struct *leader = READ(task, group_leader);
	struct pid *pid = READ(leader, thread_pid);
	u32 level = BPF_CORE_READ(pid, level);

	process->parent_tgid = READ(task, real_parent, tgid);
	process->start_ns = READ(leader, start_time);
	process->cgroup_id = cgroup_of(task);
	process->exit_ns = 0;
	process->exit_status = 0;
	process->uid = READ(task, cred, uid.val);
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
	struct process_scratch *work = get_process_scratch(slot);
	struct mm_struct *mm = READ(task, mm);
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
		fill_executable(slot, (u64)file);
	if (found == FOUND_EXEC && mm)
		fill_environment(slot, BPF_CORE_READ(mm, env_start), BPF_CORE_READ(mm, env_end));
	store_process(work, task);
}

/* A forked process runs its parent's program in its parent's environment. */
static __always_inline void inherit_process(struct task_struct *parent, struct task_struct *child)
{
	struct pb_process_key key = process_key(parent);
	struct pb_process *known = bpf_map_lookup_elem(&processes, &key);
	struct process_scratch *work = get_process_scratch(0);

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

#ifndef PERFBUF_PLAIN

static __always_inline int is_first_end(struct pb_process *process, struct pb_process_key *key, u64 now)
{
	return replace_u64(&process->exit_ns, 0, now);
}

#else

/* Processes that have ended: a key is put in once, which tells two last threads apart. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct pb_process_key);
	__type(value, u64);
} ended_processes SEC(".maps");

static __always_inline int is_first_end(struct pb_process *process, struct pb_process_key *key, u64 now)
{
	if (bpf_map_update_elem(&ended_processes, key, &now, BPF_NOEXIST))
		return 0;
	process->exit_ns = now;
	return 1;
}

#endif

/* 1: this call closed it. Two last threads may both see the group dead: exactly one of them gets 1. */
static __always_inline int close_process(struct task_struct *task, u64 now, s32 status)
{
	struct pb_process_key key = process_key(task);
	struct pb_process *process = bpf_map_lookup_elem(&processes, &key);

	if (!process)
		return 1;
	if (!is_first_end(process, &key, now))
		return 0;
	process->exit_status = status;
	return 1;
}

#endif
