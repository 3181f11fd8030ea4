/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_seeds.c: from when on each seed holds: behind the last record that touched its fd and the last gap of its process.
 * What it is not: the walk itself (fd_names.c). Source: fd_names.h.
 */
#include "fd_things.h"

/* The last one that is known to have touched the fd before the seed was taken; a call that was under way then leaves
 * no seed. */
static void touch(struct pb_fd_names *names, uint32_t process, int32_t fd, uint64_t begin_ns, uint64_t end_ns)
{
	uint64_t seen_ns = names->processes[process].seen_ns;
	struct pb_fd_entry *entry = pb_fd_entry_find(names, process, fd);

	if (!entry || begin_ns > seen_ns)
		return;
	if (end_ns > seen_ns)
		entry->seed = 0;
	else if (end_ns > entry->seed_from_ns)
		entry->seed_from_ns = end_ns;
}

static void touch_pair(struct pb_fd_names *names, uint32_t process, const struct pb_call *call, uint64_t begin_ns,
                       uint64_t end_ns)
{
	int32_t pair[2];

	if (!pb_fd_pair(call, &call->row->fds, pair)) {
		names->processes[process].blind_to_ns = UINT64_MAX;
		return;
	}
	touch(names, process, pair[0], begin_ns, end_ns);
	touch(names, process, pair[1], begin_ns, end_ns);
}

static void touch_range(struct pb_fd_names *names, uint32_t process, const struct pb_call *call, uint64_t begin_ns,
                        uint64_t end_ns)
{
	uint32_t first = (uint32_t)call->syscall.args[0], last = (uint32_t)call->syscall.args[1];

	for (uint32_t at = names->processes[process].first; at; at = names->entries[at - 1].next) {
		int32_t fd = names->entries[at - 1].fd;

		if (fd >= 0 && (uint32_t)fd >= first && (uint32_t)fd <= last)
			touch(names, process, fd, begin_ns, end_ns);
	}
}

static void touch_call(struct pb_fd_names *names, const struct pb_event *event, uint32_t process)
{
	uint64_t begin_ns = event->time_ns, end_ns;
	struct pb_call call;
	uint8_t action = pb_fd_action_of(names->plan, event);

	if (action == PB_FD_NONE || action == PB_FD_LOCAL)
		return;
	pb_call_load(&call, event, names->plan);
	if (call.in_flight) /* what it will do, it has not done yet; if it has meanwhile, its end stands beside it */
		return;
	end_ns = begin_ns + call.syscall.duration_ns;
	if (!call.syscall.record.arguments && !call.error && names->processes[process].blind_to_ns < end_ns)
		names->processes[process].blind_to_ns = end_ns;
	switch (action) {
	case PB_FD_CLOSE: /* what stands there later may have come without a call of its own: by recvmsg, for one */
		touch(names, process, (int32_t)call.syscall.args[call.row->fds.fd], begin_ns, end_ns);
		break;
	case PB_FD_CLOSE_RANGE:
		if (!call.error)
			touch_range(names, process, &call, begin_ns, end_ns);
		break;
	case PB_FD_IOCTL:
		break;
	case PB_FD_BIND:
	case PB_FD_CONNECT:
		touch(names, process, (int32_t)call.syscall.args[call.row->fds.fd], begin_ns, end_ns);
		break;
	case PB_FD_PAIR:
		if (!call.error)
			touch_pair(names, process, &call, begin_ns, end_ns);
		break;
	case PB_FD_CHDIR:
	case PB_FD_FCHDIR:
		if (!call.error)
			touch(names, process, PB_FD_WORKING_DIRECTORY, begin_ns, end_ns);
		break;
	case PB_FD_CLONE:
	case PB_FD_UNSHARE:
	case PB_FD_UNKNOWABLE:
		if (pb_fd_is_unknowable(&call))
			names->processes[process].blind_to_ns = UINT64_MAX;
		break;
	default:
		if (!call.error && (action != PB_FD_FCNTL || pb_fd_fcntl_copies(&call)))
			touch(names, process, (int32_t)call.syscall.result, begin_ns, end_ns);
	}
}

