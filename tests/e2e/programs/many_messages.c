/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many_messages.c: sendmmsg of one, some and more messages than strace shows, and recvmmsg with room for more than came.
 * What it is not: a test by itself; tests/e2e/test_strace.py compares what strace and the recorder show of it.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { MESSAGES = 64, BYTES = 40 };

static char texts[MESSAGES][BYTES];
static struct iovec vectors[MESSAGES];
static struct mmsghdr messages[MESSAGES];

static void prepare(unsigned int index, size_t bytes)
{
	vectors[index] = (struct iovec){ texts[index], bytes };
	messages[index] = (struct mmsghdr){ .msg_hdr = { .msg_iov = &vectors[index], .msg_iovlen = 1 } };
}

/* Each with a text of its own; what is received is shorter than its buffer, which still holds what was there before. */
static int exchange(const int pair[2], unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		prepare(i, (size_t)snprintf(texts[i], BYTES, "message %u of %u", i, count));
	if (sendmmsg(pair[0], messages, count, 0) != (int)count)
		return 1;
	memset(texts, 'x', sizeof(texts));
	for (unsigned int i = 0; i < MESSAGES; i++)
		prepare(i, BYTES);
	return recvmmsg(pair[1], messages, MESSAGES, MSG_DONTWAIT, NULL) != (int)count;
}

int main(void)
{
	static const unsigned int counts[] = { 1, 2, 3, 31, 32, 33, 40 };
	int pair[2], failed = 0;

	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair))
		return 2;
	for (unsigned int i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		failed |= exchange(pair, counts[i]);
	return failed;
}
