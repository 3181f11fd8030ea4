# SPDX-License-Identifier: Apache-2.0
"""The agent around its kernel parts, which are played here: start, dumps, stop, reload, metrics."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from played_parts import PlayedParts, chunk_of, usual_tree

from otel_perfbuf.errors import KernelError, PerfbufError, ReaderClosed
from otel_perfbuf.exporters.payload import Payload
from otel_perfbuf.service import log
from otel_perfbuf.service.agent import Agent, _blocked_signals
from otel_perfbuf.service.alerts import AlertTrigger
from otel_perfbuf.service.config import parse
from otel_perfbuf.service.control_client import ControlClient
from otel_perfbuf.service.kept import Outlet
from otel_perfbuf.service.model import Configuration
from otel_perfbuf.service.notify import Notifier
from otel_perfbuf.service.running import Running
from otel_perfbuf.service.telemetry import METRICS, Sample, Telemetry
from otel_perfbuf.triggers.datagram import Datagram, build_datagram
from otel_perfbuf.triggers.firing import Firing
from otel_perfbuf.triggers.process_exit import ProcessExitOptions


def _records(path: Path) -> int:
    return sum(
        len(scope["logRecords"])
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceLogs"]
        for scope in resource["scopeLogs"]
    )


@pytest.fixture
def running(tmp_path: Path, parts: PlayedParts, telemetry: Telemetry) -> Iterator[Running]:
    """Everything of one configuration, started."""
    running = Running(parse(usual_tree(tmp_path)), parts, telemetry)
    running.start()
    yield running
    running.stop()


def test_order_of_start_and_stop(parts: PlayedParts, running: Running) -> None:
    """What fires is armed last and disarmed first; what records is detached after its recorder has ended."""
    assert parts.log == ["loaded", "attached", "recorder started", "trigger armed", "live started"]
    parts.log.clear()
    assert running.stop() == []
    assert running.stop() == []
    assert parts.log == ["live stopped", "trigger disarmed", "recorder stopped", "detached"]


def test_a_dump_by_hand_reaches_the_exporter(tmp_path: Path, parts: PlayedParts, running: Running) -> None:
    """`dump` through the control socket makes a firing of kind manual, and its chunks are in the file."""
    answer = ControlClient(str(tmp_path / "control.sock")).dump({"pid": 4711, "reason": "why"})
    assert answer == {"id": "cd" * 16, "records": 2, "lost": 0, "overwritten": 5, "dropped": 0}
    (firing,) = parts.recorders[0].firings
    assert (firing.kind, firing.pid, firing.reason) == ("manual", 4711, "why")
    running.stop()
    assert _records(tmp_path / "dumps") == 3


def test_a_dump_by_hand_is_never_held_off(tmp_path: Path, running: Running) -> None:
    """The same request twice gives two dumps."""
    client = ControlClient(str(tmp_path / "control.sock"))
    assert [client.dump({"all": True})["records"] for _ in range(2)] == [2, 2]


def test_a_datagram_fires_and_the_second_is_held_off(tmp_path: Path, parts: PlayedParts, running: Running) -> None:
    """An application's datagrams make one dump within the hold-off; the others are counted."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(tmp_path / "trigger.sock"))
        for number in range(3):
            sender.send(build_datagram(Datagram(kind="span_error", service_name="a", reason=f"timeout {number}")))
        sender.send(b"nonsense")
    running.stop()
    assert len(parts.recorders[0].firings) == 1
    status = running.status()["connectors"]["flight_recorder"]
    assert status["fired"] == {"span_error": 3}
    assert status["suppressed"] == {"span_error": 2}
    assert status["refused"] == {"malformed": 1}


