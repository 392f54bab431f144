"""Answers of both to the same inputs: calls that were given others, after those whose inputs are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, StepRecord, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.proof.agreement import AgreementProof
from overdrive.proof.budget import ProofBudget
from overdrive.proof.runs import ProofRuns

PLAIN = TrialSpec(Program("infer.py"))
NEW = TrialSpec(Program("infer.py"), (("narrow", {}),))


class Answering:
    """Runs no trial. Each call answers ten samples alike.

    Attributes:
        made: what was ordered besides answers.
    """

    def __init__(self, folder: Path, others: tuple[int, ...], shaken: str, last: int) -> None:
        self.pool = SimpleNamespace(scratch=folder)
        self.until = float("inf")
        self.made: list[str] = []
        self._others = others
        self._last = last  # call of the candidate
        self._shaken = shaken  # what becomes of the shaken run: its inputs are "data" or "made", or a kind of exit

    def known(self, name: str, make: Any) -> Any:
        return make()

    def run(self, spec: TrialSpec, steps: int) -> Trace | ExitReason:
        moved = 0.0
        if spec.techniques:
            steps = min(steps, self._last)
        if spec.replay is None:
            self.made.append(spec.digests)
            if self._shaken not in ("data", "made"):
                return ExitReason(self._shaken)
            moved = 0.5 * (self._shaken == "made")
        digests = tuple(StepRecord(samples=10, inputs=((step + moved * (step > 1),),)) for step in range(1, steps + 1))
        replay: dict[str, Any] = {}
        if spec.replay:
            chosen = [step for step in spec.replay.steps if step <= steps]
            rows = [{"step": step, "tensor": "scores", "other": [0.0] * 10, "error": [1e-6] * 10} for step in chosen]
            replay = {"states": chosen, "rows": rows, "spreads": {"scores": [1.0, 1.0]}}
            replay["other_inputs"] = list(self._others) if spec.replay.role == "agreement" else []
        return Trace(steps=steps, digests=digests, replay=replay, inference=True)


def compared(
    folder: Path, others: tuple[int, ...], shaken: str = "data", last: int = 10_000
) -> tuple[Check, list[str]]:
    untimed = Answering(folder, others, shaken, last)
    facts = Facts(inference=True, samples_per_step=10)
    runs = ProofRuns(cast(Any, untimed), facts, lambda stage: None, False, ProofBudget())
    assert runs.steps == 100
    return AgreementProof(runs).compare(PLAIN, NEW, 1e12), untimed.made


def test_the_same_inputs_take_no_other_run(tmp_path: Path) -> None:
    check, made = compared(tmp_path, ())
    assert check.level is Contract.STATISTICAL and made == [] and "other inputs" not in check.sentence


@pytest.mark.parametrize("shaken", ["data", "exception"])
def test_other_data_in_late_calls_is_not_passed_over(shaken: str, tmp_path: Path) -> None:
    """What calls were given is compared in the first hundred. Later ones with other inputs were left out in silence."""
    check, made = compared(tmp_path, (120, 130), shaken)
    assert check.level is None and made == ["shaken"] and check.invariants
    assert "2 calls were given other inputs than the original's, call 120 first" in check.sentence


def test_calls_that_depend_on_answers_may_part_and_it_is_said(tmp_path: Path) -> None:
    check, made = compared(tmp_path, (120,), "made")
    assert check.level is Contract.STATISTICAL and made == ["shaken"], check.sentence
    assert check.sentence.endswith("; 1 call with other inputs could not be compared")


def test_no_time_to_tell_what_the_model_made_itself_is_no_verdict(tmp_path: Path) -> None:
    check, _ = compared(tmp_path, (120,), "late")
    assert check.level is None and check.late


def test_a_program_that_ends_sooner_under_a_candidate_is_not_passed_over(tmp_path: Path) -> None:
    """How many calls are made is compared in the first hundred, and of those that followed only what was there was."""
    check, made = compared(tmp_path, (), last=120)
    assert check.level is None and made == ["shaken"] and check.invariants
    assert "calls were not made, from call 121 on" in check.sentence or "from call 122 on" in check.sentence
    check, _ = compared(tmp_path, (), "made", last=120)
    assert check.level is Contract.STATISTICAL and check.sentence.endswith(" of the calls were not made")
