/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringbuf.h: a BPF ring buffer in memory: drained by its one reader, or, overwritable, copied while writers go on.
 * Source: Linux kernel/bpf/ringbuf.c (struct bpf_ringbuf), include/uapi/linux/bpf.h (BPF_RINGBUF_BUSY_BIT).
 * What it is not: perf rings (ring.h); it opens, maps and waits for nothing.
 *
 *   consumer page   u64 consumer_pos                          written by the reader
 *   producer page   u64 producer_pos, pending_pos, overwrite_pos
 *   data            records: u32 length and flags, u32 page offset, bytes; each rounded up to 8
 */
#ifndef PERFBUF_RINGBUF_H
#define PERFBUF_RINGBUF_H

#include "ring.h"

/* cffi: begin */

enum pb_ringbuf_limits {
	PB_RINGBUF_HEADER_BYTES = 8,
};

/* One mapped ring buffer. The owner of the mapping fills it once and has checked that capacity is a power of two, at
 * least 8, and that [data, data + capacity) is mapped. */
struct pb_ringbuf {
	void *consumer; /* written (consumer_pos) */
	const void *producer;
	const uint8_t *data;
	uint64_t capacity;
	uint64_t cursor; /* overwritable: the end of the last snapshot */
};

/* What a drain left. */
struct pb_ringbuf_rest {
	uint64_t bytes; /* between the new consumer_pos and producer_pos */
	uint32_t busy;  /* 1: the next record is still being written */
	uint32_t discarded;
};

/* Bytes between consumer_pos and producer_pos (overwritable: that are held): records being written and thrown away
 * ones count too, headers as well. A position that jumped counts as a full ring. */
uint64_t pb_ringbuf_available(const struct pb_ringbuf *ring, uint32_t overwritable);

/* Copies whole records from consumer_pos on to the arena until `slice_bytes` of the ring are through, a record is still
 * being written, or arena_bytes or frame_capacity are used up; then release-stores consumer_pos. A header that leads
 * beyond producer_pos: malformed, and what lies behind is skipped, since the next record's start is not known.
 * Frames are PERF_RECORD_SAMPLE with cpu 0. arena_bytes: at least the capacity. */
enum pb_status pb_ringbuf_drain(const struct pb_ringbuf *ring, uint64_t slice_bytes, uint8_t *arena,
                                uint64_t arena_bytes, struct pb_frame *frames, uint64_t frame_capacity,
                                struct pb_ring_state *state, struct pb_ringbuf_rest *rest);

/* Overwritable (BPF_F_RB_OVERWRITE), in the order of FACTS 16. `copy` fills state but for .walk: arena[0,
 * state->valid_bytes) are whole committed records. `everything`: all that is held, else what lies behind the cursor.
 * `frames` walks the copy: with frames NULL it only counts; else it fills the array and moves the cursor.
 * arena: as large as the capacity. */
enum pb_status pb_ringbuf_snapshot_copy(const struct pb_ringbuf *ring, uint32_t everything, uint8_t *arena,
                                        struct pb_ring_state *state);
enum pb_status pb_ringbuf_snapshot_frames(struct pb_ringbuf *ring, const uint8_t *arena, struct pb_frame *frames,
                                          uint64_t frame_capacity, struct pb_ring_state *state);
/* cffi: end */
#endif
