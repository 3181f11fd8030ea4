/* SPDX-License-Identifier: Apache-2.0 */
/*
 * noisy_neighbour.c: one thread looks for ten files ("/marker-0" to "/marker-9") and then waits in read(pipe, ..., 4711);
 * the main thread makes bursts of getppid calls on every CPU in turn, for SECONDS, then says "lapped" and
 *   exit: exits with 1      hold: waits for the end of its stdin, then exits with 0
 * usage: noisy_neighbour SECONDS exit|hold [go]     go: begins when a byte comes on stdin
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int pipe_fds[2];

static void *waiter(void *unused)
{
	static char buffer[4711];
	char path[16];

	for (int i = 0; i < 10; i++) {
		snprintf(path, sizeof(path), "/marker-%d", i);
		access(path, R_OK);
	}
	return read(pipe_fds[0], buffer, sizeof(buffer)) < 0 ? unused : NULL;
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double end;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t thread;
	char byte;

	if (argc < 3 || (argc > 3 && read(STDIN_FILENO, &byte, 1) != 1) || pipe(pipe_fds) ||
	    pthread_create(&thread, NULL, waiter, NULL))
		return 2;
	end = now_s() + atof(argv[1]);
	for (long turn = 0; now_s() < end; turn++) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET((int)(turn % cpus), &set);
		sched_setaffinity(0, sizeof(set), &set);
		for (int i = 0; i < 50000; i++)
			syscall(SYS_getppid);
		poll(NULL, 0, 100);
	}
	if (write(STDOUT_FILENO, "lapped\n", 7) != 7)
		return 2;
	if (!strcmp(argv[2], "exit"))
		return 1;
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
