/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp_record.c: one event to one opentelemetry.proto.logs.v1.LogRecord, fields ascending as protobuf writes them.
 * Source: opentelemetry-proto logs/v1/logs.proto; CONTRACT.md sections 3 and 4 for names and severities.
 */
#include "otlp_record.h"
#include "text.h"

/* LogRecord's fields. */
enum {
	TIME = 1,
	SEVERITY_NUMBER = 2,
	SEVERITY_TEXT = 3,
	BODY = 5,
	ATTRIBUTES = 6,
	FLAGS = 8,
	TRACE_ID = 9,
	SPAN_ID = 10,
	OBSERVED_TIME = 11,
	EVENT_NAME = 12,
};

enum { INFO = 9, WARN = 13, ERROR = 17, FATAL = 21, NUMBER_KILL = 9 };

/* One event on its way: what was read of it, and where it is written. */
struct encoder {
	struct pb_wire *wire;
	struct pb_encoding *encoding;
	const struct pb_event *event;
	uint64_t index; /* of the event */
	const struct pb_thread *thread;
	const struct pb_process_entry *process;
	union pb_event_body body;
};

/* strnlen, which C11 has not. */
static uint32_t length_of(const char *text, uint32_t most)
{
	uint32_t length = 0;

	while (length < most && text[length])
		length++;
	return length;
}

#define STRING(encoder, key, text, bytes) pb_wire_string((encoder)->wire, ATTRIBUTES, key, sizeof(key) - 1, text, bytes)
#define TEXT(encoder, key, text) STRING(encoder, key, text, length_of(text, PB_NAME_MOST_BYTES))
#define INT(encoder, key, value) pb_wire_int((encoder)->wire, ATTRIBUTES, key, sizeof(key) - 1, value)

/* Bytes of the well-formed UTF-8 character at `bytes`, 0: it is none (RFC 3629: no surrogates, no overlong forms). */
static uint32_t character(const uint8_t *bytes, uint32_t left)
{
	uint8_t first = bytes[0], low = 0x80, high = 0xbf;
	uint32_t size;

	if (first < 0x80)
		return 1;
	if (first < 0xc2 || first > 0xf4)
		return 0;
	size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
	if (first == 0xe0)
		low = 0xa0;
	else if (first == 0xed)
		high = 0x9f;
	else if (first == 0xf0)
		low = 0x90;
	else if (first == 0xf4)
		high = 0x8f;
	if (left < size || bytes[1] < low || bytes[1] > high)
		return 0;
	for (uint32_t i = 2; i < size; i++) {
		if ((bytes[i] & 0xc0) != 0x80)
			return 0;
	}
	return size;
}

/* Copies bytes of any kind as UTF-8: what is none becomes U+FFFD. `out` has room for 3 * size. */
static uint32_t copy_utf8(char *out, const uint8_t *bytes, uint32_t size)
{
	uint32_t at = 0, written = 0;

	while (at < size) {
		uint32_t step = character(bytes + at, size - at);

		memcpy(out + written, step ? (const void *)(bytes + at) : "\xef\xbf\xbd", step ? step : 3);
		written += step ? step : 3;
		at += step ? step : 1;
	}
	return written;
}

/* Whose span a record has (CONTRACT.md section 3). What the kernel stamped comes before what times suggest. */
enum correlation { DUMP, THREAD_WINDOW, EXACT, OTHER };

static enum correlation correlation_of(const struct encoder *encoder, struct pb_span_ids *ids)
{
	if (encoder->event->span) {
		memcpy(ids, encoder->event->span, sizeof(*ids));
		return memcmp(ids->trace_id, encoder->encoding->trace_id, sizeof(ids->trace_id)) ? OTHER : EXACT;
	}
	return encoder->thread->span_end_ns && encoder->event->time_ns >= encoder->thread->span_start_ns &&
	                       encoder->event->time_ns <= encoder->thread->span_end_ns
	               ? THREAD_WINDOW
	               : DUMP;
}

static void put_hex(const struct encoder *encoder, const char *key, uint32_t key_bytes, const uint8_t *bytes,
                    uint32_t size)
{
	static const char digits[] = "0123456789abcdef";
	char text[2 * sizeof(((struct pb_span_ids *)0)->trace_id)];

	for (uint32_t i = 0; i < size; i++) {
		text[2 * i] = digits[bytes[i] >> 4];
		text[2 * i + 1] = digits[bytes[i] & 15];
	}
	pb_wire_string(encoder->wire, ATTRIBUTES, key, key_bytes, text, 2 * size);
}

