/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_message.c: iovec arrays with what they point to, msghdr and mmsghdr with address, buffers and control messages.
 * Without a capture of what a pointer names, the pointer is shown. Source: strace 6.1's output; linux/socket.h.
 *
 * Parts of a message's argument (records/rules.py makes the rules): 0 the struct, then 1 its name, 2 its array of
 * iovec, 3 what those point to, 4 its control messages; of an mmsghdr's second message 5 to 8, and so on for 32.
 */
#include "text.h"

enum {
	IOVECS_SHOWN = 32,
	PART_NAME = 1,
	PART_IOVEC,
	PART_VECTOR,
	PART_CONTROL,
	PARTS_EACH = 4,
	MESSAGES_WHOLE = 32, /* messages whose parts are captured */
	MESSAGE_BYTES = 56,
	EACH_MESSAGE_BYTES = 64,
	CONTROL_HEAD_BYTES = 16,
	RIGHTS_SHOWN = 32,
	SOL_SOCKET_VALUE = 1,
	SCM_RIGHTS_VALUE = 1,
	SCM_CREDENTIALS_VALUE = 2,
};

struct message {
	uint64_t name, name_bytes, iovec, iovecs, control, control_bytes;
	uint32_t flags;
};

static uint64_t word(const uint8_t *bytes, uint32_t size)
{
	uint64_t value = 0;

	memcpy(&value, bytes, size);
	return value;
}

/* The next buffer of a VECTOR capture; false: was not captured or could not be read. */
static bool next_buffer(const struct pb_capture_view *view, uint32_t *at, const uint8_t **data, uint32_t *bytes)
{
	uint64_t size;

	if (!view->data || *at + 8 > view->head.bytes)
		return false;
	size = word(view->data + *at, 8);
	*at += 8;
	if (size > view->head.bytes - *at) {
		return false;
	}
	*data = view->data + *at;
	*bytes = (uint32_t)size;
	*at += ((uint32_t)size + 7) & ~7u;
	return true;
}

static void put_buffer(struct pb_writer *out, const struct pb_call *call, struct pb_stream *stream, const uint8_t *data,
                       uint32_t captured, uint64_t whole)
{
	bool cut = whole > captured;
	uint32_t most = call->plan->string_bytes, shown;

	if (captured > whole)
		captured = (uint32_t)whole;
	if (pb_stream_redact(call, stream, &data, &captured))
		whole = cut ? UINT64_MAX : captured;
	shown = captured < most ? captured : most;
	pb_put_quoted(out, data, shown, whole > shown);
}

/* `left`: bytes that a read moved in all. */
static void put_iovecs(struct pb_writer *out, const struct pb_call *call, const struct pb_capture_view *array,
                       uint64_t address, const struct pb_capture_view *buffers, uint64_t left)
{
	uint32_t count = array->head.bytes / 16, wanted = array->head.extent / 16, at = 0;
	uint32_t shown = count < IOVECS_SHOWN ? count : IOVECS_SHOWN;
	struct pb_stream stream;

	stream.size = 0;
	pb_put_char(out, '[');
	for (uint32_t i = 0; i < shown; i++) {
		uint64_t base = word(array->data + 16 * i, 8), size = word(array->data + 16 * i + 8, 8);
		uint64_t moved = size < left ? size : left;
		const uint8_t *data;
		uint32_t bytes;

		left -= moved;
		pb_put(out, i ? ", {iov_base=" : "{iov_base=");
		if (next_buffer(buffers, &at, &data, &bytes) && base)
			put_buffer(out, call, &stream, data, bytes, moved);
		else
			pb_put_address(out, base);
		pb_put(out, ", iov_len=");
		pb_put_unsigned(out, size);
		pb_put_char(out, '}');
	}
	if (shown < wanted) {
		pb_put(out, shown ? ", ..." : "...");
		if (array->head.flags & PB_CAPTURE_ENDS) {
			pb_put(out, " /* ");
			pb_put_hex(out, address + 16ull * shown);
			pb_put(out, " */");
		}
	}
	pb_put_char(out, ']');
}

static uint64_t bytes_moved(const struct pb_call *call, const struct pb_capture_view *buffers)
{
	bool reads = buffers->head.flags & PB_CAPTURE_CUT; /* set by the rule of a read: as far as the result */

	return reads && call->syscall.result >= 0 ? (uint64_t)call->syscall.result : UINT64_MAX;
}

