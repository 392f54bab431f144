"""Searches over simulated programs: what is adopted, proved, dropped, confirmed and said, whatever the machine."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.metric import Metric
from overdrive.core.objective import Objective
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Verdict
from overdrive.proof.budget import ProofBudget
from overdrive.proof.prover import Prover
from overdrive.proof.replays import ReferenceRun
from overdrive.proof.rounding import RoundingProof
from overdrive.proof.statistical import StatisticalProof
from overdrive.report.words import sentence
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.duel import Duel
from overdrive.trials.pool import TrialPool
from overdrive.trials.untimed import UntimedRunner
from overdrive.tuner import control, neighbours
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.result import plan_of, result_of
from overdrive.tuner.schedule import Schedule
from tests.simulated import Names, Offer, Simulated, offer, searched, target

__all__ = ["offer"]  # a fixture


def reasons(found: Findings) -> dict[str, str]:
    return {each.name: each.reason for each in [*found.rejected, *found.dropped]}


def names(found: Findings) -> list[str]:
    return [each.name for each in found.chosen]


def paces(**factors: float):
    """Seconds of a step: 10 ms, divided by the factor of every technique in force."""

    def seconds(active: Names) -> float:
        pace = 0.01
        for name in active:
            pace /= factors.get(name, 1.0)
        return pace

    return seconds


def test_what_is_faster_is_adopted_proved_and_confirmed(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={}, idle={}, slow={})
    Simulated(seconds=paces(fast=1.5, slow=0.7)).enter(monkeypatch)
    found = searched(tmp_path)
    assert found.verdict is Verdict.FASTER and names(found) == ["fast"]
    assert reasons(found)["slow"].startswith(("slower: 0.7", "slower: 0.69"))
    assert "no measurable effect" in reasons(found)["idle"] or "inconclusive" in reasons(found)["idle"]
    assert (
        found.proof is not None
        and found.proof.level is Contract.EXACT
        and found.proof.exact
        and (found.proof.exact.steps or 0) >= 100
    )
    assert found.confirmation is not None and found.confirmation.interval is not None
    assert found.confirmation.interval.low < 1.5 < found.confirmation.interval.high
    assert len({pair.process for pair in found.confirmation.pairs}) >= 3
    result = result_of(found, "plan.toml")
    assert [each.name for each in plan_of(found, result).techniques] == ["fast"]


@pytest.mark.fault(1)
def test_what_breaks_the_program_is_left_out_with_its_reason(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(breaks={}, fast={})
    failing = ExitReason("exception", "RuntimeError: needs two threads")
    program = Simulated(paces(fast=1.3, breaks=3), exit_reason=lambda active: failing if "breaks" in active else None)
    program.enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == ["fast"] and "needs two threads" in reasons(found)["breaks"]


def test_what_leaves_itself_out_is_not_adopted(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(shy={})
    Simulated(paces(shy=3), left_out=lambda active: {"shy": "not here"} if "shy" in active else {}).enter(monkeypatch)
    found = searched(tmp_path)
    assert not names(found) and reasons(found) == {"shy": "not here"}


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (Simulated(paces(cheat=3), rate=lambda active: 0.2 if active else 0.1), "learning rate"),
        (Simulated(paces(cheat=3), result=lambda active: "other" if active else ""), "other parameters in step 1"),
        (Simulated(paces(cheat=3), loss=lambda active: float("nan") if active else 1.0), "not finite in step 1"),
    ],
)
@pytest.mark.fault(18, 19, 20)
def test_what_is_fast_but_wrong_is_not_adopted(
    program: Simulated, says: str, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(cheat={})
    program.enter(monkeypatch)
    found = searched(tmp_path, Contract.EXACT)
    assert found.verdict is Verdict.INCONCLUSIVE and not names(found)
    assert reasons(found)["cheat"].startswith("was not seen to keep its contract") and says in reasons(found)["cheat"]


@pytest.mark.parametrize(("error", "kept"), [(1e-7, True), (1e-4, False)])
def test_rounding_is_adopted_where_it_is_no_further_from_fp64(
    error: float, kept: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(rounds={"contract": Contract.ROUNDING})
    Simulated(
        paces(rounds=2),
        result=lambda active: "other" if active else "",
        error=lambda active: error if active else 1e-7,
    ).enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == (["rounds"] if kept else [])
    if kept:
        assert found.proof is not None and found.proof.level is Contract.ROUNDING


@pytest.mark.parametrize(("loss", "kept"), [(1.0, True), (1.1, False)])
def test_what_lowers_precision_must_learn_as_well_under_many_seeds(
    loss: float, kept: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(low={"contract": Contract.STATISTICAL})
    Simulated(
        paces(low=2),
        result=lambda active: "other" if active else "",
        loss=lambda active: loss if active else 1.0,
    ).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert names(found) == (["low"] if kept else [])
    if kept:
        assert found.proof is not None and found.proof.level is Contract.STATISTICAL


def test_what_joins_a_statistical_plan_is_compared_as_the_whole_plan_will_be(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(low={"contract": Contract.STATISTICAL, "order": 1}, layout={"contract": Contract.ROUNDING, "order": 2})
    program = Simulated(paces(low=2, layout=1.5), result=lambda active: "other" if active else "").enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert names(found) == ["low", "layout"]
    assert {each.check.level for each in found.adopted} == {Contract.STATISTICAL}
    assert not any(spec.replay for spec in program.started if "layout" in dict(spec.techniques))


@pytest.mark.parametrize(("error", "kept"), [(1e-7, True), (1e-4, False)])
def test_what_joins_a_statistical_plan_keeps_what_it_promises_in_three_replayed_states(
    error: float, kept: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the statistical one, whose own errors would hide it."""
    offer(low={"contract": Contract.STATISTICAL, "order": 1}, layout={"contract": Contract.ROUNDING, "order": 2})
    program = Simulated(
        paces(low=2, layout=1.5),
        result=lambda active: " ".join(sorted(active)),
        error=lambda active: 1e-3 if "low" in active else error if active else 1e-7,
    ).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert names(found) == (["low", "layout"] if kept else ["low"])
    replayed = [spec for spec in program.started if spec.replay and "layout" in dict(spec.techniques)]
    assert replayed and all("low" not in dict(spec.techniques) for spec in replayed)
    assert all(spec.replay is not None and len(spec.replay.steps) == 3 for spec in replayed)
    if not kept:
        assert "further from fp64" in reasons(found)["layout"]


