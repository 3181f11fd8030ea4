# SPDX-License-Identifier: Apache-2.0
"""Writes otel_perfbuf/records/data/syscalls_*.tsv: number, name, tracefs name and arguments of every syscall.

From the kernel's own data: numbers and names out of the installed UAPI headers (asm/unistd_64.h; asm-generic/unistd.h
as arm64 includes it), arguments out of the running kernel's tracefs. A syscall newer than the headers is in NEWER; its
number is checked against the running kernel by tests/kernel/test_tables.py. One that tracefs lacks (this kernel does
not implement it) has its arguments in LACKING, as the manual pages give them.

Use: make_syscall_tables.py DIRECTORY (root, for tracefs).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TRACEFS = Path("/sys/kernel/tracing/events/syscalls")

# Numbers that all architectures share, newer than Debian 12's headers (Linux 6.2 to 6.19).
NEWER = {
    451: "cachestat", 452: "fchmodat2", 453: "map_shadow_stack", 454: "futex_wake", 455: "futex_wait",
    456: "futex_requeue", 457: "statmount", 458: "listmount", 459: "lsm_get_self_attr", 460: "lsm_set_self_attr",
    461: "lsm_list_modules", 462: "mseal", 463: "setxattrat", 464: "getxattrat", 465: "listxattrat",
    466: "removexattrat", 467: "open_tree_attr", 468: "file_getattr", 469: "file_setattr", 470: "listns",
}  # fmt: skip
NEWER_X86_64 = {335: "uretprobe", 336: "uprobe"}

# The kernel's function where it is called otherwise than the syscall.
TRACEFS_NAMES = {
    "stat": "newstat", "fstat": "newfstat", "lstat": "newlstat", "uname": "newuname", "umount2": "umount",
    "sendfile": "sendfile64",
}  # fmt: skip


def registers(count: int) -> str:
    """The arguments of a call that no kernel has implemented for long: strace shows the registers."""
    return "|".join(f"unsigned long arg{number}" for number in range(1, count + 1))


LACKING = {
    "_sysctl": "void * args",
    "afs_syscall": registers(5),
    "create_module": registers(2),
    "delete_module": "const char * name_user|unsigned int flags",
    "epoll_ctl_old": registers(4),
    "epoll_wait_old": registers(4),
    "finit_module": "int fd|const char * uargs|int flags",
    "get_kernel_syms": registers(1),
    "get_thread_area": "struct user_desc * u_info",
    "getpmsg": registers(5),
    "init_module": "void * umod|unsigned long len|const char * uargs",
    "kexec_file_load": "int kernel_fd|int initrd_fd|unsigned long cmdline_len|const char * cmdline_ptr"
    "|unsigned long flags",
    "kexec_load": "void * entry|unsigned long nr_segments|struct kexec_segment * segments|unsigned long flags",
    "listns": "const struct ns_id_req * req|u64 * ns_ids|size_t nr_ns_ids|unsigned int flags",
    "lookup_dcookie": "u64 cookie64|char * buf|size_t len",
    "map_shadow_stack": "unsigned long addr|unsigned long size|unsigned int flags",
    "nfsservctl": registers(3),
    "putpmsg": registers(5),
    "query_module": registers(5),
    "security": registers(3),
    "set_thread_area": "struct user_desc * u_info",
    "tuxcall": registers(3),
    "uselib": "const char * library",
    "vserver": registers(5),
}

# arm64 passes clone's last two arguments the other way round (CONFIG_CLONE_BACKWARDS).
ARM64_ARGUMENTS = {
    "clone": "unsigned long clone_flags|unsigned long newsp|int * parent_tidptr|unsigned long tls|int * child_tidptr",
}

FIELD = re.compile(r"^\tfield:(.*);\toffset:\d+;\tsize:\d+;\tsigned:\d;$", re.MULTILINE)


def arguments(name: str) -> str | None:
    """``TYPE NAME|TYPE NAME`` out of tracefs, or None when the kernel has no such event."""
    path = TRACEFS / f"sys_enter_{name}" / "format"
    if not path.exists():
        return None
    fields = FIELD.findall(path.read_text())
    own = [
        re.sub(r"\s+", " ", field) for field in fields if not field.split()[-1].startswith(("common_", "__syscall_nr"))
    ]
    return "|".join(own)


def x86_64() -> dict[int, str]:
    """Numbers of asm/unistd_64.h and the newer ones."""
    text = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    numbers = {int(number): name for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.MULTILINE)}
    return {**numbers, **NEWER, **NEWER_X86_64}


def aarch64() -> dict[int, str]:
    """asm-generic/unistd.h with the definitions of arch/arm64/include/uapi/asm/unistd.h."""
    wanted = ["RENAMEAT", "NEW_STAT", "SET_GET_RLIMIT", "TIME32_SYSCALLS", "SYS_CLONE3", "MEMFD_SECRET"]
    lines = [f"#define __ARCH_WANT_{name}" for name in wanted]
    lines += ["#define __BITS_PER_LONG 64", "#define __ASM_GENERIC_BITS_PER_LONG", "#include <asm-generic/unistd.h>"]
    lines.append("#undef __NR_syscalls\n")
    command = ["cc", "-E", "-dM", "-x", "c", "-"]
    text = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    defines = dict(re.findall(r"^#define (__NR\w+) (\w+)$", text, re.MULTILINE))
    numbers = {}
    for macro, value in defines.items():
        if macro.startswith("__NR_") and macro not in ("__NR_arch_specific_syscall", "__NR_syscalls"):
            number = value if value.isdigit() else defines[value]
            numbers[int(number)] = macro.removeprefix("__NR_")
    return {**numbers, **NEWER}


def write(path: Path, numbers: dict[int, str], own: dict[str, str]) -> None:
    """One row a syscall."""
    release = Path("/proc/sys/kernel/osrelease").read_text().split("-")[0]
    with path.open("w") as file:
        source = f"the UAPI headers and tracefs of Linux {release}"
        file.write(f"# Made by scripts/make_syscall_tables.py from {source}; do not edit.\n")
        file.write("# number\tname\ttracefs name\targuments\n")
        for number, name in sorted(numbers.items()):
            kernel_name = TRACEFS_NAMES.get(name, name)
            known = own.get(name)
            if known is None:
                known = arguments(kernel_name)
            if known is None:
                known = LACKING.get(name)
            if known is None:
                print(f"{name} ({number}): neither tracefs nor LACKING has it", file=sys.stderr)
                known = ""
            file.write(f"{number}\t{name}\t{kernel_name}\t{known}\n")


def main() -> int:
    """Writes both tables into the directory given."""
    directory = Path(sys.argv[1])
    write(directory / "syscalls_x86_64.tsv", x86_64(), {})
    write(directory / "syscalls_aarch64.tsv", aarch64(), ARM64_ARGUMENTS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
