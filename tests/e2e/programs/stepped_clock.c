/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepped_clock.c: preloaded into one process, adds the seconds in the file STEPPED_CLOCK to its wall clock.
 * The file is mapped, so that a test steps the clock while the process runs. CLOCK_MONOTONIC is left alone.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *step_s;

__attribute__((constructor)) static void map_step(void)
{
	const char *path = getenv("STEPPED_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *found = MAP_FAILED;

	if (fd >= 0) {
		found = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (found != MAP_FAILED)
		step_s = found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = (int)syscall(SYS_clock_gettime, clock, now);

	if (!result && clock == CLOCK_REALTIME && step_s)
		now->tv_sec += *step_s;
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *where)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (where)
		*where = now.tv_sec;
	return now.tv_sec;
}
