"""What goes before the screening: what is too slow to start for it, and answers in place of what most of it changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.evidence.speed import Verdict
from tests.simulated import Names, Offer, Simulated, offer, searched
from tests.tuner.test_swaps import Told

__all__ = ["offer"]
SAVES: dict[str, Any] = {"switchable": True, "programs": ("inference",)}
ENGINE = SAVES | {
    "contract": Contract.ROUNDING,
    "expected_saving": 0.5,
    "usual_start": 12.0,
    "conflicts": ("layout", "narrow"),
}
GAINS = {"engine": 3.0, "layout": 1.2, "narrow": 1.4, "narrower": 1.5}
SLOW = 0.45  # seconds of a call: a ResNet-18, 16 pictures of 224 x 224, on two cores
MINUTES = 60.0


def answering(gains: dict[str, float] = GAINS, step: float = SLOW, **more: Any) -> Simulated:
    """Its calls take so long, divided by what each technique gains; all but exact ones come to other bits."""

    def seconds(names: Names) -> float:
        return step / math.prod(gains.get(name, 1.0) for name in names)

    facts = Facts(inference=True, shares={"forward": 0.97, "data": 0.03}, step_seconds=step, samples_per_step=8)
    usual: dict[str, Any] = {"takes_time": True, "start": 4.0, "fp64": 3.0, "jitter": 0.02}
    result = lambda names: " ".join(sorted(names & GAINS.keys()))  # noqa: E731
    return Simulated(seconds, inference=True, facts=facts, result=result, **{**usual, **more})


def test_an_engine_has_its_duel_before_the_screening(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Five minutes of a slow program: with a screening first there was no time for the engine's proof."""
    offer(engine=ENGINE, layout=SAVES | {"contract": Contract.ROUNDING}, beside=SAVES)
    told = Told()
    program = answering()
    program.enter(monkeypatch)
    found = searched(tmp_path, budget=5 * MINUTES, progress=told)
    assert [each.name for each in found.chosen] == ["engine"] and found.verdict is Verdict.FASTER and found.confirmed
    assert program.spent < 5.2 * MINUTES
    assert not any(line.startswith("screening") for line in told.lines)


def test_what_gains_nothing_ahead_is_not_tried_again(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(engine=ENGINE, layout=SAVES | {"contract": Contract.ROUNDING}, beside=SAVES)
    told = Told()
    answering({"layout": 1.4}, step=0.02).enter(monkeypatch)
    found = searched(tmp_path, budget=10 * MINUTES, progress=told)
    assert [each.name for each in found.chosen] == ["layout"]
    begun = [line for line in told.lines if line.startswith(("engine", "screening"))]
    assert [line.split(":")[0].split(" against")[0] for line in begun] == ["engine", "screening"]


@pytest.mark.parametrize("step", [0.02, 1.3])
def test_what_leaves_itself_out_is_not_measured(
    step: float, offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Though its duel is to be its confirmation, too, where steps are slow."""
    offer(engine=ENGINE)
    program = answering(step=step, left_out=lambda names: {"engine": "it draws"} if "engine" in names else {})
    program.enter(monkeypatch)
    found = searched(tmp_path, budget=5 * MINUTES)
    (rejected,) = found.rejected
    assert rejected.reason == "it draws" and rejected.duel is not None and not rejected.duel.pairs
    assert sum("engine" in each.name() for each in program.started) == 1


def test_what_is_seldom_waited_for_stays_after_the_screening(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(engine=ENGINE | {"expected_saving": 0.1, "conflicts": ()}, layout=SAVES, beside=SAVES)
    told = Told()
    answering(step=0.02).enter(monkeypatch)
    searched(tmp_path, budget=10 * MINUTES, progress=told)
    stages = [line for line in told.lines if line.startswith(("engine against", "screening"))]
    assert stages and stages[0].startswith("screening")


def test_answers_are_compared_in_two_runs(offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What goes into the calls is noted by the way, and the whole plan of one technique is proved with that."""
    offer(narrow=SAVES | {"contract": Contract.STATISTICAL})
    program = answering(step=0.02)
    program.enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL, budget=10 * MINUTES)
    assert [each.name for each in found.chosen] == ["narrow"]
    assert found.proof is not None and found.proof.level is Contract.STATISTICAL and not found.proof.proxy
    roles = [each.replay.role if each.replay else each.digests for each in program.started]
    assert [each for each in roles if each] == ["answers", "agreement"]


def test_other_inputs_are_seen_in_these_runs(offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer(narrow=SAVES | {"contract": Contract.STATISTICAL})
    program = answering(step=0.02)
    made = program.enter(monkeypatch)
    assert made is program
    from tests import simulated

    entry = simulated._Trial._entry

    def of_other_pictures(self: Any, usual: Any, step: int) -> Any:
        found = entry(self, usual, step)
        return entry(self, usual, step + 1) if "narrow" in self._names else found

    monkeypatch.setattr(simulated._Trial, "_entry", of_other_pictures)
    found = searched(tmp_path, Contract.STATISTICAL, budget=10 * MINUTES)
    assert not found.chosen
    assert any("other batches in call" in each.reason for each in found.rejected)


def test_what_too_few_samples_can_prove_has_no_duel(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program sends four batches of eight again and again; 149 samples that differ would be the fewest."""
    loose = SAVES | {"contract": Contract.STATISTICAL, "expected_saving": 0.6, "usual_start": 12.0}
    offer(narrow=loose, narrower=loose | {"expected_saving": 0.55}, engine=ENGINE)
    told = Told()
    answering(step=0.02, repeats=4).enter(monkeypatch)
    found = searched(tmp_path, Contract.STATISTICAL, budget=10 * MINUTES, progress=told)
    assert [each.name for each in found.chosen] == ["engine"]
    said = {each.name: each.reason for each in found.rejected}
    assert "given the same again and again, 32 samples in all" in said["narrow"]
    assert said["narrower"].startswith("not tried: its calls are given the same")
    assert not any(line.startswith("narrower against") for line in told.lines)
