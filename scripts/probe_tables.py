# SPDX-License-Identifier: Apache-2.0
"""Which calls make_constant_tables.py makes: one Probe a table of names.

What it is not: the decode plan. Each probe's other arguments make the call fail (no fd, no address, a family that is
not there), so nothing on the host changes but the traced child itself.
"""

from __future__ import annotations

from dataclasses import dataclass

BITS = (0, *(1 << bit for bit in range(32)), 0xFFFFFFFF)
BITS64 = (0, *(1 << bit for bit in range(64)), (1 << 64) - 1)


@dataclass(frozen=True)
class Probe:
    """One argument of one system call; ``values`` are tried in turn, ``base`` are the other arguments."""

    table: str
    kind: str
    syscall: str
    argument: int
    values: tuple[int, ...] = BITS
    base: tuple[int, ...] = (-1,)
    mask: int = 0
    shown_at: int | None = None
    prefix: str = ""
    known: tuple[tuple[int, str], ...] = ()  # names of bits that every value has

    @property
    def shown(self) -> int:
        """Where strace prints the argument."""
        return self.argument if self.shown_at is None else self.shown_at


def upto(*limits: int) -> tuple[int, ...]:
    """range() as a tuple."""
    return tuple(range(*limits))


def flags(table: str, syscall: str, argument: int, base: tuple[int, ...] = (-1,), drop: int = 0) -> Probe:
    """A table of bits; those of ``drop`` are not tried."""
    values = tuple(value & ~drop for value in BITS if value == 0 or value & ~drop)
    return Probe(table, "flags", syscall, argument, tuple(dict.fromkeys(values)), base)


def enum(table: str, syscall: str, argument: int, values: tuple[int, ...], base: tuple[int, ...] = (-1,)) -> Probe:
    """A table of single values."""
    return Probe(table, "enum", syscall, argument, values, base)


# Names that stand for several bits: strace prints them when all are set.
COMPOSITES = {
    "O_SYNC": 0x101000,
    "O_TMPFILE": 0x410000,
    "LOCK_RW": 0xC0,
    "STATX_ALL": 0xFFF,
}

# Values that no failing call shows.
EXTRA: dict[str, list[tuple[int, str]]] = {
    "arch_prctl": [(0x1002, "ARCH_SET_FS"), (0x1012, "ARCH_SET_CPUID")],
    "keyctl_cmd": [(1, "KEYCTL_JOIN_SESSION_KEYRING"), (18, "KEYCTL_SESSION_TO_PARENT")],
    "statx_mask": [(0x7FF, "STATX_BASIC_STATS")],
}

# What strace writes for values without a name where no probe shows it.
UNKNOWN = {
    "mlockall_flags": "MCL_???",
    "kexec_file_flags": "KEXEC_FILE_???",
    "clone_flags": "CLONE_???",
    "ioctl": "_IOC",  # text_tty.c takes the number apart
}

CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip

# Tables that no probe gives: kind, mask, text for unknown values, rows.
STATIC: dict[str, tuple[str, int, str, list[tuple[int, str]]]] = {
    "kexec_flags": (
        "flags_value", 0xFFFF0000, "KEXEC_ARCH_???",
        [(0, "KEXEC_ARCH_DEFAULT"), (1, "KEXEC_ON_CRASH"), (2, "KEXEC_PRESERVE_CONTEXT")],
    ),
    "module_flags": (
        "flags", 0, "MODULE_INIT_???",
        [(1, "MODULE_INIT_IGNORE_MODVERSIONS"), (2, "MODULE_INIT_IGNORE_VERMAGIC"), (4, "MODULE_INIT_COMPRESSED_FILE")],
    ),
    "bits": ("flags", 0, "-", []),  # 32 bits without names
    "delete_module_flags": ("flags", 0, "O_???", [(0x800, "O_NONBLOCK"), (0x200, "O_TRUNC")]),
    "kexec_file_flags": (
        "flags", 0, "-",
        [(1, "KEXEC_FILE_UNLOAD"), (2, "KEXEC_FILE_ON_CRASH"), (4, "KEXEC_FILE_NO_INITRAMFS")],
    ),
    "capabilities": ("enum", 0, "CAP_???", [(number, f"CAP_{name}") for number, name in enumerate(CAPABILITIES)]),
    "suid_dump": ("enum", 0, "SUID_DUMP_???", [(0, "SUID_DUMP_DISABLE"), (1, "SUID_DUMP_USER"), (2, "SUID_DUMP_ROOT")]),
    "seccomp_mode": (
        "enum", 0, "SECCOMP_MODE_???",
        [(0, "SECCOMP_MODE_DISABLED"), (1, "SECCOMP_MODE_STRICT"), (2, "SECCOMP_MODE_FILTER")],
    ),
    "cap_ambient": (
        "enum", 0, "PR_CAP_AMBIENT_???",
        [
            (1, "PR_CAP_AMBIENT_IS_SET"), (2, "PR_CAP_AMBIENT_RAISE"), (3, "PR_CAP_AMBIENT_LOWER"),
            (4, "PR_CAP_AMBIENT_CLEAR_ALL"),
        ],
    ),
    "futex_bitset": ("enum", 0, "-", [(0xFFFFFFFF, "FUTEX_BITSET_MATCH_ANY")]),
}  # fmt: skip