#define HEX(encoder, key, bytes) put_hex(encoder, key, sizeof(key) - 1, bytes, sizeof(bytes))

static void put_correlation(const struct encoder *encoder)
{
	static const char *const names[] = { "dump", "thread_window", "exact", "other" };
	struct pb_span_ids ids;
	enum correlation correlation = correlation_of(encoder, &ids);

	TEXT(encoder, "perfbuf.correlation", names[correlation]);
	if (correlation != OTHER)
		return;
	HEX(encoder, "perfbuf.other.trace_id", ids.trace_id);
	HEX(encoder, "perfbuf.other.span_id", ids.span_id);
}

/* What every record has. */
static void put_common(const struct encoder *encoder)
{
	char name[3 * PB_COMM_BYTES];
	uint32_t bytes = length_of((const char *)encoder->thread->comm, PB_COMM_BYTES);

	INT(encoder, "thread.id", encoder->thread->tid);
	bytes = copy_utf8(name, encoder->thread->comm, bytes);
	STRING(encoder, "thread.name", name, bytes);
	INT(encoder, "cpu.logical_number", encoder->event->cpu);
	if (encoder->event->sequence)
		INT(encoder, "perfbuf.sequence", (int64_t)encoder->event->sequence);
	INT(encoder, "perfbuf.thread.instance", (int64_t)encoder->event->instance);
	if (!encoder->encoding->has_trace)
		return;
	put_correlation(encoder);
	STRING(encoder, "perfbuf.dump.id", encoder->encoding->dump_id,
	       length_of(encoder->encoding->dump_id, sizeof(encoder->encoding->dump_id)));
}

/* Times, severity and body; the rest of the fields is behind the attributes. */
static void put_head(const struct encoder *encoder, int severity, const char *line, uint32_t bytes)
{
	struct pb_wire *wire = encoder->wire;
	uint64_t unix_ns = encoder->event->time_ns + (uint64_t)encoder->encoding->unix_offset_ns;
	const char *name = severity == INFO    ? "INFO"
	                   : severity == WARN  ? "WARN"
	                   : severity == ERROR ? "ERROR"
	                                       : "FATAL";
	uint8_t *length;

	if (unix_ns)
		pb_wire_fixed64(wire, TIME, unix_ns);
	pb_wire_varint(wire, SEVERITY_NUMBER, (uint64_t)severity);
	pb_wire_bytes(wire, SEVERITY_TEXT, name, (uint32_t)strlen(name));
	length = pb_wire_open(wire, BODY);
	pb_wire_bytes(wire, PB_ANY_STRING, line, bytes);
	pb_wire_close(wire, length);
}

static void put_tail(const struct encoder *encoder, const char *event_name)
{
	const struct pb_encoding *encoding = encoder->encoding;
	struct pb_wire *wire = encoder->wire;
	const uint8_t *span_id = encoding->dump_span_id;
	enum correlation correlation;
	struct pb_span_ids ids;

	if (encoding->has_trace) {
		correlation = correlation_of(encoder, &ids);
		if (correlation == EXACT)
			span_id = ids.span_id;
		else if (correlation == THREAD_WINDOW)
			span_id = encoding->span_id;
		if (encoding->trace_flags)
			pb_wire_fixed32(wire, FLAGS, encoding->trace_flags);
		pb_wire_bytes(wire, TRACE_ID, encoding->trace_id, sizeof(encoding->trace_id));
		pb_wire_bytes(wire, SPAN_ID, span_id, sizeof(encoding->span_id));
	}
	if (encoding->observed_unix_ns)
		pb_wire_fixed64(wire, OBSERVED_TIME, encoding->observed_unix_ns);
	pb_wire_bytes(wire, EVENT_NAME, event_name, (uint32_t)strlen(event_name));
}

/* perfbuf.syscall.arguments: the line's own text of each argument, plain integers as ints. */
static void put_arguments(const struct encoder *encoder, const struct pb_call *call, const char *line)
{
	static const char key[] = "perfbuf.syscall.arguments";
	struct pb_wire *wire = encoder->wire;
	uint8_t *pair = pb_wire_open(wire, ATTRIBUTES), *any, *list;

	pb_wire_bytes(wire, 1, key, sizeof(key) - 1);
	any = pb_wire_open(wire, 2);
	list = pb_wire_open(wire, PB_ANY_KVLIST);
	for (uint32_t i = 0; i < call->span_count; i++) {
		const struct pb_span *span = &call->spans[i];
		const char *name = span->name ? span->name : "";
		uint32_t bytes = length_of(name, PB_NAME_MOST_BYTES);

		if (span->integer)
			pb_wire_int(wire, 1, name, bytes, span->value);
		else
			pb_wire_string(wire, 1, name, bytes, line + span->start, (uint32_t)(span->end - span->start));
	}
	pb_wire_close(wire, list);
	pb_wire_close(wire, any);
	pb_wire_close(wire, pair);
}

