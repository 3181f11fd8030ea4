/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_things.c: what a call makes of its fd, in strace -yy's form as far as the call itself tells it: a path is the one
 * that was asked for, joined to its directory. What it is not: sockets (fd_sockets.c).
 * Source: strace 6.1's output; open(2), pipe(2), fcntl(2).
 */
#include "fd_things.h"

enum {
	FCNTL_COPY = 0,
	FCNTL_SET_FLAGS = 2,
	FCNTL_COPY_ON_EXEC = 1030,
	IOCTL_NO_EXEC = 0x5450, /* FIONCLEX */
	IOCTL_EXEC = 0x5451,    /* FIOCLEX */
	THING_MOST_BYTES = 8192,
	OPEN_UNNAMED = 0x400000, /* O_TMPFILE: the path is the directory's */
};

uint8_t pb_fd_action_of(const struct pb_plan *plan, const struct pb_event *event)
{
	struct pb_syscall call;

	if (event->kind != PB_RECORD_SYSCALL)
		return PB_FD_NONE;
	memcpy(&call, event->record, offsetof(struct pb_syscall, result));
	if (call.record.flags & PB_FLAG_COMPAT || call.number >= plan->syscall_count ||
	    !plan->syscalls[call.number].name)
		return PB_FD_NONE;
	return plan->syscalls[call.number].fds.action;
}

/* ---- arguments ---- */

const struct pb_capture_view *pb_fd_captured(const struct pb_call *call, uint8_t argument, uint8_t kind)
{
	const struct pb_capture_view *view;

	if (argument > 5)
		return NULL;
	view = call->exit[argument].head.kind == kind ? &call->exit[argument] : &call->enter[argument];
	return view->head.kind == kind && !(view->head.flags & PB_CAPTURE_FAULT) ? view : NULL;
}

bool pb_fd_flags(const struct pb_call *call, const struct pb_fd_rule *rule, uint64_t *flags)
{
	const struct pb_capture_view *view = pb_fd_captured(call, rule->flags, PB_CAPTURE_STRUCT);

	if (view && view->head.bytes >= sizeof(*flags)) {
		memcpy(flags, view->data, sizeof(*flags));
		return true;
	}
	*flags = rule->flags < 6 ? call->syscall.args[rule->flags] : 0;
	return rule->flags < 6 && !(*flags >> 32);
}

uint32_t pb_fd_on_exec(const struct pb_call *call, const struct pb_fd_rule *rule)
{
	uint64_t flags;

	if (rule->action == PB_FD_UNKNOWN)
		return PB_FD_EXEC_UNKNOWN;
	if (rule->action == PB_FD_FCNTL)
		return call->syscall.args[1] == FCNTL_COPY ? PB_FD_EXEC_STAYS : PB_FD_EXEC_CLOSES;
	if (!rule->close_on_exec)
		return PB_FD_EXEC_STAYS;
	if (rule->flags == PB_FD_NO_ARGUMENT)
		return PB_FD_EXEC_CLOSES;
	if (!pb_fd_flags(call, rule, &flags))
		return PB_FD_EXEC_UNKNOWN;
	return flags & rule->close_on_exec ? PB_FD_EXEC_CLOSES : PB_FD_EXEC_STAYS;
}

bool pb_fd_pair(const struct pb_call *call, const struct pb_fd_rule *rule, int32_t pair[2])
{
	const struct pb_capture_view *view = pb_fd_captured(call, rule->path, PB_CAPTURE_STRUCT);

	if (!view || view->head.bytes < 2 * sizeof(*pair))
		return false;
	memcpy(pair, view->data, 2 * sizeof(*pair));
	return true;
}

bool pb_fd_fcntl_copies(const struct pb_call *call)
{
	return call->syscall.args[1] == FCNTL_COPY || call->syscall.args[1] == FCNTL_COPY_ON_EXEC;
}

