/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_event.c: lines of everything that is no system call: signals and a process's end in strace's form; exec, fork and
 * OOM kills, which strace does not print, in words.
 * Source: strace 6.1's output; Linux include/uapi/asm-generic/siginfo.h (_sifields).
 */
#include "text.h"

enum {
	NUMBER_ILL = 4,
	NUMBER_TRAP = 5,
	NUMBER_BUS = 7,
	NUMBER_FPE = 8,
	NUMBER_SEGV = 11,
	NUMBER_CHLD = 17,
	NUMBER_POLL = 29,
	NUMBER_SYS = 31,
	CODE_TKILL = -6,
	CODE_SIGIO = -5,
	CODE_TIMER = -2,
	CODE_USER = 0,
	CODE_CHILD_EXITED = 1,
	CODE_POLL_MESSAGE = 3,
	ARCH_X86_64 = (int)0xc000003e,
	TICKS_A_SECOND = 100,
};

static uint32_t field32(const struct pb_signal *signal, unsigned int offset)
{
	uint32_t value;

	memcpy(&value, signal->fields + offset, sizeof(value));
	return value;
}

static uint64_t field64(const struct pb_signal *signal, unsigned int offset)
{
	uint64_t value;

	memcpy(&value, signal->fields + offset, sizeof(value));
	return value;
}

/* Which of plan->signal_codes names this signal's own codes; 0: none (the generic ones come first anyway). */
static unsigned int own_codes(int32_t number)
{
	switch (number) {
	case NUMBER_ILL:
		return 1;
	case NUMBER_FPE:
		return 2;
	case NUMBER_SEGV:
		return 3;
	case NUMBER_BUS:
		return 4;
	case NUMBER_TRAP:
		return 5;
	case NUMBER_CHLD:
		return 6;
	case NUMBER_POLL:
		return 7;
	case NUMBER_SYS:
		return 8;
	default:
		return 0;
	}
}

/* Rows hold ints: negative ones as 32 bits or sign-extended to 64. In a table's order, whatever that is. */
static const char *code_name(const struct pb_table *table, int32_t code)
{
	for (uint32_t i = 0; i < table->count; i++) {
		if ((int32_t)(uint32_t)table->rows[i].value == code)
			return table->rows[i].name;
	}
	return NULL;
}

static void put_code(struct pb_writer *out, const struct pb_plan *plan, const struct pb_signal *signal)
{
	unsigned int own = own_codes(signal->number);
	const char *name = NULL;

	if (plan->signal_codes) {
		name = code_name(&plan->signal_codes[0], signal->code);
		if (!name && own)
			name = code_name(&plan->signal_codes[own], signal->code);
	}
	if (name)
		pb_put(out, name);
	else
		pb_put_hex(out, (uint32_t)signal->code);
}

static void put_sender(struct pb_writer *out, const struct pb_signal *signal)
{
	pb_put(out, ", si_pid=");
	pb_put_unsigned(out, field32(signal, 0));
	pb_put(out, ", si_uid=");
	pb_put_unsigned(out, field32(signal, 4));
}

static void put_value(struct pb_writer *out, const struct pb_signal *signal)
{
	pb_put(out, ", si_int=");
	pb_put_signed(out, (int32_t)field32(signal, 8));
	pb_put(out, ", si_ptr=");
	pb_put_address(out, field64(signal, 8));
}

static void put_ticks(struct pb_writer *out, uint64_t ticks)
{
	pb_put_unsigned(out, ticks);
	if (!ticks)
		return;
	pb_put(out, " /* ");
	pb_put_unsigned(out, ticks / TICKS_A_SECOND);
	pb_put_char(out, '.');
	pb_put_char(out, (char)('0' + ticks / 10 % 10));
	pb_put_char(out, (char)('0' + ticks % 10));
	pb_put(out, " s */");
}

