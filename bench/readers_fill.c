/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readers_fill.c: the process whose getpgid calls become samples in one contender's rings (readers.py).
 * What it is not: a reader. usage: readers_fill BYTES CPU; for each line "N": N calls on that CPU, then prints 0.
 * Source: tests/kernel/programs/rings.bpf.c (getpgid(n) is a sample of n bytes).
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned long calls;
	cpu_set_t cpu;

	if (argc != 3)
		return 2;
	CPU_ZERO(&cpu);
	CPU_SET(atoi(argv[2]), &cpu);
	if (sched_setaffinity(0, sizeof(cpu), &cpu))
		return 1;
	puts("ready");
	fflush(stdout);
	while (scanf("%lu", &calls) == 1) {
		for (unsigned long i = 0; i < calls; i++)
			syscall(SYS_getpgid, atoi(argv[1]));
		puts("0");
		fflush(stdout);
	}
	return 0;
}
