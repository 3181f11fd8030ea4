/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * capture.bpf.h: bytes of the process's memory behind a syscall's record, as the rules in rodata say.
 * What it is not: it knows no syscall; which argument is a string or a buffer is data (otel_perfbuf/records).
 *
 * Facts: reading user memory cannot wait for a page, so what is not resident is not read (FAULT); a read of more than is
 * mapped fails as a whole. So strings are read as strings, buffers by their true length, and where only the first page
 * of a buffer is there, that much. Functions that are not static are checked by the verifier once each, alone, with any
 * arguments; static ones again at every call, and these would be called with a million combinations. Those arguments
 * are numbers, so each looks up the scratch itself: before Linux 5.12 a pointer cannot be one.
 */
#ifndef PERFBUF_CAPTURE_BPF_H
#define PERFBUF_CAPTURE_BPF_H

#include "perfbuf.bpf.h"

enum {
	ARGV_STRINGS = 64,       /* argv strings captured; strace shows 32 */
	POINTERS_COUNTED = 1024, /* argv or envp entries counted; more is told as 65535 */
	ENTRIES = 1024,          /* of a directory counted; more are not told */
	ENTRY_LENGTH_AT = 16,    /* d_reclen of struct linux_dirent and linux_dirent64 */
	VECTORS = 16,            /* buffers of a readv or writev captured */
	EXTENT_MAX = 65535,
	PAGE_BYTES = 4096,
};

const volatile struct pb_rules rules = {};

/* Zeroes the pad behind `bytes` data bytes, which would hold another record's bytes, and moves on. */
static __always_inline void finish_capture(struct scratch *scratch, struct pb_capture *capture, u8 *data, u32 bytes)
{
	bytes &= 2 * CAPTURE_LIMIT - 1;
	if (bytes > CAPTURE_LIMIT)
		bytes = CAPTURE_LIMIT;
	if (bytes & 7)
		*(u64 *)(data + (bytes & ~7u)) &= (1ULL << (8 * (bytes & 7))) - 1;
	capture->bytes = bytes;
	scratch->at += sizeof(*capture) + ((bytes + 7) & ~7u);
	scratch->captures++;
}

struct pointer_count {
	u64 at;
	u32 count;
};

static long count_pointer(u32 index, struct pointer_count *pointers)
{
	u64 pointer = 0;

	long failed = bpf_probe_read_user(&pointer, sizeof(pointer), (void *)(pointers->at + 8 * index));

	if (!failed && pointer)
		return 0;
	pointers->count = failed && !index ? -1 : (int)index;
	return 1;
}

__noinline int count_pointers(u64 at)
{
	struct pointer_count pointers = { .at = at, .count = EXTENT_MAX };

	REPEAT(POINTERS_COUNTED, count_pointer, &pointers);
	return pointers.count;
}

/* The next string of an argv behind those that are there. 1: that was the last. */
__noinline int put_string(u32 index)
{
	struct scratch *scratch = get_scratch();
	struct vector_walk *walk;
	struct pb_capture *capture;
	u64 pointer = 0, at;
	u32 used, left;
	long got;

	if (!scratch)
		return 1;
	at = scratch->at;
	if (at > RECORD_LIMIT)
		return 1;
	capture = (struct pb_capture *)(scratch->record + at);
	walk = &scratch->vector;
	used = walk->used;
	if (index >= walk->count)
		return 1;
	if (used >= walk->each || used >= CAPTURE_LIMIT - 8 || index >= ARGV_STRINGS - 1) {
		capture->flags |= PB_CAPTURE_CUT;
		return 1;
	}
	left = walk->each - used;
	if (bpf_probe_read_user(&pointer, sizeof(pointer), (void *)(walk->at + 8 * index)))
		return 1;
	if (left > CAPTURE_LIMIT - 1)
		left = CAPTURE_LIMIT - 1;
	got = read_user_string((u8 *)(capture + 1) + used, left & (CAPTURE_LIMIT - 1), pointer);
	if (got < 0) {
		capture->flags |= PB_CAPTURE_FAULT;
		return 1;
	}
	if (got >= left)
		capture->flags |= PB_CAPTURE_CUT;
	walk->used = used + got;
	return 0;
}

static long add_string(u32 index, u64 *unused)
{
	return is_last(put_string(index));
}

