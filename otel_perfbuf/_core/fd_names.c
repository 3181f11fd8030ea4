/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_names.c: the table of every process's fds, carried forward through a history event by event.
 * What it is not: it makes no text (fd_things.c). Source: fd_names.h.
 *
 * Forgetting all fds of a process costs nothing: entries carry the generation that they were set in.
 */
#include "fd_things.h"

enum {
	CLONE_FS_FLAG = 0x200,
	CLONE_FILES_FLAG = 0x400,
	CLONE_THREAD_FLAG = 0x10000,
	UNSHARES_DIRECTORY = 0x200 | 0x20000 | 0x10000000, /* CLONE_FS; CLONE_NEWNS and CLONE_NEWUSER imply it */
	RANGE_UNSHARE = 2,
	RANGE_ON_EXEC = 4,
	ERROR_BAD_FD = 9,
	ERROR_IN_PROGRESS = 115,
};

/* ---- entries ---- */

static uint32_t *bucket_of(const struct pb_fd_names *names, uint32_t process, int32_t fd)
{
	uint64_t key = ((uint64_t)process << 32 | (uint32_t)fd) * 0x9e3779b97f4a7c15u;
	uint32_t at = (uint32_t)(key >> 32) & (names->bucket_count - 1);

	while (names->buckets[at]) {
		const struct pb_fd_entry *entry = &names->entries[names->buckets[at] - 1];

		if (entry->process == process && entry->fd == fd)
			break;
		at = (at + 1) & (names->bucket_count - 1);
	}
	return &names->buckets[at];
}

struct pb_fd_entry *pb_fd_entry_find(const struct pb_fd_names *names, uint32_t process, int32_t fd)
{
	uint32_t index = *bucket_of(names, process, fd);

	return index ? &names->entries[index - 1] : NULL;
}

/* Nothing is known of this process any more, and never will be. */
static void give_up(struct pb_fd_process *process)
{
	process->unknowable = 1;
	process->generation++;
	process->seeds_to_ns = 0;
}

/* The entry, made when there is none; NULL: no room, and then the process has no names. */
struct pb_fd_entry *pb_fd_entry_for(struct pb_fd_names *names, uint32_t process, int32_t fd)
{
	uint32_t *bucket = bucket_of(names, process, fd);
	struct pb_fd_process *owner = &names->processes[process];
	struct pb_fd_entry *entry;

	if (*bucket)
		return &names->entries[*bucket - 1];
	if (names->entry_count == names->entry_capacity) {
		give_up(owner);
		return NULL;
	}
	entry = &names->entries[names->entry_count];
	*entry = (struct pb_fd_entry){ .process = process, .fd = fd, .next = owner->first };
	*bucket = owner->first = ++names->entry_count;
	return entry;
}

static bool seed_holds(const struct pb_fd_names *names, const struct pb_fd_entry *entry)
{
	return entry->seed && names->now_ns >= entry->seed_from_ns &&
	       names->now_ns <= names->processes[entry->process].seeds_to_ns;
}

static uint32_t thing_of(const struct pb_fd_names *names, const struct pb_fd_entry *entry)
{
	const struct pb_fd_process *process = &names->processes[entry->process];

	if (seed_holds(names, entry))
		return entry->seed;
	return process->blind || !names->complete || entry->generation != process->generation ? 0 : entry->thing;
}

const struct pb_fd_thing *pb_fd_name(const struct pb_fd_names *names, uint32_t process, int32_t fd)
{
	const struct pb_fd_entry *entry = pb_fd_entry_find(names, process, fd);
	uint32_t thing = entry ? thing_of(names, entry) : 0;

	return thing ? &names->things[thing - 1] : NULL;
}

/* The fd is `thing` from now on (0: of what is not known). */
static void set(struct pb_fd_names *names, uint32_t process, int32_t fd, uint32_t thing, uint32_t on_exec)
{
	struct pb_fd_process *owner = &names->processes[process];
	struct pb_fd_entry *entry = pb_fd_entry_find(names, process, fd);

	if (owner->unknowable || (!entry && !thing))
		return;
	entry = entry ? entry : pb_fd_entry_for(names, process, fd);
	if (!entry)
		return;
	if (names->now_ns > owner->seen_ns)
		entry->seed = 0;
	entry->thing = thing;
	entry->on_exec = on_exec;
	entry->generation = owner->generation;
}

