"""What is established is kept when the budget ends, and is told as what it is; figures agree with ratios."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overdrive.cli.report import from_plan
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.interval import Interval
from overdrive.core.json_data import to_json
from overdrive.core.objective import Objective
from overdrive.core.plan import Plan
from overdrive.core.program import Program
from overdrive.core.records import ExitReason
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.speed import Pair, Verdict
from overdrive.report.html import page
from overdrive.report.words import sentence
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.duel import Duel, Rules
from overdrive.trials.run_duel import judge
from overdrive.tuner.duel_runner import Progress, confirmation
from overdrive.tuner.finalise import Finaliser
from overdrive.tuner.findings import Findings
from overdrive.tuner.judge import Judge
from overdrive.tuner.outcomes import Adopted, Standing
from overdrive.tuner.result import plan_of, result_of
from tests.simulated import Names, Offer, Simulated, offer, searched
from tests.tuner.test_search import names, paces, reasons

__all__ = ["offer"]  # a fixture


class Late(Progress):
    """Calls something when a stage begins that has this in its name."""

    def __init__(self, stage: str, what: Callable[[], None]) -> None:
        self._stage, self._what = stage, what

    def stage(self, text: str) -> None:
        if self._stage in text:
            self._what()


def late_search(program: Simulated, folder: Path, stage: str, seconds: float, budget: float = 600.0) -> Findings:
    """A tune in which so many seconds are lost when a stage begins."""

    def lose() -> None:
        program.spent += seconds

    return searched(folder, budget=budget, progress=Late(stage, lose))


def but_two_pairs(program: Simulated, folder: Path, budget: float = 600.0, **wanted: Any) -> float:
    """Seconds to lose when the confirmation begins, so that only two pairs of its processes come to their end."""
    began: list[float] = []
    progress = Late("confirmation", lambda: began.append(program.spent))
    found = searched(folder, budget=budget, progress=progress, **wanted)
    assert found.confirmed and found.confirmation is not None and not result_of(found, "").unconfirmed
    processes = len({pair.process for pair in found.confirmation.pairs})
    one = (program.spent - began[0]) / processes
    (folder / "late").mkdir()
    program.spent, program.started[:] = 0.0, []
    return budget - began[0] - 2.3 * one


def told(found: Findings) -> tuple[dict[str, Any], Plan]:
    result = result_of(found, "plan.toml")
    summaries = {name: each.summary() for name, each in catalogue().items()}
    return result, Plan.loads(plan_of(found, result).dumps(summaries), catalogue())


def test_a_plan_is_proved_once(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen: 40 ms a step, four minutes, 358 identical steps in the duel, and a second proof that came too late."""
    facts = Facts(shares={"forward": 1.0}, step_seconds=0.04, loaders=(LoaderFacts(64, 0, True, 60_000, 0.0),))
    idle = {name: {"expected_saving": 0.05} for name in ("one", "two", "three", "four", "five")}
    offer(fast={"expected_saving": 0.4}, **idle)
    pace = paces(fast=1.23)
    program = Simulated(lambda on: 4 * pace(on), start=4.0, hashed=2.5, takes_time=True, facts=facts).enter(monkeypatch)
    found = searched(tmp_path, budget=240.0)
    assert names(found) == ["fast"] and found.verdict is Verdict.FASTER and found.confirmed
    assert sum(bool(order.digests) for order in program.started) == 2
    assert program.spent < 250.0 and found.proof and found.proof.exact and found.proof.exact.steps == 200


