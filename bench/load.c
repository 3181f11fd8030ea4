// SPDX-License-Identifier: Apache-2.0
/*
 * load.c: the program that is recorded in benchmarks: N system calls in a row, timed by itself.
 * What it is not: a test; it checks nothing.
 * usage: load getppid|mix N    prints "ready", waits for a line, prints the wall nanoseconds a call; again until EOF.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* The cheapest call there is: what recording adds stands out. */
static long getppid_calls(long n)
{
	for (long i = 0; i < n; i++)
		syscall(SYS_getppid);
	return n;
}

/* What programs do all day: a path, a descriptor, a buffer, an error. */
static long mixed_calls(long n)
{
	char buffer[64];

	for (long i = 0; i < n; i += 5) {
		int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);

		if (read(fd, buffer, sizeof(buffer)) < 0)
			return 0;
		lseek(fd, 0, SEEK_SET);
		close(fd);
		access("/etc/checkout/payments.json", R_OK);
	}
	return n;
}

int main(int argc, char **argv)
{
	char line[16];

	if (argc != 3)
		return 2;
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		double began = now_ns();
		long calls = strcmp(argv[1], "mix") ? getppid_calls(atol(argv[2])) : mixed_calls(atol(argv[2]));

		printf("%.2f\n", (now_ns() - began) / calls);
		fflush(stdout);
	}
	return 0;
}