static uint32_t on_exec_of(const struct pb_fd_names *names, const struct pb_fd_entry *entry)
{
	return seed_holds(names, entry) ? entry->seed_on_exec : entry->on_exec;
}

/* The fd is a call's result. Where another call had the same number as its result within this one, nobody knows which
 * of the two files came last: one was closed by a third thread. */
static void set_result(struct pb_fd_names *names, uint32_t process, int32_t fd, uint32_t thing, uint32_t on_exec,
                       uint64_t begin_ns)
{
	struct pb_fd_entry *entry = pb_fd_entry_find(names, process, fd);

	set(names, process, fd, entry && entry->made_ns > begin_ns ? 0 : thing, on_exec);
	entry = pb_fd_entry_find(names, process, fd);
	if (entry)
		entry->made_ns = names->now_ns;
}

static void mark_on_exec(struct pb_fd_names *names, uint32_t process, int32_t fd, uint32_t on_exec)
{
	struct pb_fd_entry *entry = pb_fd_entry_find(names, process, fd);

	if (!entry)
		return;
	entry->on_exec = on_exec;
	if (names->now_ns > names->processes[process].seen_ns)
		entry->seed_on_exec = on_exec;
}

static void forget(struct pb_fd_names *names, uint32_t process)
{
	names->processes[process].generation++;
}

/* ---- effects ---- */

static void apply_range(struct pb_fd_names *names, uint32_t process, const struct pb_call *call)
{
	uint32_t first = (uint32_t)call->syscall.args[0], last = (uint32_t)call->syscall.args[1];

	for (uint32_t at = names->processes[process].first; at; at = names->entries[at - 1].next) {
		struct pb_fd_entry *entry = &names->entries[at - 1];

		if (entry->fd < 0 || (uint32_t)entry->fd < first || (uint32_t)entry->fd > last)
			continue;
		if (call->syscall.args[2] & RANGE_ON_EXEC)
			mark_on_exec(names, process, entry->fd, PB_FD_EXEC_CLOSES);
		else
			set(names, process, entry->fd, 0, 0);
	}
}

static void apply_pair(struct pb_fd_names *names, uint32_t process, const struct pb_call *call,
                       const struct pb_fd_rule *rule, uint32_t thing)
{
	uint32_t on_exec = pb_fd_on_exec(call, rule);
	int32_t pair[2];

	if (!pb_fd_pair(call, rule, pair))
		return;
	set(names, process, pair[0], thing, on_exec);
	set(names, process, pair[1], thing, on_exec);
}

/* From here on fds cannot be followed: a thread has a table or a working directory of its own, two processes share one,
 * or they change without calls. */
bool pb_fd_is_unknowable(const struct pb_call *call)
{
	uint64_t flags = call->syscall.args[0];

	if (call->error)
		return false;
	if (call->row->fds.action == PB_FD_UNSHARE)
		return flags & (CLONE_FILES_FLAG | UNSHARES_DIRECTORY);
	if (call->row->fds.action == PB_FD_CLONE)
		return pb_fd_flags(call, &call->row->fds, &flags) &&
		       (!(flags & CLONE_FILES_FLAG) != !(flags & CLONE_THREAD_FLAG) ||
		        !(flags & CLONE_FS_FLAG) != !(flags & CLONE_THREAD_FLAG));
	return call->row->fds.action == PB_FD_UNKNOWABLE;
}

/* What the call does at its end. */
static void apply(struct pb_fd_names *names, uint64_t index)
{
	const struct pb_event *event = &names->history->events[index];
	uint32_t process = names->history->threads[event->thread].process;
	const struct pb_fd_rule *rule;
	struct pb_call call;
	int32_t result;
	uint32_t thing;

	pb_call_load(&call, event, names->plan);
	rule = &call.row->fds;
	result = (int32_t)call.syscall.result;
	thing = pb_fd_thing_make(names, &call, process);
	switch (rule->action) {
	case PB_FD_FCNTL:
		if (pb_fd_fcntl_copies(&call))
			set_result(names, process, result, thing, pb_fd_on_exec(&call, rule), event->time_ns);
		break;
	case PB_FD_PAIR:
		apply_pair(names, process, &call, rule, thing);
		break;
	case PB_FD_BIND:
	case PB_FD_LOCAL:
	case PB_FD_CONNECT: {
		const struct pb_fd_entry *entry =
			pb_fd_entry_find(names, process, (int32_t)call.syscall.args[rule->fd]);

		if (entry && (thing || rule->action != PB_FD_LOCAL))
			set(names, process, entry->fd, thing, on_exec_of(names, entry));
		break;
	}
	case PB_FD_CHDIR:
	case PB_FD_FCHDIR:
		set(names, process, PB_FD_WORKING_DIRECTORY, thing, PB_FD_EXEC_STAYS);
		break;
	default:
		set_result(names, process, result, thing, pb_fd_on_exec(&call, rule), event->time_ns);
	}
}

