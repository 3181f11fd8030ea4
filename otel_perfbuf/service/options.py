# SPDX-License-Identifier: Apache-2.0
"""Options of receivers, connectors and extensions, with their defaults; exporters have their own beside them.

What it is not: it opens nothing. Source: CONTRACT section 2, key for key. ``unavailable`` of a model names what this
version accepts as configuration and cannot do yet; `validate` says so rather than let it be ignored.
"""

from __future__ import annotations

import os
import platform
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.plugins import OURS, registered_readers
from otel_perfbuf.service.own_metrics import ReaderOptions
from otel_perfbuf.triggers.bound import RUN_DIRECTORY
from otel_perfbuf.triggers.manners import BudgetOptions
from otel_perfbuf.triggers.process_exit import ProcessExitOptions
from otel_perfbuf.triggers.socket import SocketOptions
from otel_perfbuf.units import Duration, Size, power_of_two_within

__all__ = [
    "ControlOptions",
    "FileStorageOptions",
    "FlightRecorderOptions",
    "HealthCheckOptions",
    "PerfBufferOptions",
    "TelemetryOptions",
    "TriggersOptions",
    "Unavailable",
]

Unavailable = list[tuple[str, str]]
"""Key path within the component, and the sentence."""

_NOT_YET = "this is not available yet"
_COMM_MAX_BYTES = 15  # TASK_COMM_LEN less its NUL
_COMMS_MAX = 1024  # entries of the BPF program's maps


def _no_reader(mode: str) -> str | None:
    """What is wrong with a mode that is none of ours; None: an installed package has registered it."""
    readers = registered_readers()
    if mode in readers:
        return None
    return f"there is no reader {mode}; known are {', '.join((*OURS, *readers))}"


def _percent(value: object) -> float:
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]+)?)%", value) if isinstance(value, str) else None
    if found is None or not 0 < float(found[1]) <= 100:
        raise PydanticCustomError("percent", "write a part of the ring between 0% and 100%, for example 25%")
    return float(found[1]) / 100


def _endpoint(value: object) -> str:
    text = str(value)
    host, _, port = text.rpartition(":")
    if text.startswith("unix://") and len(text) > len("unix://"):
        return text
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise PydanticCustomError("endpoint", "write HOST:PORT, for example 127.0.0.1:13133")
    return text


Percent = Annotated[
    float,
    BeforeValidator(_percent),
    PlainSerializer(lambda part: f"{part * 100:g}%", return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9]+)?%$", "examples": ["25%"]}),
]
Endpoint = Annotated[str, BeforeValidator(_endpoint)]
Pid = Annotated[int, Field(ge=1, le=1 << 22)]


def _comm(name: str) -> str:
    if not 1 <= len(name.encode()) <= _COMM_MAX_BYTES or "\0" in name:
        raise PydanticCustomError("comm", "a thread's name has 1 to 15 bytes")
    return name


Comm = Annotated[str, AfterValidator(_comm)]
Comms = Annotated[tuple[Comm, ...], Field(max_length=_COMMS_MAX)]


class TargetsOptions(StrictModel):
    """Whom to record; all empty means the whole host."""

    pids: tuple[Pid, ...] = ()
    comms: Comms = ()
    cgroups: tuple[str, ...] = ()


class ExcludeOptions(StrictModel):
    """Whom not to record, besides the agent itself."""

    comms: Comms = ()


def _known_syscalls(words: tuple[str, ...]) -> tuple[str, ...]:
    """Names and classes as they are; what none is, is said with the close ones."""
    # Imported here, since the tables are read from files: only who names system calls needs them.
    from otel_perfbuf.records.classes import select_syscalls
    from otel_perfbuf.records.syscalls import shipped_syscalls

    try:
        if words:
            select_syscalls((row.name for row in shipped_syscalls(platform.machine()).values()), include=words)
    except ConfigError as fault:
        why = "; ".join(sentence for _, sentence in fault.problems) or str(fault)
        raise PydanticCustomError("syscalls", "{why}", {"why": why}) from None
    return words


def _known_errnos(names: tuple[str, ...]) -> tuple[str, ...]:
    from otel_perfbuf.records.errnos import error_rows

    known = {name for _, name, _ in error_rows()}
    found = tuple(_ERRNO_ALIASES.get(name, name) for name in names)
    wrong = [name for name in found if name not in known]
    if wrong:
        why = f"{', '.join(wrong)}: no such error; write names like ECONNREFUSED"
        raise PydanticCustomError("errnos", "{why}", {"why": why})
    return found


_ERRNO_ALIASES = {"EWOULDBLOCK": "EAGAIN", "EDEADLOCK": "EDEADLK", "ENOTSUP": "EOPNOTSUPP"}
Syscalls = Annotated[tuple[str, ...], AfterValidator(_known_syscalls)]
Errnos = Annotated[tuple[str, ...], AfterValidator(_known_errnos)]


