# SPDX-License-Identifier: Apache-2.0
"""What this kernel's BPF can do, found by loading a small program for each (bpf/probe.bpf.c), and what follows from it.

What it is not: a guess from a version; a list for people (probe.py). Nothing stays loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from otel_perfbuf.errors import ConfigError, KernelError

from .object import BpfObject, builtin_object

__all__ = ["FEATURES", "load_builtin", "refusal"]

# name -> (program of bpf/probe.bpf.c, whether it must be attached to be known)
FEATURES: Mapping[str, tuple[str, bool]] = {
    "typed tracepoints": ("typed_tracepoints", False),
    "raw tracepoints": ("raw_tracepoints", False),
    "task storage": ("task_storage", False),
    "fetching atomics": ("fetching_atomics", False),
    "preemption control": ("preemption_control", False),
    "kprobes": ("kprobes", True),
    "fentry": ("fentry", True),
}
_MAPS = {"task storage": "storage"}
# The forms of our programs (bpf/features.bpf.h), the best first, and what each needs.
_FORMS = (("_held", ("preemption control",)), ("", ("task storage", "fetching atomics")), ("_plain", ()))


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


def load_builtin(name: str, prepare: Callable[[BpfObject], None] | None = None) -> BpfObject:
    """The built-in program, loaded, in the form that this kernel takes; close it. ``prepare`` sets its constants.

    The next form is tried where the kernel lacks what this one needs, and never instead of an error of another cause.
    """
    refused: KernelError | None = None
    for form, needed in _FORMS:
        try:
            return _loaded(name + form, prepare)
        except KernelError as error:
            if refused is None or needed:  # the plain form's own words would name what nobody asked for
                refused = error
            if refusal(*needed) is None:
                break
        except ConfigError:  # there is no plain form for this processor
            if refused is None:
                raise
    assert refused is not None
    raise refused


def _loaded(name: str, prepare: Callable[[BpfObject], None] | None) -> BpfObject:
    program = BpfObject(builtin_object(name))
    try:
        if prepare is not None:
            prepare(program)
        program.load()
    except BaseException:
        program.close()
        raise
    return program
