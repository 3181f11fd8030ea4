# SPDX-License-Identifier: Apache-2.0
# The cffi module of sys.h; its names are those of the header's cffi part.

from typing import Any

ffi: Any
lib: Any
