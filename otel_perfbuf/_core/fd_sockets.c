/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_sockets.c: a socket's text, <TCP:[LOCAL->PEER]>, as far as its calls tell it: its own port only when it was bound to
 * one or getsockname told it, its inode never. What it is not: what living sockets say (recorder/sockets.py).
 * Source: strace 6.1's output; socket(2), bind(2), accept(2), getsockname(2).
 */
#include "fd_things.h"

enum {
	FAMILY_UNIX = 1,
	FAMILY_INET = 2,
	FAMILY_INET6 = 10,
	FAMILY_NETLINK = 16,
	TYPE_MASK = 15,
	TYPE_STREAM = 1,
	TYPE_DATAGRAM = 2,
	TYPE_RAW = 3,
	TYPE_PACKETS = 5,
};

static const char *socket_prefix(uint64_t family, uint64_t type)
{
	type &= TYPE_MASK;
	switch (family) {
	case FAMILY_UNIX:
		return type == TYPE_STREAM     ? "UNIX-STREAM"
		       : type == TYPE_DATAGRAM ? "UNIX-DGRAM"
		       : type == TYPE_PACKETS  ? "UNIX-SEQPACKET"
		                               : "UNIX";
	case FAMILY_INET:
		return type == TYPE_STREAM     ? "TCP"
		       : type == TYPE_DATAGRAM ? "UDP"
		       : type == TYPE_RAW      ? "RAW"
		                               : "socket";
	case FAMILY_INET6:
		return type == TYPE_STREAM     ? "TCPv6"
		       : type == TYPE_DATAGRAM ? "UDPv6"
		       : type == TYPE_RAW      ? "RAWv6"
		                               : "socket";
	case FAMILY_NETLINK:
		return "NETLINK";
	default:
		return "socket";
	}
}

static bool put_prefix(struct pb_writer *out, const char *prefix, uint64_t bytes, struct pb_fd_thing *thing)
{
	pb_put_char(out, '<');
	pb_put_bytes(out, prefix, bytes);
	thing->prefix_bytes = (uint16_t)bytes;
	return true;
}

bool pb_fd_socket_new(struct pb_writer *out, const struct pb_call *call, struct pb_fd_thing *thing)
{
	const char *prefix = socket_prefix(call->syscall.args[0], call->syscall.args[1]);

	put_prefix(out, prefix, strlen(prefix), thing);
	pb_put_char(out, '>');
	return true;
}

/* Whether a socket's own address names no interface: a connect chooses one. */
static bool is_everywhere(const struct pb_fd_thing *from)
{
	const char *local = from->text + 3 + from->prefix_bytes;

	return from->local_bytes > 8 && (!memcmp(local, "0.0.0.0:", 8) || !memcmp(local, "[::]:", 5));
}

/* <TCP:[LOCAL->PEER]>, with what is known of both. */
static bool put_endpoints(struct pb_writer *out, const struct pb_fd_thing *from, const struct pb_capture_view *local,
                          const struct pb_capture_view *peer, struct pb_fd_thing *thing)
{
	uint64_t start;

	put_prefix(out, from->text + 1, from->prefix_bytes, thing);
	pb_put(out, ":[");
	start = out->size;
	if (local)
		pb_put_endpoint(out, local->data, local->head.bytes);
	else if (!is_everywhere(from))
		pb_put_bytes(out, from->text + 3 + from->prefix_bytes, from->local_bytes);
	thing->local_bytes = (uint16_t)(out->size - start);
	if (peer) {
		pb_put(out, "->");
		pb_put_endpoint(out, peer->data, peer->head.bytes);
	}
	pb_put(out, "]>");
	return true;
}

/* The kernel told the socket's own address; its peer stays. */
static bool put_local(struct pb_writer *out, const struct pb_fd_thing *from, const struct pb_call *call,
                      const struct pb_capture_view *local, struct pb_fd_thing *thing)
{
	const struct pb_capture_view *room = &call->enter[call->row->fds.path + 1];
	uint32_t given = 0, behind = 3u + from->prefix_bytes + from->local_bytes;

	if (room->head.kind != PB_CAPTURE_WORD || room->head.bytes < sizeof(given))
		return false;
	memcpy(&given, room->data, sizeof(given));
	if (given < local->head.bytes || local->head.bytes <= 2 ||
	    pb_sockaddr_port(local->data, local->head.bytes) == 0)
		return false;
	put_endpoints(out, from, local, NULL, thing);
	if (from->bytes > behind + 2) {
		out->size -= 2;
		pb_put_bytes(out, from->text + behind, from->bytes - behind);
	}
	return true;
}

bool pb_fd_socket_put(struct pb_writer *out, const struct pb_fd_names *names, const struct pb_call *call,
                      uint32_t process, struct pb_fd_thing *thing)
{
	const struct pb_fd_rule *rule = &call->row->fds;
	const struct pb_capture_view *address = pb_fd_captured(call, rule->path, PB_CAPTURE_SOCKADDR);
	const struct pb_fd_thing *from = pb_fd_name(names, process, (int32_t)call->syscall.args[rule->fd]);

	if (!from || !from->prefix_bytes)
		return false;
	if (rule->action == PB_FD_ACCEPT && (!address || address->head.bytes <= 2))
		return put_prefix(out, from->text + 1, from->prefix_bytes, thing) && (pb_put_char(out, '>'), true);
	if (!address)
		return false;
	if (rule->action == PB_FD_LOCAL)
		return put_local(out, from, call, address, thing);
	if (rule->action == PB_FD_BIND && pb_sockaddr_port(address->data, address->head.bytes) == 0)
		/* the kernel chooses a port, and does not tell */
		return put_prefix(out, from->text + 1, from->prefix_bytes, thing) && (pb_put_char(out, '>'), true);
	return rule->action == PB_FD_BIND ? put_endpoints(out, from, address, NULL, thing)
	                                  : put_endpoints(out, from, NULL, address, thing);
}
