"""Gradients let go of or kept, ReLU in place: the same bits as the program's own way, or left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.techniques.technique import Settings
from overdrive.worker.session import Session

F = nn.functional
NONE, KEPT, IN_PLACE = (
    {"gradients": "none", "in_place": False},
    {"gradients": "kept", "in_place": False},
    {"gradients": "as written", "in_place": True},
)


class Net(nn.Module):
    """The second head is used in every other step: in the others its gradient is zero, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.one, self.other = nn.Linear(16, 3), nn.Linear(16, 3)
        self.in_place: dict[bool, bool] = {}  # seen while it was called, by training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.in_place = {**self.in_place, self.training: self.body[1].inplace}
        x = self.body(x)
        return self.one(x) + (self.other(x) if self.training and x.shape[0] == 8 else 0.0)


def train(
    settings: Settings | None, set_to_none: bool, make: Callable[[], nn.Module] = Net, holding: bool = False
) -> dict[str, Any]:
    torch.manual_seed(0)
    seen: dict[str, Any] = {"gradients": [], "addresses": [], "held": [], "between": []}
    with Session([("buffer_reuse", settings)] if settings else []) as session:
        model = make()
        # Momentum and decay move a parameter whose gradient is zero, and not one whose gradient is none.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for step in range(6):
            x = torch.randn(8 if step % 3 == 0 else 7, 6)
            optimizer.zero_grad(set_to_none=set_to_none)
            seen["between"].append([each.grad is None for each in model.parameters()])
            model(x).square().mean().backward()
            seen["gradients"].append([None if each.grad is None else each.grad.clone() for each in model.parameters()])
            first = next(model.parameters()).grad
            seen["addresses"].append(first.data_ptr())  # type: ignore[union-attr]
            if holding:
                seen["held"].append(first)
            del first
            optimizer.step()
        model.eval()(torch.randn(8, 6))
    seen.update(state=list(model.state_dict().values()), left_out=session.seams.left_out, model=model)
    return seen


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one["state"], other["state"], strict=True))
    for a, b in zip(one["gradients"], other["gradients"], strict=True):
        for left, right in zip(a, b, strict=True):
            assert (left is None) == (right is None) and (left is None or torch.equal(left, right))


def test_gradients_are_let_go_of_and_the_optimizer_sees_zeros() -> None:
    plain, reused = train(None, set_to_none=False), train(NONE, set_to_none=False)
    assert not reused["left_out"]
    assert not any(plain["between"][1]) and all(reused["between"][1])
    assert_same(plain, reused)
    assert any(bool((each == 0).all()) for each in reused["gradients"][1])  # the head that was not used


def test_gradients_are_kept_and_the_optimizer_sees_none() -> None:
    plain, reused = train(None, set_to_none=True), train(KEPT, set_to_none=True)
    assert not reused["left_out"]
    assert len(set(reused["addresses"])) == 1 and not all(reused["between"][1])
    assert_same(plain, reused)
    assert any(each is None for each in reused["gradients"][1])


@pytest.mark.parametrize(("settings", "set_to_none"), [(NONE, False), (KEPT, True)])
def test_gradients_that_the_program_holds_on_to_are_its_own(settings: Settings, set_to_none: bool) -> None:
    plain = train(None, set_to_none, holding=True)
    reused = train(settings, set_to_none, holding=True)
    assert_same(plain, reused)
    for one, other in zip(plain["held"], reused["held"], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("settings", "set_to_none"), [(NONE, True), (KEPT, False)])
def test_left_out_where_the_program_does_so_itself(settings: Settings, set_to_none: bool) -> None:
    assert "where the program zeroes them" in train(settings, set_to_none)["left_out"]["buffer_reuse"]


def test_relu_is_done_in_place_while_training() -> None:
    plain, reused = train(None, True), train(IN_PLACE, True)
    assert not reused["left_out"] and not reused["model"].body[1].inplace
    assert reused["model"].in_place == {True: True, False: False}
    assert_same(plain, reused)


class Needed(nn.Module):
    """What its ReLU is given is needed again: by a sum (no error, another result), or by its own backward pass."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.relu, self.how = nn.Linear(6, 6), nn.ReLU(), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "argument":
            return self.linear(self.relu(x)) + x.sum()
        x = self.linear(x) if self.how == "sum" else torch.sigmoid(self.linear(x)) - 0.5
        return self.relu(x) + (x if self.how == "sum" else 0)


class Sigmoid(Needed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(torch.sigmoid(self.linear(x)))


@pytest.mark.parametrize("make", [lambda: Needed("sum"), lambda: Needed("argument"), lambda: Sigmoid("")])
def test_a_relu_whose_argument_is_needed_is_left_alone(make: Callable[[], nn.Module]) -> None:
    plain, reused = train(None, True, make), train(IN_PLACE, True, make)
    assert "nobody else needs" in reused["left_out"]["buffer_reuse"]
    assert not reused["model"].relu.inplace
    assert_same(plain, reused)


def test_two_optimizers_in_turn_and_a_module_that_zeroes() -> None:
    """As in a GAN: the second's gradients are zeroed before the first's backward pass."""
    found = []
    for settings in (None, NONE, KEPT):
        for set_to_none in (True, False):
            torch.manual_seed(0)
            with Session([("buffer_reuse", settings)] if settings else []) as session:
                maker, critic = nn.Linear(4, 4), nn.Linear(4, 1)
                optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (maker, critic)]
                for _ in range(3):
                    maker.zero_grad(set_to_none)
                    optimizers[1].zero_grad(set_to_none)
                    fake = maker(torch.randn(5, 4))
                    critic(fake.detach()).mean().backward()
                    optimizers[1].step()
                    optimizers[0].zero_grad(set_to_none)
                    (-critic(fake).mean()).backward()
                    optimizers[0].step()
                theirs = {"none": True, "kept": False}.get(settings["gradients"]) if settings else set_to_none
                assert bool(session.seams.left_out) == (settings is not None and theirs == set_to_none)
                found.append((set_to_none, [each.clone() for each in (*maker.parameters(), *critic.parameters())]))
    for set_to_none, state in found[2:]:
        expected = next(each for kind, each in found if kind == set_to_none)
        assert all(torch.equal(a, b) for a, b in zip(state, expected, strict=True))