class SyscallsOptions(StrictModel):
    """Names and strace's classes (%file, %network, ...)."""

    include: Syscalls = ()
    exclude: Syscalls = ()


class StringsOptions(StrictModel):
    """How much of a string or buffer, and of a path, is captured."""

    max_bytes: Size = Field(default=128, ge=0, le=4096)
    max_path_bytes: Size = Field(default=512, ge=1, le=4096)


class RedactOptions(StrictModel):
    r"""A pattern (PCRE2's dialect) and what stands in its place: ``\1`` is its first group."""

    pattern: str = Field(min_length=1)
    replace: str = "[REDACTED]"

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        from otel_perfbuf.records import Redact, Redaction  # the C core is loaded when it is needed

        try:
            Redaction([Redact(self.pattern, self.replace)])
        except ConfigError as fault:
            raise PydanticCustomError("pattern", "{why}", {"why": str(fault)}) from None
        return self


def _default_redact() -> tuple[RedactOptions, ...]:
    from otel_perfbuf.records import default_patterns

    return tuple(RedactOptions(pattern=row.pattern, replace=row.replace) for row in default_patterns())


class PerfBufferOptions(StrictModel):
    """One ring set of a BPF program. ``watermark`` is for forward mode."""

    program: str | None = "syscalls"
    map: str | None = None
    event_name: str | None = None
    mode: str = Field(default="overwritable", pattern=r"^[a-z][a-z0-9_]*$")
    watermark: Percent = 0.25
    per_cpu_bytes: Size = Field(default=4 << 20, ge=4096, le=1 << 30)
    ring: Literal["per_cpu", "shared", "auto"] = "auto"
    max_total_bytes: Size = Field(default=512 << 20, ge=4096)
    snapshot: Literal["copy", "swap"] = "copy"
    targets: TargetsOptions = TargetsOptions()
    exclude: ExcludeOptions = ExcludeOptions()
    syscalls: SyscallsOptions = SyscallsOptions()
    strings: StringsOptions = StringsOptions()
    fd_names: bool = True
    buffers: Literal["none", "sizes", "content"] = "none"
    redact: tuple[RedactOptions, ...] = Field(default_factory=_default_redact)

    @model_validator(mode="before")
    @classmethod
    def _map_alone(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("map") and "program" not in given:
            ours = given.get("mode", "overwritable") in OURS
            if str(given["map"]).startswith("/") or not ours:
                return {**given, "program": None}
        return given

    @property
    def whole_host(self) -> bool:
        """No target is named."""
        return not (self.targets.pids or self.targets.comms or self.targets.cgroups)

    def unavailable(self) -> Unavailable:
        """What this version or this host cannot do."""
        found: Unavailable = []
        registered = self.mode not in OURS
        if registered and (sentence := _no_reader(self.mode)):
            found.append(("mode", sentence))
        elif registered and self.program is None:
            pass  # the reader knows what to do with the map's name
        elif self.program not in ("syscalls", "process"):
            found.append(("program", "only the built-in programs syscalls and process are available yet"))
        elif self.mode == "overwritable" and self.program != "syscalls":
            found.append(("mode", f"program {self.program} is recorded in mode forward only"))
        elif self.mode != "overwritable" and self.program != "process":
            found.append(("mode", f"program {self.program} is recorded in mode overwritable only, so far"))
        if self.mode == "overwritable" and self._total_bytes() > self.max_total_bytes:
            twice = "twice " if self.snapshot == "swap" else ""
            rounded = " (rounded down to a power of two)" if self.ring == "shared" else ""
            sentence = (
                f"on this host, {os.cpu_count()} CPUs x {twice}per_cpu_bytes{rounded} and as much for the copies are"
                f" {self._total_bytes()} bytes, more than {self.max_total_bytes}; make per_cpu_bytes smaller or"
                " max_total_bytes larger"
            )
            found.append(("max_total_bytes", sentence))
        given = self.model_fields_set
        if self.map is not None and self.program is not None:
            found.append(("map", f"{_NOT_YET} for built-in programs, which have maps of their own"))
        found += [(key, _NOT_YET) for key in ("event_name",) if key in given and getattr(self, key)]
        if self.ring == "shared" and self.mode != "overwritable":
            found.append(("ring", f"only the overwritable history can be shared; in mode {self.mode} write per_cpu"))
        elif self.ring == "shared" and self.snapshot == "swap":
            found.append(("ring", "a shared ring has no second one to swap with; write snapshot: copy"))
        if self.snapshot == "swap" and self.mode != "overwritable":
            found.append(("snapshot", f"only an overwritable ring has snapshots; in mode {self.mode} write copy"))
        return found

    def _total_bytes(self) -> int:
        """Rings (their size is rounded up to a power of two; two a CPU to swap) and their copies, over all CPUs.

        For ``auto``, the larger of both kinds: a shared ring is never larger than all the others together.
        """
        rings = (1 << (self.per_cpu_bytes - 1).bit_length()) * (os.cpu_count() or 1)
        if self.ring == "shared":
            return 2 * power_of_two_within(rings)
        return 2 * rings * (2 if self.snapshot == "swap" else 1)


class EmptyOptions(StrictModel):
    """A trigger without options."""


class LogSeverityOptions(StrictModel):
    """Logs at least this severe."""

    at_least: Literal["WARN", "ERROR", "FATAL"] = "ERROR"


class SyscallErrorOptions(StrictModel):
    """Off unless both are given."""

    syscalls: Syscalls = ()
    errnos: Errnos = ()


class SpanLatencyOptions(StrictModel):
    """Off at 0s; names empty: every span."""

    longer_than: Duration = Field(default=0.0, ge=0)
    names: tuple[str, ...] = ()


class SyscallLatencyOptions(StrictModel):
    """Off at 0s; syscalls empty: all but those that wait by design (poll, futex, read, accept, ...)."""

    longer_than: Duration = Field(default=0.0, ge=0)
    syscalls: Syscalls = ()


class TriggersOptions(StrictModel):
    """Left out (None) = off; an empty map takes its defaults; manual is always on."""

    span_error: EmptyOptions | None = None
    log_severity: LogSeverityOptions | None = None
    process_exit: ProcessExitOptions | None = None
    oom_kill: EmptyOptions | None = None
    syscall_error: SyscallErrorOptions | None = None
    span_latency: SpanLatencyOptions | None = None
    syscall_latency: SyscallLatencyOptions | None = None
    socket: SocketOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_maps(cls, given: Any) -> Any:
        # `socket:` with nothing behind it is an empty map to everybody but YAML.
        return (
            {key: {} if value is None else value for key, value in given.items()} if isinstance(given, dict) else given
        )

    @property
    def of_the_kernel(self) -> bool:
        """Whether one is on that the kernel decides."""
        error, latency = self.syscall_error, self.syscall_latency
        return (
            self.process_exit is not None
            or self.oom_kill is not None
            or (error is not None and bool(error.syscalls and error.errnos))
            or (latency is not None and latency.longer_than > 0)
        )

    def kernel_part(self) -> TriggersOptions:
        """Those that the kernel decides, alone: what a history is loaded for."""
        return TriggersOptions(
            process_exit=self.process_exit,
            oom_kill=self.oom_kill,
            syscall_error=self.syscall_error,
            syscall_latency=self.syscall_latency,
        )

    def told_to_applications(self) -> dict[str, Any]:
        """What registered applications are to report besides errors."""
        latency = self.span_latency
        if latency is None or not latency.longer_than:
            return {}
        return {"span_latency": {"longer_than_ns": int(latency.longer_than * 1e9), "names": list(latency.names)}}


class WindowOptions(StrictModel):
    """Which part of the rings' history a dump has, around its firing."""

    before: Duration = Field(default=10.0, ge=0)
    after: Duration = Field(default=0.0, ge=0, le=60)


class FlightRecorderOptions(StrictModel):
    """The connector: triggers in, dumps out."""

    history: tuple[str, ...] = Field(default=(), description="ids of overwritable perf_buffer receivers")
    triggers: TriggersOptions = TriggersOptions()
    scope: Literal["process", "cgroup", "host"] = "process"
    window: WindowOptions = WindowOptions()
    max_records: int = Field(default=100_000, ge=1, le=10_000_000)
    warm_up: Duration = Field(default=0.0, ge=0, description="from the recording's start: firings are only counted")
    hold_off: Duration = Field(default=30.0, ge=0)
    max_dumps: BudgetOptions = BudgetOptions()

    def unavailable(self) -> Unavailable:
        """What this version cannot do."""
        found: Unavailable = []
        if len(self.history) > 1:
            found.append(("history", "one receiver is available yet, not several"))
        return found


class ControlOptions(StrictModel):
    """The control socket."""

    path: str = f"{RUN_DIRECTORY}/control.sock"


class HealthCheckOptions(StrictModel):
    """GET of anything answers 200 while the agent runs."""

    endpoint: Endpoint = "127.0.0.1:13133"


class FileStorageOptions(StrictModel):
    """The spool: a directory of its own; the oldest whole dump makes room."""

    directory: str = "/var/lib/otel-perfbuf/spool"
    max_bytes: Size = Field(default=1 << 30, ge=1 << 20)


class MetricsOptions(StrictModel):
    """Own metrics; `none` counts nothing at /metrics."""

    level: Literal["none", "basic", "normal", "detailed"] = "normal"
    readers: tuple[ReaderOptions, ...] = ()


class LogsOptions(StrictModel):
    """Own logs, on stderr."""

    level: Literal["debug", "info", "warn", "error"] = "info"


class TelemetryOptions(StrictModel):
    """`service: {telemetry: ...}`."""

    metrics: MetricsOptions = MetricsOptions()
    logs: LogsOptions = LogsOptions()