static void put_call(const struct encoder *encoder, const struct pb_call *call, const char *line)
{
	const struct pb_event *event = encoder->event;
	uint8_t flags = call->syscall.record.flags;
	char space[PB_NAME_MOST_BYTES];
	struct pb_writer name = { space, 0, sizeof(space) };
	const char *error;

	pb_put_call_name(&name, call);
	STRING(encoder, "perfbuf.syscall.name", name.data, (uint32_t)name.size);
	INT(encoder, "perfbuf.syscall.number", call->syscall.number);
	put_arguments(encoder, call, line);
	if (call->in_flight) {
		TEXT(encoder, "perfbuf.syscall.state", "in_flight");
		if (!(flags & PB_FLAG_BEGAN_BEFORE))
			INT(encoder, "perfbuf.duration_ns",
			    event->seen_ns > event->time_ns ? (int64_t)(event->seen_ns - event->time_ns) : 0);
		return;
	}
	if (!(flags & PB_FLAG_NO_RETURN))
		INT(encoder, "perfbuf.syscall.return_value", call->syscall.result);
	if (flags & (PB_FLAG_EXIT_ONLY | PB_FLAG_BEGAN_BEFORE)) {
		TEXT(encoder, "perfbuf.syscall.state", "exit_only");
	} else {
		TEXT(encoder, "perfbuf.syscall.state", "complete");
		INT(encoder, "perfbuf.duration_ns", (int64_t)call->syscall.duration_ns);
	}
	if (!call->error)
		return;
	error = pb_error_name(call->plan, call->error, NULL);
	name.size = 0;
	if (!error)
		pb_put_unsigned(&name, call->error);
	STRING(encoder, "error.type", error ? error : name.data,
	       error ? length_of(error, PB_NAME_MOST_BYTES) : (uint32_t)name.size);
}

static void encode_call(const struct encoder *encoder)
{
	char line[PB_LINE_BYTES];
	struct pb_writer out = { line, 0, sizeof(line) };
	struct pb_call call;

	pb_call_load(&call, encoder->event, encoder->encoding->plan);
	call.fds = encoder->encoding->fds;
	call.process = encoder->thread->process;
	if (call.syscall.record.flags & PB_FLAG_NO_RETURN)
		call.error = 0;
	pb_text_call(&out, &call);
	put_head(encoder, call.error ? WARN : INFO, line, (uint32_t)out.size);
	put_common(encoder);
	put_call(encoder, &call, line);
	put_tail(encoder, "perfbuf.syscall");
	encoder->encoding->redactions += call.redactions;
	if (encoder->encoding->reading)
		pb_reading_call(encoder->encoding->reading, encoder->index, encoder->event, encoder->thread,
		                encoder->process->tgid, &call, line, (uint32_t)out.size);
}

static void put_signal_name(const struct encoder *encoder, int32_t number)
{
	char space[24];
	struct pb_writer name = { space, 0, sizeof(space) };

	pb_put_signal(&name, encoder->encoding->plan, number);
	STRING(encoder, "perfbuf.signal.name", name.data, (uint32_t)name.size);
}

static void put_signal(const struct encoder *encoder)
{
	const struct pb_signal *signal = &encoder->body.signal;
	char space[24];
	struct pb_writer address = { space, 0, sizeof(space) };
	uint64_t value;
	uint32_t pid;

	put_signal_name(encoder, signal->number);
	INT(encoder, "perfbuf.signal.number", signal->number);
	if (signal->has_info)
		INT(encoder, "perfbuf.signal.code", signal->code);
	if (pb_signal_has_sender(signal)) {
		memcpy(&pid, signal->fields, sizeof(pid));
		INT(encoder, "perfbuf.signal.sender_pid", pid);
	}
	if (pb_signal_has_address(signal)) {
		memcpy(&value, signal->fields, sizeof(value));
		pb_put(&address, "0x");
		pb_put_hex_wide(&address, value, 1);
		STRING(encoder, "perfbuf.signal.fault_address", address.data, (uint32_t)address.size);
	}
}

