/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_struct.c: captured structs by the plan's fields, signal sets, wait statuses.
 * Source: strace 6.1's output; the layouts are the plan's (otel_perfbuf/records).
 */
#include "text.h"

enum { SIGNALS = 64, ELEMENTS_SHOWN = 32 };

/* A field's value, widened to 64 bits with its sign where its kind has one. */
static uint64_t load_field(const uint8_t *bytes, const struct pb_field *field)
{
	uint64_t value = 0;
	unsigned int unused;

	memcpy(&value, bytes + field->offset, field->bytes);
	unused = 64 - 8 * field->bytes;
	if (field->kind == PB_ARG_SIGNED || field->kind == PB_ARG_LONG || field->kind == PB_ARG_OFFSET)
		return (uint64_t)((int64_t)(value << unused) >> unused);
	return value;
}

static void put_fields(struct pb_writer *out, const struct pb_plan *plan, const struct pb_struct *layout,
                       const uint8_t *bytes)
{
	pb_put_char(out, '{');
	for (uint32_t i = 0; i < layout->count; i++) {
		const struct pb_field *field = &layout->fields[i];
		uint64_t value;

		if (!field->bytes || field->bytes > 8 || field->offset + field->bytes > layout->bytes)
			continue; /* a plan that disagrees with itself shows less, it reads nothing outside */
		if (i)
			pb_put(out, ", ");
		pb_put(out, field->name);
		pb_put_char(out, '=');
		value = load_field(bytes, field);
		if (field->kind == PB_ARG_SIGSET)
			pb_put_sigset(out, plan, value);
		else if (!pb_put_scalar(out, plan, field->kind, value, field->table))
			pb_put_address(out, value);
	}
	if (layout->more)
		pb_put(out, layout->count ? ", ..." : "...");
	pb_put_char(out, '}');
}

static void put_elements(struct pb_writer *out, const struct pb_plan *plan, const struct pb_struct *layout,
                         const struct pb_capture_view *view)
{
	uint32_t count = view->head.bytes / layout->bytes;
	uint32_t shown = count < ELEMENTS_SHOWN ? count : ELEMENTS_SHOWN;

	pb_put_char(out, '[');
	for (uint32_t i = 0; i < shown; i++) {
		if (i)
			pb_put(out, ", ");
		put_fields(out, plan, layout, view->data + (size_t)i * layout->bytes);
	}
	if (shown < count || view->head.flags & PB_CAPTURE_CUT)
		pb_put(out, shown ? ", ..." : "...");
	pb_put_char(out, ']');
}

bool pb_put_struct(struct pb_writer *out, const struct pb_plan *plan, uint32_t index,
                   const struct pb_capture_view *view)
{
	const struct pb_struct *layout;

	if (index >= plan->struct_count)
		return false;
	layout = &plan->structs[index];
	if (!layout->bytes || (!layout->array && view->head.bytes < layout->bytes))
		return false;
	if (layout->array)
		put_elements(out, plan, layout, view);
	else
		put_fields(out, plan, layout, view->data);
	return true;
}

void pb_put_sigset(struct pb_writer *out, const struct pb_plan *plan, uint64_t set)
{
	bool first = true;

	/* strace: a set that is more than two thirds full is shown by what it lacks */
	if (__builtin_popcountll(set) >= SIGNALS * 2 / 3) {
		pb_put_char(out, '~');
		set = ~set;
	}
	pb_put_char(out, '[');
	for (int32_t number = 1; number <= SIGNALS; number++) {
		char space[16];
		const char *name;

		if (!(set >> (number - 1) & 1))
			continue;
		if (!first)
			pb_put_char(out, ' ');
		first = false;
		name = pb_signal_name(plan, number, space, sizeof(space));
		if (name)
			pb_put(out, strncmp(name, "SIG", 3) ? name : name + 3);
		else
			pb_put_signed(out, number);
	}
	pb_put_char(out, ']');
}

void pb_put_wait_status(struct pb_writer *out, const struct pb_plan *plan, int32_t status)
{
	int32_t low = status & 0x7f;

	if (low == 0) {
		pb_put(out, "[{WIFEXITED(s) && WEXITSTATUS(s) == ");
		pb_put_signed(out, status >> 8 & 0xff);
	} else if (status == 0xffff) {
		pb_put(out, "[{WIFCONTINUED(s)");
	} else if (low == 0x7f) {
		pb_put(out, "[{WIFSTOPPED(s) && WSTOPSIG(s) == ");
		pb_put_signal(out, plan, status >> 8 & 0xff);
	} else {
		pb_put(out, "[{WIFSIGNALED(s) && WTERMSIG(s) == ");
		pb_put_signal(out, plan, low);
		if (status & 0x80)
			pb_put(out, " && WCOREDUMP(s)");
	}
	pb_put(out, "}]");
}
