"""`no_grad`: no graph is kept, and gradients that are asked for after all are the same."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.own_facts import OwnFacts
from overdrive.worker.session import Session

PLAN = [("no_grad", {})]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.drop(self.norm(self.conv(x)).relu().mean((2, 3)))
        return {"scores": self.fc(hidden), "labels": self.fc(hidden).argmax(1), "hidden": hidden, "name": "net"}


def net(mode: bool) -> Net:
    torch.manual_seed(0)
    return Net().train(mode)


@pytest.mark.parametrize("mode", [False, True], ids=["eval", "train"])
def test_results_and_later_gradients_are_the_same(mode: bool) -> None:
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(2))

    def once(model: Net) -> tuple[Any, ...]:
        model(x)
        torch.manual_seed(7)
        made = model(x)
        drawn = torch.rand(1)
        buffers = [each.clone() for each in model.buffers()]
        (made["scores"].square().sum() + made["hidden"].sum()).backward()
        after = [each.clone() for each in model.buffers()]
        gradients = [each.grad for each in model.parameters()]
        return [made["scores"], made["labels"], drawn, *buffers, *after, *gradients, torch.rand(1)], made

    expected, _ = once(net(mode))
    with Session(PLAN, inference=True) as session:
        found, made = once(net(mode))
    assert not session.seams.left_out
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert made["scores"].requires_grad and not made["labels"].requires_grad and made["name"] == "net"


def test_nothing_is_kept_for_a_backward_pass() -> None:
    model, saved = net(False), []
    hooks = torch.autograd.graph.saved_tensors_hooks(saved.append, lambda t: t)
    with Session(PLAN, inference=True):
        model(torch.randn(5, 1, 8, 8))  # which shows what of its results requires gradients
        with hooks:
            model(torch.randn(5, 1, 8, 8))
    assert not saved


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_that_comes_later_sees_what_gradients_are_asked_of(everywhere: bool) -> None:
    """Grad-CAM, in a program that has answered without it for a while."""

    def once() -> list[Any]:
        model, kept, found = net(False), [], []
        x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(2))

        def keep(module: nn.Module, given: Any, made: torch.Tensor) -> None:
            if module is model.conv:
                kept.append(made)

        for step in range(6):
            if step == 3:
                put = nn.modules.module.register_module_forward_hook if everywhere else model.conv.register_forward_hook
                handle = put(keep)
            scores = model(x)["scores"]
            found += torch.autograd.grad(scores[0].max(), kept[-1]) if kept else [scores.detach()]
        handle.remove()
        return found

    expected = once()
    with Session(PLAN, inference=True) as session:
        found = once()
    assert not session.seams.left_out
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_scripted_model_answers() -> None:
    model, x = torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU())), torch.ones(2, 4)
    with Session(PLAN, inference=True) as session:
        results = [model(x) for _ in range(4)]
        results[-1].sum().backward()
    assert not session.seams.left_out and model[0].weight.grad is not None


def test_a_model_that_draws_from_pythons_and_numpys_generators_draws_the_same_again() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * random.random() * float(np.random.rand())

    def once() -> list[Any]:
        torch.manual_seed(0)
        model, x = Scaled(3, 2), torch.randn(4, 3)
        model(x)
        random.seed(1)
        np.random.seed(1)
        made = model(x)
        drawn = random.random(), np.random.rand()
        made.sum().backward()
        return [made, model.weight.grad, torch.tensor([*drawn, random.random(), np.random.rand()])]

    expected = once()
    with Session(PLAN, inference=True) as session:
        found = once()
    assert not session.seams.left_out
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_inputs_whose_gradients_are_wanted_get_them() -> None:
    model, x = net(False), torch.randn(5, 1, 8, 8, requires_grad=True)
    with Session(PLAN, inference=True):
        model(x)["scores"].sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


def test_a_second_derivative_is_had() -> None:
    model, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), torch.randn(4, 2)

    def penalty() -> torch.Tensor:
        model(x)
        first = torch.autograd.grad(model(x).sum(), model[0].weight, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), model[0].weight)[0]

    expected = penalty()
    with Session(PLAN, inference=True):
        assert torch.allclose(penalty(), expected)


def test_weights_that_were_changed_in_between_are_an_error_as_in_pytorch() -> None:
    model = net(False)
    with Session(PLAN, inference=True):
        made = [model(torch.randn(5, 1, 8, 8))["scores"] for _ in range(2)][-1]
        with torch.no_grad():
            model.fc.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.sum().backward()


def test_an_input_that_was_changed_in_between_is_an_error_as_in_pytorch() -> None:
    """One buffer for all inputs: the gradient would be of the next one."""
    model, x = net(False), torch.randn(5, 1, 8, 8)

    def late(*args: Any, **kwargs: Any) -> None:
        made = [model(*args, **kwargs)["scores"] for _ in range(2)][-1]
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.sum().backward()

    late(x)
    with Session(PLAN, inference=True) as session:
        late(x)
        late(x=x)
    assert not session.seams.left_out


def test_an_input_made_in_inference_mode_counts_no_writes() -> None:
    model = net(False)
    with torch.inference_mode():
        x = torch.randn(5, 1, 8, 8)
    model.requires_grad_(False)
    model.fc.requires_grad_(True)  # PyTorch keeps no such tensor for a gradient
    with Session(PLAN, inference=True) as session:
        [model(x)["scores"] for _ in range(2)][-1].sum().backward()
    assert not session.seams.left_out and model.fc.weight.grad is not None


def test_an_input_that_is_handed_on_gets_no_gradient() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    x = torch.randn(3)
    model = Same()
    with Session(PLAN, inference=True):
        made = [model(x) for _ in range(2)][-1]
    assert torch.equal(made, x) and not x.requires_grad and x.grad_fn is None


@pytest.mark.parametrize("mode", [False, True], ids=["eval", "train"])
def test_a_mode_that_is_set_between_a_call_and_its_backward_pass_counts_for_neither(mode: bool) -> None:
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(2))

    def once() -> tuple[list[Any], list[bool]]:
        model = net(mode)
        model(x)
        torch.manual_seed(7)
        made = model(x)
        model.train(not mode)
        made["scores"].square().sum().backward()
        return [each.grad for each in model.parameters()], [each.training for each in model.modules()]

    expected, modes = once()
    with Session(PLAN, inference=True) as session:
        found, left = once()
    assert not session.seams.left_out and left == modes == [not mode] * len(modes)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_model_that_takes_gradients_itself_leaves_it_out() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.fc(x).tanh().sum(), x)[0]

    model, x = Forces(), torch.randn(4, 3)
    with Session(PLAN, inference=True) as session:
        found = [model(x) for _ in range(2)]
    assert all(torch.equal(each, model(x)) for each in found) and "no_grad" in session.seams.left_out


class Parted(nn.Module):
    """One result of a frozen tower, one of its head; `whole` asks for no graph at all, as forwards of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, whole: bool = False) -> dict[str, torch.Tensor]:
        with torch.set_grad_enabled(not whole):
            features = self.tower(x).detach()
            return {"features": features, "scores": self.head(features)}