def test_a_plan_whose_confirmation_came_too_late_is_kept_and_told_as_not_confirmed(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    program = Simulated(paces(fast=1.5), takes_time=True).enter(monkeypatch)
    found = late_search(program, tmp_path, "confirmation", 600.0)
    assert names(found) == ["fast"] and found.verdict is Verdict.FASTER and not found.confirmed
    result, plan = told(found)
    by = "established in the search, and not confirmed in fresh processes"
    duel = found.adopted[0].duel
    assert duel.interval is not None and result.speedup is not None and result.speedup == plan.speedup
    assert result.speedup.estimate == duel.interval.estimate
    assert result.speedup.low < duel.interval.low < duel.interval.high < result.speedup.high  # of any process
    assert result.unconfirmed == plan.unconfirmed == by
    rates = [side.samples_per_s for side in (result.baseline, result.tuned)]
    assert rates[1] / rates[0] == pytest.approx(duel.interval.estimate)
    for each in (result, from_plan(plan)):
        assert sentence(each).startswith(("Trains 1.5", "Trains 1.49")) and f"95 % interval; {by})" in sentence(each)
        assert by in page(each)
    assert any("A larger --budget would confirm it" in note for note in result.notes)


def test_of_a_confirmation_that_was_not_finished_its_fresh_processes_are_told(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    program = Simulated(paces(fast=1.5), start=5.0, takes_time=True).enter(monkeypatch)
    lost = but_two_pairs(program, tmp_path)
    found = late_search(program, tmp_path / "late", "confirmation", lost)
    result, _ = told(found)
    assert found.verdict is Verdict.FASTER and not found.confirmed
    assert result.unconfirmed == "measured in 2 of 3 fresh process pairs, and not confirmed"
    assert result.speedup.estimate == pytest.approx(1.5, rel=0.03)
    assert result.tuned.samples_per_s / result.baseline.samples_per_s == pytest.approx(result.speedup.estimate)


def test_fresh_processes_that_speak_against_the_search_are_believed(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    gain = {"fast": 1.5}
    program = Simulated(lambda on: paces(**gain)(on), start=5.0, takes_time=True).enter(monkeypatch)
    lost = but_two_pairs(program, tmp_path)

    def slower() -> None:
        gain["fast"] = 1.0
        program.spent += lost

    found = searched(tmp_path / "late", budget=600.0, progress=Late("confirmation", slower))
    assert found.adopted and names(found) == [] and found.verdict is Verdict.INCONCLUSIVE
    assert any("nothing is established" in note for note in found.notes)


def test_what_one_process_breaks_in_the_confirmation_is_not_kept_for_its_duel(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    fails: list[bool] = []
    crash = lambda on: ExitReason("crash", "signal 11") if fails and on else None  # noqa: E731
    Simulated(paces(fast=1.5), exit_reason=crash, takes_time=True).enter(monkeypatch)
    found = searched(tmp_path, progress=Late("confirmation", lambda: fails.append(True)))
    assert names(found) == [] and found.verdict is Verdict.INCONCLUSIVE


def test_of_several_techniques_the_search_tells_the_product_of_their_duels(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={"expected_saving": 0.4}, quick={})
    program = Simulated(paces(fast=1.5, quick=1.3), takes_time=True).enter(monkeypatch)
    found = late_search(program, tmp_path, "confirmation", 600.0)
    assert names(found) == ["fast", "quick"] and found.verdict is Verdict.FASTER and not found.confirmed
    result, plan = told(found)
    assert result.speedup.estimate == pytest.approx(found.gain())
    assert result.speedup.low < 1.95 < result.speedup.high
    assert result.tuned is None and result.baseline.samples_per_s  # no block held the whole plan
    assert plan.unconfirmed and "the confirmation on fresh runs" not in page(result)


def test_what_came_out_idle_stays_where_no_time_is_left_to_prove_the_plan_without_it(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(first={"expected_saving": 0.4}, second={})

    def seconds(on: Names) -> float:  # the second makes the first useless
        return 0.01 / (1.5 if "second" in on else 1.2 if "first" in on else 1.0)

    simulated = {"start": 3.0, "takes_time": True}
    Simulated(seconds, **simulated).enter(monkeypatch)
    plan = searched(tmp_path, budget=600.0)
    assert names(plan) == ["second"] and "first" in reasons(plan)
    (tmp_path / "late").mkdir()
    program = Simulated(seconds, **simulated).enter(monkeypatch)
    seen: list[str] = []

    class Watch(Progress):
        def stage(self, text: str) -> None:
            if "contributions" in seen and "hashed" in text:
                program.spent += 600.0
            seen.append(text.split(":")[0])

    found = searched(tmp_path / "late", budget=600.0, progress=Watch())
    assert names(found) == ["first", "second"] and found.verdict is Verdict.FASTER and not found.confirmed


@pytest.mark.parametrize("grouped", ["fast", ""])
def test_samples_per_second_are_of_the_same_blocks_as_the_ratio_where_steps_are_grouped(
    grouped: str, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped steps stand at other places of an epoch, so that evaluations fall into one of two blocks."""
    offer(fast={})
    program = Simulated(paces(fast=1.5), epoch=300, evaluation=0.4)
    program.call = lambda on: 32 if grouped in on else 1
    program.enter(monkeypatch)
    found = searched(tmp_path)
    result, plan = told(found)
    assert found.confirmed and plan.speedup is not None
    for sides in (to_json(result), {"baseline": plan.baseline, "tuned": plan.tuned}):
        before, after = sides["baseline"], sides["tuned"]
        assert after["samples_per_s"] / before["samples_per_s"] == pytest.approx(plan.speedup.estimate, rel=1e-3)
        assert before["seconds_per_step"] / after["seconds_per_step"] == pytest.approx(plan.speedup.estimate, rel=1e-3)


def test_a_plan_that_saves_memory_is_kept_where_its_confirmation_was_not_finished(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(small={"aims": ("memory",)})
    peak = lambda on: 600 << 20 if on else 1000 << 20  # noqa: E731
    program = Simulated(peak=peak, start=5.0, takes_time=True).enter(monkeypatch)
    wanted = Objective("memory")
    lost = but_two_pairs(program, tmp_path, objective=wanted)

    def lose() -> None:
        program.spent += lost

    found = searched(tmp_path / "late", budget=600.0, objective=wanted, progress=Late("confirmation", lose))
    result, plan = told(found)
    assert found.verdict is Verdict.SMALLER and names(found) == ["small"] and not found.confirmed
    assert sentence(result).startswith("Needs") and plan.unconfirmed in sentence(result) and plan.unconfirmed


def test_what_the_search_and_too_few_fresh_processes_say_alike_is_established() -> None:
    """Two fresh pairs of processes and two of the search: each by itself says too little of a gain of 8 %."""
    program = Program("x.py", ())
    plain, best = TrialSpec(program), TrialSpec(program, (("fast", {}),))

    def measured(gains: tuple[float, ...]) -> Duel:
        pairs = [Pair(process, 1, gain, 1.0, True) for process, gain in enumerate(gains) for _ in range(10)]
        return Duel(plain, best, pairs=pairs, interval=Interval(1.05, 1.08, 1.1))

    def standing(found: Findings, confirmation: Duel) -> Standing | None:
        unused: Any = SimpleNamespace(progress=None)
        return Finaliser(found, unused, unused, unused)._standing(confirmation)

    check = Check(Contract.EXACT, "the same")
    found = Findings(program, Contract.EXACT, adopted=[Adopted("fast", {}, measured((1.09, 1.07)), check)])
    told = standing(found, measured((1.08, 1.07)))
    assert told is not None and told.interval is not None
    assert "2 of 3 fresh process pairs and in the search" in told.basis
    assert 1.01 <= told.interval.low < 1.08 < told.interval.high
    assert standing(found, measured((0.99, 1.0))) is None
    found.adopted = [Adopted("fast", {}, measured((1.02, 1.01)), check)]
    assert standing(found, measured((1.02, 1.01))) is None


def test_one_pair_of_processes_in_turn_says_no_more_than_processes_differ() -> None:
    """Minutes lie between its two sides: a drift of 4 % was published as 1.03 to 1.053 times as fast."""
    program = Program("x.py", ())
    plain, best = TrialSpec(program), TrialSpec(program, (("fast", {}),))

    def measured(*gains: float) -> Duel:
        # The blocks of a process differ by half a per cent.
        pairs = [
            Pair(process, 1, gain * (1 + 0.005 * (block % 3 - 1)), 1.0, True)
            for process, gain in enumerate(gains)
            for block in range(10)
        ]
        return Duel(plain, best, pairs=pairs, sequential=True)

    def standing(confirmation: Duel) -> Standing | None:
        unused: Any = SimpleNamespace(progress=None)
        found = Findings(program, Contract.EXACT, confirmation=confirmation)
        return Finaliser(found, unused, unused, unused)._standing(confirmation)

    assert standing(measured(1.04)) is None
    clear = standing(measured(1.5))
    assert clear is not None and clear.interval is not None
    assert clear.interval.low < 1.45 and clear.interval.high > 1.55
    assert standing(measured(1.5, 1.2)) is None, "they tell by themselves how far they lie apart"


def test_what_one_pair_in_turn_won_is_measured_again() -> None:
    program = Program("x.py", ())
    plain, best = TrialSpec(program), TrialSpec(program, (("fast", {}),))
    ordered: list[Rules] = []

    def run_duel(old: TrialSpec, new: TrialSpec, rules: Rules, deadline: float) -> Duel:
        ordered.append(rules)
        return Duel(old, new, sequential=True)

    duels: Any = SimpleNamespace(run_duel=run_duel, progress=Progress())
    durations = SimpleNamespace(of_duel=lambda rules: 9.0)
    schedule: Any = SimpleNamespace(selection_ends=lambda *_: math.inf, durations=durations)
    candidate: Any = SimpleNamespace(contract=Contract.EXACT, promise=0.1)
    for processes, again in ((1, True), (3, False)):
        pairs = [Pair(process, 1, 1.1, 1.0, True) for process in range(processes) for _ in range(10)]
        duel = Duel(plain, best, pairs, Verdict.FASTER, Interval(1.09, 1.1, 1.11), sequential=True)
        judge_of: Any = Judge(Findings(program, Contract.EXACT), duels, cast(Any, None), schedule)
        ordered.clear()
        _, reason = judge_of._in_more_processes(candidate, duel)
        assert bool(ordered) is again and bool(reason) is again


def test_a_whole_confirmation_that_says_too_little_counts_together_with_the_search() -> None:
    """Of public MNIST, whose screening had measured 1.24x [1.19, 1.30], three fresh pairs of processes on a noisy
    machine said 1.10x [0.85, 1.42], and nothing was established."""
    program = Program("x.py", ())
    plain, best = TrialSpec(program), TrialSpec(program, (("fast", {}),))

    def measured(*gains: float) -> Duel:
        pairs = [Pair(process, 1, gain, 1.0, True) for process, gain in enumerate(gains) for _ in range(10)]
        duel = Duel(plain, best, pairs=pairs)
        judge(duel, confirmation(3))
        return duel

    def weighed(confirmed: Duel, searched: Duel) -> Findings:
        check = Check(Contract.EXACT, "the same")
        found = Findings(program, Contract.EXACT, adopted=[Adopted("fast", {}, searched, check)], proof=check)
        found.confirmation = confirmed
        unused: Any = SimpleNamespace(progress=None, stopped=False)
        Finaliser(found, unused, unused, unused)._weigh(confirmed)
        return found

    rough = measured(0.98, 1.2, 1.12)
    assert rough.verdict is Verdict.INCONCLUSIVE
    found = weighed(rough, measured(1.25, 1.24, 1.22, 1.26))
    assert found.verdict is Verdict.FASTER and found.standing is not None and found.confirmed
    assert "3 fresh process pairs and in the search" in found.standing.basis
    assert "not confirmed" in found.notes[-1] and "of 3" not in found.notes[-1]
    found = weighed(measured(0.9, 1.1, 1.0), measured(1.03, 1.05))
    assert found.verdict is Verdict.INCONCLUSIVE and "nothing is established" in found.notes[-1]
    found = weighed(measured(0.99, 1.02, 1.0), measured(1.25, 1.24, 1.22, 1.26))
    assert found.standing is None, "the fresh processes speak against it"


@pytest.mark.parametrize("budget", [120, 150, 260])
def test_nothing_is_begun_that_could_not_come_to_its_end(
    budget: int, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public U-Net, 13 s to its first step and 0.6 s for each, was hashed in vain to the end of five minutes and then
    confirmed for 43 s, which gave nothing: what its duel had shown was told all the same."""
    offer(fast={"expected_saving": 0.3}, other={"expected_saving": 0.2}, third={"expected_saving": 0.15})
    pace = paces(fast=1.43)
    facts = Facts(shares={"forward": 0.5, "backward": 0.5}, step_seconds=0.6)
    Simulated(lambda on: 60 * pace(on), start=13.0, takes_time=True, facts=facts, spread=0.02).enter(monkeypatch)
    found = searched(tmp_path, budget=float(budget))
    assert found.verdict is Verdict.FASTER and names(found) == ["fast"]
    assert found.seconds <= budget + 2, "one step of each side may be under way"


@pytest.mark.parametrize(("takes", "begun"), [(50.0, True), (70.0, False)])
def test_what_is_to_be_measured_again_leaves_the_time_for_its_proof(takes: float, begun: bool) -> None:
    program = Program("x.py", ())
    plain, best = TrialSpec(program), TrialSpec(program, (("fast", {}),))
    ends: list[float] = []

    def run_duel(old: TrialSpec, new: TrialSpec, rules: Rules, deadline: float) -> Duel:
        ends.append(deadline)
        return Duel(old, new)

    latest = time.monotonic() + 60.0
    selection_ends = lambda level, promise: latest - 1000.0 * (level is not Contract.ROUNDING or promise != 0.1)  # noqa: E731
    schedule: Any = SimpleNamespace(selection_ends=selection_ends, durations=SimpleNamespace(of_duel=lambda _: takes))
    duels: Any = SimpleNamespace(run_duel=run_duel, progress=Progress())
    candidate: Any = SimpleNamespace(contract=Contract.ROUNDING, promise=0.1)
    pairs = [Pair(0, 1, 1.1, 1.0, True)] * 10
    duel = Duel(plain, best, pairs, Verdict.FASTER, Interval(1.09, 1.1, 1.11))
    judge_of: Any = Judge(Findings(program, Contract.ROUNDING), duels, cast(Any, None), schedule)
    told, reason = judge_of._in_more_processes(candidate, duel)
    assert ends == ([latest] if begun else []) and reason
    assert begun or (told is duel and "no time is left for" in reason and "1.10x" in reason)


@pytest.mark.parametrize(
    ("gains", "won"), [((1.27, 1.28, 1.22), True), ((1.05, 1.5, 0.9), False), ((1.27, 1.28), False)]
)
def test_three_pairs_of_processes_tell_by_themselves(gains: tuple[float, ...], won: bool) -> None:
    """Of a public U-Net whose screening's processes seemed to differ by a fifth, `allocator` was lost so."""
    program = Program("x.py", ())
    plain, best = TrialSpec(program), TrialSpec(program, (("allocator", {}),))
    found = Findings(program, Contract.EXACT)
    found.processes_vary((0.2**2, 3))
    pairs = [Pair(at, 1, gain + 0.001 * (i % 3), 1.0, True) for at, gain in enumerate(gains) for i in range(10)]
    duel = Duel(plain, best, pairs, Verdict.FASTER, Interval(1.2, 1.25, 1.3))
    judge_of: Any = Judge(found, cast(Any, None), cast(Any, None), cast(Any, None))
    told, reason = judge_of._in_more_processes(cast(Any, None), duel)
    assert told is duel and (reason is None) is won


def test_why_a_confirmation_came_to_too_few_pairs_of_processes_is_named() -> None:
    """Of `make demo`, whose budget was blamed where others held the cores in 30 % of the pairs."""
    program = Program("x.py", ())
    plain, best = TrialSpec(program), TrialSpec(program, (("fast", {}),))
    check = Check(Contract.EXACT, "the same")

    def pairs(process: int, quiet: int, disturbed: int = 0) -> list[Pair]:
        waited = [0.0] * quiet + [0.4] * disturbed
        return [Pair(process, 1, 0.15 + 0.001 * (i % 3), 0.1, True, (0.0, w), (1.0, 1.0)) for i, w in enumerate(waited)]

    def told(blocks: list[Pair], **ends: ExitReason) -> str:
        duel = Duel(plain, best, pairs=blocks, published=True, **ends)
        judge(duel, confirmation(3))
        found = Findings(program, Contract.EXACT, adopted=[Adopted("fast", {}, duel, check)], proof=check)
        unused: Any = SimpleNamespace(progress=None, stopped=False)
        Finaliser(found, unused, unused, unused)._weigh(duel)
        return found.notes[-1]

    two = [*pairs(0, 12), *pairs(1, 12)]
    late = told([*two, *pairs(2, 3)])
    assert "2 of 3 process pairs before the budget was used up" in late and "A larger --budget would" in late
    assert "A larger --budget, or a quieter machine, would" in told([*two, *pairs(2, 3, 2)])
    assert "before the budget was used up" in told(two, old_exit_reason=ExitReason("late", "within the budget"))
    others = told([*two, *pairs(2, 9, 5)])
    assert "with enough blocks, since others held the cores in 13% of them" in others and "--budget" not in others
    assert "On a quieter machine the same command would" in others
    for reason in (ExitReason("crash", "SIGSEGV"), ExitReason("ended", "it is over after 90 steps")):
        broken = told(two, old_exit_reason=reason)
        assert f"before it broke off ({reason})" in broken and "--budget" not in broken
