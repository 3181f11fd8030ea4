/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c: one system call's line: name, arguments by the plan, result. One function for each argument kind stands in
 * `renderers`; there is no code for any single system call.
 * Source: strace 6.1's output, CONTRACT.md section 4.
 */
#include "text.h"
#include "otlp.h"

enum { FLAG_CREATE = 0100, FLAG_TEMPORARY = 020000000, LAST_ERROR = 4095, FIRST_RESTART = 512, LAST_RESTART = 516 };

typedef void render(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                    uint32_t index);

static void put_value(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                      uint32_t index)
{
	uint64_t value = call->syscall.args[index];

	/* an int's register may have anything in its upper half */
	if (!argument->wide &&
	    (argument->kind == PB_ARG_FLAGS || argument->kind == PB_ARG_FLAGS_VALUE || argument->kind == PB_ARG_ENUM ||
	     argument->kind == PB_ARG_IPC_FLAGS || argument->kind == PB_ARG_DEVICE))
		value = (uint32_t)value;
	pb_put_scalar(out, call->plan, argument->kind, value, argument->table);
}

static void put_fd(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                   uint32_t index)
{
	put_value(out, call, argument, index);
	pb_put_fd_name(out, call, (int32_t)call->syscall.args[index]);
}

static render *const renderers[PB_ARG_KINDS] = {
	[PB_ARG_SIGNED] = put_value,
	[PB_ARG_UNSIGNED] = put_value,
	[PB_ARG_LONG] = put_value,
	[PB_ARG_ULONG] = put_value,
	[PB_ARG_HEX] = put_value,
	[PB_ARG_POINTER] = put_value,
	[PB_ARG_FD] = put_fd,
	[PB_ARG_DIRFD] = put_fd,
	[PB_ARG_STRING] = pb_put_memory,
	[PB_ARG_PATH] = pb_put_memory,
	[PB_ARG_BUFFER] = pb_put_memory,
	[PB_ARG_STRINGS] = pb_put_memory,
	[PB_ARG_ENVIRONMENT] = pb_put_memory,
	[PB_ARG_FLAGS] = put_value,
	[PB_ARG_FLAGS_VALUE] = put_value,
	[PB_ARG_ENUM] = put_value,
	[PB_ARG_MODE] = put_value,
	[PB_ARG_OPEN_MODE] = put_value,
	[PB_ARG_SIGNAL] = put_value,
	[PB_ARG_SOCKADDR] = pb_put_memory,
	[PB_ARG_LENGTH_POINTER] = pb_put_memory,
	[PB_ARG_WORD_POINTER] = pb_put_memory,
	[PB_ARG_STRUCT] = pb_put_memory,
	[PB_ARG_OFFSET] = put_value,
	[PB_ARG_HIDDEN] = NULL,
	[PB_ARG_WAIT_STATUS] = pb_put_memory,
	[PB_ARG_ERROR_POINTER] = pb_put_memory,
	[PB_ARG_FD_PAIR] = pb_put_memory,
	[PB_ARG_CLONE_FLAGS] = put_value,
	[PB_ARG_FILE_MODE] = put_value,
	[PB_ARG_SIGSET] = pb_put_memory,
	[PB_ARG_IOVEC] = pb_put_memory,
	[PB_ARG_MESSAGE] = pb_put_memory,
	[PB_ARG_MESSAGES] = pb_put_memory,
	[PB_ARG_FDSET] = pb_put_memory,
	[PB_ARG_CPUSET] = pb_put_memory,
	[PB_ARG_BITS] = pb_put_memory,
	[PB_ARG_BUFFER_HEX] = pb_put_memory,
	[PB_ARG_BITS_NONE] = pb_put_memory,
	[PB_ARG_COMM] = pb_put_memory,
	[PB_ARG_HANDLE] = pb_put_memory,
	[PB_ARG_MSGBUF] = pb_put_memory,
	[PB_ARG_CLONE_ARGS] = pb_put_memory,
	[PB_ARG_ENUM_NUMBER] = put_value,
	[PB_ARG_ENUM_HEX] = put_value,
	[PB_ARG_SIGSET_SIZE] = pb_put_memory,
	[PB_ARG_REMAINING] = pb_put_memory,
	[PB_ARG_OPTION] = pb_put_memory,
	[PB_ARG_OPTION_TEXT] = pb_put_memory,
	[PB_ARG_ENTRIES] = pb_put_memory,
	[PB_ARG_LIMIT] = put_value,
	[PB_ARG_DEVICE] = put_value,
	[PB_ARG_HANDLER] = put_value,
	[PB_ARG_IPC_FLAGS] = put_value,
	[PB_ARG_UID] = put_value,
	[PB_ARG_PRIORITY] = put_value,
	[PB_ARG_ERRNO] = put_value,
	[PB_ARG_QUOTA_COMMAND] = put_value,
	[PB_ARG_OCTAL] = put_value,
	[PB_ARG_HEX32] = put_value,
};

