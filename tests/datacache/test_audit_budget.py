"""What audits may cost, in seconds that are made up."""

from __future__ import annotations

import itertools

import pytest

from overdrive.datacache.audit_budget import LONGEST, SHARE, Budget

STEP = 0.01


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(steps: int, forking: float, beside: float, cores: int = 2, epoch: int = 100, copying: float = 0.0) -> list[int]:
    """The steps at which audits were begun; they cost what they are given for samples, and this besides."""
    clock = Clock()
    budget = Budget(cores, clock)
    cost, begun, expects = 0.0, [], True
    for step in range(steps):
        clock.now += STEP
        expects = expects or step % epoch == 0
        seconds = budget.allowance(expects, expects)
        if not seconds:
            continue
        begun.append(step)
        expects = False
        cost += forking + copying + (beside + seconds) / cores
        budget.pay(forking, beside + seconds, seconds)
        if copying:
            budget.copied(copying)
        if len(begun) > 1:  # the first is made before anybody knows what it will cost
            assert cost <= SHARE * clock.now + 1e-9
    return begun


@pytest.mark.parametrize("forking", [1e-4, 0.004, 0.05])
@pytest.mark.parametrize("beside", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("copying", [0.0, 0.1])
def test_audits_cost_no_more_than_their_share_of_the_time(forking: float, beside: float, copying: float) -> None:
    begun = run(50_000, forking, beside, copying=copying)
    assert len(begun) >= 2


def test_there_are_fewer_where_each_costs_more() -> None:
    cheap, dear = run(20_000, 0.001, 0.01), run(20_000, 0.01, 0.1)
    assert len(cheap) > 4 * len(dear) > 4


def test_there_is_one_soon_after_each_start_of_an_epoch() -> None:
    begun = run(50_000, 0.001, 0.002, epoch=5000)
    for first in range(5000, 50_000, 5000):
        assert any(first <= each < first + 2 for each in begun)


def test_an_expected_audit_makes_more_samples_than_another() -> None:
    clock = Clock()
    budget = Budget(1, clock)
    clock.now = 60.0
    assert budget.allowance(True, True) > budget.allowance(False, False) > 0


def test_what_was_not_audited_for_hours_is_not_made_up_for_at_once() -> None:
    clock = Clock()
    budget = Budget(64, clock)
    clock.now = 1e6
    assert budget.allowance(True, True) == LONGEST
    budget.pay(0.01, 64 * 2.0, 64 * 1.9)
    clock.now += 1
    assert budget.allowance(True, True) == 0


def test_after_a_failure_the_next_one_waits_twice_as_long() -> None:
    clock = Clock()
    budget = Budget(1, clock)
    waits = []
    for _ in range(5):
        began = clock.now
        while not budget.allowance(True, True):
            clock.now += STEP
        waits.append(clock.now - began)
        budget.fail(0.0, 0.0)
    assert all(later > 1.9 * sooner for sooner, later in itertools.pairwise(waits[1:]))


def test_it_says_until_when_nobody_needs_to_ask() -> None:
    clock = Clock()
    budget = Budget(2, clock)
    while clock.now < budget.next_at - STEP:
        clock.now += STEP
        assert not budget.allowance(True, True)
    clock.now = budget.next_at + STEP
    assert budget.allowance(True, True)
