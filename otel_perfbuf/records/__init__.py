# SPDX-License-Identifier: Apache-2.0
"""What a record means: syscall tables, the decode plan made of them, and the rules that the BPF program follows."""

from otel_perfbuf.records.plan import Plan, build_plan
from otel_perfbuf.records.rules import syscall_rules

__all__ = ["Plan", "build_plan", "syscall_rules"]
