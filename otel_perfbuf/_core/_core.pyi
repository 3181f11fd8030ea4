# SPDX-License-Identifier: Apache-2.0
# The cffi module of the C core; its names are those of the headers' cffi parts.

from typing import Any

ffi: Any
lib: Any
