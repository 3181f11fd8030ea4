/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * records.h: what the BPF programs write and the C core reads. The one truth for both sides:
 * the programs include it, the C core includes it, cffi's declarations are cut from it
 * (the part between the two "cffi" marks), and a test compares it with the objects' BTF.
 *
 * What it is not: the kernel's own framing (perf_event.h; see otel_perfbuf/_core/ring.h).
 *
 *   raw data of one PERF_RECORD_SAMPLE         one element of the task iterator's output (two a thread: the page
 *                                              that it sent last, then its page)
 *   +------------+--------+--------+---        +------------------+------------+--------+---
 *   | pb_sample  | record | record | ...       | pb_page_head     | pb_sample  | record | ...
 *   +------------+--------+--------+---        +------------------+------------+--------+---
 *
 * Little endian as the host; every struct is a multiple of 8 bytes; every record starts 8-aligned.
 * All times are CLOCK_MONOTONIC nanoseconds (bpf_ktime_get_ns).
 */
#ifndef PERFBUF_RECORDS_H
#define PERFBUF_RECORDS_H

#ifdef __bpf__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;
#else
#include <stdint.h>
#endif

/* cffi: begin */

enum pb_limits {
	PB_VERSION = 1,
	PB_PAGE_RECORD_BYTES = 960, /* records a thread page holds, in bytes */
	PB_SAMPLE_MAX_BYTES = 8192, /* the largest sample any program sends */
	PB_COMM_BYTES = 16,
	PB_SYSCALLS = 512,         /* numbers 0..511 have a row in the tables */
	PB_RULES = 1024,           /* capture rules of all syscalls together */
	PB_SYSCALL_CAPTURES = 132, /* ... of one of them: 4 of each of 32 messages, and its own */
	PB_PARTS = 12,             /* parts of an argument that may have several rules each */
	PB_EXECUTABLE_BYTES = 256,
	PB_ENVIRONMENT_BYTES = 512,
};

/* What a sample carries: a thread's page; one record that did not go through a page; or, at a thread's end, the page
 * that it sent long ago once more (.records = 0: they are counted already). */
enum pb_sample_kind { PB_SAMPLE_PAGE = 1, PB_SAMPLE_SINGLE = 2, PB_SAMPLE_AGAIN = 3 };

struct pb_sample {
	uint8_t version;  /* PB_VERSION */
	uint8_t kind;     /* enum pb_sample_kind */
	uint16_t bytes;   /* this header and all records: the kernel pads, we do not */
	uint16_t records; /* records that own a sequence (PB_RECORD_ENTRY does not) */
	uint16_t cpu;     /* that sent it: a shared ring has the samples of all */
	uint32_t tid;     /* of the initial pid namespace, as all ids here */
	uint32_t tgid;
	uint64_t instance;           /* when the thread's page was made: tells reused thread ids apart */
	uint64_t process_start_ns;   /* start_time of the thread group's leader: with tgid the process's key */
	uint64_t sent_ns;            /* when it was sent; in the iterator's output when its last record ended */
	uint64_t ring_records;       /* records that this CPU ever sent, before this sample */
	uint8_t comm[PB_COMM_BYTES]; /* thread.name, NUL-terminated */
};

enum pb_record_kind {
	PB_RECORD_SYSCALL = 1,  /* struct pb_syscall */
	PB_RECORD_ENTRY = 2,    /* struct pb_record + captures: what was captured at enter for the
					 * syscall record of the same (instance, sequence); owns no sequence */
	PB_RECORD_SIGNAL = 3,   /* struct pb_signal: delivered to this thread */
	PB_RECORD_EXEC = 4,     /* struct pb_exec */
	PB_RECORD_FORK = 5,     /* struct pb_fork */
	PB_RECORD_EXIT = 6,     /* struct pb_exit: the process's end, written by its last thread */
	PB_RECORD_OOM_KILL = 7, /* struct pb_oom_kill */
	PB_RECORD_LOST = 8,     /* struct pb_lost: made by the reader, never by a program */
	PB_RECORD_SPAN = 9,     /* struct pb_span_record: whose span the records behind it in the same sample have
				 * that carry PB_FLAG_SPAN; owns no sequence */
};

enum pb_record_flags {
	PB_FLAG_EXIT_ONLY = 1,    /* sys_exit without sys_enter: denied before entry */
	PB_FLAG_BEGAN_BEFORE = 2, /* it began before recording, or its sys_enter was missed: no start, no duration */
	PB_FLAG_NO_RETURN = 4,    /* exit, exit_group: complete without a result */
	PB_FLAG_IN_FLIGHT = 8,    /* set by the C core on a page's open call */
	PB_FLAG_COMPAT = 16,      /* a 32-bit call: its number is of another table */
	PB_FLAG_SPAN = 32,        /* its thread ran a span: that of the last PB_RECORD_SPAN before it */
};

