"""The table of ranks: every figure from a duel, and none where nothing was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.exchanged import Exchanged
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import Block
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Pair
from overdrive.machine.pool.curve import BUS, Measured
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.scaling import scaling_of
from tests.simulated import Names, Offer, Simulated, offer, searched

__all__ = ["offer"]  # a fixture

NAME = "data_parallel"
STEPS, SAMPLES = 10, 8
COUNTS = {"all_gather 0": 30, "all_reduce 1000": 10}


def duel(ranks: int, seconds: tuple[float, float], threads: tuple[int, int] = (4, 2), **more: Any) -> Duel:
    """Of ten pairs of ten steps, of so many seconds each; ranks exchange for a fifth of theirs."""
    found = Findings(Program("train.py", ()), Contract.ROUNDING)
    old, new = seconds
    sides = [
        Side(seconds=100 * each, steps=100, samples=100 * SAMPLES, peak_memory=memory)
        for each, memory in ((old, 900), (new, 600))
    ]
    exchanged = Exchanged(20 * new, COUNTS, by_memory=False)
    return Duel(
        found.spec(),
        found.spec(((NAME, {"ranks": ranks}),)),
        [Pair(0, STEPS, STEPS * old, STEPS * new, True)] * 10,
        interval=Interval(old / new - 0.1, old / new, old / new + 0.1),
        old_side=sides[0],
        new_side=Side(**{**vars(sides[1]), "exchanged": exchanged}),
        old_facts=Facts(threads=threads[0]),
        new_facts=Facts(threads=threads[1]),
        **more,
    )


def findings(*duels: Duel, **more: Any) -> Findings:
    found = Findings(Program("train.py", ()), Contract.ROUNDING, **more)
    for each in duels:
        found.reject(Rejected(NAME, dict(each.new.techniques)[NAME], "slower", each))
    return found


def test_there_is_a_row_for_one_process_and_for_each_number_that_was_measured() -> None:
    failed = duel(8, (0.4, 0.1))
    failed.pairs.clear()
    one, two, four = scaling_of(findings(duel(4, (0.4, 0.1), (4, 1)), duel(2, (0.4, 0.25)), failed))
    assert (one.ranks, one.samples_per_s, one.peak_memory) == (1, pytest.approx(20.0), 900) and one.speedup is None
    assert (two.ranks, two.seconds_per_step, two.peak_memory) == (2, pytest.approx(0.25), 600)
    assert two.speedup and two.speedup.estimate == pytest.approx(1.6)
    assert four.ranks == 4 and four.samples_per_s == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("threads", "device", "efficiency"),
    [((4, 2), "cpu", 1.6), ((1, 1), "cpu", 0.8), ((4, 4), "cuda", 0.8)],
    ids=["the same cores", "a core each", "a GPU each"],
)
def test_efficiency_is_by_what_ranks_have_more_than_one_process(
    threads: tuple[int, int], device: str, efficiency: float
) -> None:
    tried = duel(2, (0.4, 0.25), threads)
    tried.old_facts, tried.new_facts = (Facts(threads=each, device=device) for each in threads)
    assert scaling_of(findings(tried))[1].efficiency == pytest.approx(efficiency)


def test_what_goes_between_ranks_stands_beside_what_doctor_measured() -> None:
    tried = duel(2, (0.4, 0.25))
    (_, row) = scaling_of(findings(tried))
    assert row.communication == pytest.approx(0.2) and row.by_doctor is None and not row.pool
    times = {operation: {1000: 0.05, 2000: 0.05} for operation in BUS}
    pool = Measured(2, times, 0.5, "pool.json", {"exchange": 0.01, "bytes_per_second": 1e5})
    (_, row) = scaling_of(findings(tried, pool=pool))
    assert row.pool == "pool.json" and row.by_doctor == pytest.approx(40 * 0.05 / 25)
    tried.new_side = Side(**{**vars(tried.new_side), "exchanged": Exchanged(5.0, COUNTS, by_memory=True)})
    (_, row) = scaling_of(findings(tried, pool=pool))  # by the memory that they share
    assert row.by_doctor == pytest.approx((30 * 0.01 + 10 * (0.02 + 0.01)) / 25)
    assert scaling_of(findings(duel(4, (0.4, 0.1)), pool=pool))[1].by_doctor is None  # four were not measured


def test_ranks_on_which_something_joined_later_are_not_compared_with_one_process() -> None:
    found, tried = findings(), duel(2, (0.4, 0.25))
    found.adopt(Adopted(NAME, {"ranks": 2}, tried, Check(Contract.ROUNDING, "")))
    later = duel(2, (0.25, 0.2))
    later.old, later.new = tried.new, found.spec([*tried.new.techniques, ("prefetch", {})])
    found.adopt(Adopted("prefetch", {}, later, Check(Contract.EXACT, "")))
    assert scaling_of(found)[1].seconds_per_step == pytest.approx(0.25)


def test_where_no_ranks_were_tried_there_is_no_table() -> None:
    assert scaling_of(findings()) == ()


def test_of_ranks_the_largest_memory_counts_and_what_they_waited_in_the_mean() -> None:
    blocks = [
        Block(5, 5, 1.0, 8, memory, exchanged=Exchanged(seconds, COUNTS))
        for memory, seconds in ((100, 0.2), (300, 0.6), (200, 0.1))
    ]
    told = blocks[0].beside(blocks[1:])
    assert told.peak_memory == 300 and told.exchanged == Exchanged(pytest.approx(0.3), COUNTS)
    side = Side().add(told).add(told)
    assert side.exchanged and side.exchanged.seconds == pytest.approx(0.6)
    assert side.exchanged.counts == {kind: 2 * count for kind, count in COUNTS.items()}


def seconds_of(names: Names) -> float:
    """Two ranks gain; one alone of them would take a tenth less time."""
    if NAME not in names:
        return 0.02
    return 0.009 if "one rank alone" in names else 0.01


def test_one_rank_alone_is_measured_against_all_when_the_plan_is_settled(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one={"expected_saving": 0.1})
    made = Simulated(seconds_of, facts=Facts(shares={"forward": 1.0})).enter(monkeypatch)
    found = searched(tmp_path, ranks=2)
    alone = [spec for spec in made.started if spec.alone]
    assert alone and all(spec.techniques == found.best() for spec in alone)
    _, row = scaling_of(found)
    assert row.weak and 0.85 < row.weak.low <= row.weak.high < 0.95  # of two processes, which differ by a hundredth
    assert row.alone and row.together and row.alone / row.together == pytest.approx(row.weak.estimate)


def test_weak_scaling_takes_no_time_from_evidence_that_the_report_has_only_where_there_is_time(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one={"expected_saving": 0.1})
    Simulated(seconds_of, facts=Facts(shares={"forward": 1.0})).enter(monkeypatch)
    order: list[str] = []
    monkeypatch.setattr("overdrive.tuner.tune._errors", lambda *given: order.append("errors") or {})
    monkeypatch.setattr("overdrive.tuner.tune.measure_weak_scaling", lambda *given: order.append("weak"))
    searched(tmp_path, ranks=2)
    assert order == ["errors", "weak"]


@pytest.mark.parametrize("why", ["time", "device"])
def test_why_weak_scaling_was_not_measured_is_told(
    why: str, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one={"expected_saving": 0.1})
    if why == "time":
        monkeypatch.setattr("overdrive.tuner.schedule.Schedule.time_for_duel", lambda self, rules: False)
    facts = Facts(shares={"forward": 1.0}, device="cuda" if why == "device" else "cpu")
    monkeypatch.setattr("overdrive.tuner.strategies.ranks.gpus", lambda: ["one", "other"])
    made = Simulated(seconds_of, facts=facts).enter(monkeypatch)
    found = searched(tmp_path, ranks=2)
    _, row = scaling_of(found)
    assert not row.weak and not row.alone and not any(spec.alone for spec in made.started)
    assert (
        row.why_not_weak
        == {
            "time": "no time was left in the budget",
            "device": "a rank by itself is measured on CPUs alone",
        }[why]
    )
