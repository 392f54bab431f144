"""Whether a program repeats itself: seen in its first few steps, where it does not."""

from __future__ import annotations

from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, StepRecord, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.proof.budget import ProofBudget
from overdrive.proof.exact import ExactProof
from overdrive.proof.runs import ProofRuns

PLAIN = TrialSpec(Program("train.py"))


class Runs:
    """Of a program whose parameters differ from run to run, from one step on."""

    def __init__(self, from_step: int) -> None:
        self.asked: list[tuple[int, bool]] = []
        self._from = from_step

    def run(self, spec: TrialSpec, steps: int) -> Trace | ExitReason:
        self.asked.append((steps, spec.deterministic))
        if spec.deterministic:
            return ExitReason("exception", "RuntimeError: some_cuda does not have a deterministic implementation")
        records = [
            StepRecord(parameters=str(len(self.asked) if step >= self._from else 0)) for step in range(1, steps + 1)
        ]
        return Trace(steps=steps, losses=((1.0,),) * steps, digests=tuple(records))

    def known(self, name: str, make: Any) -> Any:
        return make()


def looked(from_step: int, **how: bool) -> tuple[Runs, Any]:
    runs = Runs(from_step)
    proof = ExactProof(ProofRuns(runs, Facts(), lambda stage: None, False, ProofBudget()))  # type: ignore[arg-type]
    return runs, proof.repeats(PLAIN, **how)


def test_what_differs_at_once_is_seen_in_a_few_steps() -> None:
    runs, check = looked(1, in_doubt=True)
    assert check.level is None
    assert check.sentence == (
        "two runs of the untouched program differ: other parameters in step 1; "
        "some_cuda has no deterministic implementation"
    )
    assert sorted(runs.asked) == [(5, False), (5, False), (5, True)]


def test_what_differs_later_is_seen_in_whole_logs() -> None:
    runs, check = looked(50, in_doubt=True)
    assert check.level is None and "other parameters in step 50" in check.sentence
    assert sorted(steps for steps, _ in runs.asked) == [5, 5, 5, 5, 100, 100]


def test_of_what_repeats_itself_no_more_logs_are_made_than_two() -> None:
    runs, check = looked(10**9)
    assert check.level is Contract.EXACT and [steps for steps, _ in runs.asked] == [100, 100]


def test_at_the_level_exact_it_is_asked_whether_it_can_be_made_to_repeat_itself() -> None:
    runs, check = looked(1, in_doubt=True, restricted=True)
    assert check.level is None and [deterministic for _, deterministic in runs.asked] == [False, False, True, True]
