# SPDX-License-Identifier: Apache-2.0
"""The fluent_forward exporter's options, and what becomes of faults; with real peers it is in tests/e2e."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from export_samples import logs_chunk, traces_chunk

from otel_perfbuf.errors import ConfigError, ExportError
from otel_perfbuf.exporters.fluent_forward import Options, create
from otel_perfbuf.exporters.fluent_records import severity_name
from otel_perfbuf.exporters.payload import Chunk


def failure(endpoint: str, timeout_s: float = 10, **keys: object) -> ExportError:
    """What a send raises."""
    exporter = create(Options.model_validate({"endpoint": endpoint, **keys}))
    exporter.start()
    with pytest.raises(ExportError) as caught:
        exporter.send(logs_chunk(), timeout_s)
    exporter.stop()
    exporter.stop()
    return caught.value


def test_nobody_there_is_retryable_and_named() -> None:
    """TCP and Unix: the system's own words."""
    fault = failure("127.0.0.1:1")
    assert fault.retryable
    assert str(fault) == "sending 3 log records by Fluent forward to 127.0.0.1:1 failed: Connection refused"
    assert "No such file" in str(failure("unix:///nowhere/fluent.sock"))


@pytest.mark.parametrize("keys", [{}, {"shared_key": "k"}])
def test_a_server_that_says_nothing_times_out(keys: dict[str, str]) -> None:
    """Half-open: neither HELO nor acknowledgement; the limit is kept."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        fault = failure(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=0.3, **keys)
    assert fault.retryable
    assert str(fault).endswith("timed out")


def test_stop_ends_what_is_being_sent() -> None:
    """A stream that waits for an acknowledgement returns at once, retryable; later sends say why."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        exporter = create(Options.model_validate({"endpoint": f"127.0.0.1:{server.getsockname()[1]}"}))
        exporter.start()
        faults: list[ExportError] = []

        def send() -> None:
            try:
                exporter.send(logs_chunk(), 60)
            except ExportError as fault:
                faults.append(fault)

        thread = threading.Thread(target=send)
        thread.start()
        connection, _ = server.accept()
        assert connection.recv(10)
        exporter.stop()
        thread.join(20)
        connection.close()
    assert faults[0].retryable
    with pytest.raises(ExportError, match="stopped"):
        exporter.send(logs_chunk(), 1)


def test_spans_and_garbage_are_not_sent() -> None:
    """Neither can ever be: not retryable, and no connection is made."""
    exporter = create(Options())
    exporter.start()
    for chunk in (traces_chunk(), Chunk("logs", b"\xff", 1)):
        with pytest.raises(ExportError) as caught:
            exporter.send(chunk, 1)
        assert not caught.value.retryable


def test_unreadable_tls_file_is_a_configuration_error(tmp_path: Path) -> None:
    """The sentence names key, path and cause; so does a file that is no PEM."""
    for content, words in ((None, "No such file"), (b"no pem", "PEM files cannot be used")):
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_bytes(content)
        exporter = create(Options.model_validate({"tls": {"ca_file": str(path)}}))
        with pytest.raises(ConfigError, match=words):
            exporter.start()


@pytest.mark.parametrize("endpoint", ["", "host", "host:", "host:0", "host:70000", ":1", "unix:relative", "tcp://h:1"])
def test_unusable_endpoints_are_refused(endpoint: str) -> None:
    """What can never be reached is an error of the configuration."""
    with pytest.raises(ValueError, match="endpoint"):
        Options.model_validate({"endpoint": endpoint})


@pytest.mark.parametrize(
    "keys",
    [{"username": "a"}, {"password": "a"}, {"username": "a", "password": "b"}, {"compression": "zstd"}, {"tag": ""}],
)
def test_options_that_cannot_work_are_refused(keys: dict[str, str]) -> None:
    """Half of a pair, a user without the key, a compression that no Fluent server reads everywhere."""
    with pytest.raises(ValueError, match=r"username|compression|tag"):
        Options.model_validate(keys)


def test_severity_names() -> None:
    """The log data model's short names."""
    assert [severity_name(number) for number in (0, 1, 4, 9, 10, 13, 17, 21, 24, 25)] == [
        "", "TRACE", "TRACE4", "INFO", "INFO2", "WARN", "ERROR", "FATAL", "FATAL4", "",
    ]  # fmt: skip