def test_the_warm_up_is_counted_from_the_recordings_start(tmp_path: Path, parts: PlayedParts) -> None:
    """In it a datagram is suppressed and a dump by hand is made; a reload that keeps the history begins no new one."""
    tree = usual_tree(tmp_path)
    tree["connectors"]["flight_recorder"] |= {"warm_up": "1h", "hold_off": "0s"}
    agent = Agent(lambda: parse(tree), parts)
    configuration = parse(tree)
    running = agent._start(configuration)
    client = ControlClient(str(tmp_path / "control.sock"))

    def fire() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(tmp_path / "trigger.sock"))
            sender.send(build_datagram(Datagram(kind="span_error", service_name="a", reason="x")))

    try:
        fire()
        client.dump({"all": True})
        assert 3500 < client.status()["connectors"]["flight_recorder"]["warm_up_left_s"] <= 3600
        parts.histories[0].started_s -= 1800
        tree["connectors"]["flight_recorder"]["warm_up"] = "30m"
        configuration, running = agent._reload(configuration, running)
        assert client.status()["connectors"]["flight_recorder"]["warm_up_left_s"] == 0
        fire()
    finally:
        running.stop()
    assert [[firing.kind for firing in recorder.firings] for recorder in parts.recorders] == [
        ["manual"],
        ["span_error"],
    ]
    metrics = agent._telemetry.render().splitlines()
    assert 'perfbuf_dumps{trigger="span_error",outcome="suppressed"} 1' in metrics


def test_live_payloads_reach_their_exporter_only(tmp_path: Path, running: Running) -> None:
    """What a forward stream still holds at the stop is in its file, and not in the other one."""
    running.stop()
    assert _records(tmp_path / "live") == 4
    assert not (tmp_path / "dumps").exists()


def test_a_start_that_fails_half_way_leaves_nothing(tmp_path: Path, parts: PlayedParts, telemetry: Telemetry) -> None:
    """When the last component cannot start, the first ones are stopped and their sockets are gone."""
    parts.live_fault = KernelError(1, "no rings")
    before = threading.active_count()
    with pytest.raises(KernelError, match="no rings"):
        Running(parse(usual_tree(tmp_path)), parts, telemetry).start()
    assert parts.log[-3:] == ["trigger disarmed", "recorder stopped", "detached"]
    assert not (tmp_path / "control.sock").exists()
    assert not (tmp_path / "trigger.sock").exists()
    assert threading.active_count() == before


def test_privileges_are_asked_for_first(tmp_path: Path, parts: PlayedParts, telemetry: Telemetry) -> None:
    """Without them nothing at all is opened."""
    parts.check_fault = KernelError(1, "needs CAP_BPF")
    with pytest.raises(KernelError, match="CAP_BPF"):
        Running(parse(usual_tree(tmp_path)), parts, telemetry).start()
    assert list(tmp_path.iterdir()) == []
    assert parts.log == []


def test_a_second_agent_is_refused_before_it_loads_anything(
    tmp_path: Path, parts: PlayedParts, running: Running
) -> None:
    """The control socket is taken first."""
    second = PlayedParts()
    with pytest.raises(PerfbufError, match="listens there"):
        Running(parse(usual_tree(tmp_path)), second, Telemetry()).start()
    assert second.log == []
    assert (tmp_path / "control.sock").exists()


def test_what_cannot_be_sent_is_one_sentence(tmp_path: Path, parts: PlayedParts, telemetry: Telemetry) -> None:
    """With a backend that is away the stop keeps to its time and says what is dropped."""
    taken = socket.create_server(("127.0.0.1", 0))
    endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
    taken.close()
    tree = usual_tree(tmp_path)
    tree["exporters"] = {"otlp_http": {"endpoint": f"http://{endpoint}"}, "file/live": {"path": f"{tmp_path}/live"}}
    tree["service"]["pipelines"]["logs/dumps"]["exporters"] = ["otlp_http"]
    running = Running(parse(tree), parts, telemetry)
    running.start()
    ControlClient(str(tmp_path / "control.sock")).dump({"all": True})
    (sentence,) = running.stop(timeout_s=0.2)
    assert "otlp_http" in sentence
    assert "3 log records" in sentence
    assert telemetry.get("perfbuf_dumps", ("manual", "failed")) == 1
    assert telemetry.get("otelcol_exporter_send_failed_log_records", ("otlp_http",)) == 3


def test_a_dump_that_cannot_be_made_is_answered_and_counted(
    tmp_path: Path, parts: PlayedParts, running: Running, telemetry: Telemetry
) -> None:
    """The caller gets the sentence; the metrics count it as failed."""
    parts.dump_fault = PerfbufError("the rings are gone")
    with pytest.raises(PerfbufError, match="the rings are gone"):
        ControlClient(str(tmp_path / "control.sock")).dump({"all": True})
    assert telemetry.get("perfbuf_dumps", ("manual", "failed")) == 1


