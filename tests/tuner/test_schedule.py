"""How a tune's budget is shared out."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.confirmation import FEWEST
from overdrive.evidence.speed import Pair
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.duel_runner import SCREENED
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.schedule import Schedule

NOW = 1000.0


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: NOW)


def schedule(left: float, adopted: int) -> Schedule:
    """So many seconds before the proof begins; every duel's process started in one second."""
    found = Findings(Program("script.py", ()), Contract.EXACT, started=NOW)  # not the seconds that this machine runs
    spec = TrialSpec(found.program, ())
    duel = Duel(spec, spec, old_side=Side(setups=(1.0,)), new_side=Side(setups=(1.0,)))
    found.control = duel
    check: Any = SimpleNamespace(level=Contract.EXACT)
    found.adopted = [Adopted("threads", {}, duel, check) for _ in range(adopted)]
    prover: Any = SimpleNamespace(seconds_needed=lambda level: 10.0)
    return Schedule(found, NOW + left + 10.0, prover)


def with_slow_steps(made: Schedule) -> Schedule:
    """Of two seconds."""
    control = made._found.control
    assert control is not None
    control.pairs = [Pair(0, 1, 2.0, 2.0, True)]
    control.old_side = Side(seconds=20.0, steps=10, setups=(1.0,))
    return made


def test_contributions_are_reserved_for_what_may_be_adopted_next() -> None:
    made = schedule(100.0, adopted=2)
    assert made.proof_begins() == NOW + 100.0
    assert made.selection_ends() == NOW + 100.0 - made.durations.of_field(8)


def test_nothing_is_reserved_where_nothing_is_adopted_but_the_proof_of_what_is_not_exact() -> None:
    assert schedule(100.0, adopted=0).selection_ends() == NOW + 110.0
    assert schedule(100.0, adopted=0).selection_ends(Contract.ROUNDING) == NOW + 100.0


def test_time_in_which_the_contributions_no_longer_fit_is_for_candidates() -> None:
    enough = schedule(0.0, adopted=2).durations.of_field(6) + 1.0
    assert not schedule(enough, adopted=2).time_for_another()  # the contributions come next
    late = schedule(enough - 2.0, adopted=2)
    assert late.selection_ends() == late.proof_begins() and late.time_for_another()


def test_what_is_proved_after_its_duel_needs_time_for_both() -> None:
    first_look = 2.0 + 3 * 4.0 + 6 * 4.0 + 2 * 4.0  # start, warm-up, pairs of steps that make a process, a look into it
    for left, enough in ((first_look + 1.0, True), (first_look - 1.0, False)):
        made = with_slow_steps(schedule(100.0, adopted=1))
        made.contributions_known = True
        made.deadline += NOW + left - made.proof_begins(Contract.ROUNDING)
        assert made.time_for_another(level=Contract.ROUNDING) is enough
        assert made.time_for_another()  # an exact one is proved in its duel


def test_a_confirmation_of_slow_steps_has_time_for_warming_them_up() -> None:
    made = with_slow_steps(schedule(100.0, adopted=0))
    blocks, warm_up, looked_into = 6 * 4.0, 3 * 4.0, (2 + 1) * 4.0
    assert made.deadline - made.confirmation_begins() == 3 * (2.0 + warm_up + blocks) + looked_into


def test_a_run_duel_of_slow_steps_in_the_whole_plan_has_time_for_its_blocks() -> None:
    made = with_slow_steps(schedule(100.0, adopted=1))
    needed = 2 * (2.0 + 3 * 4.0 + 6 * 4.0) + 2 * 4.0
    for left, enough in ((needed + 1.0, True), (needed - 1.0, False)):
        made.deadline += NOW + left - made.proof_begins()
        assert made.time_to_run_duel_again() is enough