/* Unknown calls show what is in their registers. */
static const struct pb_argument registers[6] = {
	{ .name = "arg0", .kind = PB_ARG_HEX }, { .name = "arg1", .kind = PB_ARG_HEX },
	{ .name = "arg2", .kind = PB_ARG_HEX }, { .name = "arg3", .kind = PB_ARG_HEX },
	{ .name = "arg4", .kind = PB_ARG_HEX }, { .name = "arg5", .kind = PB_ARG_HEX },
};

static void load_captures(struct pb_capture_view views[6], const void *record, uint32_t fixed)
{
	struct pb_capture_view view;
	struct pb_record head;

	memcpy(&head, record, sizeof(head));
	for (uint32_t i = 0; i < head.captures; i++) {
		if (!pb_capture_next(record, head.bytes, &fixed, &view))
			return;
		if (!view.head.part)
			views[view.head.argument] = view;
	}
}

static bool holds(const struct pb_condition *condition, const struct pb_call *call)
{
	return condition->argument < 6 &&
	       (call->syscall.args[condition->argument] & condition->mask) == condition->value;
}

/* The plan's row, or the first variant of it that fits these arguments. */
static void choose_row(struct pb_call *call)
{
	const struct pb_syscall_plan *row = NULL;

	if (!(call->syscall.record.flags & PB_FLAG_COMPAT) && call->syscall.number < call->plan->syscall_count)
		row = &call->plan->syscalls[call->syscall.number];
	if (!row || !row->name) {
		call->args = registers;
		call->arguments = call->syscall.record.arguments;
		return;
	}
	call->row = row;
	call->args = row->args;
	call->arguments = row->arguments;
	for (uint32_t i = 0; i < row->variant_count; i++) {
		const struct pb_variant *variant = &row->variants[i];

		if (!holds(&variant->conditions[0], call) || !holds(&variant->conditions[1], call))
			continue;
		call->variant = variant;
		call->args = variant->args;
		call->arguments = variant->arguments;
		break;
	}
	if (call->arguments > 6)
		call->arguments = 6;
}

void pb_call_load(struct pb_call *call, const struct pb_event *event, const struct pb_plan *plan)
{
	struct pb_syscall *syscall = &call->syscall;

	memset(call, 0, offsetof(struct pb_call, spans));
	call->span_count = call->redactions = call->redacted_bytes = 0;
	call->plan = plan;
	call->event = event;
	call->in_flight = event->flags & PB_EVENT_IN_FLIGHT;
	memcpy(syscall, event->record, offsetof(struct pb_syscall, args));
	memcpy(syscall->args, (const uint8_t *)event->record + offsetof(struct pb_syscall, args),
	       8u * syscall->record.arguments);
	choose_row(call);
	if (!call->in_flight) { /* the open call of a page carries none: its captures are an ENTRY record */
		load_captures(call->exit, event->record, 48u + 8u * syscall->record.arguments);
		if (syscall->result < 0 && syscall->result >= -LAST_ERROR)
			call->error = (uint32_t)-syscall->result;
	}
	if (event->entry)
		load_captures(call->enter, event->entry, sizeof(struct pb_record));
	if (plan->redaction)
		pb_call_redact(call);
}

const char *pb_error_name(const struct pb_plan *plan, uint32_t error, const char **text)
{
	const char *name = pb_name_find(plan->errors, plan->error_count, error);

	if (text) {
		*text = NULL;
		for (uint32_t i = 0; name && i < plan->error_count; i++) {
			if (plan->errors[i].name == name) {
				*text = plan->error_texts[i];
				break;
			}
		}
	}
	return name;
}

