# SPDX-License-Identifier: Apache-2.0
"""OTLP JSON: there and back, and against protobuf's own JSON parser (with ids as it wants them)."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from export_samples import logs_request, traces_request
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from otel_perfbuf.exporters.otlp_json import from_json, to_json

IDS = {"traceId", "spanId", "parentSpanId"}


def for_protobuf(value: Any) -> Any:
    """The same JSON with hex ids in base64, as protobuf's parser takes bytes."""
    if isinstance(value, list):
        return [for_protobuf(item) for item in value]
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode() if key in IDS else for_protobuf(item)
            for key, item in value.items()
        }
    return value


texts = st.text(max_size=8)
any_values = st.recursive(
    st.one_of(
        st.builds(AnyValue),
        st.builds(AnyValue, string_value=texts),
        st.builds(AnyValue, bool_value=st.booleans()),
        st.builds(AnyValue, int_value=st.integers(-(2**63), 2**63 - 1)),
        st.builds(AnyValue, double_value=st.floats(allow_nan=False)),
        st.builds(AnyValue, bytes_value=st.binary(max_size=8)),
    ),
    lambda inner: st.one_of(
        st.builds(AnyValue, array_value=st.builds(ArrayValue, values=st.lists(inner, max_size=3))),
        st.builds(
            AnyValue,
            kvlist_value=st.builds(
                KeyValueList, values=st.lists(st.builds(KeyValue, key=texts, value=inner), max_size=3)
            ),
        ),
    ),
    max_leaves=5,
)
pairs = st.lists(st.builds(KeyValue, key=texts, value=any_values), max_size=3)
records = st.builds(
    LogRecord,
    time_unix_nano=st.integers(0, 2**64 - 1),
    observed_time_unix_nano=st.integers(0, 2**64 - 1),
    severity_number=st.integers(0, 24),
    severity_text=texts,
    body=any_values,
    attributes=pairs,
    dropped_attributes_count=st.integers(0, 2**32 - 1),
    flags=st.integers(0, 2**32 - 1),
    trace_id=st.sampled_from([b"", bytes(range(16))]),
    span_id=st.sampled_from([b"", bytes(range(8))]),
    event_name=texts,
)
requests = st.builds(
    ExportLogsServiceRequest,
    resource_logs=st.lists(
        st.builds(
            ResourceLogs,
            scope_logs=st.lists(st.builds(ScopeLogs, log_records=st.lists(records, max_size=2)), max_size=2),
            schema_url=texts,
        ),
        max_size=2,
    ),
)


def with_empty_messages(request: ExportLogsServiceRequest) -> ExportLogsServiceRequest:
    """The request with set what the JSON form always writes."""
    filled = copy.deepcopy(request)
    for resource_logs in filled.resource_logs:
        resource_logs.resource.SetInParent()
        for scope_logs in resource_logs.scope_logs:
            scope_logs.scope.SetInParent()
            for record in scope_logs.log_records:
                record.body.SetInParent()
                stack: list[Any] = [*record.attributes, record.body]
                while stack:
                    item = stack.pop()
                    if isinstance(item, KeyValue):
                        item.value.SetInParent()
                        item = item.value
                    kind = item.WhichOneof("value")
                    stack += getattr(item, kind).values if kind in ("kvlist_value", "array_value") else ()
    return filled


@settings(max_examples=150, deadline=None)
@given(requests)
def test_round_trip_and_protobufs_parser_agree(request: ExportLogsServiceRequest) -> None:
    """Any request survives, and protobuf's own parser reads the same message from what we write."""
    text = json.dumps(to_json(request))
    wanted = with_empty_messages(request)
    assert from_json(ExportLogsServiceRequest, json.loads(text)) == wanted
    assert json_format.ParseDict(for_protobuf(json.loads(text)), ExportLogsServiceRequest()) == wanted


def test_spans_survive() -> None:
    """A dump span with link, attributes and status is the same after a round trip."""
    request = traces_request()
    back = from_json(ExportTraceServiceRequest, json.loads(json.dumps(to_json(request))))
    assert back.resource_spans[0].scope_spans[0].spans == request.resource_spans[0].scope_spans[0].spans


def test_form_of_the_specification() -> None:
    """Ids in hex, 64-bit numbers as text, enums as numbers, lowerCamelCase keys, zeros left out."""
    record = to_json(logs_request(1))["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert record["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert record["timeUnixNano"] == "1700000000000000000"
    assert record["severityNumber"] == 9
    assert record["eventName"] == "perfbuf.syscall"
    assert {"key": "perfbuf.duration_ns", "value": {"intValue": "1234"}} in record["attributes"]
    assert not record.keys() & {"flags", "severityText", "droppedAttributesCount"}


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_json_has_not(number: float) -> None:
    """Infinities and NaN are written as the words that protobuf's JSON has for them."""
    value = AnyValue(double_value=number)
    text = json.dumps(to_json(value), allow_nan=False)
    assert str(from_json(AnyValue, json.loads(text)).double_value) == str(number)


def test_other_writers_forms_are_read() -> None:
    """Unknown keys and nulls are ignored; numbers may be text or not, enums may be names."""
    record = from_json(
        LogRecord,
        {"timeUnixNano": 5, "severityNumber": "SEVERITY_NUMBER_WARN", "new": [1], "body": None, "flags": "7",
         "attributes": [{"key": "a", "value": {"intValue": 3}}, {"key": "b", "value": {"doubleValue": "1.5"}}]},
    )  # fmt: skip
    assert (record.time_unix_nano, record.severity_number, record.flags) == (5, 13, 7)
    assert record.attributes[0].value.int_value == 3
    assert record.attributes[1].value.double_value == 1.5


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ([], "the line"),
        ({"attributes": 5}, "attributes"),
        ({"attributes": [5]}, "attributes"),
        ({"body": []}, "body"),
        ({"timeUnixNano": "x"}, "timeUnixNano"),
        ({"timeUnixNano": 1.5}, "timeUnixNano"),
        ({"timeUnixNano": 2**64}, "timeUnixNano"),
        ({"timeUnixNano": True}, "timeUnixNano"),
        ({"traceId": "xyz"}, "traceId"),
        ({"traceId": 5}, "traceId"),
        ({"severityText": 5}, "severityText"),
        ({"body": {"bytesValue": "!"}}, "bytesValue"),
        ({"body": {"stringValue": "\ud800"}}, "stringValue"),
    ],
)
def test_unreadable_values_are_named(value: object, key: str) -> None:
    """What cannot be read is a ValueError that names the key."""
    with pytest.raises(ValueError, match=key):
        from_json(LogRecord, value)
