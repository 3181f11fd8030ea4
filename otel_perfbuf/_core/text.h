/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h: inside of the renderer: a bounded writer of ASCII, one call as the renderers see it, and their functions.
 * Source: strace's output (tests compare with it), CONTRACT.md section 4. What it is not: the interface (otlp.h).
 * Everything written is ASCII: bytes >= 0x80 are escaped, so a line may be cut anywhere and stays UTF-8.
 */
#ifndef PERFBUF_TEXT_H
#define PERFBUF_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "check.h"
#include "fd_names.h"
#include "history.h"
#include "plan.h"

enum { PB_RESULT_BYTES = 512 }; /* of a line are kept for what follows the arguments */

/* Writes at most capacity bytes; what does not fit is left out. */
struct pb_writer {
	char *data;
	uint64_t size;
	uint64_t capacity;
};

/* One argument in the line: its place, and its value when it is a plain integer. */
struct pb_span {
	uint64_t start;
	uint64_t end;
	int64_t value;
	const char *name;
	bool integer;
};

/* A record that is no system call, copied out of the input, whose bytes are not aligned. */
union pb_event_body {
	struct pb_record record;
	struct pb_signal signal;
	struct pb_fork fork;
	struct pb_exit exit;
	struct pb_oom_kill oom;
	struct pb_lost lost;
};

/* A system call with its row of the plan and its captures found. args[] behind record.arguments are 0. */
struct pb_call {
	const struct pb_plan *plan;
	const struct pb_syscall_plan *row; /* NULL: unknown */
	const struct pb_argument *args;
	const struct pb_variant *variant; /* or NULL */
	struct pb_syscall syscall;
	uint32_t arguments; /* to be shown at most */
	uint32_t error;     /* errno, 0: none */
	bool in_flight;
	const struct pb_event *event;    /* for its captures of other parts */
	struct pb_capture_view enter[6]; /* part 0; head.kind PB_CAPTURE_NONE: was not captured */
	struct pb_capture_view exit[6];
	const struct pb_fd_names *fds; /* NULL: fds are bare */
	uint32_t process;
	struct pb_span spans[6]; /* filled by pb_text_call, in the order shown */
	uint32_t span_count;
	uint32_t redactions; /* captures that a pattern has changed; their views point into .redacted */
	uint32_t redacted_bytes;
	uint8_t redacted[PB_REDACTED_BYTES];
};

static inline void pb_put_char(struct pb_writer *out, char c)
{
	if (out->size < out->capacity)
		out->data[out->size++] = c;
}

static inline void pb_put_bytes(struct pb_writer *out, const char *bytes, uint64_t size)
{
	uint64_t room = out->capacity - out->size;

	if (size > room)
		size = room;
	memcpy(out->data + out->size, bytes, size);
	out->size += size;
}

static inline void pb_put(struct pb_writer *out, const char *text)
{
	pb_put_bytes(out, text, strlen(text));
}

/* text_writer.c */
void pb_put_unsigned(struct pb_writer *out, uint64_t value);
void pb_put_signed(struct pb_writer *out, int64_t value);
void pb_put_hex(struct pb_writer *out, uint64_t value); /* 0x1f; 0 as 0 */
void pb_put_hex_wide(struct pb_writer *out, uint64_t value, unsigned int digits);
void pb_put_address(struct pb_writer *out, uint64_t value); /* 0x1f; 0 as NULL */
void pb_put_octal(struct pb_writer *out, uint64_t value);   /* 0644; at least three digits: 000 */
/* strace's escapes, without the quotes. */
void pb_put_escaped(struct pb_writer *out, const uint8_t *bytes, uint64_t size);
void pb_put_quoted(struct pb_writer *out, const uint8_t *bytes, uint64_t size, bool cut);
void pb_put_quoted_hex(struct pb_writer *out, const uint8_t *bytes, uint64_t size); /* "\x01\x00" */

/* text_scalar.c */
const char *pb_name_find(const struct pb_name *rows, uint32_t count, uint64_t value);
void pb_put_signal(struct pb_writer *out, const struct pb_plan *plan, int32_t number);
void pb_put_enum(struct pb_writer *out, const struct pb_table *table, uint64_t value);
void pb_put_flags(struct pb_writer *out, const struct pb_table *table, uint64_t value);
void pb_put_flags_value(struct pb_writer *out, const struct pb_table *table, uint64_t value);
const struct pb_table *pb_plan_table(const struct pb_plan *plan, uint32_t index);
/* A kind whose text needs the value alone (an argument or a struct's field). False: another kind. */
bool pb_put_scalar(struct pb_writer *out, const struct pb_plan *plan, uint8_t kind, uint64_t value, uint32_t table);
/* True when the kind shows `value` as a plain integer that fits; then it is in *integer. */
bool pb_scalar_integer(uint8_t kind, uint64_t value, int64_t *integer);

/* text_memory.c: what was captured behind a pointer; the address where nothing was. */
void pb_put_memory(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                   uint32_t index);
/* The newest usable capture of an argument's own memory, of any kind that is bytes (struct, buffer, word). */
const struct pb_capture_view *pb_find_bytes(const struct pb_call *call, uint32_t index);
bool pb_usable_bytes(const struct pb_capture_view *view);
/* Another part of an argument, at exit, else at enter. False: was not captured or could not be read. */
bool pb_find_part(const struct pb_call *call, uint32_t index, uint32_t part, struct pb_capture_view *view);
/* text_message.c */
bool pb_put_iovec(struct pb_writer *out, const struct pb_call *call, uint32_t index);
bool pb_put_message(struct pb_writer *out, const struct pb_call *call, uint32_t index);
/* `received`: a message has as many bytes as it says, however large its buffers are. */
bool pb_put_messages(struct pb_writer *out, const struct pb_call *call, uint32_t index, bool received);
/* text_parts.c: structs with more memory behind them */
bool pb_put_parts(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument,
                  uint32_t index);
