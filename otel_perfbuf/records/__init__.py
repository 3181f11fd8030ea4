# SPDX-License-Identifier: Apache-2.0
"""What a record means: syscall tables, the decode plan made of them, and the rules that the BPF program follows."""

from otel_perfbuf.records.fd_rules import fd_calls
from otel_perfbuf.records.plan import Plan, build_plan
from otel_perfbuf.records.redaction import Redact, Redaction, argument_patterns, build_redaction, default_patterns
from otel_perfbuf.records.rules import records_all, syscall_rules

__all__ = [
    "Plan",
    "Redact",
    "Redaction",
    "argument_patterns",
    "build_plan",
    "build_redaction",
    "default_patterns",
    "fd_calls",
    "records_all",
    "syscall_rules",
]
