/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * capture.bpf.h: bytes of the process's memory behind a syscall's record, as the rules in rodata say.
 * What it is not: it knows no syscall; which argument is a string or a buffer is data (otel_perfbuf/records).
 *
 * Facts: reading user memory cannot wait for a page, so what is not resident is not read (FAULT); a read of more than is
 * mapped fails as a whole. So strings are read as strings, buffers by their true length, and where only the first page
 * of a buffer is there, that much. Functions that are not static are checked by the verifier once each, alone, with any
 * arguments; static ones again at every call, and these would be called with a million combinations.
 */
#ifndef PERFBUF_CAPTURE_BPF_H
#define PERFBUF_CAPTURE_BPF_H

#include "perfbuf.bpf.h"

enum {
	ARGV_STRINGS = 64,       /* argv strings captured; strace shows 32 */
	POINTERS_COUNTED = 1024, /* argv or envp entries counted; more is told as 65535 */
	EXTENT_MAX = 65535,
	PAGE_BYTES = 4096,
};

const volatile struct pb_syscall_rule syscalls[PB_SYSCALLS] = {};

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

__noinline int count_pointers(u64 at)
{
	for (u32 i = 0; i < POINTERS_COUNTED; i++) {
		u64 pointer = 0;

		if (bpf_probe_read_user(&pointer, sizeof(pointer), (void *)(at + 8 * i)) || !pointer)
			return i;
	}
	return EXTENT_MAX;
}

/* argv: strings one after the other. `room` bytes at most. */
__noinline int capture_strings(struct scratch *scratch, u64 at, u32 room)
{
	struct pb_capture *capture;
	u32 used = 0;

	if (!scratch || scratch->at > RECORD_LIMIT)
		return 0;
	capture = (struct pb_capture *)(scratch->record + scratch->at);
	capture->extent = count_pointers(at);
	for (u32 i = 0; i < ARGV_STRINGS; i++) {
		u8 *data = (u8 *)(capture + 1);
		u64 pointer = 0;
		u32 left;
		long got;

		if (i >= capture->extent)
			break;
		if (used >= room || used >= CAPTURE_LIMIT - 8 || i == ARGV_STRINGS - 1) {
			capture->flags |= PB_CAPTURE_CUT;
			break;
		}
		left = room - used;
		if (bpf_probe_read_user(&pointer, sizeof(pointer), (void *)(at + 8 * i)))
			break;
		if (left > CAPTURE_LIMIT - 1)
			left = CAPTURE_LIMIT - 1;
		got = bpf_probe_read_user_str(data + used, left & (CAPTURE_LIMIT - 1), (void *)pointer);
		if (got <= 0) {
			capture->flags |= PB_CAPTURE_FAULT;
			break;
		}
		if (got >= left)
			capture->flags |= PB_CAPTURE_CUT;
		used += got;
	}
	finish_capture(scratch, capture, (u8 *)(capture + 1), used);
	return 0;
}

static __always_inline void capture_string(struct scratch *scratch, struct pb_capture *capture, u64 at, u32 room)
{
	u8 *data = (u8 *)(capture + 1);
	/* The helper puts a NUL at the end of what it was given room for: one byte more than fits shows a cut. */
	long got = bpf_probe_read_user_str(data, room + 2, (void *)at);
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
		}
	}
	if (bytes < length && !(capture->flags & PB_CAPTURE_FAULT))
		capture->flags |= PB_CAPTURE_CUT;
	finish_capture(scratch, capture, data, bytes);
}

/* How many bytes the rule's memory has; < 0: nothing to capture. */
static __always_inline s64 capture_length(const volatile struct pb_capture_rule *rule, const struct captured_call *call,
                                          u32 *fault)
{
	u32 argument = rule->length, word = 0;

	switch (rule->length_from) {
	case PB_LENGTH_ARGUMENT:
		return argument < 6 ? call->args[argument] & 0x7fffffffffffffffULL : 0;
	case PB_LENGTH_RESULT:
		return call->result;
	case PB_LENGTH_POINTER:
		if (call->result < 0 || argument >= 6 || !call->args[argument])
			return -1; /* the kernel writes a value-result length on success only */
		if (bpf_probe_read_user(&word, sizeof(word), (void *)call->args[argument]))
			*fault = 1;
		return word;
	default:
		return argument;
	}
}

/* Rule `index` of syscall `number`. */
__noinline int capture_one(struct scratch *scratch, u32 number, u32 index)
{
	const volatile struct pb_capture_rule *rule;
	const struct captured_call *call;
	struct pb_capture *capture;
	u32 at, kind, argument, room, fault = 0;
	s64 length;
	u64 pointer;

	if (!scratch || number >= PB_SYSCALLS || index >= PB_CAPTURES)
		return 0;
	rule = &syscalls[number].captures[index];
	call = &scratch->call;
	at = scratch->at;
	kind = rule->kind;
	argument = rule->argument;
	if (argument >= 6 || at > RECORD_LIMIT - 2 * sizeof(*capture))
		return 0;
	pointer = call->args[argument];
	if (!pointer)
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

	switch (kind) {
	case PB_CAPTURE_STRING:
		capture_string(scratch, capture, pointer, room);
		return 1;
	case PB_CAPTURE_STRINGS:
		capture_strings(scratch, pointer, room);
		return 1;
	case PB_CAPTURE_COUNT:
		capture->extent = count_pointers(pointer);
		finish_capture(scratch, capture, (u8 *)(capture + 1), 0);
		return 1;
	case PB_CAPTURE_WORD:
		capture_buffer(scratch, capture, pointer, 4, 4);
		return 1;
	default:
		length = capture_length(rule, call, &fault);
		if (length < 0)
			return 0;
		if (fault) {
			capture->flags = PB_CAPTURE_FAULT;
			finish_capture(scratch, capture, (u8 *)(capture + 1), 0);
			return 1;
		}
		capture_buffer(scratch, capture, pointer, length, room);
		return 1;
	}
}

static __always_inline int is_due(u32 when, u32 moment, s64 result)
{
	return when == moment || when == PB_AT_BOTH || (when == PB_AT_SUCCESS && moment == PB_AT_EXIT && result >= 0);
}

/* Runs the rules of one moment (PB_AT_ENTER, PB_AT_EXIT) on scratch->call. `fixed` bytes of record stand before the
 * captures; gives the record's whole size. */
static __noinline u32 capture_all(struct scratch *scratch, u32 number, u32 moment, u32 fixed)
{
	scratch->at = fixed;
	scratch->captures = 0;
	if (number >= PB_SYSCALLS)
		return fixed;
	for (u32 i = 0; i < PB_CAPTURES; i++) {
		const volatile struct pb_capture_rule *rule = &syscalls[number].captures[i];

		if (rule->kind == PB_CAPTURE_NONE)
			break;
		if (is_due(rule->when, moment, scratch->call.result))
			capture_one(scratch, number, i);
	}
	return scratch->at;
}

#endif