def test_results_that_require_no_gradient_by_themselves_require_none() -> None:
    model, x = Parted(), torch.randn(4, 3)
    with Session(PLAN, inference=True) as session:
        made = [model(x) for _ in range(4)]
        bare = [model(x, whole=True) for _ in range(4)]
        for each in [*[m["features"] for m in made], *bare[0].values(), *bare[-1].values()]:
            assert not each.requires_grad and each.numpy().shape
        assert all(each["scores"].requires_grad for each in made)
        made[-1]["scores"].sum().backward()
    assert not session.seams.left_out
    assert model.tower.weight.grad is None and model.head.bias.grad.tolist() == [4, 4]


def test_a_parameter_that_is_frozen_later_counts() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with Session(PLAN, inference=True):
        assert all(model(x).requires_grad for _ in range(3))
        model.requires_grad_(False)
        assert not any(model(x).requires_grad for _ in range(3))


def test_as_many_results_as_a_call_happens_to_have() -> None:
    class Finds(nn.Linear):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [row for row in super().forward(x) if row.sum() > 0]

    torch.manual_seed(0)
    model = Finds(3, 2)
    given = [torch.randn(6, 3) for _ in range(6)]
    expected = [model(each) for each in given]
    with Session(PLAN, inference=True) as session:
        found = [model(each) for each in given]
    assert not session.seams.left_out and len({len(each) for each in expected}) > 1
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other) and all(map(torch.equal, one, other)) and all(each.requires_grad for each in one)


def test_it_is_for_programs_that_record_gradients() -> None:
    technique, model = catalogue()["no_grad"], net(False)

    def facts(grad: bool) -> Facts:
        own = OwnFacts()
        with Session([], [own], inference=True), torch.set_grad_enabled(grad):
            model(torch.randn(2, 1, 8, 8))
            return Facts(inference=True, own=own.gathered("torch"))

    assert technique.applies(facts(True)) is None
    assert technique.applies(facts(False)) == "the program records no gradients"
    assert technique.is_for(True) and not technique.is_for(False)


class Remembers(nn.Module):
    """Its calls go on from what the one before has left in it, as a neural Turing machine's do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.state = nn.Linear(3, 3), torch.zeros(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = torch.tanh(self.fc(x + self.state))
        return self.state


def test_a_program_that_is_about_to_train_is_left_alone_from_its_first_step_on() -> None:
    torch.manual_seed(0)
    model, x = Remembers(), torch.randn(2, 3)
    with Session(PLAN) as session:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(x)
        model(x).sum().backward()
        optimizer.step()
    assert "no_grad" in session.seams.left_out


@dataclass
class Told:
    scores: torch.Tensor
    name: str


def test_results_in_an_object_of_the_programs_require_gradients_as_they_do() -> None:
    class Telling(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return Told(super().forward(x), "told")

    model, x = Telling(3, 2), torch.randn(4, 3)
    with Session(PLAN, inference=True) as session:
        made = [model(x) for _ in range(4)]
        assert all(each.scores.requires_grad for each in made)
        made[-1].scores.sum().backward()
    assert not session.seams.left_out and model.weight.grad is not None
