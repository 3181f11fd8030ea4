/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_memory.c: kinds that show what was captured behind a pointer: strings, buffers, argv, lengths, addresses.
 * Without a capture (not taken, could not be read, a failed call's output, in flight) the address is shown, as strace
 * does. Source: strace 6.1's output; bpf/records.h for captures.
 */
#include "text.h"

enum { COMM_SHOWN = 15, STRINGS_SHOWN = 32 }; /* of argv, as strace */

static bool usable(const struct pb_capture_view *view, uint8_t kind)
{
	return view->head.kind == kind && !(view->head.flags & PB_CAPTURE_FAULT);
}

/* The newest capture of that kind: at exit, else at enter. */
static const struct pb_capture_view *find(const struct pb_call *call, uint32_t index, uint8_t kind)
{
	if (usable(&call->exit[index], kind))
		return &call->exit[index];
	return usable(&call->enter[index], kind) ? &call->enter[index] : NULL;
}

bool pb_usable_bytes(const struct pb_capture_view *view)
{
	return (view->head.kind == PB_CAPTURE_STRUCT || view->head.kind == PB_CAPTURE_BUFFER ||
	        view->head.kind == PB_CAPTURE_WORD) &&
	       !(view->head.flags & PB_CAPTURE_FAULT);
}

const struct pb_capture_view *pb_find_bytes(const struct pb_call *call, uint32_t index)
{
	/* what was given: both sides are captured where the call changes it */
	if (pb_usable_bytes(&call->enter[index]))
		return &call->enter[index];
	return pb_usable_bytes(&call->exit[index]) ? &call->exit[index] : NULL;
}

static bool word(const struct pb_capture_view *view, int32_t *value)
{
	if (!pb_usable_bytes(view) || view->head.bytes < sizeof(*value))
		return false;
	memcpy(value, view->data, sizeof(*value));
	return true;
}

static bool put_string(struct pb_writer *out, const struct pb_call *call, uint32_t index, uint32_t most)
{
	const struct pb_capture_view *view = find(call, index, PB_CAPTURE_STRING);
	uint32_t shown;

	if (!view)
		return false;
	shown = view->head.bytes < most ? view->head.bytes : most;
	pb_put_quoted(out, view->data, shown, shown < view->head.bytes || view->head.flags & PB_CAPTURE_CUT);
	return true;
}

/* strace looks at 15 bytes only: of a name as long it cannot know the end. */
static bool put_comm(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = find(call, index, PB_CAPTURE_STRING);

	if (!view)
		return false;
	pb_put_quoted(out, view->data, view->head.bytes < COMM_SHOWN ? view->head.bytes : COMM_SHOWN,
	              view->head.bytes >= COMM_SHOWN);
	return true;
}

static bool put_buffer(struct pb_writer *out, const struct pb_call *call, uint32_t index, bool hex)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	uint32_t shown;

	if (!view)
		return put_string(out, call, index, call->plan->string_bytes);
	shown = view->head.bytes < call->plan->string_bytes ? view->head.bytes : call->plan->string_bytes;
	if (view->head.flags & PB_CAPTURE_ENDS && shown < call->plan->string_bytes)
		return false;
	if (!hex) {
		pb_put_quoted(out, view->data, shown, shown < view->head.extent || view->head.flags & PB_CAPTURE_CUT);
		return true;
	}
	pb_put_quoted_hex(out, view->data, shown);
	if (shown < view->head.extent)
		pb_put(out, "...");
	return true;
}

/* argv: strings, each with its NUL; the last one has none when the capture was cut in it. */
static bool put_strings(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = find(call, index, PB_CAPTURE_STRINGS);
	uint32_t at = 0, count = 0, most = call->plan->string_bytes;

	if (!view)
		return false;
	pb_put_char(out, '[');
	while (at < view->head.bytes && count < STRINGS_SHOWN) {
		const uint8_t *end = memchr(view->data + at, 0, view->head.bytes - at);
		uint32_t size = end ? (uint32_t)(end - view->data) - at : view->head.bytes - at;

		if (count++)
			pb_put(out, ", ");
		pb_put_quoted(out, view->data + at, size < most ? size : most, size > most || !end);
		at += size + 1;
	}
	if (count < view->head.extent)
		pb_put(out, count ? ", ..." : "...");
	pb_put_char(out, ']');
	return true;
}

