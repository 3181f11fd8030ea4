/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_sockaddr.c: socket addresses in strace's form. Scope ids of link-local addresses stay numbers (strace asks the
 * host for the interface's name; here the process's network namespace may be another one).
 * Source: strace 6.1's output; linux/{socket,un,in,in6,netlink}.h.
 */
#include "text.h"

enum { FAMILY_UNIX = 1, FAMILY_INET = 2, FAMILY_INET6 = 10, FAMILY_NETLINK = 16, FAMILY_VSOCK = 40 };

static uint16_t big16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static uint32_t big32(const uint8_t *bytes)
{
	return (uint32_t)big16(bytes) << 16 | big16(bytes + 2);
}

static uint32_t host32(const uint8_t *bytes)
{
	uint32_t value;

	memcpy(&value, bytes, sizeof(value));
	return value;
}

static void put_inet_address(struct pb_writer *out, const uint8_t *bytes)
{
	for (unsigned int i = 0; i < 4; i++) {
		if (i)
			pb_put_char(out, '.');
		pb_put_unsigned(out, bytes[i]);
	}
}

static void put_inet(struct pb_writer *out, const uint8_t *bytes)
{
	pb_put(out, ", sin_port=htons(");
	pb_put_unsigned(out, big16(bytes + 2));
	pb_put(out, "), sin_addr=inet_addr(\"");
	put_inet_address(out, bytes + 4);
	pb_put(out, "\")");
}

/* The first longest run of two or more zero groups, which inet_ntop writes as "::". */
static void longest_zeros(const uint8_t *bytes, unsigned int *start, unsigned int *size)
{
	unsigned int run = 0;

	*start = 8;
	*size = 1;
	for (unsigned int i = 0; i < 8; i++) {
		run = big16(bytes + 2 * i) ? 0 : run + 1;
		if (run > *size) {
			*size = run;
			*start = i + 1 - run;
		}
	}
}

/* As inet_ntop writes it, the IPv4 forms ::1.2.3.4 and ::ffff:1.2.3.4 included. */
static void put_inet6_address(struct pb_writer *out, const uint8_t *bytes)
{
	unsigned int start, size;

	longest_zeros(bytes, &start, &size);
	for (unsigned int i = 0; i < 8; i++) {
		if (i >= start && i < start + size) {
			if (i == start)
				pb_put_char(out, ':');
			continue;
		}
		if (i)
			pb_put_char(out, ':');
		if (i == 6 && start == 0 &&
		    (size == 6 || (size == 7 && big16(bytes + 14) != 1) ||
		     (size == 5 && big16(bytes + 10) == 0xffff))) {
			put_inet_address(out, bytes + 12);
			return;
		}
		pb_put_hex_wide(out, big16(bytes + 2 * i), 1);
	}
	if (start + size == 8)
		pb_put_char(out, ':');
}

void pb_put_inet(struct pb_writer *out, const uint8_t *bytes, bool six, const char *name)
{
	pb_put(out, six ? "inet_pton(AF_INET6, \"" : "inet_addr(\"");
	if (!six) {
		put_inet_address(out, bytes);
		pb_put(out, "\")");
		return;
	}
	put_inet6_address(out, bytes);
	pb_put(out, "\", &");
	pb_put(out, name);
	pb_put_char(out, ')');
}

static void put_inet6(struct pb_writer *out, const uint8_t *bytes, uint32_t length)
{
	pb_put(out, ", sin6_port=htons(");
	pb_put_unsigned(out, big16(bytes + 2));
	pb_put(out, "), sin6_flowinfo=htonl(");
	pb_put_unsigned(out, big32(bytes + 4));
	pb_put(out, "), inet_pton(AF_INET6, \"");
	put_inet6_address(out, bytes + 8);
	pb_put(out, "\", &sin6_addr)");
	if (length >= 28) {
		pb_put(out, ", sin6_scope_id=");
		pb_put_unsigned(out, host32(bytes + 24));
	}
}

