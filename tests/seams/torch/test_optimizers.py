"""Optimizers and models of classes of the program's own are followed as PyTorch's are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from overdrive.seams.hub import Seams
from overdrive.seams.torch import optimizers
from overdrive.seams.torch.modules import first_parameter
from overdrive.seams.torch.next_call import next_call
from overdrive.worker.answering import AnsweringObserver
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from overdrive.worker.torch.picture import Subject


class Plain(torch.optim.Optimizer):
    """Finds its own rate, as transformers' Adafactor does."""

    def step(self, closure: Any = None) -> None:
        return None


@pytest.mark.parametrize("defaults", [{"lr": None}, {"alpha": 0.1}, {"lr": torch.tensor(0.5)}])
def test_an_optimizer_without_a_rate_is_watched(defaults: dict[str, Any]) -> None:
    recorder, weight = Recorder(losses=True), torch.nn.Parameter(torch.zeros(1))
    with Session([], [recorder]) as session:
        optimizer = Plain([weight], defaults)
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
        assert not session.seams.left_out
    assert recorder.clock.steps == 3
    assert recorder.rates == [0.5 if torch.is_tensor(defaults.get("lr")) else 0.0] * 3


class Counted:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.walks = 0
        walk = optimizers.live_modules

        def counted() -> Any:
            self.walks += 1
            return walk()

        monkeypatch.setattr(optimizers, "live_modules", counted)


def test_nobody_looks_for_the_models_of_optimizers_who_does_not_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may make one for each client and round."""
    counted, model, subject = Counted(monkeypatch), torch.nn.Linear(1, 1), Subject()

    def observe(seams: Seams) -> None:
        seams.optimizer_made.subscribe(subject.made)
        AnsweringObserver(lambda: None)(seams)

    with Session([], [observe]):
        for _ in range(100):
            made = torch.optim.SGD(model.parameters(), lr=0.1)
    assert counted.walks == 0
    subject.look()
    subject.look()
    assert counted.walks == 1 and made is not None
    subject.note()
    model(torch.ones(1)).sum().backward()
    assert set(subject.bits()) >= {"weight", "bias", "the gradient of weight"}


def test_who_needs_an_optimizer_s_models_finds_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, model, found = Counted(monkeypatch), torch.nn.Linear(1, 1), []

    def observe(seams: Seams) -> None:
        seams.optimizer_made.subscribe(lambda _, models: found.extend(models))
        seams.optimizer_made.subscribe(lambda _, models: found.extend(models))

    with Session([], [observe]):
        torch.optim.SGD(model.parameters(), lr=0.1)
    assert counted.walks == 1 and [*map(id, found)] == [id(model)] * 2


class Listing(torch.nn.Module):
    """Its `parameters()` is a list, and `modules` another: to PyTorch that is all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)
        self.modules = [self.inner]  # type: ignore[assignment]

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        return list(self.inner.parameters())  # type: ignore[return-value]

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def test_a_model_with_lists_in_the_place_of_pytorch_s_methods_is_found() -> None:
    model, found = Listing(), []
    with Session([], [lambda seams: seams.optimizer_made.subscribe(lambda _, models: found.extend(models))]) as session:
        torch.optim.SGD(model.parameters(), lr=0.1)
        assert not session.seams.left_out
    assert len(found) == 1 and found[0] is model
    assert first_parameter(model) is model.inner.weight


def test_a_call_of_a_model_with_lists_is_counted() -> None:
    model, observer = Listing(), AnsweringObserver(lambda: None)
    with Session([], [observer]) as session:
        model(torch.ones(1, 2))
        assert not session.seams.left_out
    assert observer.calls == 1


def refuse(model: Any) -> None:
    raise ValueError("of ours")


@pytest.mark.parametrize("patched", [False, True])
def test_whatever_goes_wrong_as_a_model_s_call_is_awaited_the_call_is_made(patched: bool) -> None:
    model, begun = Listing(), []
    patching = [lambda seams: seams.model_called.subscribe(lambda _, call, *args: call(*args))] if patched else []
    with Session([], patching) as session:
        next_call(session.seams, begun.append)
        assert model(torch.ones(1, 2)).shape == (1, 1) and begun == [model]
        with session.seams.owned_by("observer of steps"):
            next_call(session.seams, refuse)
        for _ in range(2):
            assert model(torch.ones(1, 2)).shape == (1, 1)
        assert set(session.seams.left_out) == {"observer of steps"}


def test_a_step_that_the_program_compiles_is_counted_and_nothing_of_ours_is_compiled() -> None:
    """It warned of `time.perf_counter`, and compiled our hooks anew as the steps' number changed."""
    model, recorder = torch.nn.Linear(2, 1), Recorder(losses=True)
    with Session([], [recorder]) as session:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch._dynamo.reset()
        counters.clear()
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        for _ in range(6):
            model(torch.ones(1, 2)).sum().backward()
            step()
        assert not session.seams.left_out
    assert recorder.clock.steps == 6
    assert "perf_counter" not in str(counters["unimplemented"])
    assert counters["frames"]["total"] <= 16  # 9 without us, 10 to 12 with our hooks left out, 23 with them


def test_the_begin_of_a_step_that_the_program_compiles_is_told() -> None:
    """PyTorch keeps what it made of a hook on that function, which a method cannot have: the step ended in an error."""
    model, begun = torch.nn.Linear(2, 1), list[torch.optim.Optimizer]()
    with Session([], [lambda seams: seams.step_begins.subscribe(begun.append)]) as session:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch._dynamo.reset()
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            step()
        assert not session.seams.left_out
    assert begun == [optimizer] * 3


class Halved(torch.optim.SGD):
    """Makes SGD's step, and goes on."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.5)
        return loss


def refuse_batch() -> None:
    raise ValueError("a bad batch")


def test_a_step_that_is_made_of_another_class_s_step_is_one() -> None:
    """PyTorch calls hooks in SGD's step, too, as soon as the program has an optimizer of that class as well."""
    seen: list[Any] = []
    recorder, weight = Recorder(losses=True), torch.nn.Parameter(torch.ones(1))

    def around(optimizer: Any, call: Any) -> Any:
        seen.append("closure")
        return call()

    def observe(seams: Seams) -> None:
        seams.step_begins.subscribe(lambda optimizer: seen.append("begins"))
        seams.step_ends.subscribe(lambda optimizer: seen.append(weight.item()))
        seams.closure_called.subscribe(around)

    with Session([], [recorder, observe]) as session:
        torch.optim.SGD([weight], lr=1.0)
        optimizer = Halved([weight], lr=1.0)
        with pytest.raises(ValueError, match="a bad batch"):
            optimizer.step(refuse_batch)
        weight.grad = torch.zeros(1)
        optimizer.step()
        optimizer.step(lambda: 0.0)
        assert not session.seams.left_out
    assert seen == ["begins", "closure", "begins", 0.5, "begins", "closure", 0.25]
    assert recorder.clock.steps == 2
