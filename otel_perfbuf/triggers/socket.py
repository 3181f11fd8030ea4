# SPDX-License-Identifier: Apache-2.0
"""The trigger socket: applications' datagrams become firings.

What it is not: it decides nothing about dumps. Source: CONTRACT section 5; unix(7): SCM_CREDENTIALS.

A sender is whom the kernel says it is. It may fire for itself only, unless it is root. Nothing that arrives here can
stop the trigger: what is not taken is counted by cause, and the first of each cause is logged.
"""

from __future__ import annotations

import array
import logging
import os
import select
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from pydantic import BaseModel, ConfigDict

from otel_perfbuf.triggers.bound import RUN_DIRECTORY, BoundSocket, bind_unix
from otel_perfbuf.triggers.datagram import DATAGRAM_MAX_BYTES, Datagram, Refused, parse_datagram
from otel_perfbuf.triggers.firing import Fire, Firing, TriggerKind
from otel_perfbuf.triggers.namespaces import host_pid, host_tid
from otel_perfbuf.triggers.pace import Pace

__all__ = ["SocketOptions", "SocketTrigger"]

_log = logging.getLogger("otel_perfbuf.triggers.socket")
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_PASSED_FDS_MAX: Final = 16
_STORM_LOOK_S: Final = 0.002
_STORM_END_MS: Final = 1000  # by then the skipped can be told
_CONTROL_BYTES: Final = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_PASSED_FDS_MAX * 4)


