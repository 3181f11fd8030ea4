// SPDX-License-Identifier: Apache-2.0
/*
 * targets.c: programs to be recorded, one mode each; each waits for a byte on stdin first. Not a test.
 * usage: targets MODE [ARGUMENT]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void calls(long count)
{
	while (count--)
		syscall(SYS_getppid);
}

static void fork_and_wait(int code)
{
	pid_t child = fork();

	if (!child)
		_exit(code);
	waitpid(child, NULL, 0);
}

/* Until the leader sleeps in pause: /proc/PID/stat tells the leader's state. */
static void await_leader(void)
{
	char text[256] = "", *name_end;

	do {
		int fd = open("/proc/self/stat", O_RDONLY);

		if (read(fd, text, sizeof(text) - 1) < 0)
			abort();
		close(fd);
		name_end = strrchr(text, ')');
	} while (!name_end || name_end[2] != 'S');
}

static void *exec_true(void *argument)
{
	char *arguments[] = { "true", "from", "a", "thread", NULL };

	await_leader();
	execve("/bin/true", arguments, environ);
	return argument;
}

static void exec_from_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, exec_true, NULL);
	for (;;)
		pause();
}

static void *call_and_wait(void *argument)
{
	calls(3);
	for (;;)
		pause();
	return argument;
}

/* Threads that end only because another one calls exit_group. */
static void threads(long count)
{
	pthread_t thread;

	while (count--)
		pthread_create(&thread, NULL, call_and_wait, NULL);
	usleep(100000);
	exit(7);
}

static void deny_getppid(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(*code), .filter = code };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	syscall(SYS_getppid);
}

static void nothing(int number)
{
	(void)number;
}

static void handled_signal(void)
{
	signal(SIGUSR1, nothing);
	raise(SIGUSR1);
}

static void captured(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "/nowhere/at/all" };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	open(path, O_RDONLY);
	open((const char *)8, O_RDONLY);
	connect(fd, (struct sockaddr *)&address, sizeof(address));
	write(-1, "0123456789", 10);
	write(-1, "", 0);
}

#ifdef __x86_64__
/* getpid of the 32-bit table, where number 20 is writev in the 64-bit one */
static void old_call(void)
{
	long number = 20, a = 0x11, b = 0x12;

	asm volatile("int $0x80" : "+a"(number) : "b"(a), "c"(b) : "memory", "r8", "r9", "r10", "r11");
}
#endif

static void swallow(void)
{
	for (size_t size = 1 << 20;; size += 1 << 20) {
		char *memory = malloc(1 << 20);

		memset(memory, 1, 1 << 20);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	const char *argument = argc > 2 ? argv[2] : "0";
	char byte;

	if (read(0, &byte, 1) != 1)
		return 99;
	if (!strcmp(mode, "calls"))
		calls(atol(argument));
	else if (!strcmp(mode, "fork"))
		fork_and_wait(atoi(argument));
	else if (!strcmp(mode, "exec-thread"))
		exec_from_thread();
	else if (!strcmp(mode, "threads"))
		threads(atol(argument));
	else if (!strcmp(mode, "denied"))
		deny_getppid();
	else if (!strcmp(mode, "handled"))
		handled_signal();
	else if (!strcmp(mode, "captured"))
		captured(argument);
	else if (!strcmp(mode, "segv"))
		*(volatile int *)16 = 1;
	else if (!strcmp(mode, "swallow"))
		swallow();
#ifdef __x86_64__
	else if (!strcmp(mode, "int80"))
		old_call();
#endif
	else if (!strcmp(mode, "block"))
		return read(0, &byte, 1);
	return atoi(argument) & 63 && !strcmp(mode, "exit") ? atoi(argument) : 0;
}
