/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h: perf rings in memory: windows, the checked walk, drain and snapshot.
 * Source: Linux include/uapi/linux/perf_event.h (struct perf_event_mmap_page, PERF_RECORD_*),
 * kernel/events/ring_buffer.c. What it is not: it opens, maps and waits for nothing (otel_perfbuf/rings).
 *
 * Positions are 64-bit running counters, all arithmetic modulo 2^64; offset = position & (capacity - 1).
 * A window is half-open, [start, end), and is always walked upward.
 *
 * Bytes of a ring have five fates: returned as frames, overwritten (the cut record's rest and the slack too),
 * malformed (skipped, or behind the place where a reverse walk had to stop), of unknown type, or still there.
 */
#ifndef PERFBUF_RING_H
#define PERFBUF_RING_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"

/* cffi: begin */

enum pb_ring_limits {
	PB_FRAME_MAX_BYTES = 65528, /* header.size is 16 bit, frames are multiples of 8 */
	PB_FRAME_MIN_BYTES = 16,    /* the smallest frame that is kept: header, raw.size, 4 bytes */
	PB_NESTED_WRITERS = 3,      /* bpf_perf_event_output nests at most so deep on a CPU (bpf_trace.c) */
};

struct pb_window {
	uint64_t start;
	uint64_t end;
};

/* One CPU's mapped ring. The owner of the mapping fills it once and has checked that capacity is a power of two, at
 * least 8, and that [data, data + capacity) is mapped. */
struct pb_ring {
	void *page; /* struct perf_event_mmap_page; written (data_tail) by a drain only */
	const uint8_t *data;
	uint64_t capacity;
	uint32_t cpu;
	uint32_t reserved;
	uint64_t cursor; /* reverse: data_head of the last snapshot; 0: none yet */
};

/* One sample or LOST record, found by the walk. Offsets are into the arena it was copied to. */
struct pb_frame {
	uint64_t offset; /* of the raw data (sample) or of the frame (LOST) */
	uint32_t bytes;  /* raw data as the kernel padded it; LOST: the whole frame */
	uint16_t type;   /* PERF_RECORD_SAMPLE 9 or PERF_RECORD_LOST 2 */
	uint16_t cpu;
	uint64_t time_ns; /* PERF_SAMPLE_TIME, else 0; LOST: of the sample it came with */
	uint32_t pid;     /* PERF_SAMPLE_TID, else 0 */
	uint32_t tid;
	uint64_t lost; /* LOST: how many; else 0 */
};

enum pb_walk_flags {
	PB_WALK_CUT = 1,     /* the window's end may lie inside a record */
	PB_WALK_REVERSE = 2, /* newest first: what lies behind a bad record is not to be trusted */
};

/* What one walk found out about its bytes. bytes + malformed_bytes + truncated_bytes = what it was given. */
struct pb_walk {
	uint32_t frames;    /* samples and LOST; written to the caller's array unless it is NULL */
	uint32_t malformed; /* records or places whose bytes disagree with themselves */
	uint32_t truncated; /* 1: the record at the window's end was cut */
	uint32_t unknown;   /* records of other types, passed over; also where bytes that are no record say type 0 */
	uint32_t stopped;   /* 1: at bytes that are no record; what lies behind was not walked */
	uint32_t lost_frames;
	uint64_t lost;  /* sum over LOST */
	uint64_t bytes; /* of whole records, unknown ones too */
	uint64_t malformed_bytes;
	uint64_t truncated_bytes; /* of the cut record, what is left of it */
};

/* One ring as a snapshot or a drain left it. */
struct pb_ring_state {
	uint32_t cpu;
	uint32_t wrapped; /* reverse: bytes were overwritten at some time */
	uint64_t capacity;
	uint64_t head;              /* data_head that the copy began at (reverse), that was read (forward) */
	uint64_t arena_offset;      /* where this ring's bytes begin in the arena */
	uint64_t valid_bytes;       /* of them, whole and to be walked */
	uint64_t written_bytes;     /* reverse: from the window's far end (cursor, or the first ever) to head */
	uint64_t overwritten_bytes; /* written since the cursor and gone: exact, the cut record's rest included */
	uint64_t first_frame;       /* index of its frames in the batch */
	struct pb_walk walk;
};

/* The pure functions of the two directions.
 *
 *   forward, positions grow:      |....tail=======head....|   [tail, head): oldest first
 *   reverse, positions decrease:  |....head=======previous.|  [head, previous), at most capacity: newest first
 *
 * Forward: empty at head when head - tail is more than the capacity or not a multiple of 8 (head jumped or moved
 * backward). Reverse: previous_head 0 = everything ever written; empty when head is not a multiple of 8. */
struct pb_window pb_window_forward(uint64_t head, uint64_t tail, uint64_t capacity);
struct pb_window pb_window_reverse(uint64_t head, uint64_t previous_head, uint64_t capacity);

/* 1 when sample_type has nothing but RAW (which it must have), TID, TIME and CPU, so that a walk understands it. */
int pb_sample_type_known(uint64_t sample_type);

/* Walks arena[arena_offset, arena_offset + bytes), which is linear (a copy) and 8-aligned; checks every record before
 * it is touched, and fills at most frame_capacity frames in address order (PB_NO_ROOM when there are more). With
 * frames NULL it only counts. flags: enum pb_walk_flags. */
enum pb_status pb_ring_walk(const uint8_t *arena, uint64_t arena_offset, uint64_t bytes, uint64_t sample_type,
                            uint16_t cpu, uint32_t flags, struct pb_frame *frames, uint32_t frame_capacity,
                            struct pb_walk *walk);

/* Adds one walk to a sum. */
void pb_walk_add(struct pb_walk *total, const struct pb_walk *walk);

/* data_head, acquired. */
uint64_t pb_ring_head(const struct pb_ring *ring);

/* Newest first to oldest first, in place. A LOST record stays before the sample it came with. */
void pb_frames_reverse(struct pb_frame *frames, uint64_t count, uint64_t sample_type);

/* Bytes that wait in forward rings (data_head - data_tail, added up); a jump of the head counts as something. */
uint64_t pb_rings_pending(const struct pb_ring *rings, uint32_t count);

/* Forward: of each ring, copies at most slice_bytes from the tail on to arena + i * slice_bytes, walks the copy, and
 * release-stores the new tail behind the last whole record (behind everything where the walk stopped: the next record's
 * start is not known). `total` is the sum of all walks, *left_bytes what the slices had no room for.
 * slice_bytes: a multiple of 8, at least PB_FRAME_MAX_BYTES or the capacity. Else PB_INVALID, and no tail has moved. */
enum pb_status pb_rings_drain(const struct pb_ring *rings, uint32_t count, uint8_t *arena, uint64_t slice_bytes,
                              uint64_t sample_type, struct pb_ring_state *states, struct pb_walk *total,
                              uint64_t *left_bytes);

/* Fills the array with the frames of what a drain copied (total->frames of them), one ring after the other. Who only
 * counts does without. PB_NO_ROOM when there are more than frame_capacity: the array is untouched then. */
enum pb_status pb_rings_drain_frames(const struct pb_ring_state *states, uint32_t count, const uint8_t *arena,
                                     uint64_t sample_type, struct pb_frame *frames, uint64_t frame_capacity);

/* Reverse, un-paused (DESIGN 5). Three steps; no cursor moves before the last:
 *  copy    each ring from data_head on to arena + the capacities before it, then reads the head again: valid is what
 *          cannot have been overwritten meanwhile, with slack_bytes (a multiple of 8) of writers in flight.
 *          `everything`: all that is held, else only what lies behind the cursor.
 *  settle  after a grace period that ended every writer in flight: the same without slack; the larger part holds.
 *  count   walks the copies and counts: states[i].walk, .overwritten_bytes, .first_frame; `total` is their sum.
 *  frames  fills the array (total->frames of them), ring by ring, oldest first, and moves the cursors. */
enum pb_status pb_rings_snapshot_copy(const struct pb_ring *rings, uint32_t count, uint32_t everything,
                                      uint64_t slack_bytes, uint8_t *arena, struct pb_ring_state *states);
enum pb_status pb_rings_snapshot_settle(const struct pb_ring *rings, uint32_t count, struct pb_ring_state *states);
enum pb_status pb_rings_snapshot_count(const struct pb_ring *rings, uint32_t count, const uint8_t *arena,
                                       uint64_t sample_type, struct pb_ring_state *states, struct pb_walk *total);
enum pb_status pb_rings_snapshot_frames(struct pb_ring *rings, uint32_t count, const uint8_t *arena,
                                        uint64_t sample_type, struct pb_frame *frames, uint64_t frame_capacity,
                                        const struct pb_ring_state *states);

/* Merges the states' runs of frames by time_ns into `merged` (as many as all runs have); inside a run the order stays.
 * `heap` has room for `count` elements. */
struct pb_run {
	uint64_t next;
	uint64_t end;
};
void pb_frames_merge(const struct pb_frame *frames, const struct pb_ring_state *states, uint32_t count,
                     struct pb_run *heap, struct pb_frame *merged);
/* cffi: end */

/* Whether the frames that a drain or snapshot has counted can be made: PB_INVALID: not of this sample type; PB_NO_ROOM. */
enum pb_status pb_frames_check(const struct pb_ring_state *states, uint32_t count, uint64_t sample_type,
                               uint64_t frame_capacity);

#endif