bool pb_put_iovec(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *array = pb_find_bytes(call, index);
	struct pb_capture_view buffers;

	if (!array || (array->head.extent && array->head.bytes < 16))
		return false;
	if (!pb_find_part(call, index, 1, &buffers))
		buffers = (struct pb_capture_view){ 0 };
	put_iovecs(out, call, array, call->syscall.args[index], &buffers, bytes_moved(call, &buffers));
	return true;
}

static void put_rights(struct pb_writer *out, const struct pb_call *call, const uint8_t *data, uint32_t bytes)
{
	pb_put_char(out, '[');
	for (uint32_t i = 0; i < bytes / 4; i++) {
		if (i)
			pb_put(out, ", ");
		if (i == RIGHTS_SHOWN) {
			pb_put(out, "...");
			break;
		}
		pb_put_signed(out, (int32_t)word(data + 4 * i, 4));
		pb_put_fd_name(out, call, (int32_t)word(data + 4 * i, 4));
	}
	pb_put_char(out, ']');
}

static void put_control_data(struct pb_writer *out, const struct pb_call *call, uint32_t level, uint32_t type,
                             const uint8_t *data, uint32_t bytes)
{
	if (level == SOL_SOCKET_VALUE && type == SCM_RIGHTS_VALUE && bytes >= 4) {
		put_rights(out, call, data, bytes);
	} else if (level == SOL_SOCKET_VALUE && type == SCM_CREDENTIALS_VALUE && bytes >= 12) {
		pb_put(out, "{pid=");
		pb_put_signed(out, (int32_t)word(data, 4));
		pb_put(out, ", uid=");
		pb_put_signed(out, (int32_t)word(data + 4, 4));
		pb_put(out, ", gid=");
		pb_put_signed(out, (int32_t)word(data + 8, 4));
		pb_put_char(out, '}');
	} else {
		pb_put_quoted_hex(out, data, bytes);
	}
}

static void put_control_type(struct pb_writer *out, uint32_t level, uint32_t type)
{
	static const char *const names[] = { NULL, "SCM_RIGHTS", "SCM_CREDENTIALS", "SCM_SECURITY" };

	if (level == SOL_SOCKET_VALUE && type && type < 4)
		pb_put(out, names[type]);
	else if (level == SOL_SOCKET_VALUE && type == 29)
		pb_put(out, "SO_TIMESTAMP_OLD");
	else if (level == SOL_SOCKET_VALUE && type == 35)
		pb_put(out, "SO_TIMESTAMPNS_OLD");
	else if (level == SOL_SOCKET_VALUE && type == 37)
		pb_put(out, "SO_TIMESTAMPING_OLD");
	else if (level == 0 && type == 8)
		pb_put(out, "IP_PKTINFO");
	else
		pb_put_hex(out, type);
}

static void put_control(struct pb_writer *out, const struct pb_call *call, const struct pb_capture_view *view,
                        uint64_t whole)
{
	uint32_t at = 0;

	pb_put_char(out, '[');
	while (view->head.bytes - at >= CONTROL_HEAD_BYTES) {
		uint64_t size = word(view->data + at, 8);
		uint32_t level = (uint32_t)word(view->data + at + 8, 4), type = (uint32_t)word(view->data + at + 12, 4);

		pb_put(out, at ? ", {cmsg_len=" : "{cmsg_len=");
		pb_put_unsigned(out, size);
		pb_put(out, ", cmsg_level=");
		pb_put_enum(out, pb_plan_table(call->plan, call->plan->levels_table), level);
		pb_put(out, ", cmsg_type=");
		put_control_type(out, level, type);
		if (size > whole - at)
			size = whole - at;
		if (size > CONTROL_HEAD_BYTES && size <= view->head.bytes - at) {
			pb_put(out, ", cmsg_data=");
			put_control_data(out, call, level, type, view->data + at + CONTROL_HEAD_BYTES,
			                 (uint32_t)size - CONTROL_HEAD_BYTES);
		}
		pb_put_char(out, '}');
		if (size < CONTROL_HEAD_BYTES || ((size + 7) & ~7ull) > view->head.bytes - at)
			break;
		at += ((uint32_t)size + 7) & ~7u;
	}
	pb_put_char(out, ']');
}

static struct message load_message(const uint8_t *bytes)
{
	return (struct message){
		.name = word(bytes, 8),
		.name_bytes = word(bytes + 8, 4),
		.iovec = word(bytes + 16, 8),
		.iovecs = word(bytes + 24, 8),
		.control = word(bytes + 32, 8),
		.control_bytes = word(bytes + 40, 8),
		.flags = (uint32_t)word(bytes + 48, 4),
	};
}

