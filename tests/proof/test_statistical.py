"""The runs of a statistical proof: what is ordered, asked again, registered and told."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.metric import Metric
from overdrive.core.products import Products
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.proof.budget import ProofBudget
from overdrive.proof.runs import ProofRuns
from overdrive.proof.statistical import StatisticalProof
from overdrive.trials.checkpoint import TuneCheckpoint

Printed = Callable[[int, bool], str]  # of the seed, and whether the candidate prints it


class Runs:
    """What a proof asks of `ProofRuns`, of a program whose loss agrees seed by seed."""

    def __init__(self, printed: Printed, moved: float = 1.0) -> None:
        self.printed = printed
        self.moved = moved  # times as far as the original's go the candidate's weights
        self.ordered: list[TrialSpec] = []
        self.told: list[str] = []
        self.at_once = 1
        self.steps = 100
        self.facts = Facts()
        self.budget = ProofBudget()
        self.untimed = SimpleNamespace(run=self.run, digests_seconds=1.0)

    def stage(self, text: str) -> None:
        self.told.append(text)

    def same_inputs(self, old: TrialSpec, new: TrialSpec) -> tuple[()]:
        return ()

    def seconds_for_inputs(self) -> float:
        return 2.0

    def rounds(self, trials: int) -> int:
        return trials

    def side_by_side(self, run: Any, each: Any) -> list[Any]:
        return [run(one, 0) for one in each]

    def run(self, spec: TrialSpec, steps: int, output: list[str]) -> Trace:
        self.ordered.append(spec)
        chance = random.Random(spec.seed)
        level, way = 1 + 0.1 * chance.gauss(0, 1), 2 + 0.1 * chance.gauss(0, 1)
        losses = tuple((level + 2 / (1 + step) + 0.01 * chance.gauss(0, 1),) for step in range(min(steps, 300)))
        output.append(self.printed(spec.seed, bool(spec.techniques)))
        way *= self.moved if spec.techniques else 1.0
        products = Products(state={"way of parameters, all": way}) if spec.products else None
        return Trace(steps=len(losses), losses=losses, products=products)


PLAIN = TrialSpec(Program("train.py"))
NEW = TrialSpec(Program("train.py"), (("faster", {}),))


def proof(runs: Runs, folder: Path, metric: Metric | None = None, tolerance: float | None = None) -> StatisticalProof:
    checkpoint = TuneCheckpoint(Ledger.open(folder / "ledger"), PLAIN.program, "tune")
    return StatisticalProof(cast(ProofRuns, runs), checkpoint, metric or Metric(), False, tolerance)


@pytest.fixture(autouse=True)
def _a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def quality(seed: int) -> float:
    return 80 + random.Random(-seed).gauss(0, 1)


def test_runs_under_seeds_tell_what_they_produce_and_weights_that_are_elsewhere_are_refused(tmp_path: Path) -> None:
    same, other = Runs(lambda seed, new: ""), Runs(lambda seed, new: "", moved=1.2)
    assert proof(same, tmp_path / "a").compare(PLAIN, NEW, 1e12).level is Contract.STATISTICAL
    assert same.ordered and all(spec.products for spec in same.ordered)
    check = proof(other, tmp_path / "b").compare(PLAIN, NEW, 1e12)
    assert check.level is None and "way of parameters, all is" in check.sentence


def test_a_printed_number_of_the_program_s_that_is_off_is_refused(tmp_path: Path) -> None:
    runs = Runs(lambda seed, new: f"accuracy {quality(seed) - 3 * new:.3f}")
    check = proof(runs, tmp_path).compare(PLAIN, NEW, 1e12)
    assert check.level is None and "printed accuracy #, 1, last is" in check.sentence


def test_a_printed_number_that_is_never_the_same_twice_is_the_machine_s(tmp_path: Path) -> None:
    """Seconds, without a word that says so: half as many of them."""
    clock = random.Random(0)
    runs = Runs(lambda seed, new: f"done 1 {(20 + clock.random()) * (0.5 if new else 1):.3f}")
    check = proof(runs, tmp_path).compare(PLAIN, NEW, 1e12)
    assert check.level is Contract.STATISTICAL, check.sentence
    assert len([spec for spec in runs.ordered if spec.seed == 1 and not spec.techniques]) == 2
    assert any("once more under 2 seeds" in text for text in runs.told)
    assert "1 printed number not comparable, as the program itself does not repeat it" in check.sentence
    assert check.statistical and check.statistical.products.unsteady == 1


def test_a_line_that_the_program_does_not_always_print_is_no_fault_where_it_lacks_it_itself(tmp_path: Path) -> None:
    """Where it took long, say: the second runs of the original tell."""
    printed = iter([True] * 5 + [False] * 100)
    runs = Runs(lambda seed, new: f"slow 1 {quality(seed):.3f}" if next(printed) else "")
    check = proof(runs, tmp_path).compare(PLAIN, NEW, 1e12)
    assert check.level is Contract.STATISTICAL, check.sentence


@pytest.mark.parametrize("its", ["accuracy nan", ""])
def test_a_number_that_becomes_nan_or_is_not_printed_is_missed(its: str, tmp_path: Path) -> None:
    never = Runs(lambda seed, new: its if new else f"accuracy {quality(seed):.3f}")
    check = proof(never, tmp_path / "a").compare(PLAIN, NEW, 1e12)
    assert check.level is None and "accuracy #, 1, last is missing or not finite in 5 of its 5 runs" in check.sentence
    once = Runs(lambda seed, new: its if new and seed == 3 else f"accuracy {quality(seed):.3f}")
    check = proof(once, tmp_path / "b").compare(PLAIN, NEW, 1e12)
    assert check.level is None and "in 1 of its 16 runs" in check.sentence


@pytest.mark.parametrize("alike", [True, False])
def test_a_time_that_is_nearly_the_same_twice_by_luck_is_still_the_machine_s(alike: bool, tmp_path: Path) -> None:
    """Under one seed in 1 of 18 runs; in a program whose losses are the same in every bit or not."""
    refused = []
    for chance in range(40):
        clock, dice = random.Random(chance), random.Random(chance)
        runs = Runs(lambda seed, new, clock=clock: f"done 1 {clock.gauss(20, 1) * (0.6 if new else 1):.3f}")
        made = runs.run

        def run(*order: Any, made: Any = made, dice: random.Random = dice) -> Trace:
            trace: Trace = made(*order)
            losses = trace.losses if alike else tuple((one + 1e-6 * dice.random(),) for (one,) in trace.losses)
            return replace(trace, losses=losses)

        runs.untimed.run = run
        check = proof(runs, tmp_path / str(chance)).compare(PLAIN, NEW, 1e12)
        refused += [check.sentence] if check.level is None else []
    assert len(refused) <= (not alike), refused


@pytest.mark.parametrize("kind", ["late", "crash"])
def test_numbers_that_speak_against_it_count_where_nobody_can_tell_whether_they_are_the_machine_s(
    kind: str, tmp_path: Path
) -> None:
    """There is no time for the original's second run under one seed, or it breaks off."""
    runs = Runs(lambda seed, new: f"accuracy {quality(seed) - 3 * new:.3f}")
    made = runs.run

    def again(spec: TrialSpec, steps: int, output: list[str]) -> Trace | ExitReason:
        known = any(each.seed == spec.seed and each.techniques == spec.techniques for each in runs.ordered)
        return ExitReason(kind) if known else made(spec, steps, output)

    runs.untimed.run = again
    check = proof(runs, tmp_path).compare(PLAIN, NEW, 1e12)
    assert check.level is None and "printed accuracy #, 1, last is" in check.sentence