/* What the call takes away at its begin. */
static void apply_begin(struct pb_fd_names *names, const struct pb_call *call, uint32_t process)
{
	const struct pb_fd_rule *rule = &call->row->fds;
	int32_t on_exec;

	switch (rule->action) {
	case PB_FD_CLOSE:
		if (call->error != ERROR_BAD_FD)
			set(names, process, (int32_t)call->syscall.args[rule->fd], 0, 0);
		break;
	case PB_FD_CLOSE_RANGE:
		if (call->error)
			break;
		apply_range(names, process, call);
		if (call->syscall.args[2] & RANGE_UNSHARE)
			give_up(&names->processes[process]);
		break;
	case PB_FD_COPY: /* dup2 of an fd to itself changes nothing */
		if (rule->path != PB_FD_NO_ARGUMENT && !call->error &&
		    (int32_t)call->syscall.args[rule->path] != (int32_t)call->syscall.args[rule->fd])
			set(names, process, (int32_t)call->syscall.args[rule->path], 0, 0);
		break;
	case PB_FD_FCNTL:
	case PB_FD_IOCTL:
		on_exec = call->error ? -1 : pb_fd_marks(call, rule);
		if (on_exec >= 0)
			mark_on_exec(names, process, (int32_t)call->syscall.args[rule->fd], (uint32_t)on_exec);
		break;
	case PB_FD_CHDIR:
	case PB_FD_FCHDIR:
		if (!call->error)
			set(names, process, PB_FD_WORKING_DIRECTORY, 0, 0);
		break;
	case PB_FD_CLONE:
	case PB_FD_UNSHARE:
	case PB_FD_UNKNOWABLE:
		if (pb_fd_is_unknowable(call))
			give_up(&names->processes[process]);
		break;
	default:
		break;
	}
}

static bool changes_at_end(const struct pb_call *call)
{
	uint8_t action = call->row->fds.action;

	switch (action) {
	case PB_FD_CLOSE:
	case PB_FD_CLOSE_RANGE:
	case PB_FD_IOCTL:
	case PB_FD_CLONE:
	case PB_FD_UNSHARE:
	case PB_FD_UNKNOWABLE:
		return false;
	case PB_FD_CONNECT:
		return !call->error || call->error == ERROR_IN_PROGRESS;
	default:
		return !call->error;
	}
}

/* ---- the walk ---- */

static void add_pending(struct pb_fd_names *names, uint64_t event, uint64_t end_ns)
{
	uint64_t at;

	/* one a thread: its last one has ended before its next call begins */
	if (names->pending_count == names->history->thread_count)
		return;
	for (at = names->pending_count++; at && names->pending[at - 1].end_ns < end_ns; at--)
		names->pending[at] = names->pending[at - 1];
	names->pending[at] = (struct pb_fd_pending){ end_ns, event };
}

/* The pending are ordered by their end, the first to end stands last. */
static void apply_pending(struct pb_fd_names *names, uint64_t until_ns)
{
	while (names->pending_count && names->pending[names->pending_count - 1].end_ns <= until_ns) {
		const struct pb_fd_pending *pending = &names->pending[--names->pending_count];

		names->now_ns = pending->end_ns;
		apply(names, pending->event);
	}
}