def test_a_confirmation_has_as_many_pairs_of_processes_as_there_is_time_for() -> None:
    made = with_slow_steps(schedule(100.0, adopted=1))
    one = 2.0 + 3 * 4.0 + 6 * 4.0
    for left, pairs in ((10.0, 3), (5.9 * one, 5), (1e6, 8)):
        made.deadline = NOW + left
        rules = made.confirmation_rules()
        assert rules.processes == pairs and rules.most_processes == 8 and rules.patient
    made.deadline = NOW + 10.0
    made._found.rejected = [Rejected("compile", {}, "not tried", kind="time")]
    assert made.confirmation_rules().most_processes == 4, "what is left over is the time to measure it"


def test_a_tenth_of_the_budget_is_kept_for_more_than_three_pairs() -> None:
    """And a look that tells may take the time of those."""
    made = with_slow_steps(schedule(100.0, adopted=1))
    made._found.started = NOW
    one, once = 2.0 + 3 * 4.0 + 6 * 4.0, (2 + 1) * 4.0
    made.deadline = NOW + 10 * (5.5 * one + once)
    assert made.deadline - made.confirmation_begins() == 5 * one + once
    assert made.shortest_confirmation_begins() - made.confirmation_begins() == 2 * one


def test_what_pairs_of_processes_took_is_what_the_next_are_reckoned_to_take() -> None:
    made = with_slow_steps(schedule(100.0, adopted=0))
    reckoned = made.deadline - made.confirmation_begins()
    spec = made._found.control.old if made._found.control else None
    assert spec is not None
    seen = Duel(spec, spec, pairs=[Pair(0, 1, 2.0, 2.0, True)], beside=[7.0, 5.0, 40.0])
    made._found.rejected = [Rejected("threads", {}, "slower", duel=seen)]
    assert made.deadline - made.confirmation_begins() == reckoned - 3 * (2.0 + 3 * 4.0 - 7.0)
    seen.beside = [0.1]
    assert made.deadline - made.confirmation_begins() == reckoned - 3 * (2.0 + 3 * 4.0 - 1.0)  # one starts at the least


def test_what_comes_between_epochs_keeps_its_time_where_that_is_little() -> None:
    """Two starts of a second, and twice twelve steps of either side."""
    for left, seconds, kept in ((190.0, 0.1, 2.0 + 4 * 12 * 0.1), (190.0, 0.5, 0.0), (50.0, 0.1, 0.0)):
        made = schedule(left, adopted=0)
        control = made._found.control
        assert control is not None
        control.old_side = Side(seconds=100 * seconds, steps=100, setups=(1.0,))
        assert made.kept_for_epochs(12) == pytest.approx(kept)
    made = schedule(190.0, adopted=0)
    made.shortest_confirmation_begins = lambda: NOW + 1.0  # type: ignore[method-assign]
    assert made.kept_for_epochs(12) == 0.0  # a confirmation is worth more


def test_four_pairs_of_processes_confirm_where_there_is_time_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = schedule(100.0, adopted=0)
    monkeypatch.setattr(made._found, "gain", lambda: 4.0)  # three would tell it narrowly enough
    control = made._found.control
    assert control is not None
    control.pairs = [Pair(0, 4, 0.1, 0.1, True)]
    control.old_side = Side(seconds=10.0, steps=400, setups=(1.0,))
    assert made.confirmation_rules().processes == 4
    made.deadline = NOW + 20.0
    assert made.confirmation_rules().processes == 3


def test_what_is_proved_by_seeds_keeps_the_time_of_as_many_as_there_is_time_for_when_it_joined() -> None:
    """Two seconds a seed, and ten that are kept, whatever joins later."""
    for left, kept in ((25.0, 10), (18.0, 7), (12.0, 5), (4.0, 5)):
        made = schedule(left - 10.0, adopted=0)
        made._prover.seconds_needed = lambda level, plain=None, gain=1.0, seeds=5: 2.0 * seeds
        assert made.proof_begins(Contract.STATISTICAL) == NOW + left - 2.0 * 5  # before anything of it has joined
        check: Any = SimpleNamespace(level=Contract.STATISTICAL, pending=False)
        assert made._found.control is not None
        made._found.adopted = [Adopted("autocast", {}, made._found.control, check)]
        assert made.proof_begins() == NOW + left - 2.0 * kept
        made.deadline += 20.0  # more seeds would have time now: what was kept stays
        assert made.proof_begins() == NOW + left + 20.0 - 2.0 * kept


