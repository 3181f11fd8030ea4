/* SPDX-License-Identifier: Apache-2.0 */
/*
 * burst.c: COUNT getppid calls, in equal parts on each CPU of a list, then exit_group(1). One thread.
 * usage: burst COUNT [CPU...]   (no CPU: wherever the scheduler puts it)
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long parts = argc > 2 ? argc - 2 : 1;
	long count = argc > 1 ? atol(argv[1]) / parts : 0;

	for (long part = 0; part < parts; part++) {
		if (argc > 2) {
			cpu_set_t set;

			CPU_ZERO(&set);
			CPU_SET(atoi(argv[2 + part]), &set);
			if (sched_setaffinity(0, sizeof(set), &set))
				return 2;
		}
		for (long i = 0; i < count; i++)
			syscall(SYS_getppid);
	}
	return 1;
}
