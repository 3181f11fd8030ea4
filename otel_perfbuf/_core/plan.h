/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h: the decode plan: what a record means, as data. Python (otel_perfbuf/records) builds it once from the syscall
 * tables and hands it over; the renderer (text.c) and the encoder (otlp.c) follow it.
 * Adding an argument kind is one enum value here, one function in text.c's table, and rows in records/.
 */
#ifndef PERFBUF_PLAN_H
#define PERFBUF_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include "status.h"
#include "records.h"
#include "redact.h"

/* cffi: begin */

/* How an argument (or a result) is shown; strace's form. */
enum pb_argument_kind {
	PB_ARG_SIGNED = 0,     /* 32-bit int */
	PB_ARG_UNSIGNED,       /* 32-bit unsigned */
	PB_ARG_LONG,           /* 64-bit signed */
	PB_ARG_ULONG,          /* 64-bit unsigned, decimal */
	PB_ARG_HEX,            /* 0x..., 0 as 0 */
	PB_ARG_POINTER,        /* 0x..., 0 as NULL */
	PB_ARG_FD,             /* int */
	PB_ARG_DIRFD,          /* AT_FDCWD or int */
	PB_ARG_STRING,         /* captured string, quoted; without capture the address */
	PB_ARG_PATH,           /* the same, never cut by string_bytes */
	PB_ARG_BUFFER,         /* captured bytes, quoted; without capture the address */
	PB_ARG_STRINGS,        /* argv: ["a", "b"] */
	PB_ARG_ENVIRONMENT,    /* 0x7ff... followed by a comment with the count: "N vars" */
	PB_ARG_FLAGS,          /* table: bits joined by | ; unknown rest in hex; the table's zero name, or 0 */
	PB_ARG_FLAGS_VALUE,    /* table: the bits under .mask are a value (O_ACCMODE, SOCK_TYPE), then flags */
	PB_ARG_ENUM,           /* table: one name, else number with a comment as strace prints it */
	PB_ARG_MODE,           /* octal 0644 */
	PB_ARG_OPEN_MODE,      /* octal, shown only when an earlier flags argument has O_CREAT or O_TMPFILE */
	PB_ARG_SIGNAL,         /* SIGTERM */
	PB_ARG_SOCKADDR,       /* captured {sa_family=AF_INET, ...} */
	PB_ARG_LENGTH_POINTER, /* captured words at enter and exit: [128 => 16] or [16] */
	PB_ARG_WORD_POINTER,   /* captured word at exit: [5] */
	PB_ARG_STRUCT,         /* captured struct, .table = index into the plan's structs; else the address */
	PB_ARG_OFFSET,         /* 64-bit signed */
	PB_ARG_HIDDEN,         /* not shown (padding arguments) */
	PB_ARG_WAIT_STATUS,    /* captured word at exit: [{WIFEXITED(s) && WEXITSTATUS(s) == 1}] */
	PB_ARG_FD_PAIR,        /* captured struct of two ints at exit: [3, 4] */
	PB_ARG_CLONE_FLAGS,    /* table: bits above 0xff, then |SIGCHLD from the low byte */
	PB_ARG_FILE_MODE,      /* S_IFREG|0644 */
	PB_ARG_ERROR_POINTER,  /* captured word at exit, an errno: [ECONNREFUSED], [0] */
	PB_ARG_SIGSET,         /* captured struct of 8 bytes: [INT CHLD], ~[] */
	PB_ARG_IOVEC,          /* captured array of iovec, part 1: what they point to: [{iov_base="ab", iov_len=2}] */
	PB_ARG_MESSAGE,        /* captured msghdr, parts as text_message.c lists them */
	PB_ARG_MESSAGES,       /* captured array of mmsghdr, parts for the first two */
	PB_ARG_FDSET,          /* captured bits: [3 4] */
	PB_ARG_CPUSET,         /* captured bits: [0 1] */
	PB_ARG_BITS,           /* captured words of bits in hex: [0x0000000000000003] */
	PB_ARG_BUFFER_HEX,     /* a buffer, every byte in hex: "\x01\x00" */
	PB_ARG_BITS_NONE,      /* a set of no bits: [] */
	PB_ARG_COMM,           /* a string of which the kernel takes 15 bytes */
	PB_ARG_HANDLE,     /* captured file_handle, part 1 its bytes: {handle_bytes=8, handle_type=1, f_handle="..."} */
	PB_ARG_MSGBUF,     /* captured type of a message, part 1 its text: {mtype=1, mtext="..."} */
	PB_ARG_CLONE_ARGS, /* captured clone_args (table: its flags), parts 1 and 2: what it writes, parent_tid and pidfd */
	PB_ARG_SIGSET_SIZE, /* captured pointer and size, part 1 the set: {sigmask=[INT], sigsetsize=8} */
	PB_ARG_REMAINING,   /* captured timespec at exit: written only when a signal ended the wait */
	PB_ARG_OPTION,      /* a socket option's value: [1]; fewer than 4 bytes in hex */
	PB_ARG_OPTION_TEXT, /* one of 4 bytes [1], else quoted */
	PB_ARG_ENTRIES,     /* of a directory, counted at exit: the address, and "N entries" as a comment */
	/* an argument or a field whose text needs the value alone */
	PB_ARG_ENUM_NUMBER,   /* the number, its name as a comment */
	PB_ARG_ENUM_HEX,      /* the same, the number in hex */
	PB_ARG_NAMED,         /* a result: 0x8 (NAME); table: FLAGS or FLAGS_VALUE */
	PB_ARG_LIMIT,         /* of an rlimit: 4*1024, RLIM64_INFINITY */
	PB_ARG_DEVICE,        /* makedev(0x1, 0x3) */
	PB_ARG_HANDLER,       /* SIG_DFL, SIG_IGN, an address */
	PB_ARG_IPC_FLAGS,     /* table: names|octal mode: IPC_CREAT|0644 */
	PB_ARG_UID,           /* unsigned, the highest as -1 */
	PB_ARG_PRIORITY,      /* an ioprio: IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 4) */
	PB_ARG_ERRNO,         /* a positive errno: ECONNREFUSED */
	PB_ARG_QUOTA_COMMAND, /* QCMD(Q_SYNC, USRQUOTA) */
	PB_ARG_OCTAL,         /* 0644 whatever its width */
	PB_ARG_HEX32,         /* hex of the lower 32 bits */
	PB_ARG_HEX_WIDE,      /* hex of the field's whole width: 0x00000001 */
	/* fields only */
	PB_ARG_TEXT,           /* .bytes of characters up to a NUL: "Linux" */
	PB_ARG_BYTES,          /* .bytes quoted, all in hex: "\x01\x00" */
	PB_ARG_DATE,           /* a struct timespec with its date as a comment, UTIME_NOW, UTIME_OMIT */
	PB_ARG_DATE_USEC,      /* a struct timeval likewise */
	PB_ARG_DATE_SECONDS,   /* seconds with their date as a comment */
	PB_ARG_TTY_OUTPUT,     /* c_oflag */
	PB_ARG_TTY_CONTROL,    /* c_cflag */
	PB_ARG_TTY_FLAGS,      /* FLAGS, nothing when there is none */
	PB_ARG_NEGATIVE_ERRNO, /* -EFAULT */
	PB_ARG_TICKS,          /* clock ticks of 10 ms, with the seconds as a comment */
	PB_ARG_CAPABILITIES,   /* FLAGS of 64 bits: the word here and the one 12 bytes behind it */
	PB_ARG_ONE,            /* 1: a bit that is set, shown by its condition */
	PB_ARG_SKID,           /* perf's precise_ip: the highest of 16 bits and the one behind them */
	PB_ARG_INET,           /* inet_addr("127.0.0.1") */
	PB_ARG_INET6,          /* inet_pton(AF_INET6, "::1", &NAME) */
	PB_ARG_KINDS
};

