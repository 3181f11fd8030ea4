/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_bits.c: sets of bits (descriptors of select, CPUs, memory nodes), and what poll and select add to their result.
 * Source: strace 6.1's output; bits lie in 64-bit words, little endian.
 */
#include "text.h"

enum {
	POLLFD_BYTES = 8,
	FIRST_SET = 1,
	LAST_SET = 3,
	SELECT_TIME = 4,
	POLL_TIME = 2,
	WORDS_SHOWN = 32,
	REMARK_ELEMENTS = 32
};

static bool bit(const struct pb_capture_view *view, uint32_t number)
{
	return number / 8 < view->head.bytes && view->data[number / 8] >> (number % 8) & 1;
}

static void put_set(struct pb_writer *out, const struct pb_capture_view *view, uint32_t bits, const char *between)
{
	bool first = true;

	pb_put_char(out, '[');
	for (uint32_t i = 0; i < bits; i++) {
		if (!bit(view, i))
			continue;
		if (!first)
			pb_put(out, between);
		first = false;
		pb_put_unsigned(out, i);
	}
	pb_put_char(out, ']');
}

static bool has_any(const struct pb_capture_view *view, uint32_t bits)
{
	for (uint32_t i = 0; i < bits; i++) {
		if (bit(view, i))
			return true;
	}
	return false;
}

/* select's sets have as many bits as its first argument says. */
static bool put_fdset(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *view = &call->enter[index];
	int32_t bits = (int32_t)call->syscall.args[0];

	if (!pb_usable_bytes(view))
		view = &call->exit[index];
	if (bits <= 0 || !pb_usable_bytes(view) || view->head.bytes < view->head.extent)
		return false;
	put_set(out, view, (uint32_t)bits, " ");
	return true;
}

static void put_words(struct pb_writer *out, const struct pb_capture_view *view)
{
	pb_put_char(out, '[');
	for (uint32_t at = 0; at + 8 <= view->head.bytes; at += 8) {
		uint64_t value;

		memcpy(&value, view->data + at, sizeof(value));
		if (at)
			pb_put(out, ", ");
		if (at / 8 == WORDS_SHOWN) {
			pb_put(out, "...");
			break;
		}
		if (value)
			pb_put(out, "0x");
		pb_put_hex_wide(out, value, value ? 14 : 16);
	}
	pb_put_char(out, ']');
}

bool pb_put_bits(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument, uint32_t index)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);

	if (argument->kind == PB_ARG_FDSET)
		return put_fdset(out, call, index);
	if (!view || view->head.bytes < view->head.extent)
		return false;
	if (argument->kind == PB_ARG_CPUSET)
		put_set(out, view, 8u * view->head.bytes, " ");
	else
		put_words(out, view);
	return true;
}

/* Something stands in the brackets behind the result: opened by the first. */
static void begin(struct pb_writer *out, bool *any)
{
	pb_put(out, *any ? ", " : " (");
	*any = true;
}

static void put_left(struct pb_writer *out, const struct pb_call *call, uint32_t index, uint32_t layout, bool *any)
{
	const struct pb_capture_view *view = &call->exit[index];

	if (!call->syscall.args[index] || !pb_usable_bytes(view) || view->head.bytes < 16)
		return;
	begin(out, any);
	pb_put(out, "left ");
	pb_put_struct(out, call, layout, view, 0);
}

static void put_events(struct pb_writer *out, const struct pb_call *call, bool *any)
{
	const struct pb_capture_view *view = &call->exit[0];
	uint32_t shown = 0;

	if (!pb_usable_bytes(view))
		return;
	begin(out, any);
	pb_put_char(out, '[');
	for (uint32_t at = 0; at + POLLFD_BYTES <= view->head.bytes; at += POLLFD_BYTES) {
		uint16_t events;
		int32_t fd;

		memcpy(&fd, view->data + at, sizeof(fd));
		memcpy(&events, view->data + at + 6, sizeof(events));
		if (!events)
			continue;
		if (shown)
			pb_put(out, ", ");
		if (shown++ == REMARK_ELEMENTS) {
			pb_put(out, "...");
			break;
		}
		pb_put(out, "{fd=");
		pb_put_signed(out, fd);
		pb_put_fd_name(out, call, fd);
		pb_put(out, ", revents=");
		pb_put_flags(out, pb_plan_table(call->plan, call->plan->poll_table), events);
		pb_put_char(out, '}');
	}
	pb_put_char(out, ']');
}

static void put_ready(struct pb_writer *out, const struct pb_call *call, bool *any)
{
	static const char *const names[] = { "in ", "out ", "except " };
	int32_t bits = (int32_t)call->syscall.args[0];

	for (uint32_t index = FIRST_SET; index <= LAST_SET; index++) {
		const struct pb_capture_view *view = &call->exit[index];

		if (bits <= 0 || !pb_usable_bytes(view) || view->head.bytes < view->head.extent ||
		    !has_any(view, (uint32_t)bits))
			continue;
		begin(out, any);
		pb_put(out, names[index - FIRST_SET]);
		put_set(out, view, (uint32_t)bits, " ");
	}
}

void pb_put_remark(struct pb_writer *out, const struct pb_call *call)
{
	const struct pb_plan *plan = call->plan;
	bool any = false;

	if (call->row->remark == PB_REMARK_POLL) {
		put_events(out, call, &any);
		if (call->row->arguments > 3)
			put_left(out, call, POLL_TIME, plan->timespec, &any);
	} else if (call->row->remark == PB_REMARK_SELECT) {
		put_ready(out, call, &any);
		put_left(out, call, SELECT_TIME, call->row->arguments > 5 ? plan->timespec : plan->timeval, &any);
	}
	if (any)
		pb_put_char(out, ')');
}