VALUE_AND_BITS = (*upto(0, 16), *BITS[5:])

PROBES = [
    Probe("open_flags", "flags_value", "openat", 2, (3, *BITS), (-1, 0), 0x3),
    flags("open_flags_only", "pipe2", 1, (0,)),
    flags("access_mode", "access", 1, (0,)),
    flags("faccessat_flags", "faccessat2", 3),
    flags("at_flags", "newfstatat", 3),
    flags("at_handle_flags", "name_to_handle_at", 4),
    flags("at_mount_flags", "mount_setattr", 2),
    Probe("statx_flags", "flags_value", "statx", 2, (0, 0x2000, 0x4000, 0x6000, *BITS[1:]), (-1,), 0x6000),
    flags("statx_mask", "statx", 3),
    flags("mmap_prot", "mmap", 2, (0, 4096, 0, 0, -1, 0)),
    Probe("mmap_flags", "flags_value", "mmap", 3, VALUE_AND_BITS, (0, 4096, 0, 0, -1, 0), 0xF),
    flags("mremap_flags", "mremap", 3, (0,)),
    flags("msync_flags", "msync", 2, (0,)),
    enum("madvise", "madvise", 2, (*upto(0, 40), *upto(95, 110)), (0,)),
    flags("mlock_flags", "mlock2", 2, (0,)),
    Probe("mlockall_flags", "flags", "mlockall", 0, (0, 1, 2, 4, 0xFFFFFFFF), ()),
    enum("families", "socket", 0, upto(0, 60), (0, 0x7F)),
    Probe("socket_type", "flags_value", "socket", 1, VALUE_AND_BITS, (1000,), 0xF),
    flags("socket_flags", "accept4", 3),
    enum("inet_protocols", "socket", 2, upto(0, 300), (2, 0x7F)),
    enum("netlink_protocols", "socket", 2, upto(0, 32), (16, 0x7F)),
    enum("bluetooth_protocols", "socket", 2, upto(0, 12), (31, 0x7F)),
    enum("can_protocols", "socket", 2, upto(0, 12), (29, 0x7F)),
    enum("smc_protocols", "socket", 2, upto(0, 5), (43, 0x7F)),
    enum("socket_levels", "setsockopt", 1, upto(0, 300)),
    enum("sockopt_set", "setsockopt", 2, upto(0, 90), (-1, 1)),
    enum("sockopt_get", "getsockopt", 2, upto(0, 90), (-1, 1)),
    enum("sockopt_ip_set", "setsockopt", 2, upto(0, 100), (-1, 0)),
    enum("sockopt_ip_get", "getsockopt", 2, upto(0, 100), (-1, 0)),
    enum("sockopt_ipv6_set", "setsockopt", 2, upto(0, 90), (-1, 41)),
    enum("sockopt_ipv6_get", "getsockopt", 2, upto(0, 90), (-1, 41)),
    enum("sockopt_tcp", "setsockopt", 2, upto(0, 50), (-1, 6)),
    enum("sockopt_udp", "setsockopt", 2, upto(0, 120), (-1, 17)),
    enum("sockopt_sctp", "setsockopt", 2, upto(0, 140), (-1, 132)),
    enum("sockopt_netlink", "setsockopt", 2, upto(0, 20), (-1, 270)),
    enum("sockopt_packet", "setsockopt", 2, upto(0, 30), (-1, 263)),
    enum("sockopt_raw", "setsockopt", 2, upto(0, 5), (-1, 255)),
    enum("sockopt_tls", "setsockopt", 2, upto(0, 5), (-1, 282)),
    flags("msg_flags", "sendto", 3),
    enum("shutdown_how", "shutdown", 1, upto(0, 6)),
    # CLONE_NEWNS with CLONE_FS is always refused, so no child is made.
    Probe(
        "clone_flags",
        "flags",
        "clone",
        0,
        (*(0x20200 | v for v in BITS[9:-1]), 0xFFFFFF00),
        (),
        0,
        1,
        "flags=",
        ((0x200, "CLONE_FS"), (0x20000, "CLONE_NEWNS")),
    ),
    flags("unshare_flags", "unshare", 0, ()),
    flags("setns_flags", "setns", 1),
    flags("wait_options", "wait4", 2, (-5,)),
    enum("wait_idtype", "waitid", 0, upto(0, 8), (9, 99999)),
    enum("sigprocmask_how", "rt_sigprocmask", 0, upto(0, 6), (0, 0, 0, 1)),
    enum("fcntl_cmd", "fcntl", 1, (*upto(0, 40), *upto(1024, 1060))),
    flags("fd_flags", "fcntl", 2, (-1, 2)),
    flags("notify_flags", "fcntl", 2, (-1, 1026)),
    enum("lock_types", "fcntl", 2, upto(0, 20), (-1, 1024)),
    flags("seal_flags", "fcntl", 2, (-1, 1033)),
    flags("open_tree_flags", "open_tree", 2),
    flags("move_mount_flags", "move_mount", 4, (-1, 0, -1)),
    flags("fsmount_flags", "fsmount", 1),
    flags("mount_attributes", "fsmount", 2),
    flags("fsopen_flags", "fsopen", 1, (0,)),
    flags("fspick_flags", "fspick", 2),
    enum("fsconfig_cmd", "fsconfig", 1, upto(0, 12)),
    enum("whence", "lseek", 2, upto(0, 8)),
    enum("prctl_option", "prctl", 0, (*upto(0, 80), 0x59616D61), ()),
    enum("futex_op", "futex", 1, tuple(x | f for f in (0, 128, 256, 384) for x in range(16)), (0,)),
    enum("epoll_ctl_op", "epoll_ctl", 1, upto(0, 8)),
    flags("eventfd_flags", "eventfd2", 1, (0,)),
    flags("inotify_init_flags", "inotify_init1", 0, ()),
    flags("inotify_mask", "inotify_add_watch", 2),
    flags("epoll_create_flags", "epoll_create1", 0, ()),
    flags("signalfd_flags", "signalfd4", 3),
    flags("timerfd_flags", "timerfd_create", 1, (99,)),
    flags("timer_flags", "timer_settime", 1),
    enum("clocks", "clock_gettime", 0, upto(0, 24), ()),
    flags("getrandom_flags", "getrandom", 2, (0,)),
    flags("rename_flags", "renameat2", 4, (-1, 0, -1)),
    flags("memfd_flags", "memfd_create", 1, (0,)),
    flags("flock_op", "flock", 1),
    enum("rlimits", "prlimit64", 1, upto(0, 24)),
    flags("fallocate_mode", "fallocate", 1),
    enum("fadvise", "fadvise64", 3, upto(0, 10)),
    flags("splice_flags", "splice", 5, (-1, 0, -1)),
    flags("sync_file_range_flags", "sync_file_range", 3),
    Probe("rwf_flags", "flags", "preadv2", 5, BITS, (-1,), 0, 4),
    flags("mount_flags", "mount", 3, (0,)),
    flags("umount_flags", "umount2", 1, (0,)),
    flags("close_range_flags", "close_range", 2, (5, 4)),
    enum("seccomp_op", "seccomp", 0, upto(0, 8), (0, 0xF00)),
    flags("seccomp_filter_flags", "seccomp", 1, (1,)),
    enum("membarrier_cmd", "membarrier", 0, BITS, (0, 0xF0)),
    flags("membarrier_flags", "membarrier", 1, (0x10000,)),
    flags("io_uring_enter_flags", "io_uring_enter", 3),
    enum("io_uring_register_op", "io_uring_register", 1, upto(0, 50)),
    flags("userfaultfd_flags", "userfaultfd", 0, ()),
    flags("perf_flags", "perf_event_open", 4, (0,)),
    enum("bpf_cmd", "bpf", 0, upto(0, 50), ()),
    enum("keyctl_cmd", "keyctl", 0, (0, *upto(2, 18), *upto(19, 40)), (99,)),
    enum("ptrace_request", "ptrace", 0, (*upto(0, 50), *upto(0x4200, 0x4220)), ()),
    Probe("personality", "flags_value", "personality", 0, (*upto(0, 32), *BITS[17:-1], 0xFFFFFF00), (), 0xFF),
    enum("semctl_cmd", "semctl", 2, tuple(x | f for f in (0, 0x100) for x in range(32))),
    enum("shmctl_cmd", "shmctl", 1, tuple(x | f for f in (0, 0x100) for x in range(32))),
    enum("msgctl_cmd", "msgctl", 1, tuple(x | f for f in (0, 0x100) for x in range(32))),
    enum("ipc_key", "shmget", 0, (0,), ()),
    flags("shmat_flags", "shmat", 2),
    flags("msgrcv_flags", "msgrcv", 4),
    enum("priority_which", "getpriority", 0, upto(0, 6), ()),
    enum("ioprio_who", "ioprio_get", 0, upto(0, 6), ()),
    enum("sched_policy", "sched_setscheduler", 1, upto(0, 12)),
    enum("rusage_who", "getrusage", 0, (-3, -2, -1, 0, 1, 2), ()),
    enum("itimer_which", "getitimer", 0, upto(0, 6), ()),
    enum(
        "arch_prctl",
        "arch_prctl",
        0,
        (0x1001, 0x1003, 0x1004, 0x1011, *upto(0x1021, 0x1030), *upto(0x2001, 0x2006)),
        (),
    ),
    Probe("fanotify_init_flags", "flags_value", "fanotify_init", 0, BITS, (0,), 0xC),
    Probe("fanotify_event_flags", "flags_value", "fanotify_init", 1, (3, *BITS), (0xF0000000,), 0x3),
    flags("fanotify_mark_flags", "fanotify_mark", 1, (-1, 0, 0, -1)),
    Probe("fanotify_mask", "flags", "fanotify_mark", 2, BITS64, (-1, 0, 0, -1)),
    enum("kcmp_type", "kcmp", 2, upto(0, 12), ()),
    flags("get_mempolicy_flags", "get_mempolicy", 4, (0,)),
    Probe("mempolicy_mode", "flags_value", "mbind", 2, (*upto(0, 10), *BITS[12:]), (1,), 0xFFF),
    flags("mbind_flags", "mbind", 5, (1,)),
    flags("move_pages_flags", "move_pages", 5, (0,)),
    flags("xattr_flags", "setxattr", 4, (0,)),
    enum("key_spec", "add_key", 4, upto(-8, 0), (0,)),
    enum("key_reqkey", "request_key", 3, upto(-8, 0), (0,)),
    flags("pidfd_open_flags", "pidfd_open", 1),
    flags("landlock_create_flags", "landlock_create_ruleset", 2, (0,)),
    enum("landlock_rule_type", "landlock_add_rule", 1, upto(0, 5)),
    flags("pkey_rights", "pkey_alloc", 1, (1,)),
    enum(
        "ioctl",
        "ioctl",
        1,
        (
            *upto(0x5401, 0x5480),
            *upto(0x8901, 0x8990),
            0x80045430,
            0x40045431,
            0x1277,
            0x80081272,
            0x40049409,
            0x40086602,
            0x80086601,
            0x5000,
            0x9409,
        ),
        (-1,),
    ),
]
