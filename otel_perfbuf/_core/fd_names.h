/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_names.h: what each file descriptor is at each moment of a history, from the records alone and from what the kernel
 * said of processes that were alive (seeds). A name is never a guess: what cannot be known has none.
 * Source: open(2), dup(2), fcntl(2), close(2), execve(2), clone(2); strace -yy for the form. What it is not: it reads
 * neither /proc nor sockets (recorder/descriptors.py), and it changes no record.
 *
 *   time ----------------------------------------------------------------------------------->
 *          process, seen whole from its first record on        a gap: some record is missing
 *   |--- open = 3 ---- read(3) ---- close(3) --- open = 3 ---|xxxxxxxxxxxx|--- read(3) ------ S
 *        3 is known    3 is a        3 is none    3 is b       3 is bare     3 is what S says, if nothing touched 3
 *                                                                            between the gap and S (a seed)
 *
 * An open's fd is known from the call's end on; a close takes it away at the call's begin (another thread may be given
 * the number while it runs).
 */
#ifndef PERFBUF_FD_NAMES_H
#define PERFBUF_FD_NAMES_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"
#include "history.h"
#include "plan.h"

/* cffi: begin */

enum { PB_FD_WORKING_DIRECTORY = -100 };

enum pb_fd_exec { PB_FD_EXEC_UNKNOWN = 0, PB_FD_EXEC_STAYS = 1, PB_FD_EXEC_CLOSES = 2 };

/* What the kernel said of a process's fd at seen_ns (the same for all of a process). */
struct pb_fd_seed {
	uint32_t process; /* index into the history's processes */
	int32_t fd;       /* or PB_FD_WORKING_DIRECTORY */
	uint64_t seen_ns;
	const char *text; /* borrowed: "/etc/hosts" */
	uint32_t text_bytes;
	uint32_t on_exec; /* enum pb_fd_exec */
};

/* One thing that fds are: its text, and for a socket where its parts lie. */
struct pb_fd_thing {
	const char *text;
	uint32_t bytes;
	uint16_t prefix_bytes; /* of a socket: "TCP" */
	uint16_t local_bytes;  /* ... of its own address, behind "TCP:["; 0: not known */
};

struct pb_fd_entry {
	uint32_t process;
	int32_t fd;
	uint32_t thing; /* index + 1 into things; 0: none is known */
	uint32_t seed;  /* the same, of the seed */
	uint32_t generation;
	uint32_t next; /* index + 1: the process's next entry */
	uint32_t on_exec;
	uint32_t seed_on_exec;
	uint64_t seed_from_ns; /* the seed holds from here on */
	uint64_t made_ns;      /* when a call last had it as its result */
};

struct pb_fd_process {
	uint32_t first; /* index + 1 of its first entry */
	uint32_t generation;
	uint32_t blind;       /* threads of which records are missing now */
	uint32_t unknowable;  /* 1: its fds change in ways that records do not tell */
	uint64_t seen_ns;     /* of its seeds; 0: none */
	uint64_t blind_to_ns; /* the end of its last gap before seen_ns; UINT64_MAX: no seed holds */
	uint64_t seeds_to_ns; /* the begin of its first gap after seen_ns */
};

/* A call whose effect comes at its end. */
struct pb_fd_pending {
	uint64_t end_ns;
	uint64_t event;
};

/* The caller gives the memory: entries and buckets (a power of two, >= 2 * entry_capacity) for as many (process, fd) as
 * there are calls that make one, children's copies and seeds; what finds no room has no name. */
struct pb_fd_names {
	const struct pb_history *history;
	const struct pb_plan *plan;
	struct pb_fd_process *processes; /* process_count of the history */
	struct pb_fd_pending *pending;   /* thread_count */
	struct pb_fd_entry *entries;
	uint32_t *buckets;
	struct pb_fd_thing *things;
	char *text;
	uint64_t text_bytes, text_capacity;
	uint64_t pending_count;
	uint64_t complete_since_ns; /* before that, records of any thread may be missing */
	uint64_t next;              /* event to be left */
	uint64_t arrived;           /* events begun: next or next + 1 */
	uint64_t now_ns;
	uint32_t entry_count, entry_capacity;
	uint32_t bucket_count;
	uint32_t thing_count, thing_capacity;
	uint32_t complete; /* 1: complete_since_ns is passed */
};

/* Memory is given and zero but for its contents; the history is joined. Seeds are sorted in nothing. */
enum pb_status pb_fd_names_open(struct pb_fd_names *names, const struct pb_fd_seed *seeds, uint64_t seed_count);

/* cffi: end */

/* Passes all events before `event`: names are then as it found them. Never back: an event that was passed already changes
 * nothing. */
void pb_fd_names_pass(struct pb_fd_names *names, uint64_t event);
/* NULL: not known. */
const struct pb_fd_thing *pb_fd_name(const struct pb_fd_names *names, uint32_t process, int32_t fd);

#endif
