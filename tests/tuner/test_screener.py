"""Screening before the duels: which candidates get one, and what is said of the others. Trials are only numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.screening import Factor, Observation, Row, on_in
from overdrive.evidence.screening.beliefs import Belief
from overdrive.evidence.speed import Verdict
from overdrive.report.techniques import tried
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.duel import Duel, Side
from overdrive.tuner import screener
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.next_step import next_step
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.result import leftovers, result_of
from overdrive.tuner.screened import Screened, gains_elsewhere
from overdrive.tuner.screener import Screener
from overdrive.tuner.strategies import Candidate
from overdrive.tuner.strategies.greedy import Greedy
from tests.simulated import Offer, offer

__all__ = ["offer"]  # a fixture


SECONDS = {Contract.EXACT: 20.0, Contract.ROUNDING: 90.0, Contract.STATISTICAL: 150.0}
# No more than it takes to try a candidate.
SURE = {"seconds_missing_to_establish": lambda seconds: 0.0}
TIME: Any = SimpleNamespace(
    time_for_another=lambda *_, **__: True,
    time_for_all=lambda seconds: seconds < 160.0,
    durations=SimpleNamespace(to_adopt=lambda level, promise, start: SECONDS[level] + start),
    cannot_prove=lambda level: "",
)


class Clock:
    """Only trials take time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Trials:
    """Stands in for live trials: gains are logarithms of speedups."""

    clock = Clock()
    pair_seconds = 0.1

    gains: ClassVar[Mapping[str, float]] = {}
    together: ClassVar[Mapping[tuple[str, str], float]] = {}  # of two, beside that
    crashes: ClassVar[Collection[str]] = ()
    hangs_with: ClassVar[Collection[str]] = ()  # all of these on at once
    dies_at_start: ClassVar[Collection[str]] = ()  # all together
    leaves_out: ClassVar[Mapping[str, str]] = {}
    length: ClassVar[int] = 10**9  # pairs of blocks, after which the program ends
    busy: ClassVar[int] = 0  # of eight pairs, in how many a neighbour is at work
    started: ClassVar[list[list[str]]] = []
    spread: ClassVar[float] = 0.0  # between processes, one standard deviation

    def __init__(self, pool: Any, spec: TrialSpec, number: int, began: float) -> None:
        self.on: tuple[str, ...] = ()
        self.start_seconds = 5.0
        self.left_out: dict[str, str] = {}
        self._names = [name for name, _ in spec.techniques]
        self._number = number
        self._made = 0
        self._rng = np.random.default_rng(number)
        self._stiff = {name for name in self._names if catalogue()[name].process_level}
        self._own = self.spread * self._rng.standard_normal()
        self.started.append(self._names)

    def warm_up(self, rows: Sequence[Row], factors: Sequence[Factor], until: float) -> float:
        if set(self.crashes) & self._stiff:
            raise TrialOver(ExitReason("crash", "SIGSEGV before the first step"))
        if self.dies_at_start and set(self.dies_at_start) <= set(self._names):
            raise TrialOver(ExitReason("oom", "killed by the system"))
        assert rows, "its steps are shared out among them"
        for row in rows:
            self._switch(row, factors)
        return 0.01

    def _switch(self, row: Row, factors: Sequence[Factor]) -> set[str]:
        self.on = on_in(row, factors)
        if dead := sorted(set(self.on) & set(self.crashes) & set(self._names)):
            raise TrialOver(ExitReason("crash", f"SIGSEGV with {dead[0]}"))
        if self.hangs_with and set(self.hangs_with) <= set(self.on):
            raise TrialOver(ExitReason("hang", "no step for 60 s"))
        return set(self.on)

    def pair(self, number: int, rows: Sequence[Row], factors: Sequence[Factor]) -> list[Observation]:
        self._made += 1
        self.clock.now += self.pair_seconds
        if self._made > self.length:
            raise TrialOver(ExitReason("ended", "after 100 steps"))
        self.left_out = {name: why for name, why in self.leaves_out.items() if name in self._names}
        found = []
        for half, row in enumerate(rows):
            on = (self._switch(row, factors) | self._stiff) - self.left_out.keys()
            noise = 0.03 * self._rng.standard_normal() + self._own
            together = sum(gain for pair, gain in self.together.items() if set(pair) <= on)
            seconds = math.log(0.01) - sum(self.gains.get(name, 0.0) for name in on) - together + noise
            busy = number % 8 < self.busy
            found.append(Observation(self._number, number, row, seconds, number + half / 2, disturbed=busy))
        return found

    def stop(self) -> None: ...


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> type[Trials]:
    fresh = type("Fresh", (Trials,), {"started": []})
    monkeypatch.setattr(screener, "ScreeningTrial", fresh)
    monkeypatch.setattr(screener, "time", fresh.clock)
    return fresh


class Kept:
    """A ledger's place for a screening, and what other scripts' found."""

    def __init__(self, gains: Mapping[str, list[tuple[float, float]]] | None = None) -> None:
        self.state: dict[str, Any] | None = None
        self.records = gains or {}
        self.found: Mapping[str, tuple[float, float]] = {}

    def gains(self) -> Mapping[str, list[tuple[float, float]]]:
        return self.records

    def remember_gains(self, gains: Mapping[str, tuple[float, float]]) -> None:
        self.found = gains

    def screening(self) -> dict[str, Any] | None:
        return json.loads(json.dumps(self.state))  # type: ignore[no-any-return]

    def remember_screening(self, state: dict[str, Any]) -> None:
        self.state = state