static void put_unix_path(struct pb_writer *out, const uint8_t *bytes, uint32_t captured, bool cut)
{
	const uint8_t *path = bytes + 2;
	uint32_t size = captured - 2;

	if (size && !path[0]) {
		pb_put_char(out, '@');
		pb_put_quoted(out, path + 1, size - 1, cut);
	} else {
		const uint8_t *end = memchr(path, 0, size);

		pb_put_quoted(out, path, end ? (uint32_t)(end - path) : size, cut && !end);
	}
}

static void put_netlink(struct pb_writer *out, const uint8_t *bytes)
{
	uint32_t groups = host32(bytes + 8);

	pb_put(out, ", nl_pid=");
	pb_put_signed(out, (int32_t)host32(bytes + 4));
	pb_put(out, ", nl_groups=");
	if (groups)
		pb_put(out, "0x");
	pb_put_hex_wide(out, groups, groups ? 6 : 8);
}

static void put_vsock(struct pb_writer *out, const uint8_t *bytes)
{
	static const char *const names[] = { "VMADDR_CID_HYPERVISOR", "VMADDR_CID_LOCAL", "VMADDR_CID_HOST" };
	uint32_t cid = host32(bytes + 8);

	pb_put(out, ", svm_cid=");
	if (cid < 3)
		pb_put(out, names[cid]);
	else if (cid == UINT32_MAX)
		pb_put(out, "VMADDR_CID_ANY");
	else
		pb_put_hex(out, cid);
	pb_put(out, ", svm_port=");
	pb_put_hex(out, host32(bytes + 4));
	pb_put(out, ", svm_flags=");
	pb_put_hex(out, bytes[12]);
}

/* `captured` bytes are here, the address has `length` of them; both >= 2. */
void pb_put_sockaddr(struct pb_writer *out, const struct pb_plan *plan, const uint8_t *bytes, uint32_t captured,
                     uint32_t length)
{
	uint16_t family;

	memcpy(&family, bytes, sizeof(family));
	pb_put(out, "{sa_family=");
	pb_put_enum(out, pb_plan_table(plan, plan->families_table), family);
	if (length > 2) {
		if (family == FAMILY_UNIX) {
			pb_put(out, ", sun_path=");
			put_unix_path(out, bytes, captured, captured < length);
		} else if (family == FAMILY_INET && captured >= 16) {
			put_inet(out, bytes);
		} else if (family == FAMILY_INET6 && captured >= 24) {
			put_inet6(out, bytes, captured);
		} else if (family == FAMILY_NETLINK && captured >= 12) {
			put_netlink(out, bytes);
		} else if (family == FAMILY_VSOCK && captured >= 16) {
			put_vsock(out, bytes);
		} else {
			pb_put(out, ", sa_data=");
			pb_put_quoted(out, bytes + 2, captured - 2, captured < length);
		}
	}
	pb_put_char(out, '}');
}

void pb_put_endpoint(struct pb_writer *out, const uint8_t *bytes, uint32_t captured)
{
	uint16_t family;

	memcpy(&family, bytes, sizeof(family));
	if (family == FAMILY_INET && captured >= 8) {
		put_inet_address(out, bytes + 4);
	} else if (family == FAMILY_INET6 && captured >= 24) {
		pb_put_char(out, '[');
		put_inet6_address(out, bytes + 8);
		pb_put_char(out, ']');
	} else {
		if (family == FAMILY_UNIX && captured > 2)
			put_unix_path(out, bytes, captured, false);
		return;
	}
	pb_put_char(out, ':');
	pb_put_unsigned(out, big16(bytes + 2));
}

int32_t pb_sockaddr_port(const uint8_t *bytes, uint32_t captured)
{
	uint16_t family;

	memcpy(&family, bytes, sizeof(family));
	return (family == FAMILY_INET || family == FAMILY_INET6) && captured >= 4 ? big16(bytes + 2) : -1;
}
