"""From which states steps are replayed: those about what happens rarely are among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overdrive.core.program import Program
from overdrive.core.records import StepRecord, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.proof.replays import ReferenceRun, events_in, few_steps, replay_steps
from overdrive.trials.untimed import UntimedRunner


def program(steps: int, epoch: int, ragged: bool = True, schedule: int = 0) -> list[StepRecord]:
    """A digest log: an evaluation after each epoch, which is told with the next step, and a shorter last batch."""
    return [
        StepRecord(
            samples=20 if ragged and step % epoch == 0 else 32,
            calls="1 0 a" if (step - 1) % epoch or step == 1 else "1 4 b",
            evaluation=((1.0,),) if step > 1 and (step - 1) % epoch == 0 else (),
            settings=str((step - 1) // schedule) if schedule else "",
        )
        for step in range(1, steps + 1)
    ]


@pytest.mark.parametrize("epoch", [81, 100, 137, 199, 380])
def test_the_end_and_the_beginning_of_an_epoch_are_among_the_states(epoch: int) -> None:
    """None of 300 epochs of this length had them, when only their number decided."""
    chosen = replay_steps(400, events_in(program(400, epoch)))
    assert {epoch - 1, epoch, epoch + 1, epoch + 2} <= set(chosen)
    assert len(chosen) == 32 and chosen == tuple(sorted(set(chosen)))


def test_many_events_leave_room_for_other_states() -> None:
    chosen = replay_steps(400, events_in(program(400, 16)))
    assert {1, 2, 3, 4, *range(9, 17), 400} <= set(chosen) and len(chosen) == 32
    ends = [step for step in chosen if step % 16 == 0]
    assert ends and any(step % 16 not in (15, 0, 1, 2) for step in chosen[4:-8])


def test_a_change_of_the_learning_rate_is_an_event_unless_every_step_has_one() -> None:
    assert 51 in events_in(program(200, 1000, schedule=50))
    assert events_in(program(200, 1000, schedule=1)) == ()
    assert events_in([]) == ()


@pytest.mark.parametrize("period", [10, 16, 20, 25, 32, 50, 64, 100, 128, 200])
def test_what_happens_every_so_many_steps_is_among_the_states(period: int) -> None:
    """With 400 steps, every 64th was among them in two of three choices."""
    for events in ((), events_in(program(400, 81))):
        assert any(step % period == 0 for step in replay_steps(400, events))


def test_a_short_program_is_replayed_whole() -> None:
    assert replay_steps(20, (5,)) == tuple(range(1, 21))


@pytest.mark.parametrize("last", [33, 40, 57, 100, 400])
def test_there_are_always_as_many(last: int) -> None:
    assert len(replay_steps(last)) == 32 and replay_steps(last)[-1] == last


def test_three_states_are_early_and_have_the_first_event_among_them() -> None:
    assert few_steps(400) == (2, 8, 16)
    assert few_steps(400, (16, 17, 32)) == (2, 16, 17)
    assert few_steps(400, (1, 2, 300)) == (2, 8, 16)
    assert few_steps(10) == (2, 8, 10)
    assert few_steps(400, (), frozenset(range(1, 401, 10))) == (1, 11, 21)
    assert len(few_steps(3)) == 3


class Replayed:
    """Runs no trial: each has its first chosen step in its result."""

    def __init__(
        self, folder: Path, error: float | None = 1e-7, log: Sequence[StepRecord] = (), out_of_reach: int = 0
    ) -> None:
        self.pool = SimpleNamespace(scratch=folder)
        self.made: list[str] = []
        self._error, self._log, self._first = error, tuple(log), out_of_reach + 1
        self.known, self.forget = UntimedRunner.known.__get__(self), UntimedRunner.forget.__get__(self)
        self._traces: dict[str, Trace] = {}

    def run(self, spec: TrialSpec, steps: int) -> Trace:
        assert spec.replay is not None
        role, chosen = spec.replay.role, [each for each in spec.replay.steps if each >= self._first]
        self.made.append(role)
        rows = [
            {"step": step, "kind": "gradient", "tensor": "one", "error": self._error, "size": 1.0, "count": 9}
            for step in chosen
        ]
        return Trace(steps, digests=self._log[:steps], replay={"states": list(chosen), "rows": rows})


def test_what_came_of_one_reference_run_s_states_is_not_taken_for_another_s(tmp_path: Path) -> None:
    """Where calls make many steps another one is made, of steps that can be reached; the first is there for others."""
    untimed: Any = Replayed(tmp_path)
    plain = TrialSpec(Program("train.py"))
    first = ReferenceRun(untimed, plain, 100)
    other = ReferenceRun(untimed, plain, 100, among=frozenset(range(1, 101, 5)))
    assert first.begin() is None and other.begin() is None
    for told in (ReferenceRun.disturbed, lambda run: run.candidate(plain)):
        one, two = told(first).replay["rows"], told(other).replay["rows"]
        assert {row["step"] for row in one} == set(replay_steps(100)) != {row["step"] for row in two}
    assert Counter(untimed.made) == {"reference": 2, "candidate": 2, "disturbed": 2}, "each once"


@pytest.mark.parametrize(
    ("error", "why"),
    [(None, "no gradient and no output could be compared"), (0.5, "a careful step computed")],
)
def test_a_careful_reference_that_compares_nothing_is_none(error: float | None, why: str, tmp_path: Path) -> None:
    """Where fp64 was of no use, whatever the careful steps came to was taken."""
    untimed: Any = Replayed(tmp_path, error)
    refusal = ReferenceRun(untimed, TrialSpec(Program("train.py")), 100).begin()
    assert refusal is not None and "cannot be repeated" in refusal and why in refusal
    assert untimed.made == ["reference", "candidate", "careful reference", "candidate"]


def test_a_reference_run_that_missed_what_is_rare_is_made_again_about_that(tmp_path: Path) -> None:
    """Where epochs end is foretold by their lengths; a program may evaluate at any other step."""
    log, plain = program(400, 81), TrialSpec(Program("train.py"))
    missed, foretold = (ReferenceRun(Replayed(tmp_path, log=log), plain, 400, events) for events in ((), (81, 82)))  # type: ignore[arg-type]
    for run, roles in ((missed, 2 * ["reference", "candidate"]), (foretold, ["reference", "candidate"])):
        assert run.begin() is None and run._untimed.made == roles  # type: ignore[attr-defined]
        trace = run.candidate(plain)
        assert isinstance(trace, Trace) and {80, 81, 82, 83} <= set(trace.replay["states"])


@pytest.mark.parametrize("first", [0, 2])
def test_where_nothing_is_rare_one_reference_run_is_enough(first: int, tmp_path: Path) -> None:
    """`first`: steps in which the model is called otherwise, and of which no state can be saved: two optimizers."""
    log = [StepRecord(samples=32, calls="5 0 a")] * first + [StepRecord(samples=32, calls="7 0 b")] * 400
    untimed: Any = Replayed(tmp_path, log=log, out_of_reach=first)
    assert ReferenceRun(untimed, TrialSpec(Program("train.py")), 400).begin() is None
    assert untimed.made == ["reference", "candidate"]