/* text_bits.c */
bool pb_put_bits(struct pb_writer *out, const struct pb_call *call, const struct pb_argument *argument, uint32_t index);
void pb_put_remark(struct pb_writer *out, const struct pb_call *call);
/* text_time.c */
void pb_put_date_result(struct pb_writer *out, int64_t seconds); /* (1970-01-01T00:00:05+0000) */
void pb_put_date_comment(struct pb_writer *out, int64_t seconds, uint64_t fraction, unsigned int digits);
/* text_tty.c */
void pb_put_tty_output(struct pb_writer *out, uint32_t value);
void pb_put_tty_control(struct pb_writer *out, uint32_t value);
void pb_put_ioctl_number(struct pb_writer *out, uint32_t value);
/* text_time.c */
void pb_put_date(struct pb_writer *out, const struct pb_plan *plan, const uint8_t *bytes, bool microseconds);
/* text_sockaddr.c */
/* inet_addr("127.0.0.1"), inet_pton(AF_INET6, "::1", &NAME) */
void pb_put_inet(struct pb_writer *out, const uint8_t *bytes, bool six, const char *name);
void pb_put_sockaddr(struct pb_writer *out, const struct pb_plan *plan, const uint8_t *bytes, uint32_t captured,
                     uint32_t length);
/* 127.0.0.1:80, [::1]:80, "/run/x.sock": the address of a socket without its family. */
void pb_put_endpoint(struct pb_writer *out, const uint8_t *bytes, uint32_t captured);
/* -1: an address without one. */
int32_t pb_sockaddr_port(const uint8_t *bytes, uint32_t captured);
/* text_struct.c */
bool pb_put_struct(struct pb_writer *out, const struct pb_call *call, uint32_t index,
                   const struct pb_capture_view *view, uint64_t address);
/* What stands behind a struct's known bytes. */
void pb_put_tail(struct pb_writer *out, const uint8_t *bytes, const struct pb_struct *layout, uint32_t captured);
void pb_put_sigset(struct pb_writer *out, const struct pb_plan *plan, uint64_t set);
void pb_put_wait_status(struct pb_writer *out, const struct pb_plan *plan, int32_t status);

/* text_event.c: the other kinds of records */
void pb_text_signal(struct pb_writer *out, const struct pb_plan *plan, const struct pb_signal *signal);
void pb_text_exit(struct pb_writer *out, const struct pb_plan *plan, int32_t status);
const char *pb_signal_name(const struct pb_plan *plan, int32_t number, char *space, size_t space_bytes);
bool pb_signal_has_sender(const struct pb_signal *signal);
bool pb_signal_has_address(const struct pb_signal *signal);

/* fd_things.c: </etc/hosts> behind an fd, or nothing. True: something was written. */
bool pb_put_fd_name(struct pb_writer *out, const struct pb_call *call, int32_t fd);
/* ... behind an fd that is the call's result. */
void pb_put_result_name(struct pb_writer *out, const struct pb_call *call);

/* text_redact.c: the captures as they may be shown. */
void pb_call_redact(struct pb_call *call);
/* A buffer of another part of a call, where it is shown; it counts as the call's. True: it was changed. */
bool pb_bytes_redact(const struct pb_call *call, const uint8_t **data, uint32_t *bytes);
bool pb_view_redact(const struct pb_plan *plan, struct pb_capture_view *view, uint8_t *space, uint32_t capacity);
/* Another part of a call (pb_find_part), before it is shown. */
void pb_part_redact(const struct pb_call *call, struct pb_capture_view *view);
/* The buffers of one message, one after the other: a secret may begin in one and end in the next. .size = 0 first. */
struct pb_stream {
	uint32_t size;
	uint8_t bytes[PB_REDACTED_BYTES];
};
/* As pb_bytes_redact; a buffer into which a secret reaches is replaced whole. */
bool pb_stream_redact(const struct pb_call *call, struct pb_stream *stream, const uint8_t **data, uint32_t *bytes);

/* text.c */
void pb_call_load(struct pb_call *call, const struct pb_event *event, const struct pb_plan *plan);
void pb_text_call(struct pb_writer *out, struct pb_call *call);
/* The syscall's name, or syscall_0x1f4 as strace names one it does not know (a 32-bit call: syscall_20). */
void pb_put_call_name(struct pb_writer *out, const struct pb_call *call);
/* ENOENT, ERESTARTSYS; NULL: has no name. *text: its sentence. */
const char *pb_error_name(const struct pb_plan *plan, uint32_t error, const char **text);
/* perfbuf.lost.reason. */
const char *pb_lost_reason(uint32_t reason);
/* Any event's line, except a system call's. */
void pb_text_event(struct pb_writer *out, const struct pb_event *event, const struct pb_plan *plan);
/* The first capture of argument 0 behind a record's fixed part; False: none. */
bool pb_record_path(const void *record, struct pb_capture_view *view);

#endif