def test_metrics_have_the_contracts_names(
    tmp_path: Path, parts: PlayedParts, running: Running, telemetry: Telemetry
) -> None:
    """Every name is there; counts and labels are those of what happened."""
    ControlClient(str(tmp_path / "control.sock")).dump({"all": True})
    running.stop()
    text = telemetry.render()
    assert all(f"# TYPE {name} " in text for name in METRICS)
    lines = text.splitlines()
    for line in (
        'perfbuf_dumps{trigger="manual",outcome="exported"} 1',
        'otelcol_exporter_sent_log_records{exporter="file"} 3',
        'otelcol_receiver_accepted_log_records{receiver="perf_buffer/live"} 4',
        'perfbuf_ring_lost_records{receiver="perf_buffer"} 1',
        'perfbuf_snapshot_duration_seconds_sum{receiver="perf_buffer"} 0.001',
        'perfbuf_snapshot_duration_seconds_count{receiver="perf_buffer"} 1',
        "perfbuf_spool_bytes 0",
    ):
        assert line in lines


def test_status_tells_depth_after_a_dump(tmp_path: Path, running: Running) -> None:
    """The history's depth is that of the last dump; before one it is not known."""
    client = ControlClient(str(tmp_path / "control.sock"))
    assert "history_seconds" not in client.status()["receivers"]["perf_buffer"]
    client.dump({"all": True})
    status = client.status()
    assert status["receivers"]["perf_buffer"]["history_seconds"] == 4.0
    assert status["receivers"]["perf_buffer/live"]["mode"] == "forward"
    assert status["exporters"]["file"]["queue_capacity"] > 0


def test_counters_survive_their_source() -> None:
    """A source that is taken out leaves its counters behind and takes its gauges along; labels are escaped."""
    telemetry = Telemetry()
    samples = [Sample("perfbuf_ring_lost_records", ('a"\\\n',), 5), Sample("otelcol_exporter_queue_size", ("x",), 9)]
    remove = telemetry.add_source(lambda: samples)
    assert 'otelcol_exporter_queue_size{exporter="x"} 9' in telemetry.render()
    remove()
    remove()
    assert 'perfbuf_ring_lost_records{receiver="a\\"\\\\\\n"} 5' in telemetry.render()
    assert "queue_size{" not in telemetry.render()


class _Alerts:
    """Plays the ring of alerts."""

    def __init__(self, batches: list[list[bytes]]) -> None:
        self._batches = batches
        self.flushed = threading.Event()

    def read(self, timeout: float | None = None) -> Any:
        """The next batch, then ReaderClosed."""
        if not self._batches:
            raise ReaderClosed("closed")
        data = self._batches.pop(0)

        class Batch:
            lost = 1

            def data(self) -> list[bytes]:
                return data

        return Batch()

    def flush(self) -> Any:
        """As a closed reader."""
        raise ReaderClosed("closed")


def test_alerts_fire_and_bad_ones_are_counted() -> None:
    """An alert fires, a short one is malformed, one whose firing fails does not deafen the next; losses are counted."""
    from otel_perfbuf._core._core import ffi, lib
    from otel_perfbuf.triggers.alerts import AlertJudge

    judge = AlertJudge(ProcessExitOptions(), str, str)
    alert = ffi.new("struct pb_alert *")
    alert.kind, alert.status, alert.tgid = lib.PB_ALERT_EXIT, signal.SIGSEGV, 7
    data = bytes(ffi.buffer(alert))
    fired: list[int | None] = []
    done = threading.Event()

    def fire(firing: Firing) -> None:
        fired.append(firing.pid)
        if len(fired) == 1:
            raise RuntimeError("bug")
        done.set()

    trigger = AlertTrigger(_Alerts([[data, b"short"], [data]]), judge, lambda: 0)
    trigger.start(fire)
    assert done.wait(10)
    trigger.stop()
    trigger.stop()
    assert fired == [7, 7]
    assert (trigger.lost, trigger.malformed) == (2, 1)


