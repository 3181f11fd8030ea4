/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readers_libbpf.c: libbpf's perf_buffer with an empty callback, or one that copies the bytes out, as a contender of
 * readers.py.
 * What it is not: ours. usage: readers_libbpf MAP_FD BYTES [copy]; for each line "N": reads N records, prints the CPU nanoseconds.
 * Source: libbpf.h (perf_buffer__new, perf_buffer__poll).
 */
#include <bpf/libbpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static unsigned long seen;

static char kept[1 << 20];
static unsigned long used;

/* What a program does that uses the bytes later. */
static void on_sample_copy(void *ctx, int cpu, void *data, __u32 size)
{
	(void)ctx;
	(void)cpu;
	if (used + size > sizeof(kept))
		used = 0;
	memcpy(kept + used, data, size);
	used += size;
	seen++;
}

static void on_sample(void *ctx, int cpu, void *data, __u32 size)
{
	(void)ctx;
	(void)cpu;
	(void)data;
	(void)size;
	seen++;
}

static long long cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char **argv)
{
	struct perf_buffer *buffer;
	unsigned long wanted;

	if (argc < 3)
		return 2;
	buffer = perf_buffer__new(atoi(argv[1]), (size_t)atol(argv[2]) / (size_t)sysconf(_SC_PAGESIZE),
	                          argc > 3 ? on_sample_copy : on_sample, NULL, NULL, NULL);
	if (!buffer)
		return 1;
	printf("ready\n");
	fflush(stdout);
	while (scanf("%lu", &wanted) == 1) {
		long long begun = cpu_ns();

		seen = 0;
		while (seen < wanted)
			if (perf_buffer__poll(buffer, 1000) < 0)
				return 1;
		printf("%lld\n", cpu_ns() - begun);
		fflush(stdout);
	}
	perf_buffer__free(buffer);
	return 0;
}
