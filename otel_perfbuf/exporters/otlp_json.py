# SPDX-License-Identifier: Apache-2.0
"""OTLP protobuf messages to OTLP JSON and back. What it is not: protobuf's own JSON (ids are hex here, enums numbers).

Source: OTLP specification, "JSON Protobuf Encoding". What is left out and what is always written (resource, scope,
body, status) is what the Collector's file exporter does; tests/e2e/test_exporters.py compares the two.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

__all__ = ["from_json", "to_json"]

_MessageT = TypeVar("_MessageT", bound=Message)
_Json = dict[str, Any]
_Writer = Callable[[Any], Any]

_HEX_FIELDS: Final = frozenset({"trace_id", "span_id", "parent_span_id"})
# The Collector's own structures hold these by value, so it writes them although nothing is set.
_ALWAYS: Final = {
    "ResourceLogs": ("resource",),
    "ResourceSpans": ("resource",),
    "ScopeLogs": ("scope",),
    "ScopeSpans": ("scope",),
    "LogRecord": ("body",),
    "Span": ("status",),
    "KeyValue": ("value",),
}
_LONG: Final = frozenset(
    {
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED64,
        FieldDescriptor.TYPE_SINT64,
    }
)


def to_json(message: Message) -> _Json:
    """The message as json.dumps takes it. Slow (some 20 us a log record): for files and eyes, not for the wire."""
    return _message_to_json(message)


def from_json(kind: type[_MessageT], value: object) -> _MessageT:
    """A new message from parsed OTLP JSON; unknown keys are ignored as the specification asks.

    Raises ValueError with the key's name for what cannot be read.
    """
    message = kind()
    _fill(message, value, "the line")
    return message


def _message_to_json(message: Message) -> _Json:
    descriptor = message.DESCRIPTOR
    writers, always = _writers(descriptor)
    written: _Json = {}
    for field, value in message.ListFields():
        name, writer = writers[field.number]
        written[name] = writer(value)
    for name in always:
        written.setdefault(name, {})
    return written


def _any_to_json(value: Any) -> _Json:
    """AnyValue and KeyValue are nearly all of a record: no descriptors for them."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return {"stringValue": value.string_value}
    if kind == "int_value":
        return {"intValue": str(value.int_value)}
    if kind == "bool_value":
        return {"boolValue": value.bool_value}
    return _message_to_json(value)


def _key_value_to_json(pair: Any) -> _Json:
    written: _Json = {"key": pair.key} if pair.key else {}
    written["value"] = _any_to_json(pair.value)
    return written


@functools.cache
def _writers(descriptor: Descriptor) -> tuple[dict[int, tuple[str, _Writer]], tuple[str, ...]]:
    writers = {field.number: (_json_name(field), _writer(field)) for field in descriptor.fields}
    return writers, _ALWAYS.get(descriptor.name, ())


def _writer(field: FieldDescriptor) -> _Writer:
    one = _single_writer(field)
    if not _repeated(field):
        return one
    return lambda values: [one(value) for value in values]


def _single_writer(field: FieldDescriptor) -> _Writer:
    if field.message_type is not None:
        if field.message_type.name == "KeyValue":
            return _key_value_to_json
        return _any_to_json if field.message_type.name == "AnyValue" else _message_to_json
    if field.type in _LONG:
        return str
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes.hex if field.name in _HEX_FIELDS else lambda value: base64.b64encode(value).decode("ascii")
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _double_to_json
    return lambda value: value


def _double_to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _fill(message: Any, value: object, where: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds no JSON object")
    fields = _fields(message.DESCRIPTOR)
    for name, item in value.items():
        field = fields.get(name)
        if field is None or item is None:
            continue
        if _repeated(field):
            _fill_repeated(message, field, item, name)
        elif field.message_type is not None:
            child = getattr(message, field.name)
            child.SetInParent()
            _fill(child, item, name)
        else:
            try:
                setattr(message, field.name, _scalar(field, item))
            except (ValueError, TypeError, OverflowError) as fault:
                raise ValueError(f"{name} cannot be read: {fault}") from fault


def _fill_repeated(message: Any, field: FieldDescriptor, items: object, name: str) -> None:
    if not isinstance(items, list):
        raise ValueError(f"{name} holds no list")
    target = getattr(message, field.name)
    for item in items:
        if field.message_type is not None:
            _fill(target.add(), item, name)
            continue
        try:
            target.append(_scalar(field, item))
        except (ValueError, TypeError, OverflowError) as fault:
            raise ValueError(f"{name} cannot be read: {fault}") from fault


def _scalar(field: FieldDescriptor, item: Any) -> Any:
    """A number, text, flag or bytes; numbers may be text (64 bit must be), enums names."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        if field.name in _HEX_FIELDS:
            return bytes.fromhex(item)
        return base64.b64decode(item, validate=True)
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BOOL):
        return item
    if isinstance(item, bool):
        raise TypeError("a number is wanted")
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return float(item)
    if field.enum_type is not None and isinstance(item, str):
        return field.enum_type.values_by_name[item].number if item in field.enum_type.values_by_name else int(item)
    if isinstance(item, float) and not item.is_integer():
        raise ValueError(f"{item} is no integer")
    return int(item)


@functools.cache
def _fields(descriptor: Descriptor) -> dict[str, FieldDescriptor]:
    return {_json_name(field): field for field in descriptor.fields}


def _json_name(field: FieldDescriptor) -> str:
    return field.json_name


def _repeated(field: FieldDescriptor) -> bool:
    # protobuf 7 took `label` away, protobuf 5 has no `is_repeated`
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(getattr(field, "label", 0) == FieldDescriptor.LABEL_REPEATED)
