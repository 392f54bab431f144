"""Which numbers of ranks are tried, on top of which plan, and which is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, Trace
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict
from overdrive.trials.duel import Duel
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.strategies.ranks import Ranks
from tests.simulated import Names, Offer, Simulated, offer, searched

__all__ = ["offer"]  # a fixture

NAME = "data_parallel"


def findings(contract: Contract = Contract.ROUNDING, **facts: Any) -> Findings:
    return Findings(Program("train.py", ()), contract, facts=Facts(**facts))


def needing(name: str) -> Findings:
    """It runs out of memory by itself."""
    found = findings()
    attempt = Duel(found.spec(), found.spec(((name, {}),)))
    found.adopt(Adopted(name, {}, attempt, Check(Contract.ROUNDING, "it runs"), needed=True))
    return found


def duel(found: Findings, ranks: int, speedup: float) -> Duel:
    verdict = Verdict.FASTER if speedup > 1 else Verdict.SLOWER
    new = found.spec([*found.best(), (NAME, {"ranks": ranks})])
    return Duel(found.spec(found.best()), new, [], verdict, Interval(speedup - 0.1, speedup, speedup + 0.1))


def played(found: Findings, speedups: dict[int, float], wanted: int = 0, in_time: int = 9) -> list[int]:
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
    return tried


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
def test_the_fastest_of_all_numbers_is_taken() -> None:
    found = findings()
    assert played(found, {2: 1.5, 4: 2.0, 8: 1.8}) == [2, 4, 8]
    assert found.best() == ((NAME, {"ranks": 4}),)
    assert [each.reason for each in found.rejected] == ["other ranks gain more"] * 2
    assert "4 ranks make 2.00x the speed of one process at the same batches, 50% for each" in found.notes[0]


@pytest.mark.usefixtures("eight_cores")
def test_more_ranks_than_such_as_were_slower_are_not_tried() -> None:
    found = findings()
    assert played(found, {2: 0.8}) == [2] and not found.adopted
    assert found.notes == ["The plan is for one process: no number of ranks was seen to be faster."]


@pytest.mark.usefixtures("eight_cores")
def test_of_a_program_that_is_never_divided_no_other_number_is_tried() -> None:
    found, own = findings(), "the program brings its own parallelism (it is written for Horovod)"
    schedule: Any = SimpleNamespace(time_for_another=lambda level: True)
    strategy = Ranks(found, schedule, Progress(), wanted=0)
    candidate = strategy.ask()
    assert candidate is not None
    tried = replace(duel(found, 2, 1.5), new_trace=Trace(left_out={NAME: own}))
    strategy.tell(candidate, Rejected(NAME, {"ranks": 2}, own, tried))
    assert strategy.ask() is None
    assert found.notes == [f"The plan is for one process: {own}."]


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("in_time", [0, 1])
def test_none_is_begun_for_whose_duel_and_proof_there_is_no_time(in_time: int) -> None:
    found = findings()
    assert played(found, {2: 1.5, 4: 2.0}, in_time=in_time) == [2][:in_time] and len(found.adopted) == in_time
    if not in_time:
        assert found.notes == ["The plan is for one process: no time was left to try and prove more ranks."]


def test_a_number_that_is_asked_for_is_tried_alone() -> None:
    found = findings()
    assert played(found, {3: 1.2}, wanted=3) == [3] and found.adopted


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (findings(Contract.EXACT), "another order"),
        (findings(framework="keras"), "train in PyTorch"),
        (needing("tensor_parallel"), "without tensor_parallel"),
    ],
)
def test_what_ranks_are_not_for_stays_one_process(found: Findings, reason: str) -> None:
    before = found.best()
    assert not played(found, {}, wanted=2) and found.best() == before and reason in found.notes[0]


# Whole tunes of programs that are only numbers (tests/simulated.py).


def program(gains: Mapping[str, float], **more: Any) -> Simulated:
    """Its step takes 10 ms, divided by the gain of each technique; sums on ranks are in another order."""

    def result(names: Names) -> str:
        return NAME if NAME in names else ""

    def seconds(names: Names) -> float:
        return 0.01 / math.prod(gains.get(name, 1.0) for name in names)

    return Simulated(seconds, result=result, facts=Facts(shares={"forward": 1.0}), **more)


def chosen(found: Findings) -> list[str]:
    return [each.name for each in found.chosen]


FIRST = {"expected_saving": 0.4}


def test_ranks_join_the_plan_that_was_found_and_the_whole_is_proved_on_them(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one=FIRST, other={"expected_saving": 0.3})
    made = program({"one": 1.6, "other": 1.4, NAME: 1.5}).enter(monkeypatch)
    found = searched(tmp_path, ranks=2)
    assert chosen(found) == ["one", "other", NAME] and found.verdict is Verdict.FASTER
    last = found.adopted[-1].duel
    assert [name for name, _ in last.old.techniques] == ["one", "other"]  # against the plan, not the plain program
    proved = [dict(spec.techniques) for spec in made.started if spec.replay and "reference" not in spec.replay.role]
    assert {"one", "other", NAME} in [set(each) for each in proved]
    assert found.proof and found.proof.level is Contract.ROUNDING
    assert found.confirmation and found.confirmation.new.techniques == found.best()
    assert any("2 ranks, with one + other on each, make 1." in note for note in found.notes), found.notes


def test_ranks_that_lose_against_the_plan_are_left_out_though_they_win_against_the_plain_program(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one=FIRST)

    def seconds(names: Names) -> float:  # it gains what ranks would: a step that is short is not worth dividing
        return 0.002 if "one" in names and NAME not in names else 0.006 if NAME in names else 0.01

    Simulated(seconds, facts=Facts(shares={"forward": 1.0})).enter(monkeypatch)
    found = searched(tmp_path, ranks=2)
    assert chosen(found) == ["one"]
    assert next(each for each in found.rejected if each.name == NAME).speedup
    assert "The plan is for one process: no number of ranks was seen to be faster." in found.notes


def test_ranks_take_the_place_of_what_shares_the_cores_in_another_way(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one={**FIRST, "conflicts": (NAME,)}, other={"expected_saving": 0.3})
    program({"one": 1.2, "other": 1.3, NAME: 2.0}).enter(monkeypatch)
    found = searched(tmp_path, ranks=2)
    assert chosen(found) == ["other", NAME] and found.verdict is Verdict.FASTER
    assert any(each.name == "one" and "took its place" in each.reason for each in found.dropped)


@pytest.mark.parametrize("how", ["it fails", "it is another program"])
def test_ranks_that_do_not_go_with_the_plan_are_tried_in_its_place(
    how: str, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one=FIRST)
    both = {"one", NAME}

    def ends(names: Names) -> ExitReason | None:
        return ExitReason("exception", "ValueError") if how == "it fails" and both <= names else None

    def error(names: Names) -> float:
        return 0.3 if both <= names else 1e-7

    program({"one": 1.2, NAME: 2.0}, exit_reason=ends, error=error).enter(monkeypatch)
    found = searched(tmp_path, ranks=2)
    assert chosen(found) == [NAME] and found.verdict is Verdict.FASTER


def test_time_is_kept_for_ranks_while_others_are_tried(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(**{f"number{each}": {"expected_saving": 0.3} for each in range(8)})
    gains = {f"number{each}": 1.06 for each in range(8)}
    made = program({**gains, NAME: 1.6}, jitter=0.05, spread=0.02, takes_time=True).enter(monkeypatch)
    found = searched(tmp_path, budget=240.0, ranks=2)
    assert NAME in chosen(found)
    assert made.spent < 260
