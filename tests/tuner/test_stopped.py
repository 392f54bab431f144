"""A tune that Ctrl-C stops: the best plan that is proved by then is the answer, with no other trial."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.tune_result import TuneResult
from overdrive.evidence.speed import Verdict
from overdrive.report.words import sentence
from overdrive.trials.duel import Duel
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.result import result_of
from tests.simulated import Offer, Simulated, offer, searched
from tests.tuner.test_search import names, paces, reasons

__all__ = ["offer"]  # a fixture

IN_THE_SEARCH = "established in the search, and not confirmed in fresh processes"


class Stopped(Progress):
    """Ctrl-C, once, as a stage begins whose name is such a one, or when a duel has come so far."""

    def __init__(
        self,
        program: Simulated,
        stage: Callable[[str], bool] = lambda text: False,
        pair: Callable[[Duel], bool] = lambda duel: False,
    ) -> None:
        self._program, self._stage, self._pair = program, stage, pair
        self.trials: int | None = None  # that had been started by then

    def _stop(self) -> None:
        if self.trials is None:
            self.trials = len(self._program.started)
            raise KeyboardInterrupt

    def stage(self, text: str) -> None:
        if self._stage(text):
            self._stop()

    def pair(self, duel: Duel) -> None:
        if self._pair(duel):
            self._stop()


def stopped(program: Simulated, folder: Path, progress: Stopped, contract: Contract = Contract.ROUNDING) -> Findings:
    found = searched(folder, contract, budget=600.0, progress=progress)
    assert found.stopped and len(program.started) == progress.trials
    return found


def told(found: Findings) -> TuneResult:
    return result_of(found, "plan.toml")


def test_before_its_confirmation_the_plan_is_told_as_not_confirmed(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    program = Simulated(paces(fast=1.5)).enter(monkeypatch)
    found = stopped(program, tmp_path, Stopped(program, lambda text: "confirmation" in text))
    assert names(found) == ["fast"] and found.verdict is Verdict.FASTER and not found.confirmed
    result = told(found)
    assert result.unconfirmed == IN_THE_SEARCH and IN_THE_SEARCH in sentence(result)
    note = next(each for each in result.notes if "stopped" in each)
    assert re.search("0 of [4-8] process pairs before the tune was stopped", note)
    assert "The same command goes on" in note
    assert not any("--budget" in each for each in result.notes)


def stopped_in_its_confirmation(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> Findings:
    """After so many pairs of processes, as the next one makes its first."""
    offer(fast={})
    program = Simulated(paces(fast=1.5)).enter(monkeypatch)

    def next_one(duel: Duel) -> bool:
        return bool(duel.published and duel.new.techniques and duel.pairs[-1].process == processes)

    return stopped(program, tmp_path, Stopped(program, pair=next_one))


def test_of_a_confirmation_that_was_stopped_the_processes_that_came_to_their_end_count(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stopped_in_its_confirmation(offer, tmp_path, monkeypatch, processes=2)
    result = told(found)
    assert found.verdict is Verdict.FASTER and not found.confirmed
    assert re.fullmatch("measured in 2 of [4-8] fresh process pairs, and not confirmed", result.unconfirmed)
    assert result.speedup is not None and result.speedup.estimate == pytest.approx(1.5, rel=0.03)


def test_a_confirmation_that_is_stopped_before_the_last_of_its_pairs_is_none(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are enough where there is time for no more; not for who has seen them."""
    found = stopped_in_its_confirmation(offer, tmp_path, monkeypatch, processes=3)
    result = told(found)
    assert names(found) == ["fast"] and found.verdict is Verdict.FASTER and not found.confirmed
    assert re.fullmatch("measured in 3 of [4-8] fresh process pairs, and not confirmed", result.unconfirmed)
    assert any(re.search("3 of [4-8] process pairs before the tune was stopped", note) for note in result.notes)


def test_what_joined_by_its_duel_is_the_plan_while_another_has_its_own(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={"expected_saving": 0.4}, quick={})
    program = Simulated(paces(fast=1.5, quick=1.3)).enter(monkeypatch)
    found = stopped(program, tmp_path, Stopped(program, lambda text: text.startswith("quick against")))
    assert names(found) == ["fast"] and found.proof is not None and found.proof.level is Contract.EXACT
    assert "in the duels of its techniques" in found.proof.sentence
    assert told(found).unconfirmed == IN_THE_SEARCH


def test_what_seeds_had_to_prove_goes_and_the_rest_stays(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={"expected_saving": 0.4}, low={"contract": Contract.STATISTICAL})
    program = Simulated(paces(fast=1.5, low=2), result=lambda on: "other" if "low" in on else "").enter(monkeypatch)
    seeds = lambda text: "low" in text and "seeds" in text  # noqa: E731
    found = stopped(program, tmp_path, Stopped(program, seeds), Contract.STATISTICAL)
    assert names(found) == ["fast"] and found.proof is not None and found.proof.level is Contract.EXACT
    assert "the tune was stopped before its proof" in reasons(found)["low"]


def test_what_a_proof_of_its_own_has_shown_needs_no_other(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(layout={"contract": Contract.ROUNDING, "expected_saving": 0.4}, quick={})
    program = Simulated(paces(layout=1.5, quick=1.3), result=lambda on: "other" if "layout" in on else "")
    program.enter(monkeypatch)
    found = stopped(program, tmp_path, Stopped(program, lambda text: text.startswith("quick against")))
    assert names(found) == ["layout"] and found.proof is not None and found.proof.level is Contract.ROUNDING


@pytest.mark.parametrize("stage", ["control", "fast against"])
def test_where_nothing_is_established_yet_it_is_stopped_and_no_more(
    stage: str, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    program = Simulated(paces(fast=1.5)).enter(monkeypatch)
    progress = Stopped(program, lambda text: stage in text)
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, budget=600.0, progress=progress)
    assert progress.trials is not None


def test_what_comes_after_the_confirmation_is_left_out(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    Simulated(paces(fast=1.5)).enter(monkeypatch)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("overdrive.tuner.tune.starts_under", stop)
    found = searched(tmp_path, budget=600.0)
    assert found.stopped and found.confirmed and names(found) == ["fast"] and not told(found).unconfirmed


def test_the_same_command_goes_on_and_confirms(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(fast={})
    program = Simulated(paces(fast=1.5)).enter(monkeypatch)
    stopped(program, tmp_path, Stopped(program, lambda text: "confirmation" in text))
    program = Simulated(paces(fast=1.5)).enter(monkeypatch)
    found = searched(tmp_path, budget=600.0)
    assert names(found) == ["fast"] and found.confirmed and not found.stopped
    timed = [spec for spec in program.started if not spec.digests]
    assert found.confirmation is not None
    assert len(timed) == 2 * len({pair.process for pair in found.confirmation.pairs})  # the duels were known


def test_what_a_tune_took_before_it_was_stopped_is_part_of_its_cost(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(fast={})
    with monkeypatch.context() as patch:
        program = Simulated(paces(fast=1.5), takes_time=True).enter(patch)
        before = stopped(program, tmp_path, Stopped(program, lambda text: "confirmation" in text))
    again = Simulated(paces(fast=1.5), takes_time=True).enter(monkeypatch)
    found = searched(tmp_path, budget=600.0)
    assert found.confirmed and 10.0 < found.seconds - again.spent <= before.seconds
