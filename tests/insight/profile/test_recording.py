"""What comes of a profile where the copy that is recorded ends early, fails in a recorded step, or takes long steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.facts import Facts
from overdrive.core.program import Program
from overdrive.core.records import Block, ExitReason, Trace, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.units import several
from overdrive.insight.profile import measure as measuring
from overdrive.insight.profile import recording, warming
from overdrive.insight.profile.blocks import BlockPair
from overdrive.insight.profile.measure import CannotProfile, measure
from overdrive.insight.profile.measured import Measured
from overdrive.insight.profile.recording import RECORDED, record
from overdrive.insight.profile.result import profile_of
from overdrive.insight.profile.wording import notes

FACTS = Facts(device="cuda")
POOL: Any = SimpleNamespace(recordings=Path("recordings"), last_output="")
PLAIN = TrialSpec(Program("train.py"))
ENDED = ExitReason("ended", "after some steps")


class Pretended:
    """Stands for the trials of a program: it is over after so many steps, or fails where it is recorded so."""

    def __init__(self, length: int, fails_in: str = "", pace: float = 0.01) -> None:
        self.length, self.fails_in, self.pace = length, fails_in, pace
        self.asked: list[int] = []  # steps
        self.copies = 0

    def __call__(self, pool: Any, spec: TrialSpec) -> Any:
        self.copies += 1
        return Copy(self)


class Copy:
    spec = PLAIN

    def __init__(self, program: Pretended) -> None:
        self.program, self.step, self.found = program, 0, {}

    def first_step(self) -> Block:
        return self.run(1)

    def run(self, steps: int, record: str = "") -> Block:
        program = self.program
        program.asked.append(steps)
        if record and record == program.fails_in:
            raise TrialOver(ExitReason("exception", "NotImplementedError: no rule for flex_attention"))
        if self.step + steps > program.length:
            raise TrialOver(ENDED, Trace(program.length))
        self.step += steps
        self.found |= {record: {}} if record else {}
        return Block(self.step, steps, steps * program.pace, 0)

    def facts(self, costs: bool = False) -> Facts:
        return FACTS

    def recorded(self) -> dict[str, Any]:
        return {**self.found, "left_out": {}}

    def stop(self) -> None:
        pass


def recorded(monkeypatch: pytest.MonkeyPatch, program: Pretended, known: bool = False, watch: bool = False) -> Measured:
    monkeypatch.setattr(recording, "Trial", program)
    monkeypatch.setattr(warming, "warm_up", lambda trials, first, enough: trials[0].run(first) and None)
    monkeypatch.setattr(recording, "warm", lambda trial, length: trial.run(1) and None)
    found = Measured(step=program.pace, phases={"forward": 1.0}, length=program.length if known else None)
    record(POOL, PLAIN, found, watch)
    return found


def test_watching_on_to_the_end_of_a_program_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(monkeypatch, Pretended(length=60), watch=True)
    assert found.facts is FACTS and set(found.recorded) == set(RECORDED) and not found.not_recorded
    assert {"counts", "operators", "lines", "trace"} <= found.details.keys() and found.trace


@pytest.mark.parametrize("length", [4, 5, 7, 20])
def test_of_a_program_of_few_steps_the_rest_is_recorded_in_another_copy(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Pretended(length)
    found = recorded(monkeypatch, program, known=True)
    assert set(found.recorded) == set(RECORDED) and not found.not_recorded and found.facts is FACTS
    assert program.copies == (2 if length < 6 else 1)


def test_what_cannot_be_recorded_is_named_with_the_reason_and_the_rest_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = recorded(monkeypatch, Pretended(1000, fails_in="counts"))
    assert set(found.recorded) == {"operators", "lines", "trace"} and found.facts is FACTS
    result = profile_of(Program("train.py"), found, None, "", advise=True)
    why = "the program failed while that was recorded (NotImplementedError: no rule for flex_attention)"
    assert f"Not recorded, counts: {why}." in notes(result)
    assert result.device == "cuda" and result.advice == ()


def test_a_copy_that_makes_no_recorded_step_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Pretended(2)
    found = recorded(monkeypatch, program)
    assert program.copies == 1 and found.not_recorded == dict.fromkeys(RECORDED, "the program ended before")


def test_nothing_is_said_of_what_was_not_seen() -> None:
    found = Measured(step=1.0, phases={"forward": 1.0}, not_recorded={"lines": "the program ended before"})
    result = profile_of(Program("train.py"), found, None, "", advise=True)
    assert result.advice is None and "No technique" not in result.bottleneck.sentence
    assert "Not recorded, lines: the program ended before." in notes(result)


def test_of_long_steps_few_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Pretended(1000, pace=30.0)
    recorded(monkeypatch, program)
    assert sum(program.asked) <= 6
    program.asked.clear()
    monkeypatch.undo()
    trial: Any = Copy(program)
    assert warming.warm(trial, None) == warming.warm(trial, 600) == 30.0
    assert sum(program.asked) <= 4


@pytest.mark.parametrize("many", [1, 3])
def test_what_each_pair_of_processes_gave_once_says_nothing_of_how_sure_it_is(many: int) -> None:
    found = Measured()
    pairs = [BlockPair(1, 30.0, 31.0, {"forward": 31.0}, {"forward": 1}, processes=each) for each in range(many)]
    measuring._sum_up(found, pairs)
    said = notes(profile_of(Program("train.py"), found, None, "", advise=False))[0]
    assert f"{several(many, 'pair')} of blocks" in said and "how sure that is, is not known" in said and "±" not in said


class BeginsToTrain:
    """Trials of a program that evaluates for long before it trains."""

    clocks: list[str] = []  # noqa: RUF012

    def __init__(self, pool: Any, spec: TrialSpec) -> None:
        self.spec = spec
        self.clocks.append(spec.clock)

    def first_step(self) -> Block:
        if not self.spec.profiling:
            raise TrialOver(ExitReason("answers", "after 100 calls"))
        if self.spec.clock == "inference":
            raise TrialOver(ExitReason("trains", "an optimizer stepped after 100 calls of the model"))
        raise TrialOver(ExitReason("hang", "no step for 60 s"))

    def stop(self) -> None:
        pass


def test_a_program_that_evaluates_first_is_profiled_as_the_training_that_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "Trial", BeginsToTrain)
    with pytest.raises(CannotProfile, match=r"^The program stopped making steps \(no step for 60 s\)\.$"):
        measure(POOL, Program("train.py"), False, lambda stage: None)
    assert BeginsToTrain.clocks == ["training", "inference", "inference", "training", "training"]