class SocketOptions(BaseModel):
    """`triggers: {socket: {...}}` of a flight recorder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = f"{RUN_DIRECTORY}/trigger.sock"


class SocketTrigger:
    """Fires for each datagram that is of the contract's form and comes from who may send it.

    ``refused`` counts by cause: malformed, oversized, version, kind, field, sender, permission, unavailable, failed.
    ``suppress`` is told of those that were only counted, since their sender stormed (pace.py).
    ``register`` takes over the pid and the socket of a process that registers for exact spans (SpanRegistry.register).
    """

    def __init__(
        self,
        options: SocketOptions,
        *,
        clock: Callable[[], int] = time.time_ns,
        proc: str = "/proc",
        mode: int = 0o666,
        register: Callable[[int, int], bool] | None = None,
        suppress: Callable[[TriggerKind, int], object] | None = None,
    ) -> None:
        self._options = options
        self._suppress = suppress
        self._pace = Pace()
        self._last_kind: TriggerKind = "span_error"
        self._register = register
        self._clock = clock
        self._proc = proc
        self._mode = mode
        self._bound: BoundSocket | None = None
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._fire: Fire | None = None
        self.received = 0
        self.refused: Counter[str] = Counter()

    @property
    def path(self) -> str:
        """Where it listens."""
        return self._options.path

    def start(self, fire: Fire) -> None:
        """Binds the socket and starts its thread; raises PerfbufError when the path cannot be taken."""
        self._fire = fire
        self._bound = bind_unix(self._options.path, socket.SOCK_DGRAM, self._mode, "trigger socket")
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="perfbuf-trigger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Takes what has arrived already, then closes and removes the socket; twice is fine."""
        thread, self._thread = self._thread, None
        if thread is not None:
            os.eventfd_write(self._wake, 1)
            thread.join()
            os.close(self._wake)
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.close()

    def _run(self) -> None:
        assert self._bound is not None
        listening = self._bound.socket
        poller = select.poll()
        poller.register(listening, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        stopping = False
        while not stopping:
            storming = self._pace.storming
            if storming:
                self._tell_skipped()
                time.sleep(_STORM_LOOK_S)
            stopping = any(ready == self._wake for ready, _ in poller.poll(_STORM_END_MS if storming else None))
            for _ in range(1024):  # then look at the wake-up again: a storm must not hold up a stop
                if not self._take_one(listening):
                    break

    def _tell_skipped(self) -> None:
        skipped = self._pace.take_skipped()
        if skipped and self._suppress is not None:
            self._suppress(self._last_kind, skipped)

    def _take_one(self, listening: socket.socket) -> bool:
        try:
            data, control, flags, _ = listening.recvmsg(DATAGRAM_MAX_BYTES, _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError as fault:
            _log.warning("reading the trigger socket %s failed: %s", self.path, fault)
            return False
        self.received += 1
        passed: list[int] = []
        try:
            sender, passed = _sender(control)
            if sender is not None and not self._pace.takes(sender[0]):
                return True
            outcome = self._judge(data, flags, sender, passed)
            if isinstance(outcome, Firing):
                assert self._fire is not None
                self._last_kind = outcome.kind
                self._fire(outcome)
            elif outcome is not None:
                self._refuse(outcome, sender)
        except Exception:  # noqa: BLE001 - whatever one sender causes must not deafen the agent to the others
            self.refused["failed"] += 1
            _log.exception("a trigger datagram could not be handled")
        finally:
            for descriptor in passed:
                os.close(descriptor)
        return True

    def _judge(
        self, data: bytes, flags: int, sender: tuple[int, int] | None, passed: list[int]
    ) -> Firing | Refused | None:
        if flags & socket.MSG_TRUNC:
            return Refused("oversized", f"it has more than {DATAGRAM_MAX_BYTES} bytes")
        if sender is None:
            return Refused("sender", "the kernel did not name its sender, who may be in an unrelated pid namespace")
        datagram = parse_datagram(data)
        if isinstance(datagram, Refused):
            return datagram
        if datagram.kind == "register":
            return self._take_registration(sender[0], passed)
        return self._firing(datagram, *sender)

    def _take_registration(self, pid: int, passed: list[int]) -> Refused | None:
        """Hands the socket that came along to the registry; it is taken out of ``passed`` then."""
        if self._register is None:
            return Refused("unavailable", "nothing is recorded here that exact spans (kind register) could be put to")
        if len(passed) != 1 or not stat.S_ISSOCK(os.fstat(passed[0]).st_mode):
            return Refused("field", "a registration carries exactly one end of a socket pair")
        if not self._register(pid, passed.pop()):
            return Refused("unavailable", "too many processes register at the same time")
        return None

    def _firing(self, datagram: Datagram, sender_pid: int, sender_uid: int) -> Firing | Refused:
        pid: int | None = sender_pid
        if datagram.pid is not None:
            pid = host_pid(sender_pid, datagram.pid, self._proc)
            if pid is None:
                return Refused("sender", f"there is no process {datagram.pid} in its sender's pid namespace")
            if pid != sender_pid and sender_uid != 0:
                return Refused("permission", f"uid {sender_uid} may trigger for its own process only, not for {pid}")
        assert pid is not None
        tid = None
        if datagram.tid is not None:
            try:
                tid = host_tid(pid, datagram.tid, self._proc)
            except PermissionError as fault:
                return Refused("permission", str(fault))
        subject = f" in {datagram.name}" if datagram.name else ""
        return Firing(
            kind=datagram.kind,  # type: ignore[arg-type]  # register was refused before
            reason=datagram.reason or f"{datagram.kind}{subject} reported by process {pid}",
            unix_ns=self._clock(),
            pid=pid,
            tid=tid,
            span=datagram.span,
            start_unix_ns=datagram.start_unix_nano,
            end_unix_ns=datagram.end_unix_nano,
            service_name=datagram.service_name or None,
            span_name=datagram.name or None,
            interleaved=datagram.interleaved or tid is None,
        )

    def _refuse(self, refused: Refused, sender: tuple[int, int] | None) -> None:
        self.refused[refused.cause] += 1
        if self.refused[refused.cause] == 1:
            who = f"pid {sender[0]}, uid {sender[1]}" if sender else "an unknown sender"
            _log.warning(
                "refused a trigger datagram from %s: %s; more for this cause (%s) are only counted",
                who,
                refused.sentence,
                refused.cause,
            )


def _sender(control: list[tuple[int, int, bytes]]) -> tuple[tuple[int, int] | None, list[int]]:
    """The pid and uid that the kernel vouches for, and the descriptors that came along, which are the caller's."""
    sender = None
    descriptors: list[int] = []
    for level, kind, data in control:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            passed = array.array("i")
            passed.frombytes(data[: len(data) - len(data) % passed.itemsize])
            descriptors += passed
        elif kind == socket.SCM_CREDENTIALS and len(data) == _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack(data)
            sender = (pid, uid) if pid > 0 else None
    return sender, descriptors