/* One event of a process that has seeds. */
static void look(struct pb_fd_names *names, const struct pb_event *event, uint32_t process)
{
	struct pb_fd_process *owner = &names->processes[process];

	if (event->time_ns > owner->seen_ns) {
		if (owner->blind && owner->seeds_to_ns == UINT64_MAX)
			owner->blind_to_ns = UINT64_MAX;
		if (pb_fd_begins_gap(event) && event->time_ns < owner->seeds_to_ns)
			owner->seeds_to_ns = event->time_ns;
		return;
	}
	if (pb_fd_ends_gap(names->history, event)) {
		owner->blind -= owner->blind > 0;
		if (owner->blind_to_ns < event->time_ns)
			owner->blind_to_ns = event->time_ns;
	}
	if (event->kind == PB_RECORD_SYSCALL)
		touch_call(names, event, process);
	owner->blind += pb_fd_begins_gap(event);
}

/* Threads whose first records are missing. */
static void count_blind(struct pb_fd_names *names)
{
	const struct pb_history *history = names->history;

	for (uint64_t i = 0; i < history->process_count; i++)
		names->processes[i].blind = 0;
	for (uint64_t i = 0; i < history->thread_count; i++) {
		const struct pb_thread *thread = &history->threads[i];

		names->processes[thread->process].blind += thread->first_sequence > 1 || !thread->first_sequence;
	}
}

static void add_seed(struct pb_fd_names *names, const struct pb_fd_seed *seed)
{
	struct pb_fd_process *owner = &names->processes[seed->process];
	struct pb_fd_entry *entry = pb_fd_entry_for(names, seed->process, seed->fd);

	if (!entry)
		return;
	entry->seed = pb_fd_thing_keep(names, seed->text, seed->text_bytes);
	entry->seed_on_exec = seed->on_exec;
	owner->seen_ns = seed->seen_ns;
	owner->seeds_to_ns = UINT64_MAX;
}

static void bound_seeds(struct pb_fd_names *names)
{
	for (uint64_t i = 0; i < names->history->process_count; i++) {
		struct pb_fd_process *owner = &names->processes[i];

		if (owner->blind)
			owner->blind_to_ns = UINT64_MAX;
		else if (owner->blind_to_ns < names->complete_since_ns &&
		         names->history->processes[i].start_ns < names->complete_since_ns)
			owner->blind_to_ns = names->complete_since_ns;
	}
	for (uint32_t i = 0; i < names->entry_count; i++) {
		struct pb_fd_entry *entry = &names->entries[i];
		uint64_t blind_to_ns = names->processes[entry->process].blind_to_ns;

		if (blind_to_ns == UINT64_MAX)
			entry->seed = 0;
		else if (entry->seed_from_ns < blind_to_ns)
			entry->seed_from_ns = blind_to_ns;
	}
}

enum pb_status pb_fd_names_open(struct pb_fd_names *names, const struct pb_fd_seed *seeds, uint64_t seed_count)
{
	const struct pb_history *history = names ? names->history : NULL;

	if (!history || !history->joined || !names->plan || !names->bucket_count ||
	    names->bucket_count & (names->bucket_count - 1) || names->bucket_count / 2 < names->entry_capacity)
		return PB_INVALID;
	memset(names->processes, 0, history->process_count * sizeof(*names->processes));
	memset(names->buckets, 0, names->bucket_count * sizeof(*names->buckets));
	count_blind(names);
	for (uint64_t i = 0; i < seed_count; i++) {
		if (seeds[i].process >= history->process_count)
			return PB_INVALID;
		add_seed(names, &seeds[i]);
	}
	for (uint64_t i = 0; i < history->event_count && seed_count; i++) {
		uint32_t process = history->threads[history->events[i].thread].process;

		if (names->processes[process].seen_ns)
			look(names, &history->events[i], process);
	}
	bound_seeds(names);
	count_blind(names);
	return PB_OK;
}