static void put_child(struct pb_writer *out, const struct pb_plan *plan, const struct pb_signal *signal)
{
	int32_t status = (int32_t)field32(signal, 8);

	put_sender(out, signal);
	pb_put(out, ", si_status=");
	if (signal->code == CODE_CHILD_EXITED)
		pb_put_signed(out, status);
	else
		pb_put_signal(out, plan, status);
	pb_put(out, ", si_utime=");
	put_ticks(out, field64(signal, 16));
	pb_put(out, ", si_stime=");
	put_ticks(out, field64(signal, 24));
}

static void put_denied_call(struct pb_writer *out, const struct pb_plan *plan, const struct pb_signal *signal)
{
	uint32_t number = field32(signal, 8), architecture = field32(signal, 12);
	bool native = architecture == (uint32_t)ARCH_X86_64;

	pb_put(out, ", si_call_addr=");
	pb_put_address(out, field64(signal, 0));
	pb_put(out, ", si_syscall=");
	if (native && number < plan->syscall_count && plan->syscalls[number].name) {
		pb_put(out, "__NR_");
		pb_put(out, plan->syscalls[number].name);
	} else {
		pb_put_unsigned(out, number);
	}
	pb_put(out, ", si_arch=");
	if (native)
		pb_put(out, "AUDIT_ARCH_X86_64");
	else
		pb_put_hex(out, architecture);
}

static void put_from_user(struct pb_writer *out, const struct pb_signal *signal)
{
	switch (signal->code) {
	case CODE_USER:
	case CODE_TKILL:
		put_sender(out, signal);
		break;
	case CODE_TIMER:
		pb_put(out, ", si_timerid=");
		pb_put_hex(out, field32(signal, 0));
		pb_put(out, ", si_overrun=");
		pb_put_signed(out, (int32_t)field32(signal, 4));
		put_value(out, signal);
		break;
	case CODE_SIGIO:
		pb_put(out, ", si_band=");
		pb_put_signed(out, (int64_t)field64(signal, 0));
		pb_put(out, ", si_fd=");
		pb_put_signed(out, (int32_t)field32(signal, 8));
		break;
	default:
		put_sender(out, signal);
		if (field64(signal, 8))
			put_value(out, signal);
	}
}

bool pb_signal_has_address(const struct pb_signal *signal)
{
	return signal->has_info && signal->code > 0 &&
	       (signal->number == NUMBER_ILL || signal->number == NUMBER_FPE || signal->number == NUMBER_SEGV ||
	        signal->number == NUMBER_BUS || signal->number == NUMBER_TRAP);
}

bool pb_signal_has_sender(const struct pb_signal *signal)
{
	if (!signal->has_info)
		return false;
	if (signal->code <= 0)
		return signal->code != CODE_TIMER && signal->code != CODE_SIGIO;
	return signal->number == NUMBER_CHLD;
}

static void put_from_kernel(struct pb_writer *out, const struct pb_plan *plan, const struct pb_signal *signal)
{
	if (pb_signal_has_address(signal)) {
		pb_put(out, ", si_addr=");
		pb_put_address(out, field64(signal, 0));
	} else if (signal->number == NUMBER_CHLD) {
		put_child(out, plan, signal);
	} else if (signal->number == NUMBER_SYS) {
		put_denied_call(out, plan, signal);
	} else if (signal->number == NUMBER_POLL) {
		if (signal->code <= CODE_POLL_MESSAGE) {
			pb_put(out, ", si_band=");
			pb_put_signed(out, (int64_t)field64(signal, 0));
		}
	} else {
		if (field64(signal, 0))
			put_sender(out, signal);
		if (field64(signal, 8))
			put_value(out, signal);
	}
}

