/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history_senders.c: what the samples of a shared ring say of the CPUs that sent them: where each CPU's part begins and
 * ends. What it is not: it reads no records (history.c). Source: bpf/records.h (struct pb_sample).
 */
#include "history.h"
#include "check.h"

enum { SAMPLE_FRAME = 9 }; /* PERF_RECORD_SAMPLE */

static void count_sample(struct pb_sender *sender, const struct pb_sample *sample)
{
	if (!sender->samples++) {
		sender->before = sample->ring_records;
		sender->first_ns = sample->sent_ns;
	} else if (!sender->later_ns && sample->sent_ns > sender->first_ns + 1) {
		/* One handler's run sends under one time, and a thread's last page but one under 1 ns before. */
		sender->later_ns = sample->sent_ns;
	}
	sender->records += sample->records;
	sender->end = sample->ring_records + sample->records;
}

enum pb_status pb_history_senders(const uint8_t *arena, const struct pb_frame *frames, uint64_t frame_count,
                                  struct pb_sender *senders, uint32_t cpu_count)
{
	if (!senders || (frame_count && (!arena || !frames)))
		return PB_INVALID;
	memset(senders, 0, cpu_count * sizeof(*senders));
	for (uint64_t i = 0; i < frame_count; i++) {
		struct pb_sample sample;
		struct pb_cursor cursor;

		if (frames[i].type == SAMPLE_FRAME &&
		    pb_sample_open(arena + frames[i].offset, frames[i].bytes, &sample, &cursor) &&
		    sample.cpu < cpu_count)
			count_sample(&senders[sample.cpu], &sample);
	}
	return PB_OK;
}