struct pb_record {
	uint16_t bytes;    /* header, body, captures: a multiple of 8 */
	uint8_t kind;      /* enum pb_record_kind */
	uint8_t flags;     /* enum pb_record_flags */
	uint16_t cpu;      /* where it was finished */
	uint8_t arguments; /* pb_syscall: how many of args[] are present (0..6) */
	uint8_t captures;  /* how many struct pb_capture follow */
	uint64_t sequence; /* per instance, from 1, given when the event began */
	uint64_t time_ns;  /* when it began */
};

/* A finished call, and (in pb_page_head) the open one. args[] is cut to .arguments in a sample:
 * the captures begin at offset 48 + 8 * arguments. */
struct pb_syscall {
	struct pb_record record;
	uint32_t number;
	uint32_t reserved;
	int64_t result;
	uint64_t duration_ns;
	uint64_t args[6];
};

/* Bytes of the process's memory, behind a record's fixed part. `bytes` data bytes follow, padded to 8. */
enum pb_capture_kind {
	PB_CAPTURE_NONE = 0,
	PB_CAPTURE_STRING = 1,   /* NUL-terminated in memory; the NUL is not captured */
	PB_CAPTURE_BUFFER = 2,   /* `extent` bytes long in memory */
	PB_CAPTURE_SOCKADDR = 3, /* extent = the length that the caller or the kernel gave */
	PB_CAPTURE_WORD = 4,     /* 4 bytes behind a pointer (socklen_t, int) */
	PB_CAPTURE_STRUCT = 5,   /* a struct of fixed size */
	PB_CAPTURE_STRINGS = 6,  /* argv: strings, each with its NUL; extent = how many there are in all */
	PB_CAPTURE_COUNT = 7,    /* envp: no bytes, extent = how many */
	PB_CAPTURE_VECTOR = 8,   /* what an array of iovec points to: for each a u64, its captured bytes, then those,
				  * padded to 8; extent = how many iovecs there are in all */
	PB_CAPTURE_ENTRIES = 9,  /* struct linux_dirent(64): no bytes, extent = how many lie in the result's bytes */
};

enum pb_capture_flags {
	PB_CAPTURE_CUT = 1,   /* more bytes were there than were captured */
	PB_CAPTURE_FAULT = 2, /* the memory could not be read: no bytes */
	PB_CAPTURE_ENDS = 4,  /* what follows the captured bytes could not be read */
};

struct pb_capture {
	uint8_t argument; /* 0..5 */
	uint8_t kind;     /* enum pb_capture_kind */
	uint8_t flags;    /* enum pb_capture_flags */
	uint8_t part;     /* 0: the argument's own memory; else what that points to, as the rule numbers it */
	uint16_t bytes;   /* data bytes that follow, without padding */
	uint16_t extent;  /* see the kind; 65535 = that or more */
};

struct pb_signal {
	struct pb_record record;
	int32_t number;
	int32_t code;
	int32_t error;
	uint32_t has_info;  /* 0: the kernel gave no siginfo */
	uint8_t fields[32]; /* the first bytes of siginfo's union _sifields */
};

struct pb_exec { /* captures: argument 0 = the path that was asked for */
	struct pb_record record;
	uint32_t old_tid; /* differs when a thread that was not the leader called exec */
	uint32_t reserved;
};

struct pb_fork {
	struct pb_record record;
	uint32_t child_tid;
	uint32_t child_tgid; /* another one than the parent's: a process, not a thread */
};

struct pb_exit {
	struct pb_record record;
	int32_t status; /* a wait status: (code << 8) or signal | 128 when it dumped core */
	uint32_t reserved;
};

struct pb_oom_kill {
	struct pb_record record;
	uint32_t victim_tgid;
	uint32_t reserved;
	uint64_t cgroup_id;
};

/* Records that are not here. The C core makes one for each gap inside a thread's sequence (sequence = the first that is
 * missing, time = that of the event behind the gap), the live stream one for what its ring lost. */
enum pb_lost_reason { PB_LOST_OVERWRITTEN = 1, PB_LOST_NO_SPACE = 2, PB_LOST_MALFORMED = 3 };

struct pb_lost {
	struct pb_record record;
	uint64_t count;
	uint32_t reason; /* enum pb_lost_reason */
	uint32_t reserved;
};

/* ---- exact spans: which span a thread runs, told by its process (otel_perfbuf/sdk/exact.py) ---- */

/* W3C Trace Context: bytes in the order in which they are written as hex. */
struct pb_span_ids {
	uint8_t trace_id[16];
	uint8_t span_id[8];
};

struct pb_span_record {
	struct pb_record record; /* sequence and time: those of the record behind it */
	struct pb_span_ids ids;
};