static void put_exec(const struct encoder *encoder)
{
	char path[3 * PB_SAMPLE_MAX_BYTES];
	uint8_t redacted[PB_REDACTED_BYTES];
	struct pb_capture_view view;
	uint32_t bytes;

	if (!pb_record_path(encoder->event->record, &view))
		return;
	encoder->encoding->redactions += pb_view_redact(encoder->encoding->plan, &view, redacted, sizeof(redacted));
	bytes = view.head.bytes < PB_SAMPLE_MAX_BYTES ? view.head.bytes : PB_SAMPLE_MAX_BYTES;
	bytes = copy_utf8(path, view.data, bytes);
	STRING(encoder, "process.executable.path", path, bytes);
}

static void put_exit(const struct encoder *encoder)
{
	int32_t status = encoder->body.exit.status;

	if (status & 0x7f)
		put_signal_name(encoder, status & 0x7f);
	else
		INT(encoder, "process.exit.code", status >> 8 & 0xff);
}

/* A signal that its process ended by, or one nobody survives: default actions and handlers are not in its record. */
static bool fatal(const struct encoder *encoder)
{
	int32_t number = encoder->body.signal.number;

	return number == NUMBER_KILL || (encoder->process->exited && (encoder->process->exit_status & 0x7f) == number);
}

static int severity_of(const struct encoder *encoder)
{
	switch (encoder->body.record.kind) {
	case PB_RECORD_SIGNAL:
		return fatal(encoder) ? ERROR : INFO;
	case PB_RECORD_EXIT:
		return encoder->body.exit.status ? ERROR : INFO;
	case PB_RECORD_OOM_KILL:
		return FATAL;
	default:
		return INFO;
	}
}

/* Of an end its wait status, of a signal that nobody survived its number; 0: nothing that stands out. */
static uint32_t status_of(const struct encoder *encoder)
{
	if (encoder->body.record.kind == PB_RECORD_EXIT)
		return (uint32_t)encoder->body.exit.status;
	if (encoder->body.record.kind == PB_RECORD_SIGNAL && fatal(encoder))
		return (uint32_t)encoder->body.signal.number;
	return 0;
}

static void encode_other(struct encoder *encoder)
{
	char line[PB_LINE_BYTES];
	struct pb_writer out = { line, 0, sizeof(line) };
	const char *name = "perfbuf.event";

	if (encoder->body.record.kind != PB_RECORD_EXEC)
		memcpy(&encoder->body, encoder->event->record, pb_record_fixed_bytes(&encoder->body.record));
	pb_text_event(&out, encoder->event, encoder->encoding->plan);
	if (encoder->encoding->reading)
		pb_reading_other(encoder->encoding->reading, encoder->index, encoder->event, encoder->thread,
		                 encoder->process->tgid, status_of(encoder), line, (uint32_t)out.size);
	put_head(encoder, severity_of(encoder), line, (uint32_t)out.size);
	put_common(encoder);
	switch (encoder->body.record.kind) {
	case PB_RECORD_SIGNAL:
		put_signal(encoder);
		name = "perfbuf.signal";
		break;
	case PB_RECORD_EXEC:
		put_exec(encoder);
		name = "perfbuf.process.exec";
		break;
	case PB_RECORD_FORK:
		INT(encoder, "perfbuf.child_pid", encoder->body.fork.child_tid);
		name = "perfbuf.process.fork";
		break;
	case PB_RECORD_EXIT:
		put_exit(encoder);
		name = "perfbuf.process.exit";
		break;
	case PB_RECORD_OOM_KILL:
		INT(encoder, "perfbuf.victim_pid", encoder->body.oom.victim_tgid);
		INT(encoder, "perfbuf.cgroup_id", (int64_t)encoder->body.oom.cgroup_id);
		name = "perfbuf.oom_kill";
		break;
	case PB_RECORD_LOST:
		INT(encoder, "perfbuf.lost.count", (int64_t)encoder->body.lost.count);
		TEXT(encoder, "perfbuf.lost.reason", pb_lost_reason(encoder->body.lost.reason));
		name = "perfbuf.lost";
		break;
	default:
		break;
	}
	put_tail(encoder, name);
}

void pb_otlp_record(struct pb_wire *wire, uint32_t field, const struct pb_history *history,
                    struct pb_encoding *encoding, const struct pb_event *event)
{
	struct encoder encoder = { .wire = wire, .encoding = encoding, .event = event };
	uint8_t *length = pb_wire_open(wire, field);

	encoder.index = (uint64_t)(event - history->events);
	encoder.thread = &history->threads[event->thread];
	encoder.process = &history->processes[encoder.thread->process];
	memcpy(&encoder.body.record, event->record, sizeof(encoder.body.record));
	if (encoder.body.record.kind == PB_RECORD_SYSCALL)
		encode_call(&encoder);
	else
		encode_other(&encoder);
	pb_wire_close(wire, length);
}