struct pb_name { /* a row of a flag or value table */
	uint64_t value;
	const char *name;
};

struct pb_table {
	const struct pb_name *rows; /* FLAGS: in strace's order. ENUM: sorted by value */
	uint32_t count;
	uint32_t reserved;
	uint64_t mask;       /* FLAGS_VALUE: the bits that are a value; rows inside it come first */
	const char *unknown; /* what strace writes for a rest it knows no name for, e.g. "O_???" or NULL */
};

struct pb_argument {
	const char *name;          /* tracefs name: "filename" */
	uint8_t kind;              /* enum pb_argument_kind */
	uint8_t shown_if_argument; /* 0: always shown; else 1 + the argument that .shown_if_mask is looked up in */
	uint8_t wide;              /* 1: FLAGS, ENUM and HEX of all 64 bits, else of the lower 32 */
	uint8_t change;            /* 1: the call changes it: what was given, then " => " and what came back */
	uint32_t table;            /* index into tables (PB_ARG_STRUCT: into structs) */
	const char *prefix;        /* NULL, or what strace writes in front: "flags=" */
	uint64_t shown_if_mask;    /* shown only when that argument has one of these bits */
};

/* Holds when (args[.argument] & mask) == value; mask 0 and value 0 always hold. */
struct pb_condition {
	uint64_t mask;
	uint64_t value;
	uint32_t argument;
	uint32_t reserved;
};