class _RunAgent:
    """An agent in a process of its own, so that signals are real; its log is what it says."""

    def __init__(self, load: Callable[[], Configuration], parts: PlayedParts) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 99
            try:
                sys.stderr = os.fdopen(writing, "w", buffering=1)
                status = Agent(load, parts).run()
            finally:
                os._exit(status)
        os.close(writing)
        self.log = os.fdopen(reading)

    def until(self, words: str) -> list[str]:
        """Reads the log up to a line with these words."""
        lines: list[str] = []
        for line in self.log:
            lines.append(line)
            if words in line:
                return lines
        raise AssertionError(f"the log ended without {words!r}: {lines}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and gives the exit code."""
        os.kill(self.pid, number)
        pid, self.pid = self.pid, 0
        self.log.read()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def __enter__(self) -> _RunAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.first
def test_a_signal_ends_the_agent(tmp_path: Path, parts: PlayedParts, number: int) -> None:
    """SIGTERM and SIGINT stop everything and exit with 0; the sockets are gone."""
    configuration = parse(usual_tree(tmp_path))
    with _RunAgent(lambda: configuration, parts) as agent:
        agent.until("recording")
        assert agent.end(number) == 0
    assert not (tmp_path / "control.sock").exists()
    assert _records(tmp_path / "live") == 4


@pytest.mark.first
def test_sighup_reloads(tmp_path: Path, parts: PlayedParts) -> None:
    """A wrong configuration changes nothing, an equal one too; a changed one keeps unchanged exporters' files."""
    wanted = tmp_path / "wanted"
    wanted.write_text("socket.sock")

    def load() -> Configuration:
        tree = usual_tree(tmp_path)
        if wanted.read_text() == "bad":
            del tree["service"]
        elif wanted.read_text() == "unstartable":
            tree["extensions"]["control"]["path"] = f"{tmp_path}/missing/control.sock"
        else:
            tree["extensions"]["control"]["path"] = f"{tmp_path}/{wanted.read_text()}"
        return parse(tree)

    with _RunAgent(load, parts) as agent:
        agent.until("recording")
        ControlClient(str(tmp_path / "socket.sock")).dump({"all": True})
        wanted.write_text("bad")
        os.kill(agent.pid, signal.SIGHUP)
        assert any("service.pipelines" in line for line in agent.until("the old one goes on"))
        wanted.write_text("socket.sock")
        os.kill(agent.pid, signal.SIGHUP)
        agent.until("nothing has changed")
        wanted.write_text("unstartable")
        os.kill(agent.pid, signal.SIGHUP)
        assert any("missing is missing" in line for line in agent.until("the old configuration runs again"))
        ControlClient(str(tmp_path / "socket.sock")).dump({"all": True})
        wanted.write_text("other.sock")
        os.kill(agent.pid, signal.SIGHUP)
        agent.until("the new configuration runs")
        client = ControlClient(str(tmp_path / "other.sock"))
        client.dump({"all": True})
        assert client.status()["reloads"] == 1
        assert not (tmp_path / "socket.sock").exists()
        assert agent.end() == 0
    assert _records(tmp_path / "dumps") == 9, "three dumps of three records in one file"


def test_a_reload_leaves_running_what_is_unchanged(tmp_path: Path, parts: PlayedParts) -> None:
    """Each change restarts what it touches and nothing else; results go the new way; no count is doubled."""
    tree = usual_tree(tmp_path)
    agent = Agent(lambda: parse(tree), parts)
    configuration = parse(tree)
    running = agent._start(configuration)
    try:
        client = ControlClient(str(tmp_path / "control.sock"))
        client.dump({"all": True})

        def reload() -> list[str]:
            nonlocal configuration, running
            parts.log.clear()
            configuration, running = agent._reload(configuration, running)
            return parts.log

        tree["service"]["telemetry"] = {"logs": {"level": "debug"}}
        assert reload() == []
        tree["exporters"]["file"]["path"] = f"{tmp_path}/new"
        assert reload() == []
        client.dump({"all": True})
        parts.lives[0].emit(Payload((chunk_of(1),)))
        tree["connectors"]["flight_recorder"]["hold_off"] = "1s"
        assert reload() == ["trigger disarmed", "recorder stopped", "recorder started", "trigger armed"]
        tree["receivers"]["perf_buffer/live"]["watermark"] = "50%"
        assert reload() == ["live stopped", "live started"]
        tree["connectors"]["flight_recorder"]["triggers"]["process_exit"] = {"exit_codes": "nonzero"}
        assert reload() == [
            "trigger disarmed",
            "recorder stopped",
            "detached",
            "loaded",
            "attached",
            "recorder started",
            "trigger armed",
        ]
        assert client.status()["reloads"] == 5
        metrics = agent._telemetry.render().splitlines()
        lost = [line for line in metrics if line.startswith("perfbuf_ring_lost_records{")]
        # 1 of each of the two histories that ran.
        assert lost == [
            'perfbuf_ring_lost_records{receiver="perf_buffer"} 2',
            'perfbuf_ring_lost_records{receiver="perf_buffer/live"} 0',
        ]
    finally:
        running.stop()
    assert (_records(tmp_path / "dumps"), _records(tmp_path / "new")) == (3, 3)
    assert _records(tmp_path / "live") == 1 + 4 + 4


def test_the_watchdog_is_fed_only_while_every_part_answers(tmp_path: Path, parts: PlayedParts) -> None:
    """A part that fails to tell its state is logged, systemd hears nothing that time, and the agent goes on."""
    asked: list[str] = []

    class _Running:
        def status(self) -> dict[str, Any]:
            asked.append("status")
            if len(asked) == 1:
                raise PerfbufError("it hangs")
            if len(asked) == 3:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGHUP)
            return {}

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd, _blocked_signals():
        systemd.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
        agent = Agent(lambda: parse(usual_tree(tmp_path)), parts, notifier=Notifier(environment))
        assert agent._next_signal(_Running()) == signal.SIGHUP  # type: ignore[arg-type]
        heard = [systemd.recv(100), systemd.recv(100)]
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
    assert heard == [b"WATCHDOG=1"] * 2
    assert Notifier({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}).watchdog_s is None
    assert Notifier({}).watchdog_s is None


