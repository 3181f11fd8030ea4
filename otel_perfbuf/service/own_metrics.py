# SPDX-License-Identifier: Apache-2.0
"""`telemetry.metrics.readers`: the agent's own counts, pushed by OTLP or served for Prometheus on a TCP port.

What it is not: it counts nothing (telemetry.py). The SDK's exporter sends, with its retries; its instruments are not
used, since the counts exist already and a summary has no instrument. Source: the Collector's keys (opentelemetry-
configuration's MeterProvider: intervals and timeouts in milliseconds), OTLP's metrics.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from otel_perfbuf.errors import PerfbufError
from otel_perfbuf.exporters.options import StrictModel
from otel_perfbuf.service.http import HttpServer, Request, Response, listen_tcp
from otel_perfbuf.service.telemetry import METRICS, Point, Telemetry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource

__all__ = ["PrometheusReader", "PushReader", "ReaderOptions", "start_reader"]

_log = logging.getLogger(__name__)


class HeaderOptions(StrictModel):
    """One header; its value is a secret."""

    name: str
    value: SecretStr


class OtlpMetricsOptions(StrictModel):
    """Where to push; ``timeout`` in milliseconds. ``insecure`` is gRPC's: plain text where no scheme says otherwise."""

    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf"
    endpoint: str = Field(default="", description="empty: http://localhost:4318, or :4317 for grpc")
    certificate: Path | None = None
    client_key: Path | None = None
    client_certificate: Path | None = None
    headers: tuple[HeaderOptions, ...] = ()
    compression: Literal["gzip", "none"] = "gzip"
    timeout: int = Field(default=10_000, ge=1)
    insecure: bool = False


class PushExporterOptions(StrictModel):
    """`exporter: {otlp: ...}`."""

    otlp: OtlpMetricsOptions = OtlpMetricsOptions()


class PeriodicOptions(StrictModel):
    """Every ``interval`` milliseconds, and once more at the end."""

    interval: int = Field(default=60_000, ge=100)
    exporter: PushExporterOptions = PushExporterOptions()


class PrometheusOptions(StrictModel):
    """GET /metrics at this address."""

    host: str = "localhost"
    port: int = Field(default=8888, ge=1, le=65535)


class PullExporterOptions(StrictModel):
    """`exporter: {prometheus: ...}`."""

    prometheus: PrometheusOptions = PrometheusOptions()


class PullOptions(StrictModel):
    """Served when asked."""

    exporter: PullExporterOptions = PullExporterOptions()


class ReaderOptions(StrictModel):
    """Either ``periodic`` or ``pull``."""

    periodic: PeriodicOptions | None = None
    pull: PullOptions | None = None

    @model_validator(mode="after")
    def _one(self) -> ReaderOptions:
        if (self.periodic is None) == (self.pull is None):
            raise ValueError("write either periodic or pull")
        return self


def start_reader(options: ReaderOptions, telemetry: Telemetry, version: str) -> PushReader | PrometheusReader:
    """Starts one; PerfbufError when it cannot."""
    if options.pull is not None:
        return PrometheusReader(options.pull.exporter.prometheus, telemetry)
    assert options.periodic is not None
    return PushReader(options.periodic, telemetry, version)


class PrometheusReader:
    """Serves the text format on a TCP port."""

    def __init__(self, options: PrometheusOptions, telemetry: Telemetry) -> None:
        def metrics(_: Request) -> Response:
            return Response(200, telemetry.render().encode("utf-8"), "text/plain; version=0.0.4; charset=utf-8")

        listening = listen_tcp(options.host, options.port, "metrics for Prometheus")
        self._server = HttpServer(listening, {"/metrics": {"GET": metrics}}, name="perfbuf-metrics")
        self._listening = listening
        self._server.start()

    def stop(self) -> None:
        """Closes it."""
        self._server.stop()
        self._listening.close()