void pb_put_call_name(struct pb_writer *out, const struct pb_call *call)
{
	if (call->row) {
		pb_put(out, call->row->name);
		return;
	}
	pb_put(out, "syscall_");
	if (call->syscall.record.flags & PB_FLAG_COMPAT)
		pb_put_unsigned(out, call->syscall.number);
	else
		pb_put_hex(out, call->syscall.number);
}

static bool shown(const struct pb_call *call, uint32_t index)
{
	const struct pb_argument *argument = &call->args[index];
	uint64_t mask = argument->shown_if_mask;
	uint32_t by = argument->shown_if_argument;

	if (argument->kind >= PB_ARG_KINDS || !renderers[argument->kind])
		return false;
	if (!by && argument->kind == PB_ARG_OPEN_MODE) {
		by = index; /* the argument before it */
		mask = FLAG_CREATE | FLAG_TEMPORARY;
	}
	return !by || by > 6 || call->syscall.args[by - 1] & mask;
}

static void put_argument(struct pb_writer *out, struct pb_call *call, uint32_t index)
{
	const struct pb_argument *argument = &call->args[index];
	struct pb_span *span = &call->spans[call->span_count];

	if (call->span_count++)
		pb_put_bytes(out, ", ", 2);
	if (argument->prefix)
		pb_put(out, argument->prefix);
	span->name = argument->name;
	span->integer = pb_scalar_integer(argument->kind, call->syscall.args[index], &span->value);
	span->start = out->size;
	renderers[argument->kind](out, call, argument, index);
	span->end = out->size;
	/* an fd with a name is text */
	if (span->integer && out->size && out->data[out->size - 1] == '>')
		span->integer = false;
}

static void put_arguments(struct pb_writer *out, struct pb_call *call)
{
	uint32_t present = call->syscall.record.arguments;
	bool ordered = call->row && !call->variant && call->row->order[0];

	for (uint32_t i = 0; i < call->arguments; i++) {
		uint32_t index = ordered ? (uint32_t)call->row->order[i] - 1 : i;

		if (index < 6 && index < present && shown(call, index))
			put_argument(out, call, index);
	}
}

static void put_error(struct pb_writer *out, const struct pb_call *call)
{
	const char *text, *name = pb_error_name(call->plan, call->error, &text);

	if (!name) {
		pb_put(out, "-1 (errno ");
		pb_put_unsigned(out, call->error);
		pb_put_char(out, ')');
		return;
	}
	pb_put(out, call->error >= FIRST_RESTART && call->error <= LAST_RESTART ? "? " : "-1 ");
	pb_put(out, name);
	if (text) {
		pb_put(out, " (");
		pb_put(out, text);
		pb_put_char(out, ')');
	}
}

/* A captured part of an argument (1: what its memory points to ...), at exit, else at enter. */
bool pb_find_part(const struct pb_call *call, uint32_t index, uint32_t part, struct pb_capture_view *view)
{
	const struct pb_record *const records[2] = { call->in_flight ? NULL : call->event->record, call->event->entry };

	for (uint32_t k = 0; k < 2; k++) {
		struct pb_record head;
		uint32_t at;

		if (!records[k])
			continue;
		memcpy(&head, records[k], sizeof(head));
		at = k ? sizeof(struct pb_record) : 48u + 8u * head.arguments;
		for (uint32_t i = 0; i < head.captures; i++) {
			if (!pb_capture_next((const void *)records[k], head.bytes, &at, view))
				break;
			if (view->head.argument == index && view->head.part == part &&
			    !(view->head.flags & PB_CAPTURE_FAULT))
				return true;
		}
	}
	return false;
}

/* 0x8402 (flags O_RDWR|O_APPEND|O_LARGEFILE); FLAGS without a bit: 0. */
static void put_flags_result(struct pb_writer *out, const struct pb_plan *plan, uint8_t kind, uint32_t table,
                             uint64_t value)
{
	pb_put_hex(out, value);
	if (!value && kind == PB_ARG_FLAGS)
		return;
	pb_put(out, " (flags ");
	pb_put_scalar(out, plan, kind, value, table);
	pb_put_char(out, ')');
}

