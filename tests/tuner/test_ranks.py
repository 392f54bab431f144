"""Which numbers of ranks are tried, and which is taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict
from overdrive.trials.duel import Duel
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.strategies.ranks import Ranks

NAME = "data_parallel"


def findings(contract: Contract = Contract.ROUNDING, **facts: Any) -> Findings:
    return Findings(Program("train.py", ()), contract, facts=Facts(**facts))


def duel(found: Findings, ranks: int, speedup: float) -> Duel:
    verdict = Verdict.FASTER if speedup > 1 else Verdict.SLOWER
    new = found.spec([(NAME, {"ranks": ranks})])
    return Duel(found.spec(), new, [], verdict, Interval(speedup - 0.1, speedup, speedup + 0.1))


def played(found: Findings, speedups: dict[int, float], wanted: int = 0, in_time: int = 9) -> tuple[Ranks, list[int]]:
    """The strategy to its end, with what each number of ranks gains; and which were tried, where so many can be."""
    tried: list[int] = []
    schedule: Any = SimpleNamespace(time_for_another=lambda level: level is Contract.ROUNDING and len(tried) < in_time)
    strategy = Ranks(found, schedule, Progress(), wanted)
    while (candidate := strategy.ask()) is not None:
        ((name, settings),) = candidate.chosen
        ranks = settings["ranks"]
        tried.append(ranks)
        its = duel(found, ranks, speedups[ranks])
        won = Adopted(name, settings, its, Check(Contract.ROUNDING, "steps are the same"))
        strategy.tell(candidate, (won,) if speedups[ranks] > 1 else Rejected(name, settings, "slower", its))
    return strategy, tried


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
def test_the_fastest_of_all_numbers_is_taken_and_nothing_else_is_looked_for() -> None:
    found = findings()
    strategy, tried = played(found, {2: 1.5, 4: 2.0, 8: 1.8})
    assert strategy.taken and tried == [2, 4, 8] and found.only == {NAME}
    assert found.best() == ((NAME, {"ranks": 4}),)
    assert [each.reason for each in found.rejected] == ["other ranks gain more"] * 2
    assert "4 ranks make 2.00x the speed of one process" in found.notes[0]


@pytest.mark.usefixtures("eight_cores")
def test_more_ranks_than_such_as_were_slower_are_not_tried() -> None:
    found = findings()
    strategy, tried = played(found, {2: 0.8})
    assert not strategy.taken and tried == [2] and not found.adopted and not found.only
    assert found.notes == ["The plan is for one process: no number of ranks was seen to be faster."]


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("in_time", [0, 1])
def test_none_is_begun_for_whose_duel_and_proof_there_is_no_time(in_time: int) -> None:
    found = findings()
    strategy, tried = played(found, {2: 1.5, 4: 2.0}, in_time=in_time)
    assert tried == [2][:in_time] and strategy.taken is bool(in_time)
    if not in_time:
        assert found.notes == ["The plan is for one process: no time was left to try and prove more ranks."]


def test_a_number_that_is_asked_for_is_tried_alone() -> None:
    strategy, tried = played(findings(), {3: 1.2}, wanted=3)
    assert strategy.taken and tried == [3]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (findings(Contract.EXACT), "another order"),
        (findings(framework="keras"), "train in PyTorch"),
    ],
)
def test_what_ranks_are_not_for_stays_one_process(found: Findings, reason: str) -> None:
    strategy, tried = played(found, {}, wanted=2)
    assert not strategy.taken and not tried and reason in found.notes[0]
