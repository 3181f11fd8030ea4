/* SPDX-License-Identifier: Apache-2.0 */
/* ring_writer.c CPU: pins itself there, waits for a byte on stdin, then calls getppid as fast as it can until it is
 * killed (or its parent dies). What it is not: the BPF program that turns the calls into samples (rings.bpf.c). */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	cpu_set_t cpus;
	char go;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CPU_ZERO(&cpus);
	CPU_SET(argc > 1 ? atoi(argv[1]) : 0, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus) < 0 || read(0, &go, 1) != 1)
		return 1;
	for (;;)
		syscall(SYS_getppid);
}
