/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * capture_lists.bpf.h: captures of what has many parts: an argv's strings, a vector's buffers, and how many pointers or
 * directory entries there are. What it is not: it knows no rule (capture.bpf.h).
 *
 * A part is a function that the verifier checks once, with its state in the scratch: a loop over it is cheap to check.
 */
#ifndef PERFBUF_CAPTURE_LISTS_BPF_H
#define PERFBUF_CAPTURE_LISTS_BPF_H

#include "perfbuf.bpf.h"

enum {
	ARGV_STRINGS = 64,       /* argv strings captured; strace shows 32 */
	POINTERS_COUNTED = 1024, /* argv or envp entries counted; more is told as 65535 */
	ENTRIES = 1024,          /* of a directory counted; more are not told */
	ENTRY_LENGTH_AT = 16,    /* d_reclen of struct linux_dirent and linux_dirent64 */
	VECTORS = 16,            /* buffers of a readv or writev captured */
	EXTENT_MAX = 65535,
};

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

#endif
