# SPDX-License-Identifier: Apache-2.0
"""What a reload leaves running, and how its results find the new configuration's way.

What it is not: it decides not what is unchanged (running.py, agent.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_perfbuf.exporters.queue import SendingQueue
from otel_perfbuf.spool.storage import Spool

__all__ = ["Kept", "Outlet", "Part"]


class Outlet:
    """Where a component's results go: callable from any thread. A reload holds it, then points it elsewhere."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target
        self._held = False
        self._busy = 0
        self._condition = threading.Condition()

    def __call__(self, *arguments: Any) -> Any:
        """Calls the target; while it is held, the caller waits."""
        with self._condition:
            self._condition.wait_for(lambda: not self._held)
            self._busy += 1
            target = self._target
        try:
            return target(*arguments)
        finally:
            with self._condition:
                self._busy -= 1
                self._condition.notify_all()

    def hold(self, timeout_s: float) -> None:
        """From now on callers wait; returns when none is inside, or at the timeout. Twice is fine."""
        with self._condition:
            self._held = True
            self._condition.wait_for(lambda: not self._busy, timeout_s)

    def point(self, target: Callable[..., Any]) -> None:
        """Lets callers in, to this target."""
        with self._condition:
            self._target, self._held = target, False
            self._condition.notify_all()


@dataclass(slots=True)
class Part:
    """A started component. ``of`` is all that it was made of: as long as that is equal, a reload leaves it running.

    ``stop`` takes the seconds it may need and gives a sentence when something had to be given up.
    """

    made: Any
    of: object
    stop: Callable[[float], str | None]
    outlets: tuple[Outlet, ...] = ()

    def abandon(self) -> None:
        """Stops it when there is no configuration any more that its results could go to."""
        for outlet in self.outlets:
            outlet.point(lambda *_: None)
        self.stop(1.0)


@dataclass(frozen=True, slots=True)
class Kept:
    """Queues by exporter id, spools by extension id, other parts by their key path."""

    queues: Mapping[str, SendingQueue] = field(default_factory=dict)
    spools: Mapping[str, Spool] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict)