static bool put_environment(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = find(call, index, PB_CAPTURE_COUNT);

	if (!view || !call->syscall.args[index])
		return false;
	pb_put_hex(out, call->syscall.args[index]);
	pb_put(out, " /* ");
	pb_put_unsigned(out, view->head.extent);
	pb_put(out, view->head.extent == 1 ? " var */" : " vars */");
	return true;
}

/* A length that the kernel changes: what was given and what came back. */
static bool put_length(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	int32_t before = 0, after = 0;
	bool given = word(&call->enter[index], &before), got = word(&call->exit[index], &after);

	if (!given && !got)
		return false;
	pb_put_char(out, '[');
	pb_put_signed(out, given ? before : after);
	if (given && got && before != after && !call->error) {
		pb_put(out, " => ");
		pb_put_signed(out, after);
	}
	pb_put_char(out, ']');
	return true;
}

static bool put_word(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	int32_t value;

	if (!word(&call->exit[index], &value) && !word(&call->enter[index], &value))
		return false;
	pb_put_char(out, '[');
	pb_put_signed(out, value);
	pb_put_char(out, ']');
	return true;
}

/* getsockopt(SO_ERROR): where a connect that did not wait tells why it failed */
static bool put_error(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const char *name;
	int32_t value;

	if (!word(&call->exit[index], &value))
		return false;
	name = value > 0 ? pb_error_name(call->plan, (uint32_t)value, NULL) : NULL;
	pb_put_char(out, '[');
	if (name)
		pb_put(out, name);
	else
		pb_put_signed(out, value);
	pb_put_char(out, ']');
	return true;
}

static bool put_wait(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	int32_t status;

	/* a result of 0 (WNOHANG, nobody ended) leaves the word untouched */
	if (call->syscall.result <= 0 || !word(&call->exit[index], &status))
		return false;
	pb_put_wait_status(out, call->plan, status);
	return true;
}

static bool put_address_of(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = find(call, index, PB_CAPTURE_SOCKADDR);
	uint32_t length, captured;
	int32_t room;

	if (!view)
		return false;
	length = view->head.extent;
	captured = view->head.bytes;
	if (view->head.flags & PB_CAPTURE_ENDS)
		return false;
	/* an output address is written as far as the caller gave room */
	if (index < 5 && word(&call->enter[index + 1], &room) && room >= 0 && (uint32_t)room < length)
		length = (uint32_t)room;
	if (length < 2 || captured < 2)
		return false;
	pb_put_sockaddr(out, call->plan, view->data, captured < length ? captured : length, length);
	return true;
}

static bool put_pair(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = &call->exit[index];
	int32_t pair[2];

	if (!pb_usable_bytes(view) || view->head.bytes < sizeof(pair) || call->error)
		return false;
	memcpy(pair, view->data, sizeof(pair));
	pb_put_char(out, '[');
	pb_put_signed(out, pair[0]);
	pb_put(out, ", ");
	pb_put_signed(out, pair[1]);
	pb_put_char(out, ']');
	return true;
}

static bool put_set(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	uint64_t set;

	if (!view || view->head.bytes < sizeof(set))
		return false;
	memcpy(&set, view->data, sizeof(set));
	pb_put_sigset(out, call->plan, set);
	return true;
}

static bool put_record(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                       uint32_t index)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	uint64_t address = call->syscall.args[index];
	bool shown;

	if (!argument->change)
		return view && pb_put_struct(out, call, argument->table, view, address);
	view = &call->enter[index];
	shown = pb_usable_bytes(view) && pb_put_struct(out, call, argument->table, view, address);
	view = &call->exit[index];
	if (shown && !call->error && pb_usable_bytes(view)) {
		pb_put(out, " => ");
		pb_put_struct(out, call, argument->table, view, address);
	}
	return shown;
}

/* What was left of a sleep: the kernel writes it when a signal ended it. */
static bool put_remaining(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	enum { INTERRUPTED = 4, RESTART_BLOCK = 516 };
	const struct pb_capture_view *view = &call->exit[index];

	if ((call->error != RESTART_BLOCK && call->error != INTERRUPTED) || !pb_usable_bytes(view))
		return false;
	return pb_put_struct(out, call, call->plan->timespec, view, call->syscall.args[index]);
}

