from __future__ import annotations

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Pair, Verdict
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted
from overdrive.tuner.result import result_of

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
