# SPDX-License-Identifier: Apache-2.0
"""BPF objects, their maps, and the programs that come with the package. Source: CONTRACT section 6."""

from .maps import BpfMap, map_from_fd, open_pinned_map
from .object import BpfObject, builtin_object

__all__ = ["BpfMap", "BpfObject", "builtin_object", "map_from_fd", "open_pinned_map"]