class PushReader:
    """Pushes from a thread of its own. Failures are the SDK's warnings in the log; the next interval tries again."""

    def __init__(self, options: PeriodicOptions, telemetry: Telemetry, version: str) -> None:
        self._interval_s = options.interval / 1000
        self._timeout_ms = options.exporter.otlp.timeout
        self._telemetry = telemetry
        self._started_unix_ns = time.time_ns()
        self._resource = _resource(version)
        self._exporter = _exporter(options.exporter.otlp)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfbuf-own-metrics", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """A last push, within about ``timeout_s``."""
        self._stopping.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown(timeout_millis=0)

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._stopping.wait(self._interval_s)
            try:
                data = _metrics_data(self._telemetry.collect(), self._resource, self._started_unix_ns)
                self._exporter.export(data, timeout_millis=self._timeout_ms)
            except Exception as fault:  # noqa: BLE001 - the exporter's; own metrics must not end before the agent
                _log.warning("pushing the agent's own metrics failed: %s", fault)


def _exporter(options: OtlpMetricsOptions) -> MetricExporter:
    # Imported here: both take long, and most configurations have neither.
    headers = {header.name.lower(): header.value.get_secret_value() for header in options.headers}
    files = (options.certificate, options.client_key, options.client_certificate)
    certificate, key, chain = (str(path) if path is not None else None for path in files)
    timeout_s = options.timeout / 1000
    if options.protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        endpoint = options.endpoint or "http://localhost:4318"
        if urlsplit(endpoint).path in ("", "/"):
            endpoint = endpoint.rstrip("/") + "/v1/metrics"
        return HttpExporter(
            endpoint,
            certificate_file=certificate,
            client_key_file=key,
            client_certificate_file=chain,
            headers=headers,
            timeout=timeout_s,
            compression=HttpCompression.Gzip if options.compression == "gzip" else HttpCompression.NoCompression,
        )
    import grpc
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

    try:
        pems = [path.read_bytes() if path is not None else None for path in files]
    except OSError as fault:
        raise PerfbufError(f"starting telemetry.metrics.readers: reading {fault.filename}: {fault.strerror}") from fault
    endpoint = options.endpoint or "http://localhost:4317"
    insecure = options.insecure or urlsplit(endpoint).scheme == "http"
    return GrpcExporter(
        endpoint,
        insecure=insecure,
        credentials=None if insecure else grpc.ssl_channel_credentials(*pems),
        headers=headers,
        timeout=timeout_s,
        compression=grpc.Compression.Gzip if options.compression == "gzip" else grpc.Compression.NoCompression,
    )


def _resource(version: str) -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource(
        {
            "service.name": "otel-perfbuf",
            "service.version": version,
            "service.instance.id": str(uuid.uuid4()),
            "host.name": socket.gethostname(),
        }
    )


def _metrics_data(points: list[Point], resource: Resource, started_unix_ns: int) -> MetricsData:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_unix_ns = time.time_ns()
    metrics = [
        _metric(name, [point for point in points if point.name == name], started_unix_ns, now_unix_ns)
        for name in METRICS
        if any(point.name == name for point in points)
    ]
    scope = ScopeMetrics(InstrumentationScope("otel_perfbuf"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(name: str, points: list[Point], started_unix_ns: int, now_unix_ns: int) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as SdkMetric

    about = METRICS[name]
    cumulative = AggregationTemporality.CUMULATIVE
    data: Sum | Gauge | Histogram
    if about.kind == "summary":
        # Count, sum and extremes without buckets are a histogram in OTLP.
        data = Histogram(
            [
                HistogramDataPoint(
                    attributes=dict(zip(about.labels, point.labels, strict=True)),
                    start_time_unix_nano=started_unix_ns,
                    time_unix_nano=now_unix_ns,
                    count=point.count,
                    sum=point.value,
                    bucket_counts=[point.count],
                    explicit_bounds=[],
                    min=point.least,
                    max=point.greatest,
                )
                for point in points
            ],
            cumulative,
        )
    else:
        numbers = [
            NumberDataPoint(
                attributes=dict(zip(about.labels, point.labels, strict=True)),
                start_time_unix_nano=started_unix_ns,
                time_unix_nano=now_unix_ns,
                value=int(point.value) if point.value == int(point.value) and about.kind == "counter" else point.value,
            )
            for point in points
        ]
        data = Sum(numbers, cumulative, is_monotonic=True) if about.kind == "counter" else Gauge(numbers)
    unit = next((unit for word, unit in _UNITS.items() if name.endswith(word)), "1")
    return SdkMetric(name, about.text, unit, data)


_UNITS = {"_seconds": "s", "_bytes": "By"}
