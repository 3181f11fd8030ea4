/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reading.c: see reading.h. A failure costs a hash of its path or address and a look into a small table; a call that
 * worked a compare.
 */
#include "reading.h"
#include "text.h"

enum { SHORTEST_WAIT_NS = 1000000 };

static uint64_t mix(uint64_t hash, uint64_t value)
{
	return (hash ^ value) * 0x100000001b3u;
}

/* Of what the call was about: its first path and address. */
static uint64_t subject(const struct pb_call *call)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (uint32_t i = 0; i < 6; i++) {
		const struct pb_capture_view *view = call->exit[i].head.kind ? &call->exit[i] : &call->enter[i];

		if (view->head.kind != PB_CAPTURE_STRING && view->head.kind != PB_CAPTURE_SOCKADDR)
			continue;
		for (uint32_t at = 0; at < view->head.bytes; at++)
			hash = mix(hash, view->data[at]);
	}
	return hash;
}

static void fill(struct pb_finding *finding, const struct pb_event *event, const struct pb_thread *thread,
                 uint32_t tgid, const char *line, uint32_t bytes)
{
	finding->last_ns = event->time_ns;
	finding->instance = event->instance;
	finding->sequence = event->sequence;
	finding->tid = thread->tid;
	finding->tgid = tgid;
	finding->kind = event->kind;
	finding->line_bytes = (uint16_t)(bytes < PB_FINDING_LINE_BYTES ? bytes : PB_FINDING_LINE_BYTES);
	memcpy(finding->line, line, finding->line_bytes);
}

/* The finding of that key, a new one when there is room. */
static struct pb_finding *find(struct pb_reading *reading, uint64_t key)
{
	for (uint32_t probe = 0, at = (uint32_t)(key >> 20) % PB_FINDINGS; probe < PB_FINDINGS; probe++) {
		struct pb_finding *finding = &reading->findings[at];

		if (!finding->count) {
			if (reading->finding_count == PB_FINDINGS / 2)
				return NULL; /* probes stay short */
			reading->finding_count++;
			finding->key = key;
			return finding;
		}
		if (finding->key == key)
			return finding;
		at = (at + 1) % PB_FINDINGS;
	}
	return NULL;
}

static struct pb_finding *note(struct pb_reading *reading, uint64_t key)
{
	struct pb_finding *finding = find(reading, key);

	if (!finding) {
		reading->others++;
		return NULL;
	}
	finding->count++;
	return finding;
}

/* Counts a record once, though it may be encoded again for the next chunk. False: it was counted. */
static bool first_time(struct pb_reading *reading, uint64_t index)
{
	if (reading->last_event == index + 1)
		return false;
	reading->last_event = index + 1;
	reading->records++;
	return true;
}

/* The error of a call, or the one that getsockopt(SO_ERROR) read. */
static uint32_t error_of(const struct pb_call *call)
{
	for (uint32_t i = 0; i < call->arguments && !call->error; i++) {
		const struct pb_capture_view *view = &call->exit[i];
		int32_t value = 0;

		if (call->args[i].kind != PB_ARG_ERROR_POINTER || view->head.kind != PB_CAPTURE_WORD ||
		    view->head.flags & PB_CAPTURE_FAULT || view->head.bytes < sizeof(value))
			continue;
		memcpy(&value, view->data, sizeof(value));
		return value > 0 ? (uint32_t)value : 0;
	}
	return call->error;
}

static void note_duration(struct pb_finding *longest, const struct pb_event *event, const struct pb_thread *thread,
                          uint32_t tgid, const struct pb_call *call, uint64_t duration_ns, const char *line,
                          uint32_t bytes)
{
	if (duration_ns < SHORTEST_WAIT_NS || duration_ns <= longest->duration_ns)
		return;
	fill(longest, event, thread, tgid, line, bytes);
	longest->count = 1;
	longest->number = call->syscall.number;
	longest->error = call->error;
	longest->flags = call->syscall.record.flags;
	longest->duration_ns = duration_ns;
}

void pb_reading_call(struct pb_reading *reading, uint64_t index, const struct pb_event *event,
                     const struct pb_thread *thread, uint32_t tgid, const struct pb_call *call, const char *line,
                     uint32_t bytes)
{
	uint8_t flags = call->syscall.record.flags;
	uint32_t number = call->syscall.number, error = call->in_flight ? 0 : error_of(call);
	uint64_t age_ns = event->seen_ns > event->time_ns ? event->seen_ns - event->time_ns : 0;
	struct pb_finding *finding;

	if (!first_time(reading, index))
		return;
	if (call->in_flight && number < PB_SYSCALLS && !(flags & PB_FLAG_BEGAN_BEFORE))
		note_duration(&reading->in_flight[number], event, thread, tgid, call, age_ns, line, bytes);
	else if (!call->in_flight && number < PB_SYSCALLS && !(flags & PB_FLAG_EXIT_ONLY))
		note_duration(&reading->waits[number], event, thread, tgid, call, call->syscall.duration_ns, line,
		              bytes);
	if (!error || flags & PB_FLAG_NO_RETURN)
		return;
	finding = note(reading, mix(mix(mix(subject(call), number), error), flags & PB_FLAG_EXIT_ONLY));
	if (!finding)
		return;
	fill(finding, event, thread, tgid, line, bytes);
	finding->number = number;
	finding->error = error;
	finding->flags = flags;
	finding->duration_ns = call->syscall.duration_ns;
}

void pb_reading_other(struct pb_reading *reading, uint64_t index, const struct pb_event *event,
                      const struct pb_thread *thread, uint32_t tgid, uint32_t status, const char *line, uint32_t bytes)
{
	struct pb_finding *finding;

	if (!first_time(reading, index))
		return;
	if (event->kind != PB_RECORD_OOM_KILL &&
	    !((event->kind == PB_RECORD_SIGNAL || event->kind == PB_RECORD_EXIT) && status))
		return;
	finding = note(reading, mix(mix(mix(0, event->kind), status), event->kind == PB_RECORD_EXIT ? tgid : 0));
	if (!finding)
		return;
	fill(finding, event, thread, tgid, line, bytes);
	finding->status = status;
}
