"""A program trains or answers, by what it does; and what its steps are then."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.seams.answering import AnsweringModel
from overdrive.trials.trial import Trial
from overdrive.worker import answering
from overdrive.worker.answering import AnsweringObserver
from overdrive.worker.clock import InferenceClock
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from tests.conftest import IMPORT_TORCH
from tests.warm_trials import WarmPool

BEGIN = f"""
{IMPORT_TORCH}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
"""
EVALUATE = """
with torch.no_grad():
    for request in range(40):
        model(torch.randn(8, 4))
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


BY_HAND = """
for step in range(20):
    model.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.1 * parameter.grad)
"""


def over(path: Path, clock: str = "training", steps: int = 100) -> tuple[str, Any]:
    """How a trial of so many steps ended, and its trace, where it has one."""
    with WarmPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(path)), clock=clock))
        try:
            trial.first_step()
            trial.run(steps)
        except TrialOver as reason:
            return reason.exit_reason.kind, reason.trace
        finally:
            trial.stop()
    return "", None


def test_a_program_that_only_calls_its_model_is_told_as_one_and_its_calls_are_counted(
    script: Callable[[str], Path],
) -> None:
    path = script(BEGIN + EVALUATE)
    assert over(path)[0] == "answers"
    kind, trace = over(path, "inference")
    assert kind == "ended" and trace.inference
    assert (trace.steps, trace.samples, trace.trained) == (40, 320, "4 tensors, 30 scalars")
    assert trace.losses == ((),) * 40


@pytest.mark.parametrize("text", [BEGIN + EVALUATE + TRAIN + EVALUATE, BEGIN + TRAIN + EVALUATE], ids=["first", "last"])
def test_training_with_evaluation_stays_training(text: str, script: Callable[[str], Path]) -> None:
    kind, trace = over(script(text))
    assert kind == "ended" and trace.steps == 20 and not trace.inference


def test_a_program_taken_for_one_that_answers_may_turn_out_to_train(script: Callable[[str], Path]) -> None:
    assert over(script(BEGIN + EVALUATE + TRAIN), "inference")[0] == "trains"


@pytest.mark.parametrize("text", [BY_HAND, BY_HAND + EVALUATE, EVALUATE + "model(torch.ones(8, 4)).sum().backward()\n"])
def test_gradients_without_an_optimizer_are_neither(text: str, script: Callable[[str], Path]) -> None:
    """As in pytorch/examples' regression, which changes its parameters itself."""
    assert over(script(BEGIN + text))[0] == "no optimizer"
    assert over(script(BEGIN + text + TRAIN))[0] == "ended", "it has an optimizer as well"


def test_a_program_that_goes_on_is_told_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(answering.time, "monotonic", lambda: now[0])
    told: list[int] = []
    found = AnsweringObserver(lambda: told.append(found.calls))
    model = nn.Linear(4, 2)
    with Session([], [found]):
        for _ in range(20):
            model(torch.randn(2, 4))
        nn.ReLU()(torch.randn(2))
        assert not told and found.calls == 20
        now[0] += answering._SECONDS + 1
        model(torch.randn(2, 4))
        assert told == [21]
        torch.optim.SGD(model.parameters(), lr=0.1)  # then it is waited for longer
        now[0] += 1
        model(torch.randn(2, 4))
        assert told == [21]
        now[0] += answering._WITH_OPTIMIZER
        model(torch.randn(2, 4))
        assert told == [21, 23]


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x))


def test_a_step_is_an_outermost_call_of_the_leading_model() -> None:
    clock, made, ends = InferenceClock(), [], []
    recorder = Recorder(losses=True, clock=clock)

    def watch(seams: Any) -> None:
        seams.optimizer_made.subscribe(lambda optimizer, models: made.append(list(models)))
        seams.step_ends.subscribe(ends.append)

    model, second, loss = Both(), nn.Linear(4, 3), nn.CrossEntropyLoss()
    with Session([], [recorder, watch], inference=True), torch.no_grad():
        for _ in range(5):
            loss(second(model(torch.randn(6, 4))), torch.zeros(6, dtype=torch.long))
    assert clock.steps == 5 and len(ends) == 10
    assert made == [[model], [second]]
    assert all(isinstance(each, AnsweringModel) for each in ends)
    assert recorder.samples == 30
    assert [each["params"] for each in ends[0].param_groups] == [list(model.parameters())]


