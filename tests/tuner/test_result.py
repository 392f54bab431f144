from __future__ import annotations

import dataclasses

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.interval import Interval
from overdrive.core.objective import TIME, Objective
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Pair, Verdict
from overdrive.report.words import sentence
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.between_epochs import BetweenEpochs
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Standing
from overdrive.tuner.result import result_of
from overdrive.tuner.starts import Starts

PROGRAM = Program("train.py")
ITEM = {"wait": 2e-4, "read": 1e-5, "decode": 1.7e-4, "transform": 0.0, "collate": 8e-6}


def facts(loader: LoaderFacts) -> Facts:
    return Facts(step_seconds=0.01, shares={"data": 0.1, "forward": 0.9}, loaders=(loader,))


def test_what_only_the_untouched_program_shows_of_its_items_holds_for_the_plan_too() -> None:
    """The samples are kept: nobody fetches them any more. That they draw nothing is known all the same."""
    made = LoaderFacts(64, 0, True, 640, 0.009, seconds_per_item=ITEM, draws=False)
    kept = LoaderFacts(64, 0, True, 640, 0.001, seconds_per_item={"wait": 1e-5}, own_fetch=False)
    plain = TrialSpec(PROGRAM)
    new = TrialSpec(PROGRAM, (("sample_cache", {"memory_share": 0.5}),))
    sides = {"old_side": Side(2.0, 100), "new_side": Side(1.0, 100)}
    pairs = [Pair(0, 1, 2.0, 1.0, True)]
    control = Duel(plain, plain, pairs, Verdict.SAME, None, **sides, old_facts=facts(made))
    won = Duel(plain, new, pairs, Verdict.FASTER, Interval(1.9, 2.0, 2.1), **sides, new_facts=facts(kept))
    found = Findings(PROGRAM, Contract.ROUNDING, control=control)
    found.controlled(control.old_facts)
    found.adopt(Adopted("sample_cache", {"memory_share": 0.5}, won, Check(Contract.EXACT, "the same")))
    (rejected,) = [each for each in result_of(found, "").rejected if each.name == "prefix_cache"]
    assert (rejected.kind, rejected.reason.split(":")[0]) == ("unfit", "fetching an item draws no random numbers")


def faster(inference: bool, objective: Objective) -> Findings:
    """A plan that was confirmed, of a program of 1,000 steps."""
    timed = "call" if objective.latency else "step"
    plain = TrialSpec(PROGRAM, clock="inference" if inference else "training", timed=timed)
    new = dataclasses.replace(plain, techniques=(("threads", {"count": 1}),))
    calls = tuple(0.01 + 1e-5 * number for number in range(40)) if inference else ()
    pairs = [Pair(process, 40, 0.4, 0.2, True, calls=(calls, calls)) for process in range(3) for _ in range(8)]
    sides = {"old_side": Side(2.0, 100, setups=(3.0,)), "new_side": Side(1.0, 100, setups=(3.0,))}
    duel = Duel(plain, new, pairs, Verdict.FASTER, Interval(1.9, 2.0, 2.1), **sides, total_steps=1000)
    found = Findings(PROGRAM, Contract.ROUNDING, objective, inference=inference)
    found.begin(duel)
    found.adopt(Adopted("threads", {"count": 1}, duel, Check(Contract.ROUNDING, "the same")))
    found.plan_is(found.adopted, found.adopted[0].check)
    found.confirm(duel)
    found.weigh(True, None)
    return found


@pytest.mark.parametrize(("objective", "whole"), [(TIME, True), (Objective(latency=True), False)])
def test_of_calls_percentiles_are_told_and_of_calls_alone_no_whole_runs(objective: Objective, whole: bool) -> None:
    """Where its calls alone are timed, what a run takes between two of them is not known."""
    found = faster(True, objective)
    told = result_of(found, "")
    assert told.tuned and isinstance(told.tuned.half, Interval) and told.tuned.epoch_steps is None
    assert bool(told.own_run) is bool(told.whole_run) is (found.run_seconds() is not None) is whole


def test_a_whole_run_begins_as_the_users_own_commands_do() -> None:
    """A trial comes to the beginning of the program's code by another way than `python` and `overdrive run`."""
    found = faster(False, TIME)
    assert found.confirmation
    found.confirmation.old_side = Side(2.0, 100, setups=(3.0,), launches=(0.5,))
    found.confirmation.new_side = Side(1.0, 100, setups=(4.0,), launches=(0.75,))
    of_trials = result_of(found, "")
    assert of_trials.baseline and of_trials.baseline.setup_seconds == 3.0
    found.take_starts(Starts(0.25, 1.25))
    told = result_of(found, "")
    assert told.baseline and told.baseline.setup_seconds == 2.75
    assert told.tuned and told.tuned.setup_seconds == 4.5
    assert told.own_run and of_trials.own_run and told.own_run.before == of_trials.own_run.before - 0.25


def test_of_a_training_what_comes_between_epochs_is_in_its_whole_run() -> None:
    found = faster(False, TIME)
    alone = result_of(found, "")
    assert "without evaluations" in alone.notes[0] and alone.own_run
    found.take_between_epochs(BetweenEpochs(100.0, 3.0, 1.0))
    told = result_of(found, "")
    assert told.own_run and told.own_run.before == pytest.approx((alone.own_run.before or 0) + 30)
    assert told.own_run.after == pytest.approx((alone.own_run.after or 0) + 10)
    assert "3 s after each 100 steps, 1 s under the plan" in told.notes[0]


def test_where_the_screening_says_less_than_the_duel_all_figures_are_by_what_is_stated() -> None:
    found = faster(False, TIME)
    alone = result_of(found, "")
    duel = found.measured()
    found.weigh(False, Standing("established in the search", Interval(1.2, 1.6, 2.1), duel))
    told = result_of(found, "")
    assert told.speedup and told.baseline and told.tuned and alone.baseline
    assert told.baseline.seconds_per_step == alone.baseline.seconds_per_step == pytest.approx(0.01)
    assert told.tuned.seconds_per_step == pytest.approx(0.01 / 1.6)
    assert told.whole_run[-1].speedup == pytest.approx(1.6, rel=0.01)


def test_what_was_measured_while_others_held_the_cores_is_told_as_such() -> None:
    found = faster(False, TIME)
    quiet = result_of(found, "")
    assert not quiet.beside_others and "cores" not in sentence(quiet)
    assert found.control and found.confirmation
    one = found.confirmation.pairs[0]
    usual = dataclasses.replace(one, waited=(0.0, 0.0), others=(0.0, 0.0))
    slow = dataclasses.replace(one, seconds_a=4.0, seconds_b=2.0, waited=(0.5, 0.5), others=(0.9, 0.9))
    pairs = [dataclasses.replace(each, process=process) for process in range(3) for each in [usual] * 3 + [slow] * 10]
    found.confirm(dataclasses.replace(found.confirmation, pairs=pairs))
    told = result_of(found, "")
    assert told.beside_others and "; while other programs held the cores)" in sentence(told)
    (slowed,) = [each for each in told.notes if "others held the cores" in each]
    assert slowed.startswith("When the tune began, a step of the untouched program took 10 ms; beside the plan it took")