/* Other arguments for some values of a selecting argument (fcntl's cmd, futex's op, socket's family): the first
 * variant whose conditions both hold replaces the plan's own arguments and result. */
struct pb_variant {
	struct pb_condition conditions[2];
	const struct pb_argument *args; /* .arguments of them (<= 6) */
	uint8_t arguments;              /* how many are shown */
	uint8_t result_kind;
	uint8_t reserved[2];
	uint32_t result_table;
};

/* A field of a captured struct. */
struct pb_field {
	const char *name; /* "tv_sec"; NULL: the value alone */
	uint16_t offset;
	uint16_t bytes;   /* of a value 1, 2, 4, 8; of TEXT and BYTES any number */
	uint8_t kind;     /* enum pb_argument_kind: one that needs the value alone, STRUCT, or one for fields only */
	uint8_t count;    /* > 1: that many one after the other: [a, b] */
	uint8_t if_not;   /* 1: shown when the condition does not hold */
	uint8_t if_bytes; /* 0: always shown; else shown when (the word at .if_offset & mask) == value */
	uint32_t table;   /* STRUCT: index into structs */
	uint16_t if_offset;
	uint16_t reserved;
	uint64_t if_mask;
	uint64_t if_value;
};

struct pb_struct {
	const struct pb_field *fields;
	uint32_t count;
	uint16_t bytes; /* of the whole struct; an array's element */
	uint8_t array;  /* 1: as many as were captured, in [] */
	uint8_t more;   /* 1: strace abbreviates it: ends in ", ..." */
	uint16_t least; /* fewer captured bytes show the address; fields behind the captured ones are left out */
	uint8_t tail;   /* 1: bytes behind the known ones that are not zero are shown, 2: as "..." */
	uint8_t bare;   /* 1: without {} */
	uint32_t most;  /* elements of an array shown; 0: 32 */
};

/* What a call that worked does to its process's fds; made from data/fd_rules.tsv. */
enum pb_fd_action {
	PB_FD_NONE = 0,
	PB_FD_UNKNOWN,     /* the result is a new fd, of what is not known */
	PB_FD_PATH,        /* ... of the file that argument .path names, relative to argument .fd */
	PB_FD_NAMED,       /* ... of what .text says, a % in it stands for argument .path's string */
	PB_FD_SOCKET,      /* ... a socket: arguments are family, type, protocol */
	PB_FD_ACCEPT,      /* ... accepted from .fd; the peer's address is argument .path */
	PB_FD_COPY,        /* ... what argument .fd is; a dup2's second argument is closed before */
	PB_FD_FCNTL,       /* copies, and the close-on-exec flag */
	PB_FD_IOCTL,       /* the close-on-exec flag */
	PB_FD_PAIR,        /* argument .path points to two new fds, of what .text says */
	PB_FD_BIND,        /* .fd has the address of argument .path */
	PB_FD_CONNECT,     /* .fd has the peer of argument .path */
	PB_FD_LOCAL,       /* .fd has had the address of argument .path: nothing is changed, but told */
	PB_FD_CLOSE,       /* .fd is no more */
	PB_FD_CLOSE_RANGE, /* nor are those of a range */
	PB_FD_CHDIR,       /* the working directory is what argument .path names */
	PB_FD_FCHDIR,      /* ... what .fd is */
	PB_FD_CLONE,       /* flags are argument .flags, or a struct's first word there */
	PB_FD_UNSHARE,
	PB_FD_UNKNOWABLE, /* from here on fds change without system calls */
	PB_FD_ACTIONS
};