void pb_text_signal(struct pb_writer *out, const struct pb_plan *plan, const struct pb_signal *signal)
{
	pb_put(out, "--- ");
	pb_put_signal(out, plan, signal->number);
	if (signal->has_info) {
		pb_put(out, " {si_signo=");
		pb_put_signal(out, plan, signal->number);
		pb_put(out, ", si_code=");
		put_code(out, plan, signal);
		if (signal->error) {
			const char *name = pb_error_name(plan, (uint32_t)signal->error, NULL);

			pb_put(out, ", si_errno=");
			if (name)
				pb_put(out, name);
			else
				pb_put_signed(out, signal->error);
		}
		if (signal->code <= 0)
			put_from_user(out, signal);
		else
			put_from_kernel(out, plan, signal);
		pb_put_char(out, '}');
	}
	pb_put(out, " ---");
}

void pb_text_exit(struct pb_writer *out, const struct pb_plan *plan, int32_t status)
{
	if (status & 0x7f) {
		pb_put(out, "+++ killed by ");
		pb_put_signal(out, plan, status & 0x7f);
		pb_put(out, status & 0x80 ? " (core dumped) +++" : " +++");
	} else {
		pb_put(out, "+++ exited with ");
		pb_put_signed(out, status >> 8 & 0xff);
		pb_put(out, " +++");
	}
}

bool pb_record_path(const void *record, struct pb_capture_view *view)
{
	struct pb_record head;
	uint32_t offset;

	memcpy(&head, record, sizeof(head));
	offset = pb_record_fixed_bytes(&head);
	for (uint32_t i = 0; i < head.captures; i++) {
		if (!pb_capture_next(record, head.bytes, &offset, view))
			return false;
		if (view->head.argument == 0 && view->head.kind == PB_CAPTURE_STRING &&
		    !(view->head.flags & PB_CAPTURE_FAULT))
			return true;
	}
	return false;
}

static void put_exec(struct pb_writer *out, const void *record, const struct pb_plan *plan)
{
	uint8_t redacted[PB_REDACTED_BYTES];
	struct pb_capture_view path;

	pb_put(out, "exec");
	if (!pb_record_path(record, &path))
		return;
	pb_view_redact(plan, &path, redacted, sizeof(redacted));
	pb_put_char(out, ' ');
	pb_put_escaped(out, path.data, path.head.bytes);
	if (path.head.flags & PB_CAPTURE_CUT)
		pb_put(out, "...");
}

const char *pb_lost_reason(uint32_t reason)
{
	switch (reason) {
	case PB_LOST_OVERWRITTEN:
		return "overwritten";
	case PB_LOST_NO_SPACE:
		return "no_space";
	case PB_LOST_MALFORMED:
		return "malformed";
	default:
		return "unknown";
	}
}

static void put_fork(struct pb_writer *out, const struct pb_fork *fork)
{
	pb_put(out, fork->child_tid == fork->child_tgid ? "fork " : "thread ");
	pb_put_unsigned(out, fork->child_tid);
}

void pb_text_event(struct pb_writer *out, const struct pb_event *event, const struct pb_plan *plan)
{
	union pb_event_body body;

	memcpy(&body.record, event->record, sizeof(body.record));
	if (body.record.kind != PB_RECORD_EXEC)
		memcpy(&body, event->record, pb_record_fixed_bytes(&body.record));
	switch (body.record.kind) {
	case PB_RECORD_SIGNAL:
		pb_text_signal(out, plan, &body.signal);
		break;
	case PB_RECORD_EXEC:
		put_exec(out, event->record, plan);
		break;
	case PB_RECORD_FORK:
		put_fork(out, &body.fork);
		break;
	case PB_RECORD_EXIT:
		pb_text_exit(out, plan, body.exit.status);
		break;
	case PB_RECORD_OOM_KILL:
		pb_put(out, "oom kill ");
		pb_put_unsigned(out, body.oom.victim_tgid);
		break;
	case PB_RECORD_LOST:
		pb_put(out, "lost ");
		pb_put_unsigned(out, body.lost.count);
		pb_put(out, body.lost.count == 1 ? " record (" : " records (");
		pb_put(out, pb_lost_reason(body.lost.reason));
		pb_put_char(out, ')');
		break;
	default:
		break;
	}
}