static void put_name(struct pb_writer *out, const struct pb_call *call, uint32_t index, uint32_t first,
                     const struct message *message)
{
	struct pb_capture_view view;
	uint32_t length;

	if (!pb_find_part(call, index, first + PART_NAME, &view) || view.head.bytes < 2) {
		pb_put_address(out, message->name);
		return;
	}
	pb_part_redact(call, &view);
	length = view.head.extent;
	pb_put_sockaddr(out, call->plan, view.data, view.head.bytes < length ? view.head.bytes : length, length);
}

/* `first`: what is added to the numbers of the parts; `given`: msg_namelen at enter, < 0: not known; `moved`: as many
 * bytes of the buffers are the message's. */
static void put_message(struct pb_writer *out, const struct pb_call *call, uint32_t index, uint32_t first,
                        const uint8_t *bytes, int64_t given, uint64_t moved)
{
	struct message message = load_message(bytes);
	struct pb_capture_view array, buffers;
	uint64_t left;

	pb_put(out, "{msg_name=");
	put_name(out, call, index, first, &message);
	pb_put(out, ", msg_namelen=");
	if (given >= 0 && (uint32_t)given != message.name_bytes) {
		pb_put_signed(out, (int32_t)given);
		pb_put(out, " => ");
	}
	pb_put_signed(out, (int32_t)message.name_bytes);
	pb_put(out, ", msg_iov=");
	if (!pb_find_part(call, index, first + PART_VECTOR, &buffers))
		buffers = (struct pb_capture_view){ 0 };
	left = bytes_moved(call, &buffers);
	if (message.iovec && pb_find_part(call, index, first + PART_IOVEC, &array) &&
	    (array.head.bytes >= 16 || !message.iovecs))
		put_iovecs(out, call, &array, message.iovec, &buffers, moved < left ? moved : left);
	else
		pb_put_address(out, message.iovec);
	pb_put(out, ", msg_iovlen=");
	pb_put_unsigned(out, message.iovecs);
	if (message.control_bytes) {
		pb_put(out, ", msg_control=");
		if (pb_find_part(call, index, first + PART_CONTROL, &array) && array.head.bytes >= CONTROL_HEAD_BYTES)
			put_control(out, call, &array, message.control_bytes);
		else
			pb_put_address(out, message.control);
	}
	pb_put(out, ", msg_controllen=");
	pb_put_unsigned(out, message.control_bytes);
	pb_put(out, ", msg_flags=");
	pb_put_flags(out, pb_plan_table(call->plan, call->plan->message_table), message.flags);
	pb_put_char(out, '}');
}

/* A message that is received has two sides: of a call that failed the given length is all there is. */
bool pb_put_message(struct pb_writer *out, const struct pb_call *call, uint32_t index)
{
	const struct pb_capture_view *before = &call->enter[index], *after = &call->exit[index];
	bool given = pb_usable_bytes(before) && before->head.bytes >= MESSAGE_BYTES;

	if (given && (call->error || call->in_flight)) {
		pb_put(out, "{msg_namelen=");
		pb_put_signed(out, (int32_t)word(before->data + 8, 4));
		pb_put_char(out, '}');
		return true;
	}
	if (!pb_usable_bytes(after))
		after = before;
	if (!pb_usable_bytes(after) || after->head.bytes < MESSAGE_BYTES)
		return false;
	put_message(out, call, index, 0, after->data, given ? (int64_t)word(before->data + 8, 4) : -1, UINT64_MAX);
	return true;
}

bool pb_put_messages(struct pb_writer *out, const struct pb_call *call, uint32_t index, bool received)
{
	const struct pb_capture_view *view = pb_find_bytes(call, index);
	uint32_t count, wanted;

	if (!view || view->head.bytes < EACH_MESSAGE_BYTES)
		return view && !view->head.extent && (pb_put(out, "[]"), true);
	count = view->head.bytes / EACH_MESSAGE_BYTES;
	wanted = view->head.extent / EACH_MESSAGE_BYTES;
	pb_put_char(out, '[');
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t *each = view->data + i * EACH_MESSAGE_BYTES;
		uint64_t length = word(each + MESSAGE_BYTES, 4);

		pb_put(out, i ? ", {msg_hdr=" : "{msg_hdr=");
		put_message(out, call, index, i < MESSAGES_WHOLE ? i * PARTS_EACH : UINT8_MAX, each, -1,
		            received ? length : UINT64_MAX);
		if (call->syscall.result > (int64_t)i) {
			pb_put(out, ", msg_len=");
			pb_put_unsigned(out, length);
		}
		pb_put_char(out, '}');
	}
	if (count < wanted)
		pb_put(out, ", ...");
	pb_put_char(out, ']');
	return true;
}
