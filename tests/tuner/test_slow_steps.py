"""Programs whose steps take long: one duel is selection and confirmation, and the screening is as short as it can be.

Trials are only numbers (`tests.simulated`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import ExitReason
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.confirmation import FEWEST
from overdrive.evidence.speed import Verdict
from overdrive.trials.duel import Duel, full_processes
from overdrive.tuner.finalise import Finaliser
from overdrive.tuner.findings import Findings
from overdrive.tuner.gain_with_screening import gain_with_screening
from overdrive.tuner.reasons import no_faster
from overdrive.tuner.result import result_of
from overdrive.tuner.schedule import Schedule
from tests.simulated import Names, Offer, Simulated, offer, searched
from tests.tuner.test_screened_tune import Told
from tests.tuner.test_stopped import Stopped

__all__ = ["offer"]  # a fixture

STIFF = {"environment": lambda self, settings: {"ANY": "1"}}
OURS = {"switchable": True}
START, STEP = 8.0, 0.75  # seconds


def program(chance: int = 1, jitter: float = 0.04, spread: float = 0.02, **gains: float) -> Simulated:
    def seconds(names: Names) -> float:
        took = STEP
        for name in names:
            took /= gains.get(name, 1.0)
        return took

    facts = Facts(shares={"forward": 0.5, "backward": 0.5}, step_seconds=STEP)
    return Simulated(seconds, start=START, takes_time=True, jitter=jitter, spread=spread, chance=chance, facts=facts)


def duels_begun(told: Told) -> list[str]:
    return [each for each in told.stages if " against plain" in each or each.startswith("confirmation")]


def with_two_that_gain(
    folder: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, budget: float
) -> tuple[Findings, Told]:
    offer(memory=STIFF, idle=STIFF, layout=OURS, nothing=OURS)
    program(memory=1.4, layout=1.25).enter(monkeypatch)
    told = Told()
    return searched(folder, progress=told, budget=budget), told


def test_its_first_duel_is_its_confirmation_where_there_is_no_time_for_both(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, told = with_two_that_gain(tmp_path, offer, monkeypatch, budget=300.0)
    assert found.verdict is Verdict.FASTER and found.confirmed and found.standing is None
    assert len(duels_begun(told)) == 1 and "memory" in duels_begun(told)[0]
    duel = found.confirmation
    assert duel is found.adopted[0].duel and full_processes(duel.kept()) == FEWEST
    named = [each.name for each in result_of(found, "plan.toml").duels]
    assert len(named) == len(set(named)) == 2  # the control, and this one once
    assert found.seconds <= 300.0 + 20.0  # what was begun is made to its end


def test_where_there_is_time_for_both_the_confirmation_comes_after_the_search(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, told = with_two_that_gain(tmp_path, offer, monkeypatch, budget=900.0)
    assert found.confirmed and found.confirmation is not found.adopted[0].duel
    assert duels_begun(told)[-1].startswith("confirmation") and len(duels_begun(told)) > 1


def test_what_confirmed_itself_is_confirmed_afresh_where_its_duel_has_left_the_time(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of public graph attention 134 s of five minutes were left over, beside 1.66x [1.01, 2.44]."""
    monkeypatch.setattr(Schedule, "confirms_at_once", lambda *_: True)  # as was reckoned before any duel
    offer(memory=STIFF, idle=STIFF)
    program(memory=1.4).enter(monkeypatch)
    told = Told()
    found = searched(tmp_path, progress=told, budget=600.0)
    duel = found.confirmation
    assert found.confirmed and duel is not None and duel is not found.adopted[0].duel
    assert duels_begun(told)[-1].startswith("confirmation") and full_processes(duel.kept()) > FEWEST
    assert found.seconds <= 600.0 + 20.0


