/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.c: makes the system calls of a job file, one after the other, each with its memory as the job has it.
 * What it is not: it knows no system call. Source of the format: jobs.py, which writes the files.
 *
 * caller JOB: the job's memory is mapped at the address that the job says, with nothing mapped behind it, and is
 * written anew before each call. A timer interrupts what blocks. runner: caller -r UID JOB...: each job as a process
 * of its own, as that user, in its own IPC and UTS namespace.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

enum { TICK_US = 100000, JOB_SECONDS = 10, MARK = 15 };

struct job {
	uint64_t address;
	uint64_t bytes;
	uint64_t calls;
};

struct call {
	uint64_t number;
	uint64_t args[6];
};

static void tick(int number)
{
	(void)number;
}

/* A child of the call (clone, fork) ends here, without touching a stack that it may share. */
static long make(const struct call *call)
{
#ifdef __x86_64__
	register long r10 __asm__("r10") = (long)call->args[3];
	register long r8 __asm__("r8") = (long)call->args[4];
	register long r9 __asm__("r9") = (long)call->args[5];
	long number = (long)call->number, result;
	register long r12 __asm__("r12") =
		number == SYS_clone || number == SYS_fork || number == SYS_vfork || number == SYS_clone3;

	__asm__ volatile("syscall\n\t"
	                 "test %%rax, %%rax\n\t"
	                 "jnz 1f\n\t"
	                 "test %%r12, %%r12\n\t"
	                 "jz 1f\n\t"
	                 "mov $60, %%eax\n\t"
	                 "xor %%edi, %%edi\n\t"
	                 "syscall\n\t"
	                 "1:"
	                 : "=a"(result)
	                 : "a"(number), "D"(call->args[0]), "S"(call->args[1]), "d"(call->args[2]), "r"(r10), "r"(r8),
	                   "r"(r9), "r"(r12)
	                 : "rcx", "r11", "memory");
	return result;
#else
	return syscall((long)call->number, call->args[0], call->args[1], call->args[2], call->args[3], call->args[4],
	               call->args[5]);
#endif
}

/* Descriptors that jobs count on: 3 a file, 4 and 5 a socket pair, 6 a TCP listener, 7 epoll, 8 eventfd, 9 timerfd,
 * 10 and 11 a pipe, 12 a UDP socket, 13 a folder, 14 a terminal. */
static void open_descriptors(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 8 };
	int pair[2];

	open("data", O_RDWR | O_CREAT, 0644);
	socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair);
	socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	bind(6, (struct sockaddr *)&any, sizeof(any));
	listen(6, 5);
	epoll_create1(0);
	eventfd(1, EFD_NONBLOCK);
	epoll_ctl(7, EPOLL_CTL_ADD, 8, &event);
	timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	pipe2(pair, O_NONBLOCK);
	socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	open(".", O_RDONLY | O_DIRECTORY);
	open("/dev/ptmx", O_RDWR | O_NOCTTY);
}

static int call_job(const char *path)
{
	struct itimerval every = { { 0, TICK_US }, { 0, TICK_US } };
	struct sigaction action = { .sa_handler = tick };
	int fd = open(path, O_RDONLY);
	struct stat status;
	uint8_t *file;
	struct job *job;
	const struct call *calls;

	if (fd < 0 || fstat(fd, &status))
		return 2;
	file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (file == MAP_FAILED)
		return 2;
	job = (struct job *)file;
	calls = (const struct call *)(file + sizeof(*job) + job->bytes);
	if (mmap((void *)job->address, job->bytes, PROT_READ | PROT_WRITE,
	         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		return 2;
	open_descriptors();
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	for (uint64_t i = 0; i < job->calls; i++) {
		memcpy((void *)job->address, file + sizeof(*job), job->bytes);
		syscall(SYS_prctl, MARK, 0L, i); /* PR_SET_NAME, NULL: the line in front of each call of the job */
		make(&calls[i]);
	}
	return 0;
}

static void run_job(const char *self, const char *path, uid_t uid)
{
	pid_t child = fork();
	struct timespec pause = { 0, 10000000 };

	if (!child) {
		if (setgroups(0, NULL) || setgid(uid) || setuid(uid))
			_exit(3);
		execl(self, self, path, NULL);
		_exit(3);
	}
	for (int i = 0; i < JOB_SECONDS * 100; i++) {
		if (waitpid(child, NULL, WNOHANG) == child)
			return;
		nanosleep(&pause, NULL);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	if (argc == 2)
		return call_job(argv[1]);
	if (argc < 4 || strcmp(argv[1], "-r") || unshare(CLONE_NEWIPC | CLONE_NEWUTS))
		return 2;
	for (int i = 3; i < argc; i++)
		run_job("./caller", argv[i], (uid_t)atoi(argv[2]));
	return 0;
}