enum pb_span_limits {
	PB_SPAN_SLOTS = 8,           /* of a bucket */
	PB_SPAN_BUCKETS_MAX = 8192,  /* of a process's map: a power of two; 2 MiB */
	PB_SPAN_PROCESSES = 4096,    /* that can be registered at a time */
	PB_SPAN_HASH_1 = 0x1e3779b1, /* a thread's slot is in bucket (uint32_t)(tid * HASH_1) >> 16 & (buckets - 1), */
	PB_SPAN_HASH_2 = 0x05ebca77, /* or in that of HASH_2 */
};

/* Written by the thread itself only, in this order: active = 0, ids, active = 1. 0: no span, or one half written. */
struct pb_span_slot {
	uint32_t tid; /* as its own pid namespace sees it; 0: free */
	uint32_t active;
	struct pb_span_ids ids;
};

/* Element of a process's own map: an array that it maps into its memory. */
struct pb_span_bucket {
	struct pb_span_slot slots[PB_SPAN_SLOTS];
};

/* map `span_gates`, by tgid: the process whose map of `span_maps` may be read. Gone at its exec and at its end. */
struct pb_span_gate {
	uint64_t start_ns; /* of the process; 0: the first thread that looks fills it in */
	uint32_t buckets;
	uint32_t reserved;
};

/* map `span_state` (one element), written by user space only */
struct pb_span_state {
	uint64_t changes;   /* one more at each change of `span_gates`: what pages remember of it is old */
	uint64_t processes; /* 0: nobody is registered */
};

/* ---- a thread's page, in task storage ---- */

enum pb_page_flags {
	PB_PAGE_TARGET = 1,    /* recorded */
	PB_PAGE_EXCLUDED = 2,  /* looked at and not recorded */
	PB_PAGE_WAIT_EXEC = 4, /* a target from its next execve on */
	PB_PAGE_OPEN = 8,      /* .open is a call in flight */
	PB_PAGE_FRESH = 16,    /* made at fork: the first sys_exit is the clone's child side */
	PB_PAGE_TORN = 32,     /* iterator only: it changed during every try */
	PB_PAGE_ENTERED = 64,  /* a sys_enter was seen: an exit without one is a denial */
};

struct pb_page_head {
	uint32_t flags;         /* enum pb_page_flags */
	uint32_t used;          /* bytes of records behind the sample header */
	uint64_t version;       /* odd while the thread writes */
	uint64_t last_sequence; /* given last */
	uint64_t seen_ns;       /* iterator only: when it was read */
	/* the last signal's sender, from signal_generate: a fatal signal's delivery carries no siginfo */
	int32_t kill_code;
	uint32_t kill_pid;
	uint32_t kill_uid;
	uint32_t has_kill; /* that signal's number; 0: none */
	struct pb_syscall open;
	struct pb_span_ids open_span; /* of the open call, when it has PB_FLAG_SPAN */
};

/* ---- maps that user space reads or writes ---- */

/* key of map `processes` (LRU hash): a process outlives itself here */
struct pb_process_key {
	uint32_t tgid;
	uint32_t reserved;
	uint64_t start_ns; /* start_time of the leader */
};

struct pb_process {
	uint32_t parent_tgid;
	uint32_t namespace_pid; /* tgid as its own pid namespace sees it */
	uint64_t start_ns;
	uint64_t cgroup_id;
	uint64_t exit_ns;    /* 0: alive */
	int32_t exit_status; /* a wait status */
	uint32_t uid;
	uint8_t comm[PB_COMM_BYTES];
	uint16_t executable_bytes; /* of .executable, without a NUL; it ends at the array's end or is cut in front */
	uint16_t environment_bytes;
	uint32_t reserved;
	uint8_t executable[PB_EXECUTABLE_BYTES]; /* absolute path, as the root mount namespace sees it */
	uint8_t environment
		[PB_ENVIRONMENT_BYTES]; /* OTEL_SERVICE_NAME=, OTEL_RESOURCE_ATTRIBUTES=: strings, each with its NUL */
};

/* map `stats` (per-CPU array, one element) */
struct pb_stats {
	uint64_t ring_records;  /* records ever sent by this CPU */
	uint64_t lost_no_page;  /* events that found no page */
	uint64_t lost_no_space; /* records in failed outputs: -ENOSPC; shared ring: -EAGAIN */
	uint64_t lost_no_ring;  /* -ENOENT: no ring in the map for this CPU */
	uint64_t lost_other;
	uint64_t lost_process; /* entries that `processes` had no room for */
	uint64_t lost_alerts;  /* that `alerts` had no room or no ring for */
};