def test_a_margin_of_the_user_s_is_told_in_runs_before_the_candidate_runs(tmp_path: Path) -> None:
    runs = Runs(lambda seed, new: f"accuracy {quality(seed):.3f}")
    check = proof(runs, tmp_path, Metric("accuracy"), tolerance=0.5).compare(PLAIN, NEW, 1e12)
    assert check.level is Contract.STATISTICAL
    (cost,) = [text for text in runs.told if "it takes" in text]
    assert "margin ±0.5 of the accuracy: asked for; it takes 18 to 163 runs" in cost
    assert check.statistical and check.statistical.margin == 0.5 and check.statistical.looks[-1] > 16


def test_runs_of_an_earlier_version_are_made_again_and_its_ledger_is_read(tmp_path: Path) -> None:
    runs = Runs(lambda seed, new: "")
    checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), PLAIN.program, "tune")
    checkpoint.remember_run("plain | seed 1 | training loss | 300", {"seed": 1, "value": 9.0, "losses": [9.0]})
    by_seeds = StatisticalProof(cast(ProofRuns, runs), checkpoint, Metric(), whole=False)
    assert by_seeds.compare(PLAIN, NEW, 1e12).level is Contract.STATISTICAL
    first = len(runs.ordered)
    assert by_seeds.compare(PLAIN, NEW, 1e12).level is Contract.STATISTICAL
    assert len(runs.ordered) == first, "runs that are there are not made again"