def screening_ends(began: float, choice: Contract = Contract.EXACT, promise: float = 0.0) -> float:
    return began + (12.0 if choice is Contract.STATISTICAL and promise > 0.2 else 24.0)


def screened(
    contract: Contract = Contract.ROUNDING, kept: Kept | None = None, step: float = 0.01
) -> tuple[Screened, Findings]:
    """`step`: seconds."""
    found = Findings(Program("x.py", ()), contract)
    found.begin(Duel(found.spec(), found.spec(), old_side=Side(step, 1)))
    schedule: Any = SimpleNamespace(screening_ends=screening_ends)
    duels: Any = SimpleNamespace(pool=None, progress=Progress(), checkpoint=kept or Kept())
    return Screener(found, duels, schedule, gains_elsewhere(found.facts, duels.checkpoint)).run(), found


OURS = {"switchable": True}


def bring(offer: Offer, monkeypatch: pytest.MonkeyPatch, **named: Mapping[str, Any]) -> None:
    """These techniques, and none of the catalogue's own."""
    offer(**{name: {**OURS, **declared} for name, declared in named.items()})
    for name, technique in catalogue().items():
        if name not in named:
            monkeypatch.setattr(type(technique), "frameworks", ())


@pytest.mark.parametrize("level", [Contract.ROUNDING, Contract.STATISTICAL])
def test_a_choice_that_needs_a_long_proof_ends_the_screening_sooner(
    level: Contract, trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclear = {f"unclear{each}": {} for each in range(8)}
    bring(offer, monkeypatch, fast={"contract": level}, **unclear)
    trials.gains = {"fast": 0.4, **dict.fromkeys(unclear, 0.02)}
    seen, _ = screened(Contract.STATISTICAL)
    assert "fast" in seen.choice
    assert (seen.seconds < 16.0) == (level is Contract.STATISTICAL), seen.seconds


def test_what_does_nothing_needs_no_duel(trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(offer, monkeypatch, fast={}, faster={}, idle={}, slow={})
    trials.gains = {"fast": 0.1, "faster": 0.6, "slow": -0.5}
    seen, found = screened()
    assert seen.hopeless("fast") is None and seen.hopeless("faster") is None
    assert "no gain" in (seen.hopeless("idle") or "") and "0.6" in (seen.hopeless("slow") or "")
    assert seen.speedups["faster"].low < math.exp(0.6) < seen.speedups["faster"].high
    found.screened = seen
    asked = Greedy(found, TIME, Progress())
    waiting = sorted(asked._waiting(), key=lambda each: -each[1])
    assert [each.chosen[0][0] for each, _ in waiting][:2] == ["faster", "fast"]
    assert {"idle", "slow"} <= {each.name for each in found.rejected}


def test_what_gains_only_beside_another_has_its_duel(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, one={}, other={}, idle={}, lazy={})
    trials.gains, trials.together = {"one": 0.1}, {("one", "other"): 0.5}
    seen, _ = screened()
    assert seen.hopeless("one") is None and seen.hopeless("other") is None
    assert seen.hopeless("idle") and seen.speedups["other"].low > 1.3


@pytest.mark.parametrize(("gain", "waits"), [(-0.2, False), (0.0, True)])
def test_what_usually_saves_much_has_its_duel_unless_it_was_slower(
    gain: float, waits: bool, trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of public nanoGPT `autocast` was screened at 0.78x [0.75, 0.81], and waited for a duel."""
    bring(offer, monkeypatch, fast={}, much={"expected_saving": 0.9})
    trials.gains = {"fast": 0.3, "much": gain}
    seen, found = screened()
    found.screened = seen
    found.controlled(facts=replace(found.facts, shares={"forward": 1.0}))
    names = {each.names[0] for each, _ in Greedy(found, TIME, Progress())._waiting()}
    assert ("much" in names, "much" in {each.name for each in found.rejected}) == (waits, not waits)


def test_what_gains_nothing_beside_what_is_adopted_needs_no_duel_any_more(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a public Transformer `tf32`, 0.95x [0.91, 0.98] beside `autocast`, had a duel after that was adopted."""
    bring(offer, monkeypatch, narrow={}, tensor={}, other={})
    trials.gains, trials.together = {"narrow": 0.4, "tensor": 0.15, "other": 0.1}, {("narrow", "tensor"): -0.4}
    seen, found = screened()
    assert seen.hopeless("tensor") is None and seen.hopeless("other", [("narrow", {})]) is None
    found.screened = seen
    check = Check(True, "the same", Contract.EXACT)
    found.adopted = [Adopted("narrow", {}, Duel(found.spec(), found.spec()), check)]
    names = {each.names[0] for each, _ in Greedy(found, TIME, Progress())._waiting()}
    told = {each.name: each.reason for each in found.rejected}
    assert "tensor" not in names and "other" in names and told["tensor"].startswith("no gain beside narrow: 0.7")


@pytest.mark.fault(2)
def test_one_that_kills_its_process_is_left_out_by_name(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, fatal={})
    trials.gains, trials.crashes = {"fast": 0.3}, {"fatal"}
    seen, _ = screened()
    assert "SIGSEGV" in (seen.hopeless("fatal") or "") and seen.hopeless("fast") is None
    assert "fatal" not in trials.started[-1] and seen.pairs >= 24


@pytest.mark.parametrize(
    ("fatal", "screens"),
    [("one", {"three", "two"}), ("two", {"four", "one"}), ("four two", {"four", "one"}), ("", None)],
)
def test_where_all_together_cannot_start_half_of_them_is_screened(
    fatal: str, screens: set[str] | None, trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need more memory than there is, say, or one of them kills each process before its first step."""
    names = ["four", "one", "three", "two"]
    bring(offer, monkeypatch, **{name: {} for name in names})
    trials.gains, trials.dies_at_start, kept = dict.fromkeys(names, 0.3), fatal.split(), Kept()
    seen, _ = screened(kept=kept)
    assert set(screened(kept=kept)[0].beliefs) == set(seen.beliefs), "of a tune that was broken off"
    assert set(seen.beliefs) == set(seen.choice) == (screens or set(names))
    apart = set(names) - set(seen.beliefs)
    assert all(seen.hopeless(name) is None and seen.saving(name) is None for name in apart), "each has its own duel"
    assert len([each for each in trials.started if set(fatal.split()) <= set(each)]) <= 2 or not fatal


@pytest.mark.fault(3)
def test_of_two_that_hang_only_together_one_at_least_has_a_duel_and_the_others_are_screened(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["fast", "one", "other", *(f"idle{number}" for number in range(7))]
    bring(offer, monkeypatch, **{name: {} for name in names})
    trials.gains, trials.hangs_with, kept = {"fast": 0.3, "one": 0.2, "other": 0.2}, {"one", "other"}, Kept()
    seen, _ = screened(kept=kept)
    assert seen.pairs >= 24 and "fast" in seen.choice and not seen.failed
    screens = set(seen.beliefs)
    assert len(screens & {"one", "other"}) <= 1 and len(screens) >= 6
    assert all(seen.hopeless(name) is None and seen.saving(name) is None for name in set(names) - screens)
    assert len([each for each in trials.started if {"one", "other"} <= set(each)]) == 2
    assert set(screened(kept=kept)[0].beliefs) == screens, "of a tune that was broken off"


@pytest.mark.fault(3)
def test_a_program_that_dies_whatever_is_on_ends_the_screening_soon(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, **{f"idle{number}": {} for number in range(6)})
    trials.length = 3
    monkeypatch.setattr(trials, "pair", lambda self, *_: self._switch((1,) * 9, self._factors))
    monkeypatch.setattr(trials, "_switch", lambda self, row, factors: hangs(self, row, factors))

    def hangs(self: Trials, row: Row, factors: Sequence[Factor]) -> set[str]:
        self._factors = factors  # type: ignore[attr-defined]
        self.on = on_in(row, factors)
        if sum(map(bool, row)) > 1:
            raise TrialOver(ExitReason("hang", "no step for 60 s"))
        return set(self.on)

    seen, _ = screened()
    assert not seen.beliefs and len(trials.started) <= 5


def test_where_no_half_can_start_nothing_is_screened(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, other={}, third={})
    monkeypatch.setattr(trials, "warm_up", lambda *_: dies())

    def dies() -> None:
        raise TrialOver(ExitReason("crash", "SIGSEGV"))

    seen, _ = screened()
    assert not seen.beliefs and len(trials.started) == 3


@pytest.mark.parametrize("kind", ["late", "oom"])
def test_what_was_measured_stays_where_a_later_process_does_not_come_to_its_first_step(
    kind: str, trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier one started with the same candidates: none of them is to blame."""
    bring(offer, monkeypatch, fast={}, idle={})
    trials.gains, trials.length, kept = {"fast": 0.3}, 20, Kept()
    warm_up = trials.warm_up

    def once(self: Trials, *order: Any) -> float:
        if len(self.started) > 1:
            raise TrialOver(ExitReason(kind, "its first step did not come within the budget"))
        return warm_up(self, *order)

    monkeypatch.setattr(trials, "warm_up", once)
    seen, _ = screened(kept=kept)
    assert len(trials.started) == 2 and seen.pairs == 20
    assert seen.choice == ("fast",) and set(seen.beliefs) == {"fast", "idle"} == set(kept.found)
    assert screened(kept=kept)[0].choice == seen.choice, "of a tune that was broken off"


def test_no_process_is_begun_that_would_come_too_late_for_a_pair(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, stiff=STIFF)
    trials.gains = {"fast": 0.3}
    began: list[float] = []
    warm_up = trials.warm_up

    def slow(self: Trials, *order: Any) -> float:
        began.append(self.clock.now)
        self.clock.now += self.start_seconds
        return warm_up(self, *order)

    monkeypatch.setattr(trials, "warm_up", slow)
    start = trials.clock.now
    screened()
    assert len(began) > 2 and began[-1] + 5.0 < screening_ends(start)


def test_where_one_kills_its_process_and_the_others_leave_processes_are_screened_all_the_same(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, slow={}, slower={}, fatal={}, stiff=STIFF)
    trials.gains, trials.crashes = {"slow": -0.7, "slower": -0.8}, {"fatal"}
    seen, _ = screened()
    assert "SIGSEGV" in (seen.hopeless("fatal") or "") and seen.choice == ()
    assert trials.started[-1] in ([], ["stiff"]), "nothing is left to be switched"


def test_one_that_is_left_out_beside_the_others_may_be_tried_alone_at_the_end(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, shy={})
    trials.gains, trials.leaves_out = {"fast": 0.3, "shy": 1.0}, {"shy": "not here"}
    seen, _ = screened()
    assert seen.hopeless("shy") is None and seen.saving("shy") == 0.0 and "shy" not in seen.beliefs
    assert seen.absent() == {"shy": "not here"}


def test_what_other_scripts_gained_is_overruled_by_what_is_measured(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, slow={})
    trials.gains = {"fast": 0.1, "slow": -0.1}
    wrong = {"fast": [(0.0, 0.005)] * 40, "idle": [(0.5, 0.01)] * 40, "slow": [(0.5, 0.01)] * 40}
    kept = Kept(wrong)
    seen, _ = screened(kept=kept)
    assert list(seen.choice) == ["fast"] and seen.hopeless("slow") and seen.hopeless("fast") is None
    gain, error = kept.found["fast"]
    assert abs(gain - 0.1) < 4 * error < 0.1 and set(kept.found) == {"fast", "idle", "slow"}


def test_what_other_scripts_gained_is_believed_where_little_is_measured(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, one={}, other={})
    trials.gains, trials.length = {"one": 0.06, "other": 0.06}, 3  # pairs of each process
    usual, _ = screened()
    kept = Kept({"one": [(0.1, 0.01)] * 40, "other": [(0.0, 0.005)] * 40})
    seen, _ = screened(kept=kept)
    assert seen.beliefs["one"].worth > usual.beliefs["one"].worth
    assert seen.beliefs["other"].worth < usual.beliefs["other"].worth


def test_what_another_contract_would_bring_is_told(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, loose={"contract": Contract.STATISTICAL})
    trials.gains = {"fast": 0.3, "loose": 0.5}
    seen, found = screened()
    assert len(found.notes) == 1 and "`loose`" in found.notes[0] and "--contract statistical" in found.notes[0]
    assert seen.hopeless("loose") is None
    assert not screened(Contract.STATISTICAL)[1].notes


def test_programs_that_end_are_begun_again(trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(offer, monkeypatch, fast={}, idle={})
    trials.gains, trials.length = {"fast": 0.3}, 10
    seen, _ = screened()
    assert seen.processes >= 3 and seen.hopeless("fast") is None
    trials.length = 0
    seen, _ = screened()
    assert seen.processes == 1 and not seen.beliefs


@pytest.mark.parametrize("better", ["one", "other"])
def test_those_that_exclude_each_other_take_turns_in_one_process(
    better: str, trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of public programs `bf16_weights` had no time for a duel of its own, since `autocast` was screened."""
    bring(offer, monkeypatch, one={"expected_saving": 0.5}, other={"conflicts": ("one",)}, third={})
    trials.gains = {"one": 0.1, "other": 0.1, "third": 0.15, better: 0.3}
    rows: list[set[str]] = []
    switch = trials._switch

    def noted(self: Trials, row: Row, factors: Sequence[Factor]) -> set[str]:
        rows.append(switch(self, row, factors))
        return rows[-1]

    monkeypatch.setattr(trials, "_switch", noted)
    seen, found = screened()
    assert set(trials.started[0]) == {"one", "other", "third"} and not any({"one", "other"} <= on for on in rows)
    assert set(seen.choice) == {better, "third"}
    for name, gain in trials.gains.items():  # each by itself, whichever is chosen
        assert seen.speedups[name].low < math.exp(gain) < seen.speedups[name].high
    found.adopt(Adopted(better, {}, Duel(found.spec(), found.spec()), Check(None, "")))
    found.take_screening(seen)
    monkeypatch.setattr(Findings, "chosen", property(lambda self: self.adopted))
    (other,) = [each for each in leftovers(found, found.facts) if each.name in {"one", "other"}]
    assert other.kind == "measured" and other.measured == seen.speedups[other.name]
    assert other.reason == f"it cannot be in one plan with {better}"


def test_what_never_takes_turns_is_one_that_starts_with_the_process_or_needs_another_contract(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose = {"contract": Contract.STATISTICAL, "conflicts": ("one",)}
    bring(offer, monkeypatch, one={"expected_saving": 0.5}, loose=loose, third={})
    screened()
    assert set(trials.started[0]) == {"one", "third"}
    trials.started.clear()
    screened(Contract.STATISTICAL)
    assert set(trials.started[0]) == {"one", "loose", "third"}
    bring(offer, monkeypatch, one={"expected_saving": 0.5}, other={"conflicts": ("one",), **STIFF}, third={})
    trials.started.clear()
    screened()
    assert all("other" not in names for names in trials.started)


def test_one_candidate_is_not_screened(trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(offer, monkeypatch, fast={})
    assert screened()[0] == Screened() and not trials.started


@pytest.mark.parametrize(("busy", "says"), [(2, "left out: others"), (7, "of them others held")])
@pytest.mark.fault(21)
def test_a_busy_machine_is_measured_as_it_is_and_told_so(
    busy: int, says: str, trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={})
    trials.gains, trials.busy = {"fast": 0.5}, busy
    seen, _ = screened()
    assert set(seen.choice) == {"fast"} and says in seen.sentence() and seen.busy() is (busy == 7)
    assert seen.effects[0].dropped == (0 if busy == 7 else seen.disturbed)


STIFF = {"switchable": False, "environment": lambda self, settings: {"ANY": "1"}}


def test_what_must_be_there_before_a_process_starts_is_switched_from_process_to_process(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, stiff=STIFF, lazy=STIFF)
    trials.gains, trials.spread = {"fast": 0.3, "stiff": 0.2, "slow": -0.2}, 0.01
    seen, _ = screened()
    assert seen.processes >= 8 and set(seen.choice) == {"fast", "stiff"}
    assert all(("stiff" in one) is ("stiff" not in other) for one, other in pairs_of(trials.started[:8]))
    assert seen.speedups["stiff"].low < math.exp(0.2) < seen.speedups["stiff"].high
    told = seen.attribution([("fast", {}), ("stiff", {})])
    assert told is not None and [each.name for each in told.shares] == ["fast", "stiff"]
    assert told.total.low < math.exp(0.5) < told.total.high and told.interaction is None
    assert seen.attribution([("fast", {}), ("stiff", {"other": 1})]) is None
    assert seen.attribution([("unknown", {})]) is None


def pairs_of(started: list[list[str]]) -> list[tuple[list[str], list[str]]]:
    return list(zip(started[::2], started[1::2], strict=True))


def test_where_processes_die_before_their_first_step_only_what_can_be_switched_is_screened(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, stiff=STIFF)
    trials.gains, trials.crashes = {"fast": 0.3}, {"stiff"}
    seen, _ = screened()
    assert seen.choice == ("fast",) and "stiff" not in seen.beliefs and seen.hopeless("stiff") is None


def together(*names: str, **gains: float) -> tuple[Greedy, Findings]:
    """What a strategy makes of a screening that chose these, with gains on the logarithm of speed."""
    names = (*names, *gains)
    found = Findings(Program("x.py", ()), Contract.STATISTICAL, only=frozenset(names))
    believed = {name: Belief(gains.get(name, 0.2), 0.02, 0.99, 0.2, 0.0) for name in names}
    found.screened = Screened(
        settings={name: {} for name in names},
        choice=names,
        beliefs=believed,
        speedups={name: Interval(1.1, 1.2, 1.3) for name in names},
    )
    return Greedy(found, TIME, Progress()), found


@pytest.mark.parametrize(("exact", "loose", "order"), [(0.7, 0.9, ["exact", "loose"]), (0.05, 0.9, ["loose", "exact"])])
def test_what_gains_most_for_its_time_is_tried_first(
    exact: float, loose: float, order: list[str], offer: Offer
) -> None:
    offer(exact=OURS, loose=OURS | {"contract": Contract.STATISTICAL})
    asked, _ = together(exact=exact, loose=loose)
    first, second = asked.ask(), asked.ask()
    assert [each.label for each in (first, second) if each] == order


def lost(candidate: Candidate, check: Check | None) -> Rejected:
    spec = TrialSpec(Program("x.py", ()))
    return Rejected(candidate.label, {}, "not the same", Duel(spec, spec), check)


def test_what_was_chosen_is_tried_at_once_by_contract(offer: Offer) -> None:
    loose = {"contract": Contract.STATISTICAL}
    offer(one=OURS, other=OURS, third=OURS, fourth=OURS, loose=OURS | loose, looser=OURS | loose)
    asked, found = together("one", "loose", "other", "third", "fourth", "looser")
    first = asked.ask()
    assert first is not None and first.label == "one + other + third + fourth"
    assert first.promise == pytest.approx(1 - math.exp(-0.8))
    asked.tell(first, lost(first, Check(None, "other bits")))  # faster, and not the same: half by half
    half = asked.ask()
    assert half is not None and half.label == "one + other"
    asked.tell(half, lost(half, None))  # no faster: one by one
    other_half, loosest = asked.ask(), asked.ask()
    assert other_half is not None and other_half.label == "third + fourth"
    assert loosest is not None and loosest.label == "loose + looser"
    singles = [each.label for each, _ in asked._waiting()]
    assert {"one", "other"} <= set(singles) and len(found.other_duels) == 2 and not found.rejected


def test_what_joined_together_shares_its_duel_and_counts_once(offer: Offer) -> None:
    offer(one=OURS, other=OURS)
    asked, found = together("one", "other")
    candidate = asked.ask()
    assert candidate is not None
    plain = TrialSpec(Program("x.py", ()))
    duel = Duel(plain, replace(plain, techniques=candidate.chosen), interval=Interval(1.4, 1.5, 1.6))
    check = Check(Contract.EXACT, "the same", pending=True)
    asked.tell(candidate, [Adopted(name, {}, duel, check) for name in ("one", "other")])
    assert found.gain() == 1.5 and [each.name for each in found.adopted] == ["one", "other"]
    assert all(each.speedup == Interval(1.1, 1.2, 1.3) for each in found.adopted)
    assert asked.ask() is None


def test_a_screening_that_was_broken_off_goes_on(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(offer, monkeypatch, fast={}, idle={}, stiff=STIFF)
    trials.gains, kept = {"fast": 0.3}, Kept()
    monkeypatch.setattr(trials, "stop", lambda self: killed() if len(self.started) == 3 else None)

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        screened(kept=kept)
    assert kept.state is not None and not kept.state["over"]
    before = len(kept.state["blocks"])
    seen, _ = screened(kept=kept)
    assert before >= 16 and seen.pairs > before / 2 and "fast" in seen.choice
    known, processes = kept.state, len(trials.started)
    assert known is not None and known["over"] and known["pairs"] == seen.pairs
    times = [block["at"] for block in known["blocks"]]
    again, _ = screened(kept=kept)
    assert len(trials.started) == processes and again.choice == seen.choice and times
    bring(offer, monkeypatch, fast={}, idle={}, other={})  # another program, or other candidates: all over
    screened(kept=kept)
    assert len(trials.started) > processes


def test_what_was_not_chosen_and_is_worth_more_for_its_time_goes_before(offer: Offer) -> None:
    offer(loose=OURS | {"contract": Contract.ROUNDING}, unsure=OURS, poor=OURS)
    gains = {"loose": 0.05, "unsure": 0.1, "poor": 0.001}
    found = Findings(Program("x.py", ()), Contract.STATISTICAL, only=frozenset(gains))
    found.screened = Screened(
        settings={name: {} for name in gains},
        choice=("loose",),
        beliefs={name: Belief(gain, 0.05, 0.6, gain, 0.0) for name, gain in gains.items()},
        speedups={name: Interval(0.9, 1.1, 1.3) for name in gains},
    )
    asked = Greedy(found, TIME, Progress())
    first = asked.ask()
    assert first is not None and first.label == "unsure"
    asked.tell(first, lost(first, None))
    second = asked.ask()
    assert second is not None and second.label == "loose"


@pytest.mark.parametrize("left", [1000.0, 180.0, 165.0, 120.0])
def test_what_promises_most_is_not_pushed_out_by_what_gains_more_for_its_time(left: float, offer: Offer) -> None:
    """`most` takes 150 s, `unsure` and `safe` 20 each. Where there is no time for `most` in any case, they go on."""
    offer(most=OURS | {"contract": Contract.STATISTICAL}, safe=OURS, unsure=OURS)
    gains, spent = {"most": 0.4, "safe": 0.2, "unsure": 0.1}, [0.0]
    found = Findings(Program("x.py", ()), Contract.STATISTICAL, only=frozenset(gains))
    found.screened = Screened(
        settings={name: {} for name in gains},
        choice=("most", "safe"),
        beliefs={name: Belief(gain, 0.05, 0.6, gain, 0.0) for name, gain in gains.items()},
        speedups={name: Interval(0.9, 1.1, 1.3) for name in gains},
    )

    def in_time(start: float, level: Contract = Contract.EXACT, promise: float = 0.0) -> bool:
        return spent[0] + start + SECONDS[level] < left

    time = SimpleNamespace(**{**vars(TIME), "time_for_another": in_time, "seconds_missing": lambda *_: 60.0, **SURE})
    asked, labels = Greedy(found, time, Progress()), []
    while (each := asked.ask()) is not None:
        labels.append(each.label)
        spent[0] += SECONDS[each.contract]
        asked.tell(each, lost(each, None))
    expected = {1000.0: ["safe", "unsure", "most"], 180.0: ["safe", "most"], 165.0: ["most"], 120.0: ["safe", "unsure"]}
    assert labels[: len(expected[left])] == expected[left]


def one_chosen_beside_an_engine(gain: float) -> Findings:
    """The screening chose `chosen`, by this gain on the logarithm of speed, and saw nothing of `engine`."""
    found = Findings(Program("x.py", ()), Contract.STATISTICAL, only=frozenset(("chosen", "engine")))
    found.facts = Facts(shares={"forward": 1.0})
    speed = math.exp(gain)
    found.screened = Screened(
        settings={"chosen": {}},
        choice=("chosen",),
        beliefs={"chosen": Belief(gain, 0.05, 1.0, gain, 0.0)},
        speedups={"chosen": Interval(speed - 0.05, speed, speed + 0.05)},
    )
    return found


@pytest.mark.parametrize(
    ("saving", "conflicts", "before"), [(0.6, True, True), (0.2, True, False), (0.6, False, False)]
)
def test_what_the_choice_would_keep_out_and_promises_more_goes_before(
    saving: float, conflicts: bool, before: bool, offer: Offer
) -> None:
    more = {"conflicts": ("chosen",)} if conflicts else {}
    offer(chosen=OURS, engine={"expected_saving": saving, **more})
    found = one_chosen_beside_an_engine(0.2)
    greedy = Greedy(found, SimpleNamespace(**{**vars(TIME), "time_for_all": lambda seconds: False}), Progress())
    asked = greedy.ask()
    assert asked is not None and asked.label == ("engine" if before else "chosen")
    spec = TrialSpec(found.program)
    duel = Duel(spec, spec, [], Verdict.FASTER, Interval(1.9, 2.0, 2.1))
    greedy.tell(asked, [Adopted(asked.label, {}, duel, Check(Contract.EXACT, "the same"))])
    after = greedy.ask()
    assert (after is None) == conflicts, "what was chosen by the screening cannot join any more"


@pytest.mark.parametrize("compare_all", [False, True])
@pytest.mark.parametrize(("times", "taken"), [(2.0, "engine"), (1.1, "chosen")])
def test_of_two_that_exclude_each_other_the_faster_one_is_taken(
    times: float, taken: str, compare_all: bool, offer: Offer
) -> None:
    """Of an encoder `autocast` was screened at 1.42x, and no engine was tried after it."""
    offer(chosen=OURS, engine={"expected_saving": 0.5, "conflicts": ("chosen",), "compare_all": compare_all})
    found = one_chosen_beside_an_engine(0.35)
    spec, labels = TrialSpec(found.program), []
    asked = Greedy(found, SimpleNamespace(**{**vars(TIME), "time_for_all": lambda seconds: True}), Progress())
    while (each := asked.ask()) is not None:
        labels.append(each.label)
        speed = times if each.label == "engine" else 1.4
        duel = Duel(spec, spec, [], Verdict.FASTER, Interval(speed - 0.05, speed, speed + 0.05))
        asked.tell(each, [Adopted(each.label, {}, duel, Check(Contract.EXACT, "the same"))])
    assert [each.name for each in found.adopted] == [taken]
    assert labels == (["engine"] if taken == "engine" else ["engine", "chosen"])


def test_what_is_soon_known_does_not_keep_out_what_promises_more(offer: Offer) -> None:
    """Of a CNN that answers, `fast_max_pool` gained 1.26x, and no engine could be tried after it."""
    known = {
        "engine": {"expected_saving": 0.15, "contract": Contract.ROUNDING, "conflicts": ("kernel",)},
        "kernel": {"expected_saving": 0.1},
        "other": {"expected_saving": 0.1},
    }
    offer(**known)
    found = Findings(Program("x.py", ()), Contract.ROUNDING, only=frozenset(known))
    found.facts = Facts(shares={"forward": 1.0})
    time = SimpleNamespace(**{**vars(TIME), "time_for_all": lambda seconds: seconds < 125.0})
    asked, labels = Greedy(found, time, Progress()), []
    while (each := asked.ask()) is not None:
        labels.append(each.label)
        asked.tell(each, lost(each, None))
    assert labels == ["engine", "kernel", "other"]


def test_what_gained_in_other_programs_is_tried_first_where_nothing_was_screened(offer: Offer) -> None:
    """Of public makemore `compile`, 1.29x, was tried after five that gained nothing: no time was left to prove it."""
    offer(famous={"expected_saving": 0.2}, **{f"proven{each}": {"expected_saving": 0.1} for each in range(2)})
    found = Findings(Program("x.py", ()), Contract.EXACT, only=frozenset(("famous", "proven0", "proven1")))
    found.facts = Facts(shares={"forward": 1.0})

    def first(elsewhere: dict[str, list[tuple[float, float]]]) -> str:
        asked = Greedy(found, TIME, Progress(), elsewhere).ask()
        assert asked is not None
        return asked.label

    assert first({}) == "famous"
    assert first({"famous": [(0.0, 0.02)] * 8, "proven1": [(0.2, 0.03)] * 3}) == "proven1"
    assert first({"famous": [(-0.3, 0.02)] * 8}) != "famous", "what it costs where it is not adopted is nothing"


def test_what_takes_long_for_what_it_promises_comes_after_what_is_soon_known(offer: Offer) -> None:
    """Of public siamese `compile` took 93 s of the 160 that were left; two that are exact take 40 each."""
    offer(
        slow={"expected_saving": 0.11, "contract": Contract.ROUNDING, "usual_start": 30.0},
        soon={"expected_saving": 0.06},
        next={"expected_saving": 0.06},
        nothing={"expected_saving": 0.0},
    )
    found = Findings(Program("x.py", ()), Contract.ROUNDING, only=frozenset(("slow", "soon", "next", "nothing")))
    found.facts = Facts(shares={"forward": 1.0})
    asked = Greedy(found, TIME, Progress())
    order = []
    while (candidate := asked.ask()) is not None:
        order.append(candidate.label)
        asked.tell(candidate, lost(candidate, None))
    assert sorted(order[:2]) == ["next", "soon"] and order[2:] == ["slow", "nothing"]
    found.rejected.clear()

    def first(most: float, *names: str) -> str:
        found.only = frozenset(names)
        time = SimpleNamespace(**{**vars(TIME), "time_for_all": lambda seconds: seconds < most})
        candidate = Greedy(found, time, Progress()).ask()
        assert candidate is not None
        return candidate.label

    assert first(200.0, "slow", "soon") == "slow"  # there is time for both: what promises more
    assert first(100.0, "slow", "soon") == "slow"  # for one of them: what it promises is more than the other gains
    assert first(145.0, "slow", "soon", "nothing") == "soon"  # for these two, and not for all


def test_what_was_screened_and_has_no_time_for_a_duel_is_told_once_with_what_it_gained(offer: Offer) -> None:
    sizes = [{"size": 1}, {"size": 2}, {"size": 4}]
    offer(many=OURS | {"candidates": lambda self, facts: sizes})
    found = Findings(Program("x.py", ()), Contract.ROUNDING, only=frozenset({"many"}))
    found.screened = Screened(settings={"many": sizes[0]}, speedups={"many": Interval(1.1, 1.2, 1.3)})
    late = {
        "time_for_another": lambda *_, **__: False,
        "seconds_missing": lambda *_: 60.0,
        **SURE,
        "pays": lambda saving: True,
    }
    asked = Greedy(found, SimpleNamespace(**{**vars(TIME), **late}), Progress())
    assert asked.ask() is None and asked.ask() is None
    (told,) = found.rejected
    assert told.settings == {"size": 1} and told.measured and "measured by the screening alone" in told.reason


def test_time_that_is_left_goes_to_those_that_lost_narrowly(offer: Offer) -> None:
    """Of public super-resolution the allocator's duel told 1.16x [0.97, 1.38], and 69 s of five minutes were left."""
    seen = {"one": Interval(0.95, 1.05, 1.2), "other": Interval(0.97, 1.16, 1.38), "poor": Interval(0.9, 1.0, 1.1)}
    offer(**{name: {"expected_saving": 0.1} for name in seen})

    def order(seconds: float) -> tuple[list[str], Findings]:
        found = Findings(Program("x.py", ()), Contract.ROUNDING, only=frozenset(seen))
        found.facts = Facts(shares={"forward": 1.0})
        time = {"time_for_all": lambda needed: needed < 160, "time_to_confirm_first": lambda *_: seconds > 60.0}
        asked, labels = Greedy(found, SimpleNamespace(**{**vars(TIME), **time}), Progress()), []
        spec = TrialSpec(found.program)
        while (candidate := asked.ask()) is not None:
            labels.append(candidate.label)
            duel = Duel(spec, spec, [], Verdict.INCONCLUSIVE, seen[candidate.label])
            asked.tell(candidate, Rejected(candidate.label, {}, "inconclusive", duel))
        return labels, found

    labels, found = order(160.0)
    assert sorted(labels[:3]) == sorted(seen) and labels[3:] == ["other", "one"]
    assert sorted(each.name for each in found.rejected) == sorted(seen)  # each is told once
    assert len(order(10.0)[0]) == 3


def test_none_is_begun_that_cannot_come_to_the_pairs_that_say_something(
    trials: type[Trials], offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of steps of 5 s it took its minute, and came to four pairs of eight."""
    bring(offer, monkeypatch, fast={}, other={})
    trials.gains = {"fast": 0.3}
    assert screened(step=1.0)[0].pairs and trials.started
    trials.started.clear()
    assert not screened(step=5.0)[0].pairs and not trials.started


def test_another_attempt_waits_for_its_time_and_what_says_nothing_leaves_what_was_measured(offer: Offer) -> None:
    """Of `make demo`, "too few blocks" took the place of 1.07x [0.97, 1.19]."""
    offer(one={"expected_saving": 0.1}, plan={})
    found = Findings(Program("x.py", ()), Contract.ROUNDING, only=frozenset({"one"}))
    found.facts = Facts(shares={"forward": 1.0})
    spec = TrialSpec(found.program)
    won = Duel(spec, spec, [], Verdict.FASTER, Interval(1.4, 1.5, 1.6))
    found.adopt(Adopted("plan", {}, won, Check(Contract.EXACT, "the same")))
    in_time: list[bool] = []
    whole = {"time_for_whole_duel": lambda *_: bool(in_time)}
    asked = Greedy(found, SimpleNamespace(**{**vars(TIME), **whole}), Progress())
    first = asked.ask()
    assert first is not None and first.label == "one"
    seen = Duel(spec, spec, [], Verdict.INCONCLUSIVE, Interval(0.97, 1.07, 1.19))
    asked.tell(first, Rejected("one", {}, "inconclusive: 1.07x [0.97, 1.19]", seen))
    assert asked.ask() is None and not asked.has_time_now()
    in_time.append(True)  # the plan was proved sooner than was reckoned
    assert asked.has_time_now()
    again = asked.ask()
    assert again is not None and again.label == "one" and again.again
    asked.tell(again, Rejected("one", {}, "inconclusive: too few blocks", Duel(spec, spec), kind="time"))
    assert [each.speedup for each in found.rejected] == [seen.interval]
    assert not asked.has_time_now() and asked.ask() is None  # that was the last one


def test_for_what_cannot_be_proved_here_no_longer_tune_is_advised(offer: Offer) -> None:
    offer(low=OURS | {"contract": Contract.STATISTICAL})
    found = Findings(Program("x.py", ()), Contract.STATISTICAL, only=frozenset({"low"}))
    found.screened = Screened(settings={"low": {}}, speedups={"low": Interval(1.2, 1.3, 1.4)})
    vain = {"cannot_prove": lambda level: "its answers are no numbers"}
    assert Greedy(found, SimpleNamespace(**{**vars(TIME), **vain}), Progress()).ask() is None
    (told,) = found.rejected
    assert told.kind == "unfit" and "its answers are no numbers" in told.reason
    found.begin(Duel(found.spec(), found.spec()))
    assert next_step(found) == ""
    result = result_of(found, "plan.toml")
    assert "low" in {each.name for each in tried(result)}, "what the screening measured of it is told"
