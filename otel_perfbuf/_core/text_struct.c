/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_struct.c: captured structs by the plan's fields, signal sets, wait statuses.
 * Source: strace 6.1's output; the layouts are the plan's (otel_perfbuf/records).
 */
#include "text.h"

enum { SIGNALS = 64, ELEMENTS_SHOWN = 32, NESTED_MOST = 4 };

/* The word at a place of a struct; what was not captured is 0. */
static uint64_t load_word(const uint8_t *bytes, uint32_t captured, uint32_t offset, uint32_t size)
{
	uint64_t value = 0;

	if (size <= sizeof(value) && offset + size <= captured)
		memcpy(&value, bytes + offset, size);
	return value;
}

/* A field's value, widened to 64 bits with its sign where its kind has one. */
static uint64_t load_field(const uint8_t *bytes, const struct pb_field *field)
{
	uint64_t value = load_word(bytes, field->bytes, 0, field->bytes);
	unsigned int unused = 64 - 8 * field->bytes;

	if (field->kind == PB_ARG_SIGNED || field->kind == PB_ARG_LONG || field->kind == PB_ARG_OFFSET)
		return (uint64_t)((int64_t)(value << unused) >> unused);
	return value;
}

static void put_text_field(struct pb_writer *out, const uint8_t *bytes, uint32_t size)
{
	const uint8_t *end = memchr(bytes, 0, size);

	/* without a NUL the last character is not shown: it would have been the NUL's place */
	pb_put_quoted(out, bytes, end ? (uint32_t)(end - bytes) : size - 1, !end);
}

static void put_negative_errno(struct pb_writer *out, const struct pb_plan *plan, int32_t value)
{
	const char *name = value < 0 ? pb_error_name(plan, (uint32_t)-value, NULL) : NULL;

	if (!name) {
		pb_put_signed(out, value);
		return;
	}
	pb_put_char(out, '-');
	pb_put(out, name);
}

static void put_ticks(struct pb_writer *out, int64_t value)
{
	pb_put_signed(out, value);
	if (value <= 0)
		return;
	pb_put(out, " /* ");
	pb_put_signed(out, value / 100);
	pb_put_char(out, '.');
	pb_put_char(out, (char)('0' + value / 10 % 10));
	pb_put_char(out, (char)('0' + value % 10));
	pb_put(out, " s */");
}

static void put_skid(struct pb_writer *out, uint64_t value)
{
	static const char *const texts[] = { "arbitrary skid", "constant skid", "requested to have 0 skid",
		                             "must have 0 skid" };

	pb_put_unsigned(out, value);
	pb_put(out, " /* ");
	pb_put(out, texts[value & 3]);
	pb_put(out, " */");
}

static void put_fields(struct pb_writer *out, const struct pb_call *call, const struct pb_struct *layout,
                       const uint8_t *bytes, uint32_t captured, uint32_t depth);

/* One value of a field, at its place. */
static void put_value(struct pb_writer *out, const struct pb_call *call, const struct pb_field *field,
                      const uint8_t *bytes, uint32_t depth)
{
	uint64_t value;

	switch (field->kind) {
	case PB_ARG_STRUCT:
		if (field->table < call->plan->struct_count && depth < NESTED_MOST)
			put_fields(out, call, &call->plan->structs[field->table], bytes,
			           call->plan->structs[field->table].bytes, depth + 1);
		return;
	case PB_ARG_TEXT:
		put_text_field(out, bytes, field->bytes);
		return;
	case PB_ARG_BYTES:
		pb_put_quoted_hex(out, bytes, field->bytes);
		return;
	case PB_ARG_DATE:
	case PB_ARG_DATE_USEC:
		pb_put_date(out, call->plan, bytes, field->kind == PB_ARG_DATE_USEC);
		return;
	case PB_ARG_DATE_SECONDS:
		value = load_field(bytes, field);
		pb_put_signed(out, (int64_t)value);
		if (value)
			pb_put_date_comment(out, (int64_t)value, 0, 0);
		return;
	case PB_ARG_TTY_OUTPUT:
		pb_put_tty_output(out, (uint32_t)load_field(bytes, field));
		return;
	case PB_ARG_TTY_CONTROL:
		pb_put_tty_control(out, (uint32_t)load_field(bytes, field));
		return;
	case PB_ARG_TTY_FLAGS:
		value = load_field(bytes, field);
		if (value)
			pb_put_flags(out, pb_plan_table(call->plan, field->table), value);
		return;
	case PB_ARG_TICKS:
		put_ticks(out, (int64_t)load_field(bytes, field));
		return;
	case PB_ARG_CAPABILITIES: /* the upper halves stand behind all the lower ones */
		value = load_word(bytes, 16, 0, 4) | load_word(bytes, 16, 12, 4) << 32;
		pb_put_flags(out, pb_plan_table(call->plan, field->table), value);
		return;
	case PB_ARG_NEGATIVE_ERRNO:
		put_negative_errno(out, call->plan, (int32_t)load_field(bytes, field));
		return;
	case PB_ARG_INET:
	case PB_ARG_INET6:
		pb_put_inet(out, bytes, field->kind == PB_ARG_INET6, field->name);
		return;
	default:
		break;
	}
	value = load_field(bytes, field);
	if (field->kind == PB_ARG_HEX_WIDE) {
		pb_put(out, "0x");
		pb_put_hex_wide(out, value, 2u * field->bytes);
	} else if (field->kind == PB_ARG_SIGSET) {
		pb_put_sigset(out, call->plan, value);
	} else if (field->kind == PB_ARG_FD) {
		pb_put_signed(out, (int32_t)value);
		pb_put_fd_name(out, call, (int32_t)value);
	} else if (field->kind == PB_ARG_ONE) {
		pb_put_char(out, '1');
	} else if (field->kind == PB_ARG_SKID) {
		put_skid(out, value >> 7 & 3);
	} else if (!pb_put_scalar(out, call->plan, field->kind, value, field->table)) {
		pb_put_address(out, value);
	}
}

