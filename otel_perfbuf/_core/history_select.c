/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history_select.c: which events of a joined history go into a dump.
 * Source: CONTRACT.md section 3 (window, scope, max_records).
 */
#include "history.h"
#include "check.h"

/* A page that its thread sent within the window, at its end perhaps: what stands in it were the thread's own last calls
 * when the window began, and those are shown whatever their age. */
static bool sent_inside(const struct pb_event *event, uint64_t start_ns)
{
	struct pb_sample sample;

	if (!event->sample || event->kind == PB_RECORD_LOST)
		return false;
	memcpy(&sample, event->sample, sizeof(sample));
	return sample.kind != PB_SAMPLE_SINGLE && sample.sent_ns >= start_ns;
}

/* [time, end] of an event touches the window. */
static bool in_window(const struct pb_event *event, uint64_t start_ns, uint64_t end_ns)
{
	uint64_t ended = event->time_ns;
	struct pb_syscall call;

	if (event->time_ns <= end_ns && sent_inside(event, start_ns))
		return true;

	if (event->time_ns < start_ns && event->kind == PB_RECORD_SYSCALL) {
		memcpy(&call, event->record, offsetof(struct pb_syscall, args));
		ended = call.duration_ns > UINT64_MAX - ended ? UINT64_MAX : ended + call.duration_ns;
	}
	return event->time_ns <= end_ns && ended >= start_ns;
}

enum pb_status pb_history_select(struct pb_history *history, uint64_t start_ns, uint64_t end_ns, uint64_t max_records,
                                 uint64_t *selected, uint64_t *dropped)
{
	uint64_t pages = 0, rings = 0, room, skip;

	if (!history || !history->joined || !selected || !dropped)
		return PB_INVALID;
	for (uint64_t i = 0; i < history->process_count; i++)
		history->processes[i].selected = 0;
	history->gaps_selected = 0;
	for (uint64_t i = 0; i < history->event_count; i++) {
		struct pb_event *event = &history->events[i];

		event->flags &= (uint8_t)~PB_EVENT_SELECTED;
		if (event->flags & PB_EVENT_LATER ||
		    history->processes[history->threads[event->thread].process].scope != 1)
			continue;
		if (event->flags & PB_EVENT_PAGE)
			pages++;
		else if (in_window(event, start_ns, end_ns))
			rings++;
		else
			continue;
		event->flags |= PB_EVENT_SELECTED;
	}
	room = max_records > pages ? max_records - pages : 0;
	skip = rings > room ? rings - room : 0;
	*selected = pages + rings - skip;
	*dropped = skip;
	for (uint64_t i = 0; i < history->event_count; i++) {
		struct pb_event *event = &history->events[i];

		if (!(event->flags & PB_EVENT_SELECTED))
			continue;
		if (skip && !(event->flags & PB_EVENT_PAGE)) {
			event->flags &= (uint8_t)~PB_EVENT_SELECTED;
			skip--;
		} else {
			history->processes[history->threads[event->thread].process].selected++;
			history->gaps_selected += event->kind == PB_RECORD_LOST;
		}
	}
	return PB_OK;
}