def test_results_wait_for_the_new_way() -> None:
    """A held outlet lets nobody in, waits for who is inside, and gives what came meanwhile to the new target."""
    inside, leave = threading.Event(), threading.Event()

    def slow(value: int) -> int:
        inside.set()
        assert leave.wait(10)
        return value

    outlet = Outlet(slow)
    got: list[tuple[str, int]] = []
    first = threading.Thread(target=lambda: got.append(("old", outlet(1))))
    first.start()
    assert inside.wait(10)
    holder = threading.Thread(target=lambda: outlet.hold(10))
    holder.start()
    holder.join(0.05)
    assert holder.is_alive()
    second = threading.Thread(target=lambda: got.append(("new", outlet(2))))
    leave.set()
    holder.join(10)
    first.join(10)
    second.start()
    second.join(0.05)
    assert second.is_alive()
    outlet.point(lambda value: 10 * value)
    second.join(10)
    assert got == [("old", 1), ("new", 20)]


def test_a_start_that_fails_is_raised(tmp_path: Path, parts: PlayedParts) -> None:
    """What made the start impossible comes through, and signals are as they were."""
    parts.live_fault = KernelError(1, "no rings")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KernelError, match="no rings"):
        Agent(lambda: parse(usual_tree(tmp_path)), parts).run()
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.fixture
def _logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("otel_perfbuf")
    before = list(root.handlers), root.level, own.level, logging.raiseExceptions
    yield
    root.handlers[:], root_level, own_level, logging.raiseExceptions = before
    root.setLevel(root_level)
    own.setLevel(own_level)


def test_the_log_is_one_line_each(_logging: None) -> None:
    """Line breaks and tracebacks become one line with time, level, name and sentence."""
    stream = io.StringIO()
    log.set_up("info", stream)
    logger = logging.getLogger("otel_perfbuf.service.test")
    logger.debug("hidden")
    logger.warning("two\nlines")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("Z WARN service.test: two lines")
    assert "ERROR service.test: it failed: ValueError: why at " in second


def test_only_service_assembles() -> None:
    """service/ imports recorder, rings and bpf in assembly.py only, and nothing below imports service."""
    package = Path(log.__file__).parents[1]
    for file in package.rglob("*.py"):
        part = file.relative_to(package).parts[0]
        imported = {
            name
            for node in ast.walk(ast.parse(file.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        if part not in ("service", "cli", "__main__.py"):
            assert not any(name.startswith("otel_perfbuf.service") for name in imported), file
        if part == "service" and file.name != "assembly.py":
            kernel = ("otel_perfbuf.recorder", "otel_perfbuf.rings", "otel_perfbuf.bpf", "otel_perfbuf._core")
            assert not any(name.startswith(kernel) for name in imported), file
