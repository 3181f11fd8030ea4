# SPDX-License-Identifier: Apache-2.0
"""What this kernel's BPF can do, found by loading a small program for each (bpf/probe.bpf.c), and what follows from it.

What it is not: a guess from a version; a list for people (probe.py). Nothing stays loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from otel_perfbuf.errors import ConfigError, KernelError

from .object import BpfObject, builtin_object

__all__ = ["FEATURES", "NEEDED", "load_builtin", "refusal"]

# name -> (program of bpf/probe.bpf.c, whether it must be attached to be known)
FEATURES: Mapping[str, tuple[str, bool]] = {
    "typed tracepoints": ("typed_tracepoints", False),
    "raw tracepoints": ("raw_tracepoints", False),
    "task storage": ("task_storage", False),
    "fetching atomics": ("fetching_atomics", False),
    "kprobes": ("kprobes", True),
    "fentry": ("fentry", True),
}
_MAPS = {"task storage": "storage"}
# What the first form of our programs needs; the plain one (bpf/features.bpf.h) does without.
NEEDED = ("task storage", "fetching atomics")


def refusal(*names: str) -> KernelError | None:
    """Why the kernel refuses one of these features of FEATURES; None: it has them all."""
    programs = [FEATURES[name][0] for name in names]
    with BpfObject(builtin_object("probe")) as probe:
        probe.load_only(programs, [_MAPS[name] for name in names if name in _MAPS])
        try:
            probe.load()
            probe.attach([FEATURES[name][0] for name in names if FEATURES[name][1]])
        except KernelError as error:
            return error
    return None


def load_builtin(name: str, prepare: Callable[[BpfObject], None]) -> BpfObject:
    """The built-in program, loaded, in the form that this kernel takes; close it. ``prepare`` sets its constants.

    The plain form is tried where the kernel lacks what the first needs, and never instead of an error of another cause.
    """
    try:
        return _loaded(name, prepare)
    except KernelError as error:
        if refusal(*NEEDED) is None:
            raise
        try:
            return _loaded(f"{name}_plain", prepare)
        except (KernelError, ConfigError):
            raise error from None


def _loaded(name: str, prepare: Callable[[BpfObject], None]) -> BpfObject:
    program = BpfObject(builtin_object(name))
    try:
        prepare(program)
        program.load()
    except BaseException:
        program.close()
        raise
    return program
