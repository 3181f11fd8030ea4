# SPDX-License-Identifier: Apache-2.0
"""A seccomp filter denies mkdir; strace would see the call, the program sees EPERM."""

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO_EPERM, MKDIR = 0x7FFF0000, 0x00050001, 83
program = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (LOAD_WORD, 0, 0, 0),
        (JUMP_EQUAL, 0, 1, MKDIR),
        (RETURN, 0, 0, ERRNO_EPERM),
        (RETURN, 0, 0, ALLOW),
    )
)
code = ctypes.create_string_buffer(program)
header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, FILTER, header, 0, 0) == 0
try:
    os.mkdir(sys.argv[1])
except OSError:
    sys.exit(9)