def test_samples_are_counted_only_where_the_first_dimension_is_that_of_samples() -> None:
    recorder = Recorder(clock=InferenceClock())
    with Session([], [recorder], inference=True), torch.no_grad():
        nn.Conv2d(3, 4, 3)(torch.randn(3, 8, 8))  # one picture, without a batch
    assert recorder.clock.steps == 1 and recorder.samples == 0


def test_the_hash_of_where_it_ended_has_the_last_answer_in_it() -> None:
    model = nn.Linear(4, 2)

    def ended(x: torch.Tensor) -> str:
        recorder = Recorder(losses=True, clock=InferenceClock())
        with Session([], [recorder], inference=True), torch.no_grad():
            model(torch.ones(2, 4))
            model(x)
            return recorder.state_hash()

    assert ended(torch.ones(2, 4)) == ended(torch.ones(2, 4)) != ended(torch.zeros(2, 4))


class Remembered(torch.autograd.Function):
    """A part of a graph; `alive` has a weak reference to each that was made."""

    alive: ClassVar[list[weakref.ref[Any]]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Remembered.alive.append(weakref.ref(ctx))
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


class Many(nn.Module):
    def __init__(self, of: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.of = nn.Linear(4, 4), of

    def forward(self, x: torch.Tensor) -> Any:
        return self.of(Remembered.apply(self.inner(x)))


@pytest.mark.parametrize("of", [lambda x: x, lambda x: {"logits": x, "several": (x, 3)}])
def test_what_an_answer_was_computed_from_is_gone_when_the_program_lets_go_of_it(of: Callable[..., Any]) -> None:
    """A script that forgot `no_grad` had two graphs in its trials, and one without them."""
    recorder, model = Recorder(losses=True, clock=InferenceClock()), Many(of)
    Remembered.alive.clear()
    with Session([], [recorder], inference=True):
        for _ in range(3):
            answer = model(torch.ones(2, 4))
            assert Remembered.alive[-1]() is not None
            before = recorder.state_hash()
            del answer
            assert all(each() is None for each in Remembered.alive)
            assert recorder.state_hash() == before
    assert len(Remembered.alive) == 3


def test_a_model_that_is_gone_by_the_end_is_told_of_all_the_same() -> None:
    """It counted where a technique kept it, and not in the program as it is: proofs took that for other parameters."""
    recorder = Recorder(losses=True, clock=InferenceClock())
    with Session([], [recorder], inference=True), torch.no_grad():
        nn.Linear(4, 2)(torch.ones(2, 4))
    assert recorder.trained() == "2 tensors, 10 scalars"


def test_a_module_of_a_kind_of_its_own_is_no_trouble() -> None:
    class Broken(nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            raise ValueError("not yet made")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    clock, model = InferenceClock(), nn.Linear(4, 2)
    with Session([], [clock.watch], inference=True) as session:
        for _ in range(3):
            model(torch.randn(2, 4))
        assert clock.steps == 3 and not session.seams.left_out
        Broken()(torch.randn(2, 4))
        model(torch.randn(2, 4))
    assert clock.steps == 3 and "not yet made" in session.seams.left_out["observer"]


def test_an_error_that_the_program_catches_is_no_step() -> None:
    clock, model = InferenceClock(), nn.Linear(4, 2)
    with Session([], [clock.watch], inference=True):
        model(torch.randn(2, 4))
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5))
        model(torch.randn(2, 4))
    assert clock.steps == 2


def test_calls_of_pytorch_count_though_tensorflow_was_imported() -> None:
    """By TensorBoard, say, or for its data sets."""
    observer, model = AnsweringObserver(lambda: None), nn.Linear(4, 2)
    with Session([], [observer]) as session:
        session.seams.frameworks.append("keras")
        for _ in range(10):
            model(torch.randn(2, 4))
    assert observer.calls == 10
