# SPDX-License-Identifier: Apache-2.0
"""Reads an address from a file and follows it."""

import ctypes
import os
import sys

file = os.open(sys.argv[1], os.O_RDONLY)
ctypes.string_at(int(os.read(file, 64), 16))