def test_what_was_left_out_in_runs_of_before_is_not_proved_when_it_goes_on_from_them(tmp_path: Path) -> None:
    """The runs are taken as they are, and so is what did not act in them."""
    for made in (10, 0):
        runs = Runs(lambda seed, new: "")
        plain = runs.run
        runs.untimed.run = lambda spec, *order, plain=plain: replace(
            plain(spec, *order), left_out={name: "no memory for it" for name, _ in spec.techniques}
        )
        check = proof(runs, tmp_path).compare(PLAIN, NEW, 1e12)
        assert len(runs.ordered) == made
        assert check.left_out == {"faster": "no memory for it"}
        assert check.of_what_acted(["faster"]).level is None


class Clock:
    """Each run takes a second, and each comparison of inputs two."""

    def __init__(self, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.compared = 0
        run = runs.run

        def timed(*order: Any) -> Trace:
            self.now += 1.0
            return run(*order)

        def inputs(old: TrialSpec, new: TrialSpec) -> tuple[()]:
            self.now += 2.0
            self.compared += 1
            return ()

        monkeypatch.setattr(runs.untimed, "run", timed)
        monkeypatch.setattr(runs, "same_inputs", inputs)
        monkeypatch.setattr("overdrive.proof.statistical.time.monotonic", lambda: self.now)


def test_a_proof_goes_on_to_the_next_look_where_that_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = lambda seed, new: f"accuracy {quality(seed + 100 * new):.3f}"  # noqa: E731
    for latest, seeds in ((18.0, 7), (15.0, 5)):
        runs = Runs(noisy)
        Clock(runs, monkeypatch)
        by_seeds = proof(runs, tmp_path / str(seeds), Metric("accuracy"))
        check = by_seeds.compare(PLAIN, NEW, 13.0, latest=latest)
        assert check.level is None and f"{seeds} and {seeds} runs" in check.sentence


def test_the_proof_of_a_part_of_a_plan_is_not_begun_where_it_cannot_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(lambda seed, new: "")
    clock = Clock(runs, monkeypatch)
    by_seeds = proof(runs, tmp_path)
    assert by_seeds.compare(PLAIN, NEW, 1000.0).level is Contract.STATISTICAL
    made, compared, part = len(runs.ordered), clock.compared, TrialSpec(PLAIN.program, (("other", {}),))
    check = by_seeds.compare(PLAIN, part, clock.now + 6.5)
    assert check.late and check.level is None and "no time left for 5 seeds" in check.sentence
    assert len(runs.ordered) == made and clock.compared == compared, "neither inputs nor runs"
    assert by_seeds.compare(PLAIN, part, clock.now + 8.0).level is Contract.STATISTICAL


@pytest.mark.parametrize(("latest", "proved"), [(20.0, True), (9.0, False)])
def test_the_runs_of_the_original_may_take_the_time_of_a_long_confirmation_too(
    latest: float, proved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of CIFAR-10 three of five were missing with two minutes left, and none was made."""
    runs = Runs(lambda seed, new: "")
    clock = Clock(runs, monkeypatch)
    by_seeds = proof(runs, tmp_path)
    by_seeds._original_arm(PLAIN, range(1, 3), 1e12)
    check = by_seeds.compare(PLAIN, NEW, clock.now + 1.0, latest=latest)
    assert (check.level is Contract.STATISTICAL) is proved
    assert proved or "the budget allowed 2 of 5 seeds" in check.sentence


@pytest.mark.parametrize("kind", ["exception", "late"])
def test_a_run_that_failed_is_not_made_again_until_it_does_not(kind: str, tmp_path: Path) -> None:
    """One of ten candidates' runs crashes by chance: at the next look it was made again, and none had failed. For one
    that there was no time for there may be time later."""
    runs, failed = Runs(lambda seed, new: f"accuracy {quality(seed):.3f}"), list[int]()
    made = runs.run

    def run(spec: TrialSpec, steps: int, output: list[str]) -> Trace | ExitReason:
        if spec.techniques and spec.seed == 3 and not failed:
            failed.append(spec.seed)
            return ExitReason(kind)
        return made(spec, steps, output)

    runs.untimed.run = run
    by_seeds = proof(runs, tmp_path)
    check = by_seeds.compare(PLAIN, NEW, 1e12)
    again = by_seeds.compare(PLAIN, NEW, 1e12)
    made_again = [spec for spec in runs.ordered if spec.techniques and spec.seed == 3]
    if kind == "late":
        assert "the budget allowed 4 of 5 seeds" in check.sentence
        assert again.level is Contract.STATISTICAL and len(made_again) == 1
    else:
        assert check.level is None and "1 of its runs failed and 0 of the original's" in check.sentence
        assert "16 and 16 runs" in check.sentence and again.sentence == check.sentence and not made_again