static uint32_t value_bytes(const struct pb_plan *plan, const struct pb_field *field)
{
	switch (field->kind) {
	case PB_ARG_STRUCT:
		return field->table < plan->struct_count ? plan->structs[field->table].bytes : UINT32_MAX;
	case PB_ARG_DATE:
	case PB_ARG_DATE_USEC:
	case PB_ARG_CAPABILITIES:
	case PB_ARG_INET6:
		return 16;
	case PB_ARG_INET:
		return 4;
	case PB_ARG_TEXT:
	case PB_ARG_BYTES:
		return field->bytes ? field->bytes : UINT32_MAX;
	default:
		return field->bytes && field->bytes <= 8 ? field->bytes : UINT32_MAX;
	}
}

static bool is_shown(const struct pb_field *field, const uint8_t *bytes, uint32_t captured)
{
	uint64_t word;

	if (!field->if_bytes)
		return true;
	word = load_word(bytes, captured, field->if_offset, field->if_bytes);
	return ((word & field->if_mask) == field->if_value) != field->if_not;
}

static void put_field(struct pb_writer *out, const struct pb_call *call, const struct pb_field *field,
                      const uint8_t *bytes, uint32_t size, uint32_t depth)
{
	if (field->name && field->kind != PB_ARG_INET6) {
		pb_put(out, field->name);
		pb_put_char(out, '=');
	}
	if (field->count <= 1) {
		put_value(out, call, field, bytes, depth);
		return;
	}
	pb_put_char(out, '[');
	for (uint32_t i = 0; i < field->count; i++) {
		if (i)
			pb_put(out, ", ");
		put_value(out, call, field, bytes + (size_t)i * size, depth);
	}
	pb_put_char(out, ']');
}

/* `captured` bytes are here; a field that does not lie in them is left out. */
static void put_fields(struct pb_writer *out, const struct pb_call *call, const struct pb_struct *layout,
                       const uint8_t *bytes, uint32_t captured, uint32_t depth)
{
	bool first = true;

	if (!layout->bare)
		pb_put_char(out, '{');
	for (uint32_t i = 0; i < layout->count; i++) {
		const struct pb_field *field = &layout->fields[i];
		uint32_t size = value_bytes(call->plan, field);
		uint64_t end = field->offset + (uint64_t)size * (field->count ? field->count : 1);

		if (size == UINT32_MAX || end > captured || !is_shown(field, bytes, captured))
			continue;
		if (!first)
			pb_put(out, ", ");
		first = false;
		put_field(out, call, field, bytes + field->offset, size, depth);
	}
	if (layout->more)
		pb_put(out, first ? "..." : ", ...");
	if (layout->tail && captured > layout->bytes)
		pb_put_tail(out, bytes, layout, captured);
	if (!layout->bare)
		pb_put_char(out, '}');
}

void pb_put_tail(struct pb_writer *out, const uint8_t *bytes, const struct pb_struct *layout, uint32_t captured)
{
	uint32_t at = layout->bytes;

	while (at < captured && !bytes[at])
		at++;
	if (at == captured)
		return;
	if (layout->tail == 2) {
		pb_put(out, ", ...");
		return;
	}
	pb_put(out, ", /* bytes ");
	pb_put_unsigned(out, layout->bytes);
	pb_put(out, "..");
	pb_put_unsigned(out, captured - 1);
	pb_put(out, " */ ");
	pb_put_quoted_hex(out, bytes + layout->bytes, captured - layout->bytes);
}

static void put_elements(struct pb_writer *out, const struct pb_call *call, const struct pb_struct *layout,
                         const struct pb_capture_view *view, uint64_t address)
{
	uint32_t count = view->head.bytes / layout->bytes;
	uint32_t wanted = view->head.extent / layout->bytes;
	uint32_t most = layout->most ? layout->most : ELEMENTS_SHOWN;
	uint32_t shown = count < most ? count : most;

	pb_put_char(out, '[');
	for (uint32_t i = 0; i < shown; i++) {
		if (i)
			pb_put(out, ", ");
		put_fields(out, call, layout, view->data + (size_t)i * layout->bytes, layout->bytes, 0);
	}
	if (shown < wanted) {
		pb_put(out, shown ? ", ..." : "...");
		if (view->head.flags & PB_CAPTURE_ENDS) { /* the rest could not be read */
			pb_put(out, " /* ");
			pb_put_hex(out, address + (uint64_t)shown * layout->bytes);
			pb_put(out, " */");
		}
	}
	pb_put_char(out, ']');
}

bool pb_put_struct(struct pb_writer *out, const struct pb_call *call, uint32_t index,
                   const struct pb_capture_view *view, uint64_t address)
{
	const struct pb_struct *layout;
	uint32_t least;

	if (index >= call->plan->struct_count)
		return false;
	layout = &call->plan->structs[index];
	least = layout->array ? 0 : layout->least ? layout->least : layout->bytes;
	if (!layout->bytes || view->head.bytes < least)
		return false;
	if (!layout->array)
		put_fields(out, call, layout, view->data, view->head.bytes, 0);
	else if (view->head.extent && view->head.bytes < layout->bytes)
		return false;
	else
		put_elements(out, call, layout, view, address);
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