static void put_success(struct pb_writer *out, const struct pb_call *call)
{
	uint64_t value = (uint64_t)call->syscall.result;
	uint8_t kind = PB_ARG_LONG;
	uint32_t table = 0;

	if (call->row) {
		kind = call->variant ? call->variant->result_kind : call->row->result_kind;
		table = call->variant ? call->variant->result_table : call->row->result_table;
	}
	switch (kind) {
	case PB_ARG_HEX:
	case PB_ARG_POINTER:
		pb_put_hex(out, value);
		break;
	case PB_ARG_MODE:
		pb_put_octal(out, value);
		break;
	case PB_ARG_FLAGS:
	case PB_ARG_FLAGS_VALUE:
		put_flags_result(out, call->plan, kind, table, value);
		break;
	case PB_ARG_ENUM:
		pb_put_signed(out, (int64_t)value);
		pb_put(out, " (");
		pb_put_enum(out, pb_plan_table(call->plan, table), value);
		pb_put_char(out, ')');
		break;
	case PB_ARG_ULONG:
		pb_put_unsigned(out, value);
		break;
	case PB_ARG_FD:
		pb_put_signed(out, (int64_t)value);
		pb_put_result_name(out, call);
		break;
	case PB_ARG_DATE_SECONDS: /* its comment in the result's brackets */
		pb_put_signed(out, (int64_t)value);
		pb_put_date_result(out, (int64_t)value);
		break;
	case PB_ARG_NAMED:
		pb_put_hex(out, value);
		pb_put(out, " (");
		pb_put_flags_value(out, pb_plan_table(call->plan, table), (uint32_t)value);
		pb_put_char(out, ')');
		break;
	case PB_ARG_PRIORITY:
		pb_put_signed(out, (int64_t)value);
		pb_put(out, " (");
		pb_put_scalar(out, call->plan, kind, value, table);
		pb_put_char(out, ')');
		break;
	default:
		pb_put_signed(out, (int64_t)value);
	}
	if (!value && call->row && call->row->result_zero) {
		pb_put(out, " (");
		pb_put(out, call->row->result_zero);
		pb_put_char(out, ')');
	}
	if (value && call->row && call->row->remark)
		pb_put_remark(out, call);
}

static void put_result(struct pb_writer *out, const struct pb_call *call)
{
	pb_put_bytes(out, " = ", 3);
	if (call->syscall.record.flags & PB_FLAG_NO_RETURN)
		pb_put_char(out, '?');
	else if (call->error)
		put_error(out, call);
	else
		put_success(out, call);
}

void pb_text_call(struct pb_writer *out, struct pb_call *call)
{
	/* strace's words for a call whose entry it did not see */
	bool headless = call->row && call->arguments && !call->syscall.record.arguments;
	uint64_t capacity = out->capacity;

	/* what follows the arguments is always there */
	out->capacity = capacity > PB_RESULT_BYTES ? capacity - PB_RESULT_BYTES : 0;
	if (headless)
		pb_put(out, "<... ");
	pb_put_call_name(out, call);
	if (headless)
		pb_put(out, " resumed>");
	else
		pb_put_char(out, '(');
	put_arguments(out, call);
	out->capacity = capacity;
	if (call->in_flight) {
		pb_put(out, " <unfinished ...>");
	} else {
		pb_put_char(out, ')');
		put_result(out, call);
	}
}

enum pb_status pb_text_line(const struct pb_history *history, const struct pb_plan *plan, uint64_t event, char *out,
                            uint64_t capacity, uint64_t *bytes)
{
	struct pb_writer writer = { out, 0, PB_LINE_BYTES };
	struct pb_call call;

	if (!history || !plan || !out || !bytes || !history->joined || event >= history->event_count)
		return PB_INVALID;
	if (capacity < PB_LINE_BYTES)
		return PB_NO_ROOM;
	if (history->events[event].kind == PB_RECORD_SYSCALL) {
		pb_call_load(&call, &history->events[event], plan);
		pb_text_call(&writer, &call);
	} else {
		pb_text_event(&writer, &history->events[event], plan);
	}
	*bytes = writer.size;
	return PB_OK;
}