def test_the_rest_of_a_statistical_plan_is_proved_before_the_shortest_confirmation_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = schedule(100.0, adopted=1)
    monkeypatch.setattr(made, "confirmation_begins", lambda: NOW + 80.0)
    monkeypatch.setattr(made, "shortest_confirmation_begins", lambda: NOW + 90.0)
    assert made.seeds_end(0.0) == NOW + 80.0 and made.seeds_end(5.0) == NOW + 80.0
    assert made.seeds_end(30.0) == NOW + 60.0


def test_what_seeds_prove_is_joined_where_there_is_time_for_the_other_proof_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = {Contract.ROUNDING: 40.0, Contract.STATISTICAL: 70.0}
    made = schedule(0.0, adopted=0)
    made._prover.seconds_needed = lambda level, plain=None, gain=1.0, seeds=5: needed[level]
    duels = 2 * made.durations.of_duel(SCREENED)
    made.deadline = NOW + 40.0 + 70.0 + duels + 1.0
    assert made.time_to_be_joined(0.2, Contract.ROUNDING)
    made.deadline -= 2.0
    assert not made.time_to_be_joined(0.2, Contract.ROUNDING)


def test_what_is_to_be_established_needs_the_time_of_its_confirmation_too() -> None:
    late = with_slow_steps(schedule(0.0, adopted=0))
    confirmation = late.durations.of_confirmation(FEWEST)
    assert confirmation > 60
    assert late.seconds_missing_to_establish(100.0) == pytest.approx(100.0 + confirmation - 10.0)
    assert late.seconds_missing(0.0, Contract.EXACT, 0.1) < 60  # that its duel needs alone


@pytest.mark.parametrize("adopted", [1, 2])
def test_what_was_kept_for_contributions_is_for_candidates_once_the_plan_is_proved(adopted: int) -> None:
    made = schedule(200.0, adopted=adopted)
    proved: Any = SimpleNamespace(level=Contract.EXACT, statistical=None)
    assert not made.proved_sooner(None) and made.selection_ends() < made.proof_begins()
    assert made.proved_sooner(proved) and made.selection_ends() == made.proof_begins()


def test_another_attempt_has_its_whole_duel_before_the_last_proof() -> None:
    """It was compared with when a confirmation begins, and its duel was cut short where the proof did."""
    made = with_slow_steps(schedule(100.0, adopted=1))
    made.contributions_known = True
    needed = made.durations.of_duel(SCREENED)
    for left, enough in ((needed + 1.0, True), (needed - 1.0, False)):
        made.deadline += NOW + left - made.proof_begins()
        assert made.time_for_all(needed) and made.time_for_whole_duel(0.0, Contract.EXACT, 0.1) is enough


def test_processes_that_run_in_turn_are_reckoned_with_all_that_they_take() -> None:
    made = with_slow_steps(schedule(100.0, adopted=0))
    control = made._found.control
    assert control is not None
    warm_up, looked_into = 2.0 + 3 * 4.0, 2 * 4.0
    assert made.durations.of_duel(SCREENED) == warm_up + 6 * 4.0 + looked_into
    control.sequential = True
    assert made.durations.of_duel(SCREENED) == 3 * (warm_up + 10 * 4.0) + looked_into + 3 * 4.0
    assert made.durations.of_confirmation(4) == 4 * (warm_up + 10 * 4.0) + looked_into + 3 * 4.0