/* An int; SOL_SOCKET's (not `text`) are ints whatever follows, and one that is cut shows its bytes. */
static bool put_option(struct pb_writer *out, const struct pb_call *call, uint32_t index, bool text)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	uint32_t most = call->plan->string_bytes;
	int32_t value;

	if (!view || (!text && view->head.bytes < sizeof(value) && (call->error || !view->head.bytes)))
		return false;
	if (text && view->head.flags & PB_CAPTURE_ENDS)
		return false; /* strace shows all of it or nothing */
	if (!view->head.extent)
		return call->error && (pb_put(out, "\"\""), true);
	if (text && (view->head.extent != sizeof(value) || view->head.bytes < sizeof(value))) {
		pb_put_quoted(out, view->data, view->head.bytes < most ? view->head.bytes : most,
		              view->head.extent > most);
	} else if (view->head.bytes < sizeof(value)) {
		pb_put_quoted_hex(out, view->data, view->head.bytes);
	} else {
		memcpy(&value, view->data, sizeof(value));
		pb_put_char(out, '[');
		pb_put_signed(out, value);
		pb_put_char(out, ']');
	}
	return true;
}

static bool put_entries(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = &call->exit[index];

	if (!usable(view, PB_CAPTURE_ENTRIES))
		return false;
	pb_put_address(out, call->syscall.args[index]);
	pb_put(out, " /* ");
	pb_put_unsigned(out, view->head.extent);
	pb_put(out, view->head.extent == 1 ? " entry */" : " entries */");
	return true;
}

static bool put_captured(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                         uint32_t index)
{
	switch (argument->kind) {
	case PB_ARG_STRING:
		return put_string(out, call, index, call->plan->string_bytes);
	case PB_ARG_COMM:
		return put_comm(out, call, index);
	case PB_ARG_PATH:
		return put_string(out, call, index, UINT32_MAX);
	case PB_ARG_BUFFER:
	case PB_ARG_BUFFER_HEX:
		return put_buffer(out, call, index, argument->kind == PB_ARG_BUFFER_HEX);
	case PB_ARG_STRINGS:
		return put_strings(out, call, index);
	case PB_ARG_ENVIRONMENT:
		return put_environment(out, call, index);
	case PB_ARG_SOCKADDR:
		return put_address_of(out, call, index);
	case PB_ARG_LENGTH_POINTER:
		return put_length(out, call, index);
	case PB_ARG_WORD_POINTER:
		return put_word(out, call, index);
	case PB_ARG_ERROR_POINTER:
		return put_error(out, call, index);
	case PB_ARG_WAIT_STATUS:
		return put_wait(out, call, index);
	case PB_ARG_FD_PAIR:
		return put_pair(out, call, index);
	case PB_ARG_SIGSET:
		return put_set(out, call, index);
	case PB_ARG_STRUCT:
		return put_record(out, call, argument, index);
	case PB_ARG_REMAINING:
		return put_remaining(out, call, index);
	case PB_ARG_SIGSET_SIZE:
	case PB_ARG_HANDLE:
	case PB_ARG_MSGBUF:
	case PB_ARG_CLONE_ARGS:
		return pb_put_parts(out, call, argument, index);
	case PB_ARG_BITS_NONE:
		pb_put(out, "[]");
		return true;
	case PB_ARG_OPTION:
	case PB_ARG_OPTION_TEXT:
		return put_option(out, call, index, argument->kind == PB_ARG_OPTION_TEXT);
	case PB_ARG_ENTRIES:
		return put_entries(out, call, index);
	case PB_ARG_IOVEC:
		return pb_put_iovec(out, call, index);
	case PB_ARG_MESSAGE:
		return pb_put_message(out, call, index);
	case PB_ARG_MESSAGES:
		return pb_put_messages(out, call, index, argument->change);
	case PB_ARG_FDSET:
	case PB_ARG_CPUSET:
	case PB_ARG_BITS:
		return pb_put_bits(out, call, argument, index);
	default:
		return false;
	}
}

void pb_put_memory(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                   uint32_t index)
{
	if (!put_captured(out, call, argument, index))
		pb_put_address(out, call->syscall.args[index]);
}