/* argv: strings one after the other. `room` bytes at most. */
__noinline int capture_strings(u64 at, u32 room)
{
	struct scratch *scratch = get_scratch();
	struct pb_capture *capture;
	u64 unused = 0;
	int count;

	if (!scratch || scratch->at > RECORD_LIMIT)
		return 0;
	capture = (struct pb_capture *)(scratch->record + scratch->at);
	count = count_pointers(at);
	if (count < 0) {
		capture->flags |= PB_CAPTURE_FAULT;
		count = 0;
	}
	capture->extent = count;
	scratch->vector.at = at;
	scratch->vector.count = count;
	scratch->vector.each = room;
	scratch->vector.used = 0;
	REPEAT(ARGV_STRINGS, add_string, &unused);
	finish_capture(scratch, capture, (u8 *)(capture + 1), scratch->vector.used);
	return 0;
}

static __always_inline void capture_string(struct scratch *scratch, struct pb_capture *capture, u64 at, u32 room)
{
	u8 *data = (u8 *)(capture + 1);
	/* The helper puts a NUL at the end of what it was given room for: one byte more than fits shows a cut. */
	long got = read_user_string(data, room + 2, at);
	u32 bytes = 0;

	if (got > 0)
		bytes = got - 1;
	else
		capture->flags |= PB_CAPTURE_FAULT;
	if (bytes > room) {
		bytes = room;
		capture->flags |= PB_CAPTURE_CUT;
	}
	capture->extent = bytes;
	finish_capture(scratch, capture, data, bytes);
}

static __always_inline void capture_buffer(struct scratch *scratch, struct pb_capture *capture, u64 at, u64 length,
                                           u32 room)
{
	u8 *data = (u8 *)(capture + 1);
	u32 bytes = length < room ? length : room;

	capture->extent = length < EXTENT_MAX ? length : EXTENT_MAX;
	if (bytes > CAPTURE_LIMIT)
		bytes = CAPTURE_LIMIT;
	if (bytes && bpf_probe_read_user(data, bytes, (void *)at)) {
		u32 page = PAGE_BYTES - (at & (PAGE_BYTES - 1));

		if (page >= bytes || bpf_probe_read_user(data, page & (PAGE_BYTES - 1), (void *)at)) {
			capture->flags |= PB_CAPTURE_FAULT;
			bytes = 0;
		} else {
			bytes = page;
			capture->flags |= PB_CAPTURE_ENDS;
		}
	}
	if (bytes < length && !(capture->flags & PB_CAPTURE_FAULT))
		capture->flags |= PB_CAPTURE_CUT;
	finish_capture(scratch, capture, data, bytes);
}

/* How many there are of what the rule counts; -1: nothing to capture. */
static __always_inline s64 rule_count(const volatile struct pb_capture_rule *rule, const struct captured_call *call,
                                      u64 memory, u32 *fault)
{
	u32 argument = rule->length, word = 0;
	u64 value = 0;

	switch (rule->length_from) {
	case PB_LENGTH_FIXED:
		return argument;
	case PB_LENGTH_RESULT:
		return call->result;
	case PB_LENGTH_FIELD4:
		*fault = bpf_probe_read_user(&word, sizeof(word), (void *)(memory + argument)) != 0;
		return word;
	case PB_LENGTH_FIELD8:
		*fault = bpf_probe_read_user(&value, sizeof(value), (void *)(memory + argument)) != 0;
		break;
	case PB_LENGTH_POINTER:
		if (call->result < 0 || argument >= 6 || !call->args[argument])
			return -1; /* the kernel writes a value-result length on success only */
		*fault = bpf_probe_read_user(&word, sizeof(word), (void *)call->args[argument]) != 0;
		return word;
	case PB_LENGTH_UINT:
		return argument < 6 ? (u32)call->args[argument] : 0;
	case PB_LENGTH_INT:
		return argument < 6 ? (s32)call->args[argument] : 0;
	case PB_LENGTH_BITS:
		if (argument >= 6 || (s32)call->args[argument] < 0)
			return -1;
		value = (u32)call->args[argument];
		if (rule->scale && value)
			value--; /* memory nodes: the kernel counts one less */
		return (value + 63) / 64 * 8;
	default:
		value = argument < 6 ? call->args[argument] : 0;
	}
	if (rule->scale && value >= 1ULL << 58)
		return -1; /* so many that their bytes cannot be counted */
	return value > 0x7fffffff ? 0x7fffffff : value;
}

