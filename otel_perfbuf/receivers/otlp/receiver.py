# SPDX-License-Identifier: Apache-2.0
"""The otlp receiver: its one or two servers, started and stopped together. What it is not: a server."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping

from otel_perfbuf.exporters.payload import Signal
from otel_perfbuf.receivers.consumer import Consumer
from otel_perfbuf.receivers.otlp.grpc import OtlpGrpcServer
from otel_perfbuf.receivers.otlp.http import OtlpHttpServer
from otel_perfbuf.receivers.otlp.options import OtlpReceiverOptions

__all__ = ["Consumer", "OtlpReceiver"]


class OtlpReceiver:
    """Serves the signals that have a consumer; others are answered as a Collector without such a pipeline does.

    ``refused`` counts requests by cause: otlp_malformed, otlp_not_served, otlp_oversized, otlp_slow, otlp_busy,
    otlp_connections, failed. ``endpoints``: where it listens, by protocol, once started.
    """

    def __init__(self, options: OtlpReceiverOptions, consumers: Mapping[Signal, Consumer]) -> None:
        self.refused: Counter[str] = Counter()
        protocols = options.protocols
        self._servers: dict[str, OtlpGrpcServer | OtlpHttpServer] = {}
        if protocols.grpc is not None:
            self._servers["grpc"] = OtlpGrpcServer(protocols.grpc, consumers, self.refused)
        if protocols.http is not None:
            self._servers["http"] = OtlpHttpServer(protocols.http, consumers, self.refused)
        self._undo = contextlib.ExitStack()

    @property
    def endpoints(self) -> dict[str, str]:
        """Protocol to endpoint, with the port that it has."""
        return {name: server.endpoint for name, server in self._servers.items()}

    def start(self) -> None:
        """Starts both or none; PerfbufError or ConfigError says what could not be opened."""
        try:
            for server in self._servers.values():
                server.start()
                self._undo.callback(server.stop)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops them: no consumer is called any more, but for what is being taken at this moment; twice is fine."""
        self._undo.close()