int32_t pb_fd_marks(const struct pb_call *call, const struct pb_fd_rule *rule)
{
	uint64_t command = call->syscall.args[1];

	if (rule->action == PB_FD_IOCTL)
		return command == IOCTL_EXEC ? PB_FD_EXEC_CLOSES : command == IOCTL_NO_EXEC ? PB_FD_EXEC_STAYS : -1;
	if (command != FCNTL_SET_FLAGS)
		return -1;
	return call->syscall.args[2] & 1 ? PB_FD_EXEC_CLOSES : PB_FD_EXEC_STAYS;
}

/* ---- text ---- */

/* As strace escapes what stands between < and >. */
static void put_escaped(struct pb_writer *out, const struct pb_capture_view *view, uint32_t from)
{
	for (uint32_t i = from; i < view->head.bytes; i++) {
		uint8_t byte = view->data[i], after = i + 1 < view->head.bytes ? view->data[i + 1] : 0;

		if (byte != '<' && byte != '>')
			continue;
		pb_put_escaped(out, view->data + from, i - from);
		pb_put(out, after >= '0' && after <= '9' ? "\\0" : "\\");
		pb_put(out, byte == '<' ? "74" : "76");
		from = i + 1;
	}
	pb_put_escaped(out, view->data + from, view->head.bytes - from);
	if (view->head.flags & PB_CAPTURE_CUT)
		pb_put(out, "...");
}

/* A directory's path without its brackets, and one slash. */
static void put_directory(struct pb_writer *out, const struct pb_fd_thing *directory)
{
	uint32_t bytes = directory->bytes - 2;

	pb_put_bytes(out, directory->text + 1, bytes);
	if (directory->text[bytes] != '/')
		pb_put_char(out, '/');
}

static const struct pb_fd_thing *directory_of(const struct pb_fd_names *names, const struct pb_call *call,
                                              uint32_t process, const struct pb_fd_rule *rule)
{
	int32_t fd = rule->fd < 6 ? (int32_t)call->syscall.args[rule->fd] : PB_FD_WORKING_DIRECTORY;
	const struct pb_fd_thing *thing = pb_fd_name(names, process, fd);

	return thing && thing->bytes > 2 && thing->text[1] == '/' && thing->text[thing->bytes - 1] == '>' ? thing
	                                                                                                  : NULL;
}

/* How much of a relative path says nothing: ./ in front, as often as it stands there. */
static uint32_t skip_here(const struct pb_capture_view *path)
{
	uint32_t at = 0;

	while (at + 1 < path->head.bytes && path->data[at] == '.' && path->data[at + 1] == '/') {
		at += 2;
		while (at < path->head.bytes && path->data[at] == '/')
			at++;
	}
	return at;
}

static bool put_path(struct pb_writer *out, const struct pb_fd_names *names, const struct pb_call *call,
                     uint32_t process)
{
	const struct pb_fd_rule *rule = &call->row->fds;
	const struct pb_capture_view *path = pb_fd_captured(call, rule->path, PB_CAPTURE_STRING);
	const struct pb_fd_thing *directory;
	uint64_t flags;
	uint32_t from;

	if (pb_fd_flags(call, rule, &flags) && flags & OPEN_UNNAMED)
		return false;
	if (!path || path->head.kind != PB_CAPTURE_STRING || !path->head.bytes)
		return false;
	directory = path->data[0] == '/' ? NULL : directory_of(names, call, process, rule);
	if (path->data[0] != '/' && !directory)
		return false; /* of which of all the files with this name? */
	from = directory ? skip_here(path) : 0;
	pb_put_char(out, '<');
	if (from == path->head.bytes || (directory && path->head.bytes - from == 1 && path->data[from] == '.')) {
		pb_put_bytes(out, directory->text + 1, directory->bytes - 2);
	} else {
		if (directory)
			put_directory(out, directory);
		put_escaped(out, path, from);
	}
	pb_put_char(out, '>');
	return true;
}

static bool put_named(struct pb_writer *out, const struct pb_call *call)
{
	const struct pb_fd_rule *rule = &call->row->fds;
	const struct pb_capture_view *name = pb_fd_captured(call, rule->path, PB_CAPTURE_STRING);
	const char *mark = strchr(rule->text, '%');

	if (!mark) {
		pb_put(out, rule->text);
		return true;
	}
	if (!name)
		return false;
	pb_put_bytes(out, rule->text, (uint64_t)(mark - rule->text));
	put_escaped(out, name, 0);
	pb_put(out, mark + 1);
	return true;
}

