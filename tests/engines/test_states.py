"""A state that a model gets from its call before, with gradients on: no gradient of an input that anybody wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.worker.session import Session
from tests.engines.test_answering import Served


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.given, self.kept, self.out = nn.Embedding(5, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, letter: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(self.given(letter) + self.kept(state))
        return self.out(state), state


def made() -> Recurrent:
    torch.manual_seed(0)
    return Recurrent().eval()


def sampled(model: nn.Module, steps: int = 12) -> tuple[list[torch.Tensor], torch.Tensor]:
    """As scripts that write text letter by letter do, without `no_grad`."""
    letter, state, scores = torch.tensor([1]), torch.zeros(1, 6), []
    for _ in range(steps):
        score, state = model(letter, state)
        scores.append(score)
        letter = score.argmax(1)
    return scores, state


def by_an_engine(ask: Callable[[nn.Module], Any]) -> Any:
    with Served(made()) as served:
        found = ask(served.model)
        assert served.answers.answered
    return found


def without_recording(ask: Callable[[nn.Module], Any]) -> Any:
    with Session([("no_grad", {})], inference=True) as session:
        found = ask(made())
    assert not session.seams.left_out
    return found


WAYS = pytest.mark.parametrize("answering", [by_an_engine, without_recording])


def test_calls_with_such_a_state_are_answered_once_each_kind_of_call_is_known() -> None:
    expected, _ = sampled(made())
    with Served(made()) as served:
        found, state = sampled(served.model)
    assert served.answers.answered == 10 and served.answers.left.total() == 2
    assert state.requires_grad and all(each.requires_grad for each in found)
    assert all(torch.allclose(one, other, rtol=1e-4) for one, other in zip(found, expected, strict=True))


def test_no_activation_is_kept_of_such_calls() -> None:
    saved: list[Any] = []
    model = made()
    with Session([("no_grad", {})], inference=True):
        _, state = sampled(model, 3)
        with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each.shape), lambda each: each):
            model(torch.tensor([1]), state)
    assert saved == [state.shape]  # by which a gradient would go on


@WAYS
def test_gradients_that_are_asked_for_after_all_go_through_all_states(answering: Any) -> None:
    def gradients(model: nn.Module) -> list[Any]:
        scores, state = sampled(model)
        (torch.stack(scores).square().sum() + state.sum()).backward()
        return [each.grad for each in model.parameters()]

    for one, other in zip(answering(gradients), gradients(made()), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


@WAYS
def test_gradients_of_gradients_go_through_all_states(answering: Any) -> None:
    def second(model: Any) -> list[Any]:
        scores, _ = sampled(model, 8)
        first = torch.autograd.grad(torch.stack(scores).square().sum(), list(model.parameters()), create_graph=True)
        return list(torch.autograd.grad(sum(each.square().sum() for each in first), list(model.parameters())))

    for one, other in zip(answering(second), second(made()), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


@WAYS
def test_a_gradient_of_a_state_is_the_models_own(answering: Any) -> None:
    def asked(model: nn.Module) -> torch.Tensor:
        _, state = sampled(model, 6)
        score, _ = model(torch.tensor([2]), state)
        return torch.autograd.grad(score.sum(), state)[0]

    assert torch.allclose(answering(asked), asked(made()), rtol=1e-4)


def test_who_asks_for_gradients_again_and_again_is_not_answered_twice() -> None:
    calls: list[int] = []
    with Served(made()) as served:
        for _ in range(4):
            scores, _ = sampled(served.model, 6)
            torch.autograd.grad(scores[-1].sum(), list(served.model.parameters()))
            calls.append(served.answers.answered)
    # Where a state comes of another call: those with which a text begins go on.
    assert served.answers.left["gradients of its inputs are recorded"] == 15 and calls == [4, 4, 5, 6]


def test_a_tensor_that_the_program_wants_a_gradient_of_is_the_models() -> None:
    with Served(made()) as served:
        for _ in range(6):
            state = torch.zeros(1, 6, requires_grad=True)
            served.model(torch.tensor([1]), state)[0].sum().backward()
            assert state.grad is not None and state.grad.any()
        assert not served.answers.answered


class Writes(Recurrent):
    def forward(self, letter: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = state.mul_(0.5)
        return super().forward(letter, state)


def test_gradients_of_a_model_that_writes_to_its_state_are_its_own() -> None:
    def gradients() -> list[Any]:
        torch.manual_seed(0)
        model = Writes().eval()
        letter, state, total = torch.tensor([1]), torch.zeros(1, 6), torch.zeros(())
        for _ in range(4):
            score, state = model(letter, state * 1)
            total = total + score.square().sum()
        total.backward()
        return [each.grad for each in model.parameters()]

    expected = gradients()
    with Session([("no_grad", {})], inference=True):
        found = gradients()
    assert all(map(torch.equal, found, expected))
