/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_parts.c: structs whose rules capture more than the struct (records/rules.py): a mask behind a pointer, the bytes
 * of a file handle, a message's text, what clone3 writes. Source: strace 6.1's output.
 */
#include "text.h"

enum { HANDLE_SHOWN = 128, OVERFLOW = 75, CLONE_PIDFD_BIT = 0x1000, CLONE_PARENT_SETTID_BIT = 0x100000 };

static uint64_t word(const uint8_t *bytes, uint32_t size)
{
	uint64_t value = 0;

	memcpy(&value, bytes, size);
	return value;
}

static bool put_sigset_size(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	struct pb_capture_view set;
	uint64_t words[2], mask;

	if (!view || view->head.bytes < sizeof(words))
		return false;
	memcpy(words, view->data, sizeof(words));
	pb_put(out, "{sigmask=");
	if (words[0] && words[1] == sizeof(mask) && pb_find_part(call, index, 1, &set) &&
	    set.head.bytes >= sizeof(mask)) {
		memcpy(&mask, set.data, sizeof(mask));
		pb_put_sigset(out, call->plan, mask);
	} else {
		pb_put_address(out, words[0]);
	}
	pb_put(out, ", sigsetsize=");
	pb_put_unsigned(out, words[1]);
	pb_put_char(out, '}');
	return true;
}

static bool put_handle(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *before = &call->enter[index], *after = &call->exit[index];
	const struct pb_capture_view *own = pb_usable_bytes(before) ? before : after;
	struct pb_capture_view bytes;
	bool output = own == before; /* name_to_handle_at: it is written */
	uint32_t shown;

	if (!pb_usable_bytes(own) || own->head.bytes < 8)
		return false;
	pb_put(out, "{handle_bytes=");
	pb_put_unsigned(out, word(own->data, 4));
	if (output && pb_usable_bytes(after) && after->head.bytes >= 8 && word(after->data, 4) != word(own->data, 4)) {
		pb_put(out, " => ");
		pb_put_unsigned(out, word(after->data, 4));
	}
	if (output && (call->error || !pb_usable_bytes(after))) {
		pb_put_char(out, '}');
		return true;
	}
	own = output ? after : own;
	pb_put(out, ", handle_type=");
	pb_put_signed(out, (int32_t)word(own->data + 4, 4));
	pb_put(out, ", f_handle=");
	if (!word(own->data, 4)) {
		pb_put(out, "\"\"");
	} else if (pb_find_part(call, index, 1, &bytes) && !(bytes.head.flags & PB_CAPTURE_ENDS)) {
		shown = bytes.head.bytes < HANDLE_SHOWN ? bytes.head.bytes : HANDLE_SHOWN;
		pb_put_quoted_hex(out, bytes.data, shown);
		if (shown < bytes.head.extent)
			pb_put(out, "...");
	} else {
		pb_put(out, "???");
	}
	pb_put_char(out, '}');
	return true;
}

static bool put_msgbuf(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	uint32_t most = call->plan->string_bytes, shown;
	struct pb_capture_view text;

	if (!view || view->head.bytes < 8)
		return false;
	pb_put(out, "{mtype=");
	pb_put_signed(out, (int64_t)word(view->data, 8));
	pb_put(out, ", mtext=");
	if (pb_find_part(call, index, 1, &text) && !(text.head.flags & PB_CAPTURE_ENDS)) {
		uint32_t bytes = text.head.bytes;
		bool cut = text.head.extent > bytes;

		pb_bytes_redact(call, &text.data, &bytes);
		shown = bytes < most ? bytes : most;
		pb_put_quoted(out, text.data, shown, cut || bytes > shown);
	} else {
		pb_put_address(out, call->syscall.args[index] + 8);
	}
	pb_put_char(out, '}');
	return true;
}

static void put_written(struct pb_writer *out, const struct pb_call *call, uint32_t index, uint32_t part,
                        const char *name, uint64_t address, bool *any)
{
	struct pb_capture_view view;

	pb_put(out, *any ? ", " : " => {");
	*any = true;
	pb_put(out, name);
	if (!pb_find_part(call, index, part, &view) || view.head.bytes < 4) {
		pb_put_address(out, address);
		return;
	}
	pb_put_char(out, '[');
	pb_put_signed(out, (int32_t)word(view.data, 4));
	pb_put_char(out, ']');
}

static bool put_clone_args(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	uint64_t flags;
	bool any = false;

	if (!view || !pb_put_struct(out, call, call->plan->clone_args, view, call->syscall.args[index]))
		return false;
	flags = word(view->data, 8);
	if (call->error || call->in_flight)
		return true;
	if (flags & CLONE_PIDFD_BIT)
		put_written(out, call, index, 2, "pidfd=", word(view->data + 8, 8), &any);
	if (flags & CLONE_PARENT_SETTID_BIT)
		put_written(out, call, index, 1, "parent_tid=", word(view->data + 24, 8), &any);
	if (any)
		pb_put_char(out, '}');
	return true;
}

bool pb_put_parts(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument, uint32_t index)
{
	switch (argument->kind) {
	case PB_ARG_SIGSET_SIZE:
		return put_sigset_size(out, call, index);
	case PB_ARG_HANDLE:
		return put_handle(out, call, index);
	case PB_ARG_MSGBUF:
		return put_msgbuf(out, call, index);
	case PB_ARG_CLONE_ARGS:
		return put_clone_args(out, call, index);
	default:
		return false;
	}
}
