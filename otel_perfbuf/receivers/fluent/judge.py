# SPDX-License-Identifier: Apache-2.0
"""Which events of a Fluent stream call for a dump, as OTLP log records: the path of all other logs goes on from there.

What it is not: a converter of streams. An event that fires nothing is dropped after a look at its severity. Source:
syslog's severities (RFC 5424), the levels of pino and bunyan, the log data model's severity numbers; the fields that
exporters/fluent_records.py writes.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_perfbuf.receivers.fluent.options import FluentReceiverOptions

__all__ = ["Judge", "severity_number"]

_TEXT_MAX: Final = 4096
_DEPTH_MAX: Final = 8
_LEAST: Final = 13  # WARN
_MATCHED: Final = 21  # FATAL: a match fires whatever least severity is configured
_OWN_SCOPE: Final = "otel_perfbuf"
_OWN_SERVICE: Final = "otel-perfbuf"

_WORDS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("trace", "finest", "verbose"), 1),
        **dict.fromkeys(("debug", "fine", "finer"), 5),
        **dict.fromkeys(("info", "information", "informational", "notice", "log"), 9),
        **dict.fromkeys(("warn", "warning"), 13),
        **dict.fromkeys(("error", "err", "severe", "failure"), 17),
        **dict.fromkeys(("fatal", "critical", "crit", "alert", "emerg", "emergency", "panic"), 21),
    }
)
_SYSLOG: Final = (21, 21, 21, 17, 13, 9, 9, 5)
_PINO: Final[Mapping[int, int]] = MappingProxyType({10: 1, 20: 5, 30: 9, 40: 13, 50: 17, 60: 21})
_NUMBER_FIELD: Final = "severity_number"
_HEX: Final = re.compile(r"[0-9a-fA-F]+", re.ASCII)


def severity_number(value: Any, *, field: str = "") -> int:
    """The log data model's number of a level: words, syslog's 0-7, pino's 10-60; 0 for what is none.

    In a field called severity_number an integer is the model's own number.
    """
    if isinstance(value, str):
        word = value.strip().lower()[:32]
        if word in _WORDS:
            return _WORDS[word]
        if not word.isascii() or not word.isdigit():
            return 0
        value = int(word)
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    if field == _NUMBER_FIELD:
        return value if 1 <= value <= 24 else 0
    return _SYSLOG[value] if 0 <= value < len(_SYSLOG) else _PINO.get(value, 0)


class Judge:
    """Looks at events by one receiver's options. May be used from any thread."""

    def __init__(self, options: FluentReceiverOptions, *, own_pid: int | None = None) -> None:
        self._fields = options.fields
        self._matches = [(re.compile(each.pattern), each.fields or options.fields.message) for each in options.match]
        self._ignored = re.compile("|".join(fnmatch.translate(tag) for tag in options.ignore_tags) or r"(?!)")
        self._own_pid = os.getpid() if own_pid is None else own_pid

    def ignores(self, tag: str) -> bool:
        """Whether a stream with this tag never triggers."""
        return self._ignored.match(tag) is not None

    def request(self, events: Iterable[tuple[int, Mapping[Any, Any]]]) -> tuple[bytes, int, int]:
        """(an ExportLogsServiceRequest of the events that may fire, "" for none; how many events; how many may fire).

        Those below the lowest severity that a trigger can be set to (WARN) are not looked at any further.
        """
        request = ExportLogsServiceRequest()
        count = 0
        for unix_ns, record in events:
            count += 1
            number = self._severity(record)
            if self._matched(record):
                number = max(number, _MATCHED)
            if number >= _LEAST and not self._own(record):
                self._add(request, unix_ns, record, number)
        hits = len(request.resource_logs)
        return (request.SerializeToString() if hits else b""), count, hits

    def _severity(self, record: Mapping[Any, Any]) -> int:
        for name in self._fields.severity:
            value = _lookup(record, name)
            if value is not None and (number := severity_number(value, field=name)):
                return number
        return 0

    def _matched(self, record: Mapping[Any, Any]) -> bool:
        for pattern, fields in self._matches:
            for name in fields:
                value = _lookup(record, name)
                if isinstance(value, (str, bytes)) and pattern.search(_text(value)):
                    return True
        return False

    def _own(self, record: Mapping[Any, Any]) -> bool:
        """What this project made itself, however it comes back: its dumps, and its own lines on stderr."""
        event_name = record.get("event_name", "")
        return (
            _lookup(record, "scope.name") == _OWN_SCOPE
            or _lookup(record, "perfbuf.dump.id") is not None
            or (isinstance(event_name, str) and event_name.startswith("perfbuf."))
            or self._first(record, self._fields.service) == _OWN_SERVICE
            or self._integer(record, self._fields.pid) == self._own_pid
        )

    def _add(self, request: ExportLogsServiceRequest, unix_ns: int, record: Mapping[Any, Any], number: int) -> None:
        fields = self._fields
        resource_logs = request.resource_logs.add()
        for key, names in (
            ("service.name", fields.service),
            ("service.instance.id", fields.instance),
            ("container.id", fields.container_id),
            ("host.name", fields.host),
        ):
            value = self._first(record, names)
            if value:
                resource_logs.resource.attributes.add(key=key).value.string_value = value
        pid = self._integer(record, fields.pid)
        if pid is not None:
            resource_logs.resource.attributes.add(key="process.pid").value.int_value = pid
        log = resource_logs.scope_logs.add().log_records.add(severity_number=number)
        log.time_unix_nano = unix_ns
        log.body.string_value = self._first(record, fields.message)
        tid = self._integer(record, fields.tid)
        if tid is not None:
            log.attributes.add(key="thread.id").value.int_value = tid
        log.trace_id = self._id(record, fields.trace_id, 16)
        log.span_id = self._id(record, fields.span_id, 8)

    def _first(self, record: Mapping[Any, Any], names: Iterable[str]) -> str:
        for name in names:
            value = _lookup(record, name)
            if isinstance(value, (str, bytes)) and value:
                return _text(value)
        return ""

    def _integer(self, record: Mapping[Any, Any], names: Iterable[str]) -> int | None:
        for name in names:
            value = _lookup(record, name)
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
                value = int(value)
            if isinstance(value, float) and math.isfinite(value) and value.is_integer():
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31:
                return value
        return None

    def _id(self, record: Mapping[Any, Any], names: Iterable[str], size: int) -> bytes:
        text = self._first(record, names)
        if len(text) != 2 * size or not _HEX.fullmatch(text):
            return b""
        found = bytes.fromhex(text)
        return found if any(found) else b""


def _lookup(record: Mapping[Any, Any], name: str) -> Any:
    """The value of a name: a key, a key of ``attributes`` or ``resource``, or a path of keys."""
    if name in record:
        return record[name]
    for inner in ("attributes", "resource"):
        below = record.get(inner)
        if isinstance(below, dict) and name in below:
            return below[name]
    if "." not in name:
        return None
    value: Any = record
    for key in name.split(".", _DEPTH_MAX):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def _text(value: str | bytes) -> str:
    """At most _TEXT_MAX characters that any encoder takes: what is no UTF-8 is replaced."""
    if isinstance(value, bytes):
        return value[:_TEXT_MAX].decode("utf-8", "replace")
    return value[:_TEXT_MAX].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
