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

#include "capture_lists.bpf.h"
enum { PAGE_BYTES = 4096 };

const volatile struct pb_rules rules = {};

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