static void pass_call(struct pb_fd_names *names, uint64_t index, uint32_t process)
{
	const struct pb_event *event = &names->history->events[index];
	struct pb_call call;

	if (pb_fd_action_of(names->plan, event) == PB_FD_NONE)
		return;
	pb_call_load(&call, event, names->plan);
	if (!call.syscall.record.arguments && !call.error) { /* its begin was not seen: what it changed is not known */
		if (call.row->fds.action != PB_FD_LOCAL)
			forget(names, process);
		return;
	}
	apply_begin(names, &call, process);
	if (!call.in_flight && changes_at_end(&call))
		add_pending(names, index, event->time_ns + call.syscall.duration_ns);
}

/* The fds that stay open, in the new program. */
static void pass_exec(struct pb_fd_names *names, uint32_t process)
{
	for (uint32_t at = names->processes[process].first; at; at = names->entries[at - 1].next) {
		struct pb_fd_entry *entry = &names->entries[at - 1];

		if (on_exec_of(names, entry) != PB_FD_EXEC_STAYS && entry->fd >= 0)
			set(names, process, entry->fd, 0, 0);
	}
	names->processes[process].unknowable = 0;
}

/* The newest process with that id that had begun by then. */
static bool child_of(const struct pb_history *history, uint32_t tgid, uint64_t time_ns, uint32_t *child)
{
	uint64_t low = 0, high = history->process_count;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		const struct pb_process_entry *row = &history->processes[middle];

		if (row->tgid < tgid || (row->tgid == tgid && row->start_ns <= time_ns))
			low = middle + 1;
		else
			high = middle;
	}
	*child = (uint32_t)low - 1;
	return low && history->processes[low - 1].tgid == tgid;
}

static void pass_fork(struct pb_fd_names *names, const struct pb_event *event, uint32_t parent)
{
	struct pb_fork fork;
	uint32_t child;

	memcpy(&fork, event->record, sizeof(fork));
	if (fork.child_tid != fork.child_tgid || !child_of(names->history, fork.child_tgid, event->time_ns, &child) ||
	    child == parent)
		return;
	if (names->processes[parent].unknowable) {
		give_up(&names->processes[child]);
		return;
	}
	for (uint32_t at = names->processes[parent].first; at; at = names->entries[at - 1].next) {
		const struct pb_fd_entry *entry = &names->entries[at - 1];
		uint32_t thing = thing_of(names, entry);

		if (thing)
			set(names, child, entry->fd, thing, on_exec_of(names, entry));
	}
}

bool pb_fd_ends_gap(const struct pb_history *history, const struct pb_event *event)
{
	const struct pb_thread *thread = &history->threads[event->thread];

	return event->kind == PB_RECORD_LOST ||
	       (thread->first_sequence > 1 && event->sequence == thread->first_sequence);
}

bool pb_fd_begins_gap(const struct pb_event *event)
{
	return event->flags & PB_EVENT_BEFORE_GAP && event->kind != PB_RECORD_LOST;
}

/* Up to the event's begin. */
static void arrive(struct pb_fd_names *names, const struct pb_event *event)
{
	uint32_t process = names->history->threads[event->thread].process;

	apply_pending(names, event->time_ns);
	names->now_ns = event->time_ns;
	if (!names->complete && event->time_ns >= names->complete_since_ns) {
		names->complete = 1;
		for (uint64_t i = 0; i < names->history->process_count; i++) {
			if (names->history->processes[i].start_ns < names->complete_since_ns)
				forget(names, (uint32_t)i);
		}
	}
	if (pb_fd_ends_gap(names->history, event)) {
		forget(names, process);
		names->processes[process].blind -= names->processes[process].blind > 0;
	}
}

static void leave(struct pb_fd_names *names, uint64_t index)
{
	const struct pb_event *event = &names->history->events[index];
	uint32_t process = names->history->threads[event->thread].process;

	if (event->kind == PB_RECORD_SYSCALL)
		pass_call(names, index, process);
	else if (event->kind == PB_RECORD_EXEC)
		pass_exec(names, process);
	else if (event->kind == PB_RECORD_FORK)
		pass_fork(names, event, process);
	names->processes[process].blind += pb_fd_begins_gap(event);
}

void pb_fd_names_pass(struct pb_fd_names *names, uint64_t event)
{
	if (event >= names->history->event_count)
		return;
	for (;;) {
		if (names->next == names->arrived && names->next <= event)
			arrive(names, &names->history->events[names->arrived++]);
		if (names->next >= event)
			return;
		leave(names, names->next++);
	}
}
