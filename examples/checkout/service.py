# SPDX-License-Identifier: Apache-2.0
"""A small shop: POST /pay charges a card through a payment gateway. It fails, and its log does not tell why.

Two ordinary mistakes hide the cause: a settings file that is missing is caught and replaced by defaults, and whatever
goes wrong with the gateway is reported as a timeout. The system calls tell: ENOENT for the settings, then a connection
to the default address that is refused at once.

What it is not: part of otel-perfbuf. It is an application that uses the OpenTelemetry SDK and one span processor.
Run it with `make demo`, or:  otel-perfbuf record -- python examples/checkout/service.py --requests 1
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode

from otel_perfbuf.sdk import FlightRecorderSpanProcessor

SETTINGS = Path("/etc/checkout/payments.json")
DEFAULTS = {"host": "127.0.0.1", "port": 9410}

log = logging.getLogger("checkout")
tracer = trace.get_tracer("checkout")


class PaymentError(Exception):
    """The card was not charged."""


def gateway_address() -> tuple[str, int]:
    """Where the payment gateway listens."""
    try:
        settings = json.loads(SETTINGS.read_text())
    except Exception:
        settings = DEFAULTS
    return settings["host"], settings["port"]


def charge(order: bytes) -> None:
    """Sends the order to the payment gateway."""
    with tracer.start_as_current_span("charge card", kind=SpanKind.CLIENT, record_exception=False):
        try:
            with socket.create_connection(gateway_address(), timeout=2) as connection:
                connection.sendall(order)
                connection.recv(1024)
        except OSError:
            raise PaymentError("payment gateway timed out") from None


class Handler(BaseHTTPRequestHandler):
    """The service's one page."""

    def do_POST(self) -> None:
        """Charges the card of the order in the body."""
        order = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with tracer.start_as_current_span("POST /pay", kind=SpanKind.SERVER) as span:
            try:
                charge(order)
            except PaymentError as error:
                log.error("POST /pay failed: %s", error)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                self.send_error(502, "payment failed")
            else:
                self.send_response(204)
                self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """No access log: the service's own log is what its authors thought would be enough."""


def main() -> None:
    """Serves until the number of requests is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--port-file", type=Path, help="where to write the port once it listens")
    parser.add_argument("--requests", type=int, default=0, help="end after so many; 0 serves on")
    options = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(levelname)s: %(message)s", stream=sys.stderr)

    provider = TracerProvider(resource=Resource.create({"service.name": "checkout"}))
    provider.add_span_processor(FlightRecorderSpanProcessor())
    trace.set_tracer_provider(provider)

    with HTTPServer(("127.0.0.1", options.port), Handler) as server:
        if options.port_file:
            options.port_file.write_text(str(server.server_port))
        served = 0
        while not options.requests or served < options.requests:
            server.handle_request()
            served += 1


if __name__ == "__main__":
    main()
