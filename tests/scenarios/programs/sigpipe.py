# SPDX-License-Identifier: Apache-2.0
"""Writes to a pipe that nobody reads: the default is a silent death."""

import os
import signal

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
os.close(reader)
os.write(writer, b"report\n")