def test_what_gains_too_little_has_one_pair_of_processes_and_is_not_saved_by_its_screening(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A screening that was lucky, and a duel that shows nothing: both together would say 8 %."""
    offer(lucky={"expected_saving": 0.4})
    simulated = program(jitter=0.01, spread=0.0).enter(monkeypatch)
    lucky = Interval(1.05, 1.12, 1.19)
    monkeypatch.setattr("overdrive.tuner.screened.Screened.speedup", lambda self, chosen: lucky)
    told = Told()
    found = searched(tmp_path, progress=told, budget=180.0)
    assert not found.adopted and found.verdict is Verdict.INCONCLUSIVE
    duel = next(each.duel for each in found.rejected if each.name == "lucky")
    assert isinstance(duel, Duel) and duel.published and len({pair.process for pair in duel.pairs}) == 1
    assert simulated.spent < 180.0


def test_what_is_not_told_by_its_confirmation_counts_once_with_its_screening(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pairs are in what the search says: the interval is no narrower than that."""
    offer(memory=STIFF, idle=STIFF, layout=OURS, nothing=OURS)
    seen = 0
    for chance in range(10):
        (tmp_path / str(chance)).mkdir()
        with monkeypatch.context() as patch:
            program(chance, jitter=0.12, memory=1.2).enter(patch)
            found = searched(tmp_path / str(chance), budget=300.0)
        if found.standing is None or found.confirmation is not (found.adopted or [None])[0].duel:  # type: ignore[union-attr]
            continue
        seen += 1
        both = gain_with_screening(found, found.confirmation)
        assert found.standing.interval is not None and both is not None
        told = found.standing.interval
        assert told.low <= both.low and told.high - told.low >= both.high - both.low
        assert "not confirmed" in found.standing.basis
    assert seen


def test_hashes_do_not_take_the_time_of_a_confirmation(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its duel has shown it exact, and its confirmation compares the bits once more."""
    offer(memory={"expected_saving": 0.4}, other={"expected_saving": 0.02})
    simulated = program(memory=1.7).enter(monkeypatch)
    found = searched(tmp_path, Contract.EXACT, budget=180.0)
    assert found.confirmed and found.proof is not None and "in the duels" in found.proof.sentence
    assert not any(each.digests for each in simulated.started if each.techniques)


def measured(found: Findings) -> int:
    return sum(1 for interval in found.screened.speedups.values() if interval.high < 2)


def test_all_that_can_be_switched_is_measured_beside_what_ruins_a_step(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(memory=STIFF, idle=STIFF, layout=OURS, nothing=OURS, ruinous=OURS)
    program(memory=1.2, layout=1.2, ruinous=0.6).enter(monkeypatch)
    found = searched(tmp_path, budget=300.0)
    assert measured(found) == 5 and found.screened.pairs >= 20
    # It left at the first look: of the pairs that follow none compares it.
    effects = found.screened.effects[0]
    assert effects.seen["ruinous"] <= 8 < effects.seen["layout"]


@pytest.mark.parametrize("sequential", [False, True])
def test_a_program_that_is_too_slow_for_the_budget_is_told_so_in_time(
    sequential: bool, tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 s a step: two minutes took five, and eleven where two do not fit into the memory."""
    offer(fast={})
    memory = {"memory": 800e6, "peak": lambda on: 500_000_000} if sequential else {}
    Simulated(lambda on: 30.0, start=38.0, takes_time=True, **memory).enter(monkeypatch)
    found = searched(tmp_path, budget=120.0)
    assert found.refusal is not None and found.refusal.startswith("The program is too slow to be measured: ")
    assert "With more time: `overdrive tune --budget 5m " in found.refusal
    assert found.seconds < 120.0 + 3 * 30.0  # a step of each side is under way, and the first of another process


def test_what_a_first_process_showed_stands_where_the_second_comes_too_late() -> None:
    spec = TrialSpec(Program("x.py"))
    for kind, stands in (("late", True), ("ended", True), ("crash", False)):
        duel = Duel(spec, spec, [], Verdict.FASTER, Interval(1.04, 1.07, 1.1), exit_reason=ExitReason(kind))
        assert (no_faster(duel) is None) is stands


def test_a_tune_that_goes_on_does_not_confirm_a_plan_by_the_duel_that_chose_it(
    tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Schedule, "confirms_at_once", lambda *_: True)
    offer(memory=STIFF, idle=STIFF)
    with monkeypatch.context() as patch:
        first = program(memory=1.4).enter(patch)
        found = searched(tmp_path, progress=Stopped(first, lambda text: text.startswith("confirmation")), budget=600.0)
    assert found.stopped and found.adopted
    program(memory=1.4).enter(monkeypatch)
    found = searched(tmp_path, budget=600.0)
    duel = found.confirmation
    assert found.confirmed and duel is not None and duel.pairs != found.adopted[0].duel.pairs
    found.weigh(False, None)  # had it said too little
    monkeypatch.setattr("overdrive.tuner.finalise.verdict", lambda interval: Verdict.INCONCLUSIVE)
    own = found.adopted[0].duel
    restored = replace(own, verdict=Verdict.INCONCLUSIVE)  # as the ledger gives it: another object
    unused: Any = SimpleNamespace(progress=None)
    combined: list[object] = []
    monkeypatch.setattr("overdrive.tuner.finalise.combined", lambda both: combined.append(both) or both[0])
    Finaliser(found, unused, unused, unused)._standing(restored)
    assert not combined, "what it says is in what the search says"