/* rodata `rules`, made by otel_perfbuf.records from the syscall tables */
enum pb_capture_when {
	PB_AT_EXIT = 0,
	PB_AT_ENTER = 1,
	PB_AT_BOTH = 2,
	PB_AT_SUCCESS = 3, /* at exit, when the result is not negative: an output; counts in exit_rules */
};

enum pb_capture_length {                         /* how many the memory has of .scale bytes (0: 1) */
	                 PB_LENGTH_FIXED = 0,    /* .length itself */
	                 PB_LENGTH_ARGUMENT = 1, /* the value of argument number .length */
	                 PB_LENGTH_RESULT = 2,   /* the result, when it is not negative */
	                 PB_LENGTH_POINTER = 3,  /* the 32-bit word that argument number .length points to */
	                 PB_LENGTH_FIELD4 = 4,   /* the 32-bit word at offset .length of the argument's memory */
	                 PB_LENGTH_FIELD8 = 5,   /* the 64-bit word there */
	                 PB_LENGTH_BITS = 6, /* the value of argument number .length are bits, in whole 64-bit words */
	                 PB_LENGTH_UINT = 7, /* the lower 32 bits of argument number .length */
	                 PB_LENGTH_INT = 8,  /* the same, signed: a negative one has no memory */
};

/* The first rule of an (argument, part) that is due and whose two conditions hold is taken. A condition holds when
 * (args[if_argument] & if_mask) == if_value; the first one without a mask when args[if_argument] (6: the result) >=
 * if_value, and where it does not hold, nor do the syscall's rules behind it. */
struct pb_capture_rule {
	uint8_t kind; /* enum pb_capture_kind */
	uint8_t argument;
	uint8_t when;        /* enum pb_capture_when */
	uint8_t length_from; /* enum pb_capture_length */
	uint16_t length;
	uint16_t max_bytes; /* captured at most; <= 4096 (of a VECTOR: of each of its buffers) */
	uint16_t scale;
	uint8_t part;    /* goes into the capture; from PB_PARTS on it has one rule */
	uint8_t behind;  /* 1: not the argument's memory, but that of the pointer at .offset in it */
	uint16_t offset; /* into the argument's memory */
	uint8_t if_argument[2];
	uint32_t if_mask[2];
	uint32_t if_value[2];
};

enum pb_syscall_flags {
	PB_SYSCALL_RECORDED = 1, /* else it is filtered out before anything is written */
	PB_SYSCALL_NO_RETURN = 2,
	PB_SYSCALL_EXEC = 4,        /* execve, execveat */
	PB_SYSCALL_ALERT_ERROR = 8, /* an errno of rodata alert_errnos is an alert */
	PB_SYSCALL_ALERT_SLOW = 16, /* more than rodata alert_slow_ns is an alert */
	PB_SYSCALL_STACK = 32,      /* rt_sigreturn: its first argument is the top of the stack */
};

struct pb_syscall_rule {
	uint8_t arguments;   /* 0..6 */
	uint8_t flags;       /* enum pb_syscall_flags */
	uint8_t enter_rules; /* how many rules may have something to do at enter */
	uint8_t exit_rules;  /* ... at exit */
	uint16_t first;      /* its rules: rules.captures[first .. first + count) */
	uint16_t count;
};

struct pb_rules {
	struct pb_syscall_rule syscalls[PB_SYSCALLS];
	struct pb_capture_rule captures[PB_RULES];
};

enum pb_alert_kind {
	PB_ALERT_EXIT = 1,            /* a process ended: .status */
	PB_ALERT_OOM_KILL = 2,        /* the kernel chose .tgid to be killed */
	PB_ALERT_SYSCALL_ERROR = 3,   /* .number returned .result */
	PB_ALERT_SYSCALL_LATENCY = 4, /* .number took .duration_ns, or, still in flight, has taken so long */
};

enum pb_alert_flags { PB_ALERT_SPAN = 1, PB_ALERT_IN_FLIGHT = 2 };

enum pb_alert_limits { PB_ALERT_ERRNOS = 576 }; /* errnos that can be chosen: 1..575 */

/* sample of the perf map `alerts` (forward, wakeup_events=1), and element of the iterator `slow_calls` */
struct pb_alert {
	uint64_t time_ns;
	uint64_t instance; /* of the thread: of an end, the one that ended last */
	uint64_t process_start_ns;
	uint64_t sequence; /* of the call */
	uint64_t duration_ns;
	int64_t result;
	uint32_t tgid;
	uint32_t tid;
	int32_t status; /* a wait status */
	uint32_t number;
	uint32_t suppressed; /* alerts of the same process, kind and call that were not sent since the last one */
	uint8_t kind;        /* enum pb_alert_kind */
	uint8_t flags;       /* enum pb_alert_flags */
	uint16_t reserved;
	struct pb_span_ids span;
	uint8_t comm[PB_COMM_BYTES];
};

/* cffi: end */

#endif
