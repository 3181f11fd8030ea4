# SPDX-License-Identifier: Apache-2.0
"""Hold-off and budgets, on a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace

from otel_perfbuf.triggers.firing import Firing
from otel_perfbuf.triggers.manners import Budget, BudgetOptions, HoldOff, Manners, WarmUp, hold_off_key


class _Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


_FIRING = Firing("span_error", "timeout after 31 ms at 0x7f21", 1, pid=7, service_name="checkout")
_LOTS = BudgetOptions(count=1000)


def _budget(count: int) -> BudgetOptions:
    return BudgetOptions.model_validate({"per": "60s", "count": count})


def test_a_key_ignores_digits_and_hex() -> None:
    """Reasons that differ in numbers, addresses and ids have one key; words stay."""
    same = [
        "timeout after 31 ms at 0x7f21",
        "timeout after 2 ms at 0xDEADBEEF",
    ]
    assert len({hold_off_key(replace(_FIRING, reason=reason)) for reason in same}) == 1
    ids = [
        "order 4bf92f3577b34da6a3ce929d0e0e4736 failed",
        "order 00f067aa0ba902b7 failed",
        "order 17 failed",
    ]
    assert len({hold_off_key(replace(_FIRING, reason=reason)) for reason in ids}) == 1
    assert hold_off_key(replace(_FIRING, reason="bad facade"))[2] == "bad facade"


def test_keys_tell_service_kind_and_reason_apart() -> None:
    """Another service, kind or reason is another key."""
    others = [
        _FIRING,
        replace(_FIRING, service_name="cart"),
        replace(_FIRING, kind="log_severity"),
        replace(_FIRING, reason="refused"),
    ]
    assert len({hold_off_key(firing) for firing in others}) == 4


def test_the_same_program_dying_again_is_held_off() -> None:
    """Ends of processes have no service: the command in the reason is the key, not the pid."""
    first = Firing("process_exit", "worker was killed by SIGSEGV (pid 17)", 1, pid=17)
    second = Firing("process_exit", "worker was killed by SIGSEGV (pid 18)", 2, pid=18)
    assert hold_off_key(first) == hold_off_key(second)


def test_hold_off_ends() -> None:
    """A key fires again exactly when the time has gone by, counted from its last dump."""
    clock = _Clock()
    manners = Manners(30.0, _LOTS, clock)
    assert manners.admit(_FIRING)
    clock.now_s += 29.9
    assert not manners.admit(_FIRING)
    clock.now_s += 0.1
    assert manners.admit(_FIRING)


def test_a_hold_off_of_zero_holds_nothing_off() -> None:
    """0s lets every firing make its dump."""
    manners = Manners(0.0, _LOTS, _Clock())
    assert all(manners.admit(_FIRING) for _ in range(5))


def test_keys_are_bounded() -> None:
    """10,001 services cost the memory of 10,000: the oldest key is forgotten."""
    hold_off = HoldOff(1e9, _Clock())
    for number in range(10_001):
        hold_off.begin(replace(_FIRING, service_name=f"service-{number}"))
    assert hold_off.allows(replace(_FIRING, service_name="service-0"))
    assert not hold_off.allows(replace(_FIRING, service_name="service-1"))


def test_a_budget_is_a_sliding_window_of_each_kind() -> None:
    """``count`` dumps in any ``per`` seconds, each kind by itself."""
    clock = _Clock()
    budget = Budget(_budget(2), clock)
    budget.spend("manual")
    clock.now_s += 59
    budget.spend("manual")
    assert not budget.allows("manual")
    assert budget.allows("span_error")
    clock.now_s += 1
    assert budget.allows("manual")
    budget.spend("manual")
    assert not budget.allows("manual")


def test_a_count_of_zero_allows_nothing() -> None:
    """max_dumps {count: 0} turns dumps off."""
    assert not Budget(BudgetOptions(count=0), _Clock()).allows("manual")


def test_suppressed_firings_are_counted_once() -> None:
    """Each suppressed firing is in one next header, and in the totals by kind."""
    manners = Manners(30.0, _LOTS, _Clock())
    manners.admit(_FIRING)
    for _ in range(10_000):
        manners.admit(_FIRING)
    assert manners.take_suppressed() == 10_000
    assert manners.take_suppressed() == 0
    assert manners.suppressed["span_error"] == 10_000


def test_a_budget_that_is_spent_does_not_begin_a_hold_off() -> None:
    """What the budget refused was not dumped, so its key is free when the budget is."""
    clock = _Clock()
    manners = Manners(1000.0, _budget(1), clock)
    assert manners.admit(_FIRING)
    other = replace(_FIRING, service_name="cart")
    assert not manners.admit(other)
    clock.now_s += 60
    assert manners.admit(other)


def test_an_exempt_firing_passes_and_spends_nothing() -> None:
    """What a person asks for is neither held off nor counted against the others' budget."""
    manners = Manners(1000.0, BudgetOptions(count=0), _Clock())
    firing = Firing("manual", "by hand", 1)
    manners.exempt(firing)
    assert manners.admit(firing)
    assert not manners.admit(firing)


def test_firings_in_the_warm_up_are_counted_and_spend_nothing() -> None:
    """Until it is over none makes a dump; the first one after it does, with the hold-off and budget untouched."""
    clock = _Clock()
    warm_up = WarmUp(30.0, clock.now_s - 10, clock)  # it records for 10 s already
    manners = Manners(1000.0, _budget(1), clock, warm_up=warm_up)
    assert warm_up.left_s == 20
    assert not manners.admit(_FIRING)
    clock.now_s += 19.9
    assert not manners.admit(replace(_FIRING, kind="process_exit"))
    clock.now_s += 0.1
    assert manners.admit(_FIRING)
    assert warm_up.left_s == 0
    assert manners.suppressed == {"span_error": 1, "process_exit": 1}
    assert manners.take_suppressed() == 2


def test_the_warm_up_holds_back_no_dump_by_hand() -> None:
    """Neither a person's nor a program's that asks for one itself (`manual`), which the budget still bounds."""
    manners = Manners(0.0, _budget(1), _Clock(), warm_up=WarmUp(30.0, 1000.0, _Clock()))
    by_person, by_program = Firing("manual", "by hand", 1), Firing("manual", "asked", 1, pid=7)
    manners.exempt(by_person)
    assert manners.admit(by_person)
    assert manners.admit(by_program)
    assert not manners.admit(by_program)
    assert manners.suppressed == {"manual": 1}