static bool put_copy(struct pb_writer *out, const struct pb_fd_names *names, const struct pb_call *call,
                     uint32_t process, struct pb_fd_thing *thing)
{
	const struct pb_fd_thing *from = pb_fd_name(names, process, (int32_t)call->syscall.args[call->row->fds.fd]);

	if (!from)
		return false;
	*thing = *from;
	pb_put_bytes(out, from->text, from->bytes);
	return true;
}

bool pb_fd_thing_put(struct pb_writer *out, const struct pb_fd_names *names, const struct pb_call *call,
                     uint32_t process, struct pb_fd_thing *thing)
{
	*thing = (struct pb_fd_thing){ 0 };
	switch (call->row->fds.action) {
	case PB_FD_PATH:
	case PB_FD_CHDIR:
		return put_path(out, names, call, process);
	case PB_FD_NAMED:
		return put_named(out, call);
	case PB_FD_PAIR:
		return call->row->fds.text ? put_named(out, call) : pb_fd_socket_new(out, call, thing);
	case PB_FD_SOCKET:
		return pb_fd_socket_new(out, call, thing);
	case PB_FD_ACCEPT:
	case PB_FD_BIND:
	case PB_FD_LOCAL:
	case PB_FD_CONNECT:
		return pb_fd_socket_put(out, names, call, process, thing);
	case PB_FD_FCNTL:
		return pb_fd_fcntl_copies(call) && put_copy(out, names, call, process, thing);
	case PB_FD_COPY:
	case PB_FD_FCHDIR:
		return put_copy(out, names, call, process, thing);
	default:
		return false;
	}
}

/* The next thing, whose text is what was written behind the others'. */
static uint32_t keep(struct pb_fd_names *names, const struct pb_writer *text, struct pb_fd_thing *thing)
{
	if (names->thing_count == names->thing_capacity || text->size == text->capacity)
		return 0;
	thing->text = text->data;
	thing->bytes = (uint32_t)text->size;
	names->things[names->thing_count] = *thing;
	names->text_bytes += text->size;
	return ++names->thing_count;
}

static struct pb_writer writer_of(const struct pb_fd_names *names)
{
	uint64_t room = names->text_capacity - names->text_bytes;

	return (struct pb_writer){ names->text + names->text_bytes, 0,
		                   room < THING_MOST_BYTES ? room : THING_MOST_BYTES };
}

uint32_t pb_fd_thing_make(struct pb_fd_names *names, const struct pb_call *call, uint32_t process)
{
	struct pb_writer text = writer_of(names);
	struct pb_fd_thing thing;

	return pb_fd_thing_put(&text, names, call, process, &thing) ? keep(names, &text, &thing) : 0;
}

uint32_t pb_fd_thing_keep(struct pb_fd_names *names, const char *given, uint32_t bytes)
{
	struct pb_writer text = writer_of(names);
	struct pb_fd_thing thing = { 0 };
	uint8_t redacted[PB_REDACTED_BYTES];
	uint32_t written = 0;

	/* what would be left has no brackets any more, perhaps: better none */
	if (names->plan->redaction &&
	    pb_redact(names->plan->redaction, (const uint8_t *)given, bytes, redacted, sizeof(redacted), &written))
		return 0;
	pb_put_bytes(&text, given, bytes);
	return keep(names, &text, &thing);
}

bool pb_put_fd_name(struct pb_writer *out, const struct pb_call *call, int32_t fd)
{
	const struct pb_fd_thing *thing = call->fds ? pb_fd_name(call->fds, call->process, fd) : NULL;

	if (!thing)
		return false;
	pb_put_bytes(out, thing->text, thing->bytes);
	return true;
}

void pb_put_result_name(struct pb_writer *out, const struct pb_call *call)
{
	struct pb_writer text = *out;
	struct pb_fd_thing thing;

	if (call->fds && call->row && !call->error && pb_fd_thing_put(&text, call->fds, call, call->process, &thing))
		*out = text;
}
