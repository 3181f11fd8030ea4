# SPDX-License-Identifier: Apache-2.0
"""Warm-up, hold-off and budgets: which firings may make a dump.

What it is not: joining (a firing that joins a dump in the making never comes here). Source: CONTRACT section 2
(hold_off, max_dumps), section 3 (.suppressed); decision 0023 (warm_up). Not thread-safe: the recorder calls it under
its lock.
"""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from otel_perfbuf.triggers.firing import Firing, TriggerKind
from otel_perfbuf.units import Duration

__all__ = ["Budget", "BudgetOptions", "HoldOff", "Manners", "WarmUp", "hold_off_key", "without_numbers"]

_KEYS_MAX: Final = 10_000
_REASON_MAX: Final = 200
_OF_THE_KERNEL: Final = frozenset({"process_exit", "oom_kill", "syscall_error", "syscall_latency"})
_NUMBERS = re.compile(r"0[xX][0-9a-fA-F]+|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{2,}\b|[0-9]+", re.ASCII)

Clock = Callable[[], float]
Key = tuple[str, TriggerKind, str]


class BudgetOptions(BaseModel):
    """`max_dumps` of a flight recorder, for each trigger kind; ``count`` 0 allows none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per: Duration = Field(default=3600.0, gt=0)
    count: int = Field(default=60, ge=0)


def without_numbers(text: str) -> str:
    """The text with # for its numbers; the C side groups by the same rule (otlp_group.c)."""
    return _NUMBERS.sub("#", text)


def hold_off_key(firing: Firing) -> Key:
    """(service, kind, reason without digits and hex): "timeout after 31 ms at 0x7f21" is "timeout after # ms at #"."""
    service = firing.service_name or ("" if firing.pid is None else f"pid {firing.pid}")
    if firing.service_name is None and firing.kind in _OF_THE_KERNEL:
        # Each process dies once: its command's name, with which the reason begins, is the only service it has.
        service = ""
    return service, firing.kind, without_numbers(firing.reason)[:_REASON_MAX]


class WarmUp:
    """The first ``length_s`` seconds of a recording, in which the processes' history is not there yet; 0 is none."""

    def __init__(self, length_s: float, began_s: float = 0.0, clock: Clock = time.monotonic) -> None:
        self._ends_s = began_s + length_s
        self._clock = clock

    @property
    def left_s(self) -> float:
        """Seconds until it is over; 0 once it is."""
        return max(self._ends_s - self._clock(), 0.0)

    def allows(self, kind: TriggerKind) -> bool:
        """Whether it is over; a person or a program that asks for a dump (`manual`) is never held back."""
        return kind == "manual" or self._clock() >= self._ends_s


class HoldOff:
    """The least time between two dumps of a key; 0 holds nothing off. The oldest of 10,000 keys is forgotten."""

    def __init__(self, hold_off_s: float, clock: Clock = time.monotonic) -> None:
        self._hold_off_s = hold_off_s
        self._clock = clock
        self._last_s: OrderedDict[Key, float] = OrderedDict()

    def allows(self, firing: Firing) -> bool:
        """Whether enough time has gone by since the key's last dump."""
        last_s = self._last_s.get(hold_off_key(firing))
        return last_s is None or self._clock() - last_s >= self._hold_off_s

    def begin(self, firing: Firing) -> None:
        """A dump is made for this firing: its key is held off from now on."""
        key = hold_off_key(firing)
        self._last_s[key] = self._clock()
        self._last_s.move_to_end(key)
        if len(self._last_s) > _KEYS_MAX:
            self._last_s.popitem(last=False)


class Budget:
    """At most ``count`` dumps of each trigger kind within any ``per`` seconds."""

    def __init__(self, options: BudgetOptions, clock: Clock = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._made_s: dict[TriggerKind, deque[float]] = {}

    def allows(self, kind: TriggerKind) -> bool:
        """Whether the kind has a dump left."""
        made_s = self._made_s.get(kind)
        if made_s is None:
            return self._options.count > 0
        while made_s and self._clock() - made_s[0] >= self._options.per:
            made_s.popleft()
        return len(made_s) < self._options.count

    def spend(self, kind: TriggerKind) -> None:
        """A dump of this kind is made."""
        self._made_s.setdefault(kind, deque()).append(self._clock())


class Manners:
    """Warm-up, hold-off and budget together; what the recorder asks before it makes a dump.

    ``suppressed`` counts firings since the start, by kind. ``exempt`` lets one firing pass: a person who asks through
    the control socket gets a dump, an application that sends `manual` has the hold-off and budget of all others.
    What fires in the warm-up begins no hold-off and spends no budget: the first firing after it makes a dump.
    """

    def __init__(
        self,
        hold_off_s: float,
        budget: BudgetOptions,
        clock: Clock = time.monotonic,
        *,
        warm_up: WarmUp | None = None,
    ) -> None:
        self._warm_up = warm_up or WarmUp(0.0, clock=clock)
        self._hold_off = HoldOff(hold_off_s, clock)
        self._budget = Budget(budget, clock)
        self._exempt: set[int] = set()
        self._since_last_dump = 0
        self.suppressed: Counter[TriggerKind] = Counter()

    def exempt(self, firing: Firing) -> None:
        """The next ``admit`` of this very firing is true and spends nothing."""
        self._exempt.add(id(firing))

    def admit(self, firing: Firing) -> bool:
        """Whether the firing may make a dump; what may not is counted as suppressed."""
        if id(firing) in self._exempt:
            self._exempt.discard(id(firing))
            return True
        allowed = self._warm_up.allows(firing.kind) and self._hold_off.allows(firing)
        if allowed and self._budget.allows(firing.kind):
            self._hold_off.begin(firing)
            self._budget.spend(firing.kind)
            return True
        self.suppress(firing.kind, 1)
        return False

    def spent(self, kind: TriggerKind) -> bool:
        """Whether no firing of this kind may make a dump now, whatever its key."""
        return not (self._warm_up.allows(kind) and self._budget.allows(kind))

    def suppress(self, kind: TriggerKind, count: int) -> None:
        """Counts occurrences that make no dump of their own."""
        self.suppressed[kind] += count
        self._since_last_dump += count

    def take_suppressed(self) -> int:
        """How many were suppressed since this was last called: the next header's `.suppressed`."""
        count, self._since_last_dump = self._since_last_dump, 0
        return count