enum { PB_FD_NO_ARGUMENT = 255 };

struct pb_fd_rule {
	uint8_t action; /* enum pb_fd_action */
	uint8_t fd;     /* argument numbers, or PB_FD_NO_ARGUMENT: the working directory, no flags */
	uint8_t path;
	uint8_t flags;
	uint32_t close_on_exec; /* the bit of argument .flags that says so; 0: never (or always, without flags) */
	const char *text;
};

struct pb_syscall_plan {
	const char *name; /* NULL: unknown, shown as syscall_N */
	uint8_t arguments;
	uint8_t result_kind; /* SIGNED, LONG, FD; HEX and POINTER 0x...; MODE octal; FLAGS hex and names */
	uint8_t flags;       /* enum pb_syscall_flags: NO_RETURN */
	uint8_t order[6];    /* 1 + argument numbers in the order shown (clone); order[0] == 0: as they come */
	uint8_t remark;      /* enum pb_remark: what follows the result */
	uint8_t reserved[6];
	struct pb_argument args[6];
	const char *result_zero;           /* NULL, or what strace adds to a result of 0: "Timeout" */
	const struct pb_variant *variants; /* the first that fits is taken */
	uint32_t variant_count;
	uint32_t result_table; /* result_kind FLAGS, FLAGS_VALUE: = 0x8002 (flags O_RDWR|O_LARGEFILE) */
	struct pb_fd_rule fds;
};

/* What strace adds to a result above 0, out of what was captured at exit. */
enum pb_remark {
	PB_REMARK_NONE = 0,
	PB_REMARK_POLL,   /* ([{fd=3, revents=POLLIN}], left {...}): argument 0, the time left in argument 2 */
	PB_REMARK_SELECT, /* (in [3], left {...}): arguments 1 to 3, the time left in argument 4 */
};

struct pb_plan {
	const struct pb_syscall_plan *syscalls;
	uint32_t syscall_count;
	uint32_t table_count;
	const struct pb_table *tables;
	const struct pb_name *errors;   /* sorted by value 1..: {2, "ENOENT"}; 512..516 too */
	const char *const *error_texts; /* beside errors: "No such file or directory" */
	uint32_t error_count;
	uint32_t signal_count;
	const struct pb_name *signals; /* sorted by number: {11, "SIGSEGV"} */
	const struct pb_table *
		signal_codes; /* [0] generic (SI_USER ...), [1] SIGILL, [2] FPE, [3] SEGV, [4] BUS, [5] TRAP, [6] CHLD, [7] POLL, [8] SYS */
	uint32_t string_bytes; /* shown of a string or buffer before "..."; paths are shown whole */
	uint32_t struct_count;
	const struct pb_struct *structs;
	uint32_t families_table; /* sa_family's names: index into tables, ENUM */
	uint32_t poll_table;     /* POLLIN ...: FLAGS */
	uint32_t message_table;  /* MSG_...: FLAGS */
	uint32_t levels_table;   /* SOL_...: ENUM */
	uint32_t timespec;       /* index into structs */
	uint32_t timeval;
	const struct pb_redaction *redaction; /* NULL: nothing is redacted */
	uint32_t clone_args;
};

/* cffi: end */
#endif