struct entry_count {
	u64 at;
	u32 used;
	u32 bytes;
	u32 count;
};

static long count_entry(u32 index, struct entry_count *entries)
{
	u16 length = 0;

	if (entries->used >= entries->bytes) {
		entries->count = index;
		return 1;
	}
	if (bpf_probe_read_user(&length, sizeof(length), (void *)(entries->at + entries->used + ENTRY_LENGTH_AT)))
		return 1;
	entries->used += length;
	return !length;
}

/* Entries of a directory in `bytes` bytes at `at`; 0: more than can be counted. */
__noinline int count_entries(u64 at, u32 bytes)
{
	struct entry_count entries = { .at = at, .bytes = bytes };

	REPEAT(ENTRIES, count_entry, &entries);
	return entries.count;
}

/* The next buffer of a vector: its bytes behind their number. 1: that was the last. */
static long capture_part(u32 index, u64 *unused)
{
	struct scratch *scratch = get_scratch();
	struct vector_walk *walk;
	u64 iov[2], bytes, at;
	u32 used, each;
	u8 *data;

	if (!scratch)
		return 1;
	at = scratch->at;
	walk = &scratch->vector;
	used = walk->used;
	each = walk->each;
	if (index >= walk->count || used + each + 16 > CAPTURE_LIMIT / 2 ||
	    bpf_probe_read_user(iov, sizeof(iov), (void *)(walk->at + 16 * index)))
		return 1;
	bytes = iov[1] < walk->left ? iov[1] : walk->left;
	walk->left -= bytes;
	if (bytes > each)
		bytes = each;
	used &= CAPTURE_LIMIT / 2 - 1;
	bytes &= CAPTURE_LIMIT / 2 - 1;
	if (at > RECORD_LIMIT - 2 * sizeof(struct pb_capture))
		return 1;
	data = scratch->record + at + sizeof(struct pb_capture);
	data += used;
	if (bytes && bpf_probe_read_user(data + 8, bytes, (void *)iov[0]))
		*(u64 *)data = ~0ULL; /* cannot be read */
	else
		*(u64 *)data = bytes;
	walk->used = used + 8 + ((bytes + 7) & ~7ULL);
	return 0;
}

/* What `count` iovecs at `at` point to. `each`: bytes of a buffer at most; `left`: bytes that were moved. */
__noinline int capture_vector(u64 at, u32 count, u32 each, u64 left)
{
	struct scratch *scratch = get_scratch();
	struct pb_capture *capture;
	u64 unused = 0;

	if (!scratch || scratch->at > RECORD_LIMIT - 2 * sizeof(*capture))
		return 0;
	capture = (struct pb_capture *)(scratch->record + scratch->at);
	capture->extent = count < EXTENT_MAX ? count : EXTENT_MAX;
	scratch->vector.at = at;
	scratch->vector.left = left;
	scratch->vector.count = count;
	scratch->vector.each = each;
	scratch->vector.used = 0;
	REPEAT(VECTORS, capture_part, &unused);
	finish_capture(scratch, capture, (u8 *)(capture + 1), scratch->vector.used);
	return 0;
}

static __always_inline int is_due(u32 when, u32 moment, s64 result)
{
	return when == moment || when == PB_AT_BOTH || (when == PB_AT_SUCCESS && moment == PB_AT_EXIT && result >= 0);
}

static __always_inline int rule_holds(const volatile struct pb_capture_rule *rule, const struct captured_call *call)
{
	u32 first = rule->if_argument[0], second = rule->if_argument[1];

	if (!rule->if_mask[0])
		return 1;
	if (first >= 6 || ((u32)call->args[first] & rule->if_mask[0]) != rule->if_value[0])
		return 0;
	return !rule->if_mask[1] || (second < 6 && ((u32)call->args[second] & rule->if_mask[1]) == rule->if_value[1]);
}

/* Whether there are as many as a rule without a mask asks for. A function of its own, for the registers that it takes
 * would be missing in capture_one: Linux 6.1 forgets what it knew of a number that was put on the stack. */
__noinline int is_reached(u32 index)
{
	struct scratch *scratch = get_scratch();
	u32 argument;

	if (!scratch || index >= PB_RULES)
		return 0;
	argument = rules.captures[index].if_argument[0];
	if (argument < 6)
		return (u32)scratch->call.args[argument] >= rules.captures[index].if_value[0];
	return scratch->call.result >= (s64)rules.captures[index].if_value[0];
}