def test_what_does_nothing_without_the_statistical_technique_has_shown_nothing(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(low={"contract": Contract.STATISTICAL, "order": 1}, layout={"contract": Contract.ROUNDING, "order": 2})
    Simulated(
        paces(low=2, layout=1.5),
        result=lambda active: " ".join(sorted(active)),
        left_out=lambda active: {"layout": "needs 16 bits"} if active == {"layout"} else {},
    ).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert names(found) == ["low"] and "did not act in its proof: needs 16 bits" in reasons(found)["layout"]


def test_an_exact_technique_that_joins_where_no_state_can_be_replayed_is_compared_bit_by_bit(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(low={"contract": Contract.STATISTICAL, "order": 1}, buffers={"order": 2})
    monkeypatch.setattr(ReferenceRun, "begin", lambda self: "no state of the program could be saved")
    result = lambda active: "low" if active == {"low"} else "both" if "low" in active else ""  # noqa: E731
    program = Simulated(paces(low=2, buffers=1.5), result=result).enter(monkeypatch)
    assert names(searched(tmp_path, Contract.STATISTICAL)) == ["low", "buffers"]
    assert any(spec.digests == "bits" and "buffers" in dict(spec.techniques) for spec in program.started)


def test_without_its_statistical_techniques_a_plan_is_proved_as_strictly_as_the_others_promise(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(low={"contract": Contract.STATISTICAL, "order": 1}, layout={"contract": Contract.ROUNDING, "order": 2})
    Simulated(paces(low=2, layout=1.5), result=lambda active: "other" if active else "").enter(monkeypatch)
    established = Check(None, "9 of 10 seeds: not established")
    monkeypatch.setattr(StatisticalProof, "compare", lambda *anything, **more: established)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert names(found) == ["layout"] and [each.name for each in found.dropped] == ["low"]
    assert found.proof is not None and found.proof.level is Contract.ROUNDING
    assert plan_of(found, result_of(found, "plan.toml")).techniques[0].contract is Contract.ROUNDING


def test_what_joined_may_keep_a_looser_level_than_it_promises(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = {"contract": Contract.EXACT, "fallback_contract": Contract.ROUNDING, "order": 2}
    offer(low={"contract": Contract.STATISTICAL, "order": 1}, buffers=buffers)
    Simulated(paces(low=2, buffers=1.5), result=lambda active: "other" if active else "").enter(monkeypatch)
    established = Check(None, "9 of 10 seeds: not established")
    monkeypatch.setattr(StatisticalProof, "compare", lambda *anything, **more: established)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert names(found) == ["buffers"] and [each.name for each in found.dropped] == ["low"]
    assert found.proof is not None and found.proof.level is Contract.ROUNDING


@pytest.mark.parametrize("gain", [1.1, 4.0], ids=["little", "much"])
def test_what_its_duel_has_shown_exact_is_hashed_first_where_that_quickens_runs_under_seeds(
    gain: float, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five minutes for public MNIST 90 s went into the proof of one exact technique, and no statistical one joined
    it."""
    offer(same={"order": 1}, low={"contract": Contract.STATISTICAL, "order": 2})
    pace = paces(same=gain, low=1.5)
    program = Simulated(
        lambda names: 10 * pace(names),
        result=lambda active: "low" if "low" in active else "",
        facts=Facts(shares={"forward": 0.5, "backward": 0.5}, step_seconds=0.1),
        takes_time=True,
    ).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL, budget=3600)
    assert names(found) == ["same", "low"] and found.proof is not None
    assert found.proof.level is Contract.STATISTICAL
    hashed = [spec for spec in program.started if spec.digests == "bits" and dict(spec.techniques) == {"same": {}}]
    assert bool(hashed) is (gain > 2)
    seeded = [spec for spec in program.started if spec.products and "low" not in dict(spec.techniques)]
    assert seeded and all(bool(spec.techniques) is (gain > 2) for spec in seeded)


def test_what_could_not_be_proved_in_time_is_not_begun(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(low={"contract": Contract.STATISTICAL, "order": 1}, layout={"contract": Contract.ROUNDING, "order": 2})
    program = Simulated(paces(low=2, layout=1.5), result=lambda active: "other" if active else "").enter(monkeypatch)
    needed = Prover.seconds_needed

    def dear(prover: Prover, level: Contract, *others: Any) -> float:
        return 1e6 if level is Contract.STATISTICAL else needed(prover, level, *others)

    monkeypatch.setattr(Prover, "seconds_needed", dear)
    found = searched(tmp_path, Contract.STATISTICAL)
    assert names(found) == ["layout"] and "no time was left to prove it" in reasons(found)["low"]
    tried = [spec for spec in program.started if "low" in dict(spec.techniques)]  # once, against the plan
    assert len(tried) == 1 and "layout" in dict(tried[0].techniques) and not tried[0].seed and not tried[0].digests


def test_digests_under_other_threads_are_not_taken_for_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overdrive.proof.runs.granted_cores", lambda: 2)
    result = lambda active: "other" if active else ""  # noqa: E731
    program = Simulated(steps=400, result=result, feeds_itself=True).enter(monkeypatch)
    plain = TrialSpec(target(tmp_path))
    new = TrialSpec(plain.program, (("allocator", {}),))
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), plain.program, "tune")
        prover = Prover(UntimedRunner(pool), checkpoint, Facts())
        prover.rounding(plain, new)
        prover.statistical(plain, new, time.monotonic() + 1000)
    perturbed = {spec.threads for spec in program.started if spec.digests == "perturbed"}
    inputs = {spec.threads for spec in program.started if spec.digests == "inputs" and not spec.replay}
    assert perturbed == {0, 1} and inputs == {1}


def test_a_run_that_makes_many_steps_in_a_call_is_judged_by_as_many_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(steps=1000).enter(monkeypatch)
    plain = TrialSpec(target(tmp_path), seed=1)
    run = UntimedRunner.run
    longer = lambda self, spec, steps, output=None: run(self, spec, steps + 20, output)  # noqa: E731
    monkeypatch.setattr(UntimedRunner, "run", longer)
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), plain.program, "tune")
        prover = Prover(UntimedRunner(pool), checkpoint, Facts())
        seeded = prover.by_seeds._seeded(plain, 1)
    assert seeded is not None and len(seeded.losses) == 300


def test_a_proof_of_replayed_steps_is_reckoned_with_all_its_trials(tmp_path: Path) -> None:
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), target(tmp_path), "tune")
        budget = ProofBudget(start=2.0, length=50)
        prover = Prover(UntimedRunner(pool), checkpoint, Facts(step_seconds=0.1), proof_budget=budget)
        plain, replayed, in_fp64 = 2 + 50 * 0.1, 2 + 50 * 0.1 + 32 * 0.08, 32 * 2 * 0.1
        assert prover.seconds_needed(Contract.ROUNDING) == pytest.approx(3 * replayed + in_fp64)
        calls = Prover(UntimedRunner(pool), checkpoint, Facts(step_seconds=0.1, inference=True), proof_budget=budget)
        assert calls.seconds_needed(Contract.ROUNDING) == pytest.approx(plain + 3 * replayed + in_fp64)
        slow = Prover(UntimedRunner(pool), checkpoint, Facts(step_seconds=0.4), proof_budget=budget)
        of_slow = 3 * (2 + 50 * 0.4 + 32 * 0.08) + 32 * 2 * 0.4
        assert slow.seconds_needed(Contract.ROUNDING) == pytest.approx(of_slow)
        slow._runs.asks_what_was_made = True  # as much as a trial that is known to take so long
        assert slow.seconds_needed(Contract.ROUNDING) == pytest.approx(22 + of_slow)
        short = ProofBudget(start=2.0, length=20)  # each of its steps is chosen, and no more
        prover = Prover(UntimedRunner(pool), checkpoint, Facts(step_seconds=0.2), proof_budget=short)
        assert prover.seconds_needed(Contract.ROUNDING) == pytest.approx(3 * (6 + 20 * 0.08) + 20 * 2 * 0.2)


@pytest.mark.parametrize(("within", "steps"), [(math.inf, 300), (150.0, 230), (30.0, 100)])
def test_the_runs_of_a_statistical_proof_are_as_long_as_there_is_time_for(
    within: float, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overdrive.proof.runs.granted_cores", lambda: 2)
    plain = TrialSpec(target(tmp_path))
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), plain.program, "tune")
        facts = Facts(step_seconds=0.05)
        prover = Prover(UntimedRunner(pool), checkpoint, facts, proof_budget=ProofBudget(within, start=2.0))
        assert prover.seconds_needed(Contract.STATISTICAL) == pytest.approx(5 + 1.1 * 6 * (2 + steps * 0.05 * 2))
        if within < math.inf:  # broken off, and gone on with another budget
            again = Prover(UntimedRunner(pool), checkpoint, facts, proof_budget=ProofBudget(2 * within, start=1.0))
            assert again.seconds_needed(Contract.STATISTICAL) == pytest.approx(5 + 1.1 * 6 * (1 + steps * 0.05 * 2))
        run = 2 + steps * 0.05 * 2
        sooner = 5 + 1.1 * 3 * (run + 2 + (run - 2) / 2)  # the plan's runs, where it is three times as fast
        assert prover.seconds_needed(Contract.STATISTICAL, plain, 3.0) == pytest.approx(sooner)
        for seed in (1, 2, 3, 4):  # of the original, which are there
            checkpoint.remember_run(prover.by_seeds._run_name(plain, seed), {})
        left = 5 + 1.1 * (1 + 3) * run
        assert prover.seconds_needed(Contract.STATISTICAL, plain) == pytest.approx(left)
        crowded = ProofBudget(within, start=2.0, peak=1 << 50)
        large = Prover(UntimedRunner(pool), checkpoint, facts, proof_budget=crowded)
        assert large._runs.at_once == 1
        short = Prover(UntimedRunner(pool), checkpoint, facts, proof_budget=ProofBudget(within, start=2.0, length=50))
        assert short.seconds_needed(Contract.STATISTICAL) == pytest.approx(5 + 1.1 * 6 * (2 + 50 * 0.05 * 2))
        short._runs.asks_what_was_made = True  # a third trial then, two at a time
        assert short.seconds_needed(Contract.STATISTICAL) == pytest.approx(10 + 1.1 * 6 * (2 + 50 * 0.05 * 2))


@pytest.mark.parametrize(("seconds", "runs"), [(85, 20), (130, 32)])
def test_a_second_look_for_which_there_is_no_time_is_not_begun(
    seconds: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is for the proof of what is left of the plan."""
    monkeypatch.setattr("overdrive.proof.budget.granted_cores", lambda: 1)
    result = "low"  # under which ten runs leave it open, and sixteen do not
    program = Simulated(lambda active: 0.01, result=lambda active: result if active else "", takes_time=True, start=0.0)
    program.enter(monkeypatch)
    plain = TrialSpec(target(tmp_path))
    new = TrialSpec(plain.program, (("allocator", {}),))
    with TrialPool(isolate=False) as pool:
        untimed = UntimedRunner(pool)
        facts = Facts(step_seconds=0.01)
        prover = Prover(untimed, TuneCheckpoint(Ledger.open(tmp_path / "ledger"), plain.program, "tune"), facts)
        prover.statistical(plain, new, time.monotonic() + seconds)
    assert len([spec for spec in program.started if spec.seed]) == runs


def test_a_looser_contract_than_was_asked_for_is_not_even_tried(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(low={"contract": Contract.STATISTICAL})
    program = Simulated(paces(low=2)).enter(monkeypatch)
    found = searched(tmp_path)
    assert "you asked for rounding" in reasons(found)["low"] and not any(spec.techniques for spec in program.started)


def test_of_two_that_conflict_the_better_promise_is_kept(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(one={"conflicts": ("other",), "order": 1}, other={"order": 2})
    program = Simulated(paces(one=1.5, other=2)).enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == ["one"]
    (left,) = (each for each in result_of(found, "").rejected if each.name == "other")
    assert (left.kind, left.reason) == ("unfit", "it cannot be in one plan with one")  # no lack of time
    assert not any({"one", "other"} <= dict(spec.techniques).keys() for spec in program.started)


def test_a_narrow_loser_is_tried_again_when_the_program_has_become_another(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(helped={"order": 1}, great={"order": 2})
    # Alone it gains nothing; beside the other, a quarter.
    Simulated(lambda active: 0.01 / ((2 if "great" in active else 1) * (1.25 if len(active) == 2 else 1))).enter(
        monkeypatch
    )
    found = searched(tmp_path)
    assert sorted(names(found)) == ["great", "helped"]
    assert found.attribution is not None and {each.name for each in found.attribution.shares} == {"great", "helped"}


def test_what_came_out_idle_by_chance_has_another_duel(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={"order": 1}, other={"order": 2})
    program = Simulated(paces(fast=1.5, other=1.3)).enter(monkeypatch)
    monkeypatch.setattr("overdrive.tuner.finalise.without_effect", lambda attribution: ["other"])
    assert names(searched(tmp_path)) == ["fast", "other"]
    started = [tuple(dict(spec.techniques)) for spec in program.started]
    assert started.count(("fast",)) > 3  # in its duel, in the field, and in two processes more

    monkeypatch.setattr(Schedule, "time_to_run_duel_again", lambda schedule: False)
    assert names(searched(tmp_path)) == ["fast", "other"]  # its own duel was clear


@pytest.mark.parametrize("bottleneck", ["data", "forward"])
def test_what_targets_the_bottleneck_is_tried_first(
    bottleneck: str, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(loading={"targets": ("data",), "order": 2}, computing={"targets": ("forward",), "order": 1})
    shares = {"data": 0.2, "forward": 0.2, bottleneck: 0.8}
    program = Simulated(facts=Facts(shares=shares)).enter(monkeypatch)
    searched(tmp_path)
    tried = [name for spec in program.started for name, _ in spec.techniques]
    assert tried[0] == {"data": "loading", "forward": "computing"}[bottleneck]
    assert {"loading", "computing"} <= set(tried)


def test_what_another_makes_useless_is_dropped(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(part={"order": 1}, whole={"order": 2})
    Simulated(lambda active: 0.005 if "whole" in active else 0.008 if "part" in active else 0.01).enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == ["whole"] and "simpler plan" in reasons(found)["part"]


@pytest.mark.parametrize(("gains", "taken"), [((1.3, 1.6, 1.9), 8), ((1.3, 1.6, 1.6), 4), ((0.8, 1.5, 1.2), 4)])
def test_all_settings_are_compare_all_and_the_mildest_of_the_fastest_is_taken(
    gains: tuple[float, ...], taken: int, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [{"times": times} for times in (2, 4, 8)]
    offer(batch={"compare_all": True, "candidates": lambda self, facts: settings}, fast={"order": 200})
    factors = {f"batch {times}": gain for times, gain in zip((2, 4, 8), gains, strict=True)}
    Simulated(paces(fast=1.4, **factors)).enter(monkeypatch)
    found = searched(tmp_path)
    chosen = {each.name: each.settings for each in found.chosen}
    assert chosen == {"batch": {"times": taken}, "fast": {}}
    told = [each.reason for each in found.rejected if each.name == "batch"]
    assert len(told) == 2 and all(f"batch (times={taken}) is taken" in each or "slower" in each for each in told)


@pytest.mark.parametrize("contract", [Contract.ROUNDING, Contract.STATISTICAL])
def test_a_program_whose_steps_take_long_is_tuned_in_a_few_minutes(
    contract: Contract, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(
        memory={"expected_saving": 0.4, "processes": lambda self, facts: 3},
        layout={"expected_saving": 0.3, "contract": Contract.ROUNDING},
        pools={"expected_saving": 0.2},
        half={"expected_saving": 0.1, "contract": Contract.STATISTICAL},  # its proof alone would take 15 minutes
    )
    pace = paces(memory=2.2, layout=1.5, pools=1.4, half=2)
    facts = Facts(shares={"forward": 1.0}, step_seconds=0.5)
    program = Simulated(lambda names: 50 * pace(names), start=5.0, takes_time=True, facts=facts).enter(monkeypatch)
    found = searched(tmp_path, contract, budget=300.0)
    assert {"memory", "layout"} <= set(names(found)) and found.verdict is Verdict.FASTER and found.confirmed
    assert "half" in reasons(found) and program.spent < 310.0
    # Twice as fast is more than processes of one program differ by: no second pair of them was started.
    assert {pair.process for pair in found.adopted[0].duel.pairs} == {0}


def test_a_proof_in_fp64_for_which_there_is_no_time_is_given_up_at_once_and_not_begun_again(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(
        layout={"expected_saving": 0.4, "contract": Contract.ROUNDING},
        pools={"expected_saving": 0.3, "processes": lambda self, facts: 3},
        blocks={"expected_saving": 0.2, "contract": Contract.ROUNDING},
    )
    pace = paces(layout=1.3, pools=1.4, blocks=1.3)
    other = {"result": lambda active: "other" if {"layout", "blocks"} & active else ""}
    facts = Facts(shares={"forward": 1.0}, step_seconds=1.5)
    program = Simulated(
        lambda names: 150 * pace(names), start=5.0, takes_time=True, facts=facts, fp64=16.0, **other
    ).enter(monkeypatch)
    found = searched(tmp_path, budget=600.0)
    assert names(found) == ["pools"] and found.verdict is Verdict.FASTER and found.confirmed and program.spent < 610.0
    assert "broke off" in reasons(found)["layout"] and "not tried" in reasons(found)["blocks"]
    assert sum(spec.replay is not None for spec in program.started) == 1


def test_a_candidate_for_which_there_is_no_time_is_not_begun_again_by_the_next_candidate(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(
        layout={"expected_saving": 0.4, "contract": Contract.ROUNDING},
        blocks={"expected_saving": 0.2, "contract": Contract.ROUNDING},
    )
    pace = paces(layout=1.3, blocks=1.3)
    other = {"result": lambda active: "other" if {"layout", "blocks"} & active else ""}
    program = Simulated(
        lambda names: 150 * pace(names),
        start=5.0,
        takes_time=True,
        facts=Facts(shares={"forward": 1.0}, step_seconds=1.5),
        taught=lambda names: 16.0 if names else 1.0,
        feeds_itself=True,
        **other,
    ).enter(monkeypatch)
    found = searched(tmp_path, budget=900.0)
    assert names(found) == [] and program.spent < 910.0
    assert "broke off" in reasons(found)["layout"] and "too little of the budget" in reasons(found)["blocks"]
    candidates = [spec for spec in program.started if spec.replay is not None and spec.replay.role == "candidate"]
    assert len([spec for spec in candidates if spec.techniques]) == 1


def test_what_makes_other_steps_is_left_out_and_not_tried_again(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fused={"contract": Contract.ROUNDING})
    told: list[Duel] = []
    monkeypatch.setattr("overdrive.tuner.judge.other_steps", lambda control, duel: told.append(duel) or "other steps")
    Simulated(paces(fused=2), result=lambda active: "other" if active else "").enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == [] and reasons(found)["fused"] == "other steps" and len(told) == 1


def refused_at_rounding(sentence: str, seconds: float, offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`layout` is faster, and its proof at `rounding` takes so long and comes to this."""
    offer(layout={"contract": Contract.ROUNDING, "fallback_contract": Contract.STATISTICAL})
    facts = Facts(shares={"forward": 1.0}, step_seconds=0.1)
    other = {"result": lambda active: "other" if active else ""}
    program = Simulated(paces(layout=2), takes_time=True, facts=facts, **other).enter(monkeypatch)

    def refused(proof: RoundingProof, plain: TrialSpec, new: TrialSpec) -> Check:
        program.spent += seconds
        return Check(None, sentence)

    monkeypatch.setattr(RoundingProof, "compare", refused)


def test_a_proof_that_time_broke_off_says_nothing_of_the_technique(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_at_rounding("its proof broke off (late: the budget was used up)", 1000.0, offer, monkeypatch)
    found = searched(tmp_path, budget=120.0)
    assert "broke off" in reasons(found)["layout"] and "only statistical" not in reasons(found)["layout"]


def test_what_rounding_refused_is_told_where_seeds_have_no_time(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of public ImageNet, 1.6 s a step, "no time for the proof" was all that was told after 128 s of one."""
    refused_at_rounding("the gradient of a weight is 7 bits further from fp64", 60.0, offer, monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL, budget=120.0)
    assert "7 bits further" in reasons(found)["layout"] and "no time for the proof" in reasons(found)["layout"]


def test_a_budget_too_small_changes_nothing_and_says_so(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    Simulated(paces(fast=2)).enter(monkeypatch)
    found = searched(tmp_path, budget=1.0)
    assert found.verdict is Verdict.INCONCLUSIVE and not found.chosen
    assert reasons(found)["fast"] == "not tried: too little of the budget is left to try and confirm it"


def test_a_program_that_is_soon_over_is_measured_all_the_same(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    Simulated(paces(fast=2), steps=400).enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == ["fast"]
    Simulated(paces(fast=2), steps=5).enter(monkeypatch)
    (tmp_path / "short").mkdir()
    found = searched(tmp_path / "short")
    assert found.refusal is not None and "too short to be measured" in found.refusal
    assert "and about 200 are needed" in found.refusal and "times as many" in found.refusal  # the next step


@pytest.mark.parametrize(("step", "little"), [(0.001, True), (0.1, False)])
def test_a_program_that_hardly_does_more_than_start_is_told_so(
    step: float, little: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    Simulated(lambda active: step, steps=10, takes_time=True).enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal is not None and ("its start takes 2.0 s" in found.refusal) is little
    assert ("nothing to be gained by faster steps" in found.refusal) is little


@pytest.mark.parametrize(
    ("calls", "told"),
    [(1, "The program's only call takes 0.5 s"), (16, "The program's 16 calls take 0.5 s")],
)
def test_one_call_is_told_in_the_singular(calls: int, told: str) -> None:
    side = SimpleNamespace(setup_seconds=10.0)
    duel: Any = SimpleNamespace(
        old=SimpleNamespace(unit="call"), old_side=side, new_side=side, beside=[21.0], looked=0.0, pairs=[]
    )
    assert told in control._all_start(duel, calls)


@pytest.mark.fault(1)
def test_a_program_that_fails_by_itself_is_refused(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    Simulated(exit_reason=lambda active: ExitReason("exception", "ValueError: no data")).enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal == "The program fails by itself (ValueError: no data)." and found.refusal_is_failure


@pytest.mark.fault(9)
def test_a_tune_that_was_broken_off_goes_on_where_it_was(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Progress):
        def stage(self, text: str) -> None:
            if "confirmation" in text:
                raise KeyboardInterrupt

    class Told(Progress):
        known = 0

        def outcome(self, text: str) -> None:
            self.known += "known from a tune that was broken off" in text

    offer(fast={}, slow={})
    first = Simulated(paces(fast=1.5, slow=0.7)).enter(monkeypatch)
    assert searched(tmp_path, progress=Broken()).stopped
    second, told = Simulated(paces(fast=1.5, slow=0.7)).enter(monkeypatch), Told()
    found = searched(tmp_path, progress=told)
    assert names(found) == ["fast"] and told.known == 3  # the control and both candidates
    assert found.confirmation is not None
    confirmed = len({pair.process for pair in found.confirmation.pairs})
    assert confirmed >= 3 and len([spec for spec in second.started if not spec.digests]) == 2 * confirmed
    assert len(first.started) > 0


@pytest.mark.fault(9)
def test_a_proof_under_many_seeds_that_was_stopped_goes_on(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Simulated):
        def loss_of(self, active: Names) -> float:
            if len(self.started) >= 10:
                raise KeyboardInterrupt
            return 1.0

    offer(low={"contract": Contract.STATISTICAL})
    ledger = Ledger.open(tmp_path / "ledger")

    def proved(program: Simulated) -> Check:
        program.enter(monkeypatch)
        spec = TrialSpec(target(tmp_path))
        with TrialPool(isolate=False) as pool:
            prover = Prover(UntimedRunner(pool), TuneCheckpoint(ledger, spec.program, "verify"), Facts())
            return prover.statistical(spec, TrialSpec(spec.program, (("low", {}),)), time.monotonic() + 1000)

    stopped = Stopped()
    stopped.loss = stopped.loss_of
    with pytest.raises(KeyboardInterrupt):
        proved(stopped)
    program = Simulated()
    check = proved(program)
    assert check.level is Contract.STATISTICAL
    first = set(range(1, 6))  # of the original, these were there
    assert not first & {spec.seed for spec in program.started if not spec.techniques}
    assert any(spec.seed and spec.techniques for spec in program.started)


@pytest.mark.parametrize("level", [Contract.EXACT, Contract.ROUNDING, Contract.STATISTICAL])
def test_a_proof_ends_with_the_budget_and_is_made_anew_with_more(
    level: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(steps=400).enter(monkeypatch)
    plain = TrialSpec(target(tmp_path))
    new = TrialSpec(plain.program, (("allocator", {}),))
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), plain.program, "tune")
        prover = Prover(UntimedRunner(pool), checkpoint, Facts())

        def proved() -> Check:
            if level is Contract.STATISTICAL:
                return prover.statistical(plain, new, time.monotonic() + 1000)
            return prover.exact(plain, new) if level is Contract.EXACT else prover.rounding(plain, new)

        prover.end_by(time.monotonic() - 1)
        late = proved()
        assert late.level is None and "the budget was used up" in late.sentence
        prover.end_by(time.monotonic() + 1000)
        assert proved().level is level


@pytest.mark.parametrize("level", [Contract.ROUNDING, Contract.STATISTICAL])
def test_where_time_breaks_off_the_run_that_tells_data_from_what_the_model_made_nothing_is_said_of_data(
    level: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(steps=200, result=lambda active: "other" if active else "", feeds_itself=True).enter(monkeypatch)
    run = UntimedRunner.run

    def late(self: UntimedRunner, spec: TrialSpec, steps: int, output: list[str] | None = None) -> Trace | ExitReason:
        if spec.digests == "perturbed":
            return ExitReason("late", "the budget was used up")
        return run(self, spec, steps, output)

    monkeypatch.setattr(UntimedRunner, "run", late)
    plain = TrialSpec(target(tmp_path))
    new = TrialSpec(plain.program, (("allocator", {}),))
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), plain.program, "tune")
        prover = Prover(UntimedRunner(pool), checkpoint, Facts())
        if level is Contract.ROUNDING:
            check = prover.rounding(plain, new)
        else:
            check = prover.statistical(plain, new, time.monotonic() + 1000)
    assert check.level is None and "broke off (late" in check.sentence


def test_a_metric_that_is_never_printed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(steps=200).enter(monkeypatch)
    spec = TrialSpec(target(tmp_path))
    with TrialPool(isolate=False) as pool:
        checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), spec.program, "verify")
        prover = Prover(UntimedRunner(pool), checkpoint, Facts(), metric=Metric("Recall"))
        check = prover.statistical(spec, TrialSpec(spec.program, (("allocator", {}),)), time.monotonic() + 1000)
    assert check.level is None and check.sentence == "the program never printed a number after 'Recall'"


# -- memory ---------------------------------------------------------------------------------------


LEAN = {"aims": ("memory",)}


def megabytes(plain: int, **saved: int):
    return lambda active: (plain - sum(saved.get(name, 0) for name in active)) * 10**6


def test_less_memory_is_found_proved_and_told(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(lean=LEAN, useless=LEAN, fast={})
    Simulated(paces(lean=0.9, fast=2), peak=megabytes(500, lean=100)).enter(monkeypatch)
    found = searched(tmp_path, objective=Objective("memory"))
    assert found.verdict is Verdict.SMALLER and names(found) == ["lean"]
    assert "no less memory" in reasons(found)["useless"] and "fast" not in reasons(found)
    assert found.proof is not None and found.proof.level is Contract.EXACT
    result = result_of(found, "plan.toml")
    assert result.baseline.peak_memory - result.tuned.peak_memory == 100 * 10**6
    assert sentence(result).startswith("Needs ") and "instead of" in sentence(result)
    assert [each.name for each in plan_of(found, result).techniques] == ["lean"]


def test_what_saves_memory_is_tried_for_time_only_where_the_limit_asks_for_it(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(lean=LEAN, fast={}, greedy={"order": 200})
    program = Simulated(paces(lean=0.9, fast=2, greedy=3), megabytes(500, lean=100, greedy=-200)).enter(monkeypatch)
    assert names(searched(tmp_path, objective=Objective("time", 600 * 10**6))) == ["fast"]
    assert not any("lean" in dict(spec.techniques) for spec in program.started)
    found = searched(tmp_path, objective=Objective("time", 450 * 10**6))
    assert found.verdict is Verdict.SMALLER and set(names(found)) == {"lean", "fast"}
    assert "more than was allowed" in reasons(found)["greedy"]


@pytest.mark.fault(6)
def test_a_program_that_runs_out_of_memory_gets_what_it_needs_to_run(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(lean=LEAN, useless=LEAN)
    full = ExitReason("oom", "out of memory")
    Simulated(exit_reason=lambda active: None if "lean" in active else full, peak=megabytes(500)).enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal is None and found.verdict is Verdict.FITS
    assert names(found) == ["lean"] and found.chosen[0].needed
    result = result_of(found, "plan.toml")
    assert result.baseline is None and result.speedup is None
    assert sentence(result).startswith("Runs now, where it ran out of memory")
    assert any("runs out of memory" in note and "lean" in note for note in result.notes)
    assert "nothing could be compared" in result.techniques[0].check
    assert plan_of(found, result).speedup is None


def test_what_runs_only_with_a_technique_may_become_faster_too(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(lean=LEAN, fast={})
    full = ExitReason("oom", "out of memory")
    Simulated(paces(fast=2), exit_reason=lambda active: None if "lean" in active else full, peak=megabytes(500)).enter(
        monkeypatch
    )
    found = searched(tmp_path)
    assert found.verdict is Verdict.FITS and set(names(found)) == {"lean", "fast"}
    assert found.confirmation is not None and found.confirmation.verdict is Verdict.FASTER


def test_two_that_help_only_together_are_found(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(lean=LEAN, leaner=LEAN)
    full = ExitReason("oom", "out of memory")
    Simulated(exit_reason=lambda active: None if len(active) == 2 else full, peak=megabytes(500)).enter(monkeypatch)
    assert names(searched(tmp_path)) == ["lean", "leaner"]


def test_one_that_nothing_helps_is_refused_with_its_reason(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(useless=LEAN)
    Simulated(exit_reason=lambda active: ExitReason("oom", "out of memory")).enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal is not None and "runs out of memory by itself" in found.refusal
    assert found.refusal.endswith("with all that could be tried: useless.")
    assert found.refusal_is_failure and not found.chosen


def test_one_that_nothing_could_help_is_refused_too(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    Simulated(exit_reason=lambda active: ExitReason("oom", "out of memory")).enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal is not None and found.refusal.endswith("no technique that saves memory can be tried on it.")


def test_where_two_do_not_fit_whole_processes_are_run_in_turn(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={}, slow={}, shy={}, lean=LEAN)
    program = Simulated(
        paces(fast=1.5, slow=0.7),
        megabytes(500, lean=300),
        memory=800e6,
        left_out=lambda active: {"shy": "not here"} if "shy" in active else {},
    )
    program.enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal is None and found.verdict is Verdict.FASTER and names(found) == ["fast"]
    assert found.control is not None and found.control.sequential and found.confirmation is not None
    assert found.confirmation.sequential and {pair.process for pair in found.confirmation.pairs} >= {0, 1, 2}
    assert reasons(found)["shy"] == "not here" and reasons(found)["slow"].startswith("slower")
    assert any("in turn" in note for note in found.notes) and not program.alive
    assert found.proof is not None and found.proof.level is Contract.EXACT


def test_what_computes_nothing_is_proved_with_deterministic_operations(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Atomic additions of a GPU's kernels may not repeat themselves; a data technique does not touch them."""
    offer(fetching={"computes": False}, kernels={}, wrong={"computes": False})
    program = Simulated(
        paces(fetching=1.5, kernels=1.4, wrong=1.3),
        result=lambda active: "wrong" if "wrong" in active else "",
        restless=True,
    )
    program.enter(monkeypatch)
    found = searched(tmp_path, Contract.EXACT)
    assert found.refusal is None and names(found) == ["fetching"] and found.verdict is Verdict.FASTER
    assert found.proof is not None and found.proof.level is Contract.EXACT
    assert any("with deterministic operations" in note for note in found.notes)
    assert {"kernels", "wrong"} <= set(reasons(found))
    assert all(each.digests for each in program.started if each.deterministic)


def test_a_gpu_that_takes_one_process_only_has_them_in_turn(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    program = Simulated(paces(fast=1.5), exclusive=True)
    program.enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal is None and found.verdict is Verdict.FASTER and names(found) == ["fast"]
    assert found.control is not None and found.control.sequential and not program.alive


def test_a_gpu_that_somebody_else_has_is_no_fault_of_the_program(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    Simulated(exit_reason=lambda active: ExitReason("busy", "busy or unavailable")).enter(monkeypatch)
    found = searched(tmp_path)
    assert found.refusal is not None and "Another process has the GPU" in found.refusal


def test_a_candidate_that_needs_too_much_for_two_is_still_measured(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(greedy={})
    Simulated(paces(greedy=2), megabytes(300, greedy=-250), memory=800e6).enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == ["greedy"] and found.control is not None and not found.control.sequential


def test_a_short_program_of_which_two_do_not_fit(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(fast={})
    Simulated(paces(fast=2), megabytes(500), memory=800e6, steps=400).enter(monkeypatch)
    found = searched(tmp_path)
    assert names(found) == ["fast"] and found.confirmation is not None and found.confirmation.total_steps == 400


def test_a_gpu_that_others_use_is_said_once(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a program that ran out of memory is measured a second time, with what it needs."""
    offer(lean=LEAN)
    full = ExitReason("oom", "out of memory")
    Simulated(exit_reason=lambda active: None if "lean" in active else full, peak=megabytes(500)).enter(monkeypatch)
    monkeypatch.setattr(neighbours, "memory_in_use", lambda: 30 << 30)
    monkeypatch.setattr(neighbours, "busy_share", lambda: 0.9)
    notes = searched(tmp_path).notes
    assert len([note for note in notes if note.startswith("Other processes held 32.2 GB of a GPU's memory")]) == 1
    assert len([note for note in notes if note.startswith("Other programs were using 90% of the cores")]) == 1


def test_a_first_look_is_closer_where_its_seeds_are_needed_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seeds that happen to lie close together say little of how far seven are apart."""
    seeds = "k1417"  # under which the first three are within 0.1 % of each other, and ten within 0.5 %
    program = Simulated(result=lambda active: seeds, loss=lambda active: 1.009 if active else 1.0).enter(monkeypatch)
    plain = TrialSpec(target(tmp_path))
    new = TrialSpec(plain.program, (("allocator", {}),))
    with TrialPool(isolate=False) as pool:
        untimed = UntimedRunner(pool)
        prover = Prover(untimed, TuneCheckpoint(Ledger.open(tmp_path / "ledger"), plain.program, "tune"), Facts())
        one, other = untimed.run(plain, 300), untimed.run(new, 300)
        assert isinstance(one, Trace) and isinstance(other, Trace)
        first = prover.screened(plain, new, one, other)
        assert first.level is None and "outside the spread of 4 seeds" in first.sentence
        closer = prover.screened(plain, new, one, other, closer=True)
        assert closer.level is Contract.STATISTICAL and "within the spread of 8 seeds" in closer.sentence
        worse = replace(other, losses=[[1.1 * loss for loss in step] for step in other.losses])
        assert prover.screened(plain, new, one, worse, closer=True).level is None
    assert max(spec.seed or 0 for spec in program.started) == 10


def test_a_statistical_technique_of_a_slow_program_has_its_time(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPT of 0.2 s a step left 10 of 18 minutes over, with "no time for a statistical proof"."""
    monkeypatch.setattr("overdrive.proof.runs.granted_cores", lambda: 2)
    monkeypatch.setattr("overdrive.proof.budget.granted_cores", lambda: 2)
    pace = paces(low=1.9, comp=1.08)
    offer(
        low={"contract": Contract.STATISTICAL, "expected_saving": 0.3},
        comp={"contract": Contract.ROUNDING, "expected_saving": 0.15, "usual_start": 30.0},
        idle={"expected_saving": 0.35},
    )
    facts = Facts(shares={"forward": 0.5, "backward": 0.5}, step_seconds=0.22, parameters=2_000_000)
    Simulated(
        lambda names: 22 * pace(names),
        result=lambda active: ", ".join(sorted(active - {"idle"})),
        facts=facts,
        start=5.0,
        takes_time=True,
    ).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL, budget=12 * 60)
    assert "low" in {each.name for each in [*found.adopted, *found.dropped]}, reasons(found)


def slow_steps(offer: Offer, patch: pytest.MonkeyPatch, **more: Any) -> Simulated:
    """1.8 s each, and a statistical technique that takes nearly half of it; on two cores."""
    patch.setattr("overdrive.proof.runs.granted_cores", lambda: 2)
    patch.setattr("overdrive.proof.budget.granted_cores", lambda: 2)
    offer(
        low={"contract": Contract.STATISTICAL, "expected_saving": 0.3},
        comp={"contract": Contract.ROUNDING, "expected_saving": 0.15, "usual_start": 30.0},
    )
    pace = paces(low=1.9, comp=1.3)
    facts = Facts(shares={"forward": 0.5, "backward": 0.5}, step_seconds=1.8, parameters=2_000_000)
    told = {"result": lambda active: "low" if "low" in active else "", "facts": facts, "start": 5.0}
    return Simulated(lambda names: 180 * pace(names), takes_time=True, **{**told, **more}).enter(patch)


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_where_a_duel_is_too_short_for_a_first_look_the_proof_decides(
    right: bool, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of 1.8 s a step was refused bfloat16 under any budget: "17 steps are too few"."""
    slow_steps(offer, monkeypatch, loss=lambda active: 1.0 if right or "low" not in active else 1.3)
    told: list[str] = []
    progress = Progress()
    monkeypatch.setattr(progress, "outcome", told.append)
    found = searched(tmp_path, Contract.STATISTICAL, budget=4 * 3600, progress=progress)
    assert "13 steps are too few for a first look at its result: the proof of the whole plan decides" in told[1]
    assert found.verdict is Verdict.FASTER and found.proof is not None
    assert names(found) == (["low", "comp"] if right else ["comp"]), told
    assert (found.proof.level is Contract.STATISTICAL) is right


def test_what_the_budget_lacks_for_a_proof_is_told(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = slow_steps(offer, monkeypatch)
    monkeypatch.setattr("overdrive.tuner.tune.measure_untried", lambda *_: None)
    lacks = re.fullmatch(
        r"not tried: no time is left for a statistical proof: the budget lacks (\d+) min at least",
        reasons(searched(tmp_path, Contract.STATISTICAL, budget=20 * 60))["low"],
    )
    assert lacks and int(lacks[1]) > 0

    def proved(share: float) -> bool:
        """With so much of what it lacks."""
        told: list[str] = []
        progress = Progress()
        monkeypatch.setattr(progress, "stage", told.append)
        folder = tmp_path / str(share)
        folder.mkdir()
        program.spent = 0.0
        searched(folder, Contract.STATISTICAL, budget=(20 + share * int(lacks[1])) * 60, progress=progress)
        return any(each.startswith("proof: low") for each in told)

    assert not proved(0.9) and proved(1.5)