/* Rule `index` of all, if it is due at that moment and the first of its memory. < 0: what there is not, and what the
 * rules behind it are of neither. */
__noinline int capture_one(u32 index, u32 moment)
{
	struct scratch *scratch = get_scratch();
	const volatile struct pb_capture_rule *rule;
	const struct captured_call *call;
	struct pb_capture *capture;
	u32 at, kind, argument, room, fault = 0;
	u64 pointer, memory, slot;
	s64 count;

	if (!scratch || index >= PB_RULES)
		return 0;
	rule = &rules.captures[index];
	call = &scratch->call;
	slot = rule->part < PB_PARTS ? 1ULL << (((u32)rule->argument * PB_PARTS + rule->part) & 63) : 0;
	if (rule->if_value[0] && !rule->if_mask[0] && !is_reached(index))
		return -1;
	if (scratch->done & slot || !is_due(rule->when, moment, call->result) || !rule_holds(rule, call))
		return 0;
	scratch->done |= slot;
	at = scratch->at;
	kind = rule->kind;
	argument = rule->argument;
	if (argument >= 6 || at > RECORD_LIMIT - 2 * sizeof(*capture))
		return 0;
	pointer = memory = call->args[argument];
	if (!pointer)
		return 0;
	if (!rule->behind)
		pointer += rule->offset;
	else if ((bpf_probe_read_user(&pointer, sizeof(pointer), (void *)(memory + rule->offset)) || !pointer))
		return 0;
	room = RECORD_LIMIT - at - sizeof(*capture);
	if (room > rule->max_bytes)
		room = rule->max_bytes;
	if (room > CAPTURE_LIMIT)
		room = CAPTURE_LIMIT;
	capture = (struct pb_capture *)(scratch->record + at);
	*(u64 *)capture = 0;
	capture->argument = argument;
	capture->kind = kind;
	capture->part = rule->part;

	switch (kind) {
	case PB_CAPTURE_STRING:
		capture_string(scratch, capture, pointer, room);
		return 1;
	case PB_CAPTURE_STRINGS:
		capture_strings(pointer, room);
		return 1;
	case PB_CAPTURE_COUNT:
		count = count_pointers(pointer);
		if (count < 0)
			capture->flags |= PB_CAPTURE_FAULT;
		capture->extent = count < 0 ? 0 : count;
		finish_capture(scratch, capture, (u8 *)(capture + 1), 0);
		return 1;
	case PB_CAPTURE_WORD:
		capture_buffer(scratch, capture, pointer, 4, 4);
		return 1;
	case PB_CAPTURE_ENTRIES:
		capture->extent = count_entries(pointer, call->result);
		if (capture->extent || !call->result)
			finish_capture(scratch, capture, (u8 *)(capture + 1), 0);
		return 1;
	}
	count = rule_count(rule, call, memory, &fault);
	if (count < 0)
		return 0;
	if (kind == PB_CAPTURE_VECTOR) {
		u64 left = rule->when == PB_AT_SUCCESS ? (u64)call->result : ~0ULL;

		if (rule->when == PB_AT_SUCCESS)
			capture->flags |= PB_CAPTURE_CUT; /* as far as the result */
		capture_vector(pointer, count, room, left);
		return 1;
	}
	if (fault) {
		capture->flags = PB_CAPTURE_FAULT;
		finish_capture(scratch, capture, (u8 *)(capture + 1), 0);
		return 1;
	}
	if (rule->scale)
		count *= rule->scale;
	capture_buffer(scratch, capture, pointer, count, room);
	return 1;
}

/* Runs the rules of one moment (PB_AT_ENTER, PB_AT_EXIT) on scratch->call. `fixed` bytes of record stand before the
 * captures; gives the record's whole size. */
static __noinline u32 capture_all(struct scratch *scratch, u32 number, u32 moment, u32 fixed)
{
	u32 first, count;

	scratch->at = fixed;
	scratch->captures = 0;
	scratch->done = 0;
	if (number >= PB_SYSCALLS)
		return fixed;
	first = rules.syscalls[number].first;
	count = rules.syscalls[number].count;
	for (u32 i = 0; i < PB_SYSCALL_CAPTURES; i++) {
		if (i >= count)
			break;
		if (capture_one(first + i, moment) < 0)
			break;
	}
	return scratch->at;
}

#endif
