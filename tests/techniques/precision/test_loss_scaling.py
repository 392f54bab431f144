"""`autocast` in fp16 scales the loss: whatever the program does, it finds gradients that are not scaled."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session

HALF = ("autocast", {"dtype": "float16"})


def network() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)))


def loss_of(model: nn.Module) -> Any:
    return model(torch.ones(16, 8)).square().mean()


def an_optimizer_for_each_stage(model: nn.Module) -> list[Any]:
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        loss_of(model).backward()
    return [each.grad for each in model.parameters()]


def two_optimizers_at_once(model: nn.Module) -> list[Any]:
    kept = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    loss_of(model).backward()
    return [each.grad for each in model.parameters() if kept]


def thawed(model: Any) -> list[Any]:
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    model[0].requires_grad_(True)
    optimizer.zero_grad()
    loss_of(model).backward()
    return [each.grad for each in model.parameters()]


def added(model: Any) -> list[Any]:
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    optimizer.add_param_group({"params": [*model[0].parameters(), *model[2].parameters()]})
    loss_of(model).backward()
    return [each.grad for each in model.parameters()]


def asked(model: nn.Module) -> list[Any]:
    torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()  # the first one has hooked all there are
    return list(torch.autograd.grad(loss_of(model), list(model.parameters())))


class Remade(torch.autograd.Function):
    """As functions that keep nothing have it: their backward asks for gradients of the parameters itself."""

    @staticmethod
    def forward(ctx: Any, model: nn.Module, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.model, ctx.parameters = model, parameters
        ctx.save_for_backward(x)
        return model(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with torch.enable_grad():
            made = ctx.model(*ctx.saved_tensors)
        return None, None, *torch.autograd.grad(made, ctx.parameters, gradient)


def asked_within_a_backward_pass(model: nn.Module) -> list[Any]:
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    Remade.apply(model, torch.ones(16, 8), *model.parameters()).square().mean().backward()  # type: ignore[no-untyped-call]
    return [each.grad for each in model.parameters() if kept]


def without_recording(model: nn.Module) -> list[Any]:
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss_of(model)
    with torch.no_grad():
        loss.backward()
    return [each.grad for each in model.parameters() if kept]


def some_only(model: Any) -> list[Any]:
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward(inputs=list(model[1].parameters()))
    return [each.grad for each in model[1].parameters() if kept]


def hooked_before(model: nn.Module) -> list[Any]:
    """As a program does that clamps each gradient: its hooks are there before any backward pass."""
    seen: dict[int, torch.Tensor] = {}

    def clamped(place: int, gradient: torch.Tensor) -> torch.Tensor:
        seen[place] = gradient.clone()
        return gradient.clamp(-1e-3, 1e-3)

    for place, each in enumerate(model.parameters()):
        each.register_hook(partial(clamped, place))  # type: ignore[no-untyped-call]
    kept = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    return [*(seen[each] for each in sorted(seen)), *(each.grad for each in model.parameters() if kept)]


def head_only(model: Any) -> list[Any]:
    """What no optimizer trains has gradients all the same, of which a norm may be taken."""
    kept = torch.optim.SGD(model[2].parameters(), lr=0.1)
    loss_of(model).backward()
    return [each.grad for each in model.parameters() if kept]


WAYS = (
    an_optimizer_for_each_stage,
    two_optimizers_at_once,
    thawed,
    added,
    asked,
    asked_within_a_backward_pass,
    without_recording,
    some_only,
    hooked_before,
    head_only,
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("also", [None, "micro_batch", "activation_checkpointing"])
def test_gradients_are_not_scaled(way: Callable[[nn.Module], list[Any]], also: str | None) -> None:
    torch.manual_seed(0)
    plain = way(network())
    torch.manual_seed(0)
    with Session([*([(also, {})] if also else []), HALF]) as session:
        found = way(network())
    assert "autocast" not in session.seams.left_out
    for ours, theirs in zip(found, plain, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.02


def test_hooks_go_with_their_parameters_and_with_the_session() -> None:
    with Session([HALF]):
        gone, model = network(), network()
        torch.optim.SGD(gone.parameters(), lr=0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for each in (gone, model):
            loss_of(each).backward()
        assert all(each._backward_hooks for each in model.parameters())
        watched = weakref.ref(next(gone.parameters()))
        del gone, each
        assert watched() is None and optimizer
    assert not any(each._backward_hooks for each in model.parameters())


def once(model: nn.Module, optimizer: Any, factor: float, zero: bool = True) -> Any:
    if zero:
        optimizer.zero_grad()
    loss = loss_of(model) * factor
    loss.backward()
    return loss


def as_statements(model: nn.Module, optimizer: Any, factor: float) -> None:
    once(model, optimizer, factor)
    optimizer.step()


def by_a_closure(model: nn.Module, optimizer: Any, factor: float) -> None:
    optimizer.step(lambda: once(model, optimizer, factor))


def by_a_closure_with_a_name(model: nn.Module, optimizer: Any, factor: float) -> None:
    """As Lightning has it."""
    optimizer.step(closure=lambda: once(model, optimizer, factor))


def accumulated(model: nn.Module, optimizer: Any, factor: float) -> None:
    """As Lightning has it: the last of several backward passes is within the step."""
    once(model, optimizer, factor)
    optimizer.step(lambda: once(model, optimizer, 1.0, zero=False))


STEPS = (as_statements, by_a_closure, by_a_closure_with_a_name, accumulated)
OVERFLOW = 1e6  # times the scale: more than fp16 has


@pytest.mark.parametrize("step", STEPS)
def test_a_step_with_an_overflow_is_skipped(step: Callable[..., None]) -> None:
    with Session([HALF]) as session:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        step(model, optimizer, 1.0)
        before = [each.detach().clone() for each in model.parameters()]
        step(model, optimizer, OVERFLOW)
        for each, value in zip(model.parameters(), before, strict=True):
            assert torch.equal(each, value)
            assert each.grad is not None  # a program may look at it
        step(model, optimizer, 1.0)
        for each, value in zip(model.parameters(), before, strict=True):
            assert torch.isfinite(each).all() and not torch.equal(each, value)
        assert all(int(state["step"]) == 2 for state in optimizer.state.values())
        assert session.seams.carried["autocast"][0]() == [32768.0, 1]
        assert not session.seams.left_out


def test_two_optimizers_are_looked_at_apart() -> None:
    with Session([HALF]) as session:
        models = [network() for _ in range(2)]
        pairs = [(each, torch.optim.SGD(each.parameters(), lr=0.1)) for each in models]
        before = [each[0][0].weight.detach().clone() for each in models]  # type: ignore[index]
        for (model, optimizer), factor in zip(pairs, (OVERFLOW, 1.0), strict=True):
            once(model, optimizer, factor)
        for _, optimizer in pairs:
            optimizer.step()
        assert torch.equal(models[0][0][0].weight, before[0])  # type: ignore[index]
        assert not torch.equal(models[1][0][0].weight, before[1])  # type: ignore[index]
        assert not session.seams.left_out


def test_a_step_that_is_taken_twice_on_what_overflowed_is_skipped_twice() -> None:
    with Session([HALF]) as session:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        once(model, optimizer, OVERFLOW)
        for _ in range(2):
            optimizer.step()
        assert all(torch.isfinite(each).all() for each in model.parameters())
        assert session.seams.carried["autocast"][0]() == [32768.0, 0]


class Again(torch.optim.SGD):
    """Calls its closure twice, as methods do that look around a point."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


@pytest.mark.parametrize("make", [torch.optim.LBFGS, lambda parameters: Again(parameters, lr=0.01)])
def test_an_optimizer_that_may_call_its_closure_again_is_left_alone(make: Any) -> None:
    def trained() -> list[Any]:
        torch.manual_seed(0)
        model = network()
        optimizer = make(model.parameters())
        for _ in range(2):
            by_a_closure(model, optimizer, 1.0)
        return [each.detach() for each in model.parameters()]

    plain = trained()
    with Session([HALF]) as session:
        found = trained()
    assert "closure" in session.seams.left_out["autocast"]
    for ours, theirs in zip(found, plain, strict=True):
        assert torch.isfinite(ours).all() and float((ours - theirs).norm() / theirs.norm()) < 0.1


def test_what_was_taken_out_of_sight_comes_back_where_the_technique_goes_within_a_step() -> None:
    with Session([HALF]) as session:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: session.seams.leave_out("autocast", "a test"))
        once(model, optimizer, OVERFLOW)
        optimizer.step()
        assert all(each.grad is not None for each in model.parameters())


def skipping_by_itself(set_to_none: bool) -> Callable[[nn.Module, Any], bool]:
    """As programs do that look at their norm: no step is made, and the gradients are dropped."""

    def step(model: nn.Module, optimizer: Any) -> bool:
        optimizer.zero_grad(set_to_none)
        (loss_of(model) * OVERFLOW).backward()
        if not torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            return False
        optimizer.step()
        return True

    return step


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_program_that_skips_its_own_steps_comes_to_a_scale_that_fits(set_to_none: bool) -> None:
    step = skipping_by_itself(set_to_none)
    with Session([HALF]) as session:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        made = [step(model, optimizer) for _ in range(30)]
        assert made[-1] and not made[0]
        assert all(torch.isfinite(each).all() for each in model.parameters())
        assert not session.seams.left_out


def test_an_overflow_that_a_program_drops_by_its_module_lowers_the_scale_once() -> None:
    with Session([HALF]) as session:
        model = network()
        kept = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        (loss_of(model) * OVERFLOW).backward()
        model.zero_grad()
        for each in kept:
            each.zero_grad()
        assert session.seams.carried["autocast"][0]() == [32768.0, 0]


def test_optimizers_that_step_on_one_overflow_lower_the_scale_once() -> None:
    with Session([HALF]) as session:
        model: Any = network()
        kept = [torch.optim.SGD(each.parameters(), lr=0.1) for each in model]
        (loss_of(model) * OVERFLOW).backward()
        for each in kept:
            each.step()
        assert session.seams.carried["autocast"][0]() == [32768.0, 0]


def by_value(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)


def by_hand(model: nn.Module) -> None:
    for each in model.parameters():
        assert each.grad is not None
        each.grad.data.clamp_(-1, 1)


@pytest.mark.parametrize("clip", [by_value, by_hand, None])
def test_no_clipping_hides_an_overflow(clip: Callable[[nn.Module], None] | None) -> None:
    with Session([HALF]) as session:
        model = nn.Linear(8, 1)
        if clip is None:
            for each in model.parameters():
                each.register_hook(lambda gradient: gradient.clamp(-1, 1))  # type: ignore[no-untyped-call]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        (model(torch.ones(16, 8)).mean() * OVERFLOW).backward()
        if clip:
            clip(model)
        optimizer.step()
        assert torch.equal(model.weight, before)
        assert session.seams.carried["autocast"][0]() == [32768.0, 0]


def test_a_step_with_an_overflow_in_a_sparse_gradient_is_skipped() -> None:
    with Session([HALF]) as session:
        model = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        moved = []
        for factor in (0.1, OVERFLOW):
            before = [each.detach().clone() for each in model.parameters()]
            optimizer.zero_grad()
            (model(torch.tensor([1, 2, 2])).mean() * factor).backward()
            optimizer.step()
            moved.append([not torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True)])
        assert all(moved[0]) and not any(moved[1])
        assert not session.seams.left_out


def test_the_losses_that_are_written_down_are_those_of_the_program() -> None:
    """With 65,536 times as much in their place no proof at `statistical` held, on any GPU."""
    told = {}
    for techniques in ((), (HALF,)):
        recorder = Recorder(losses=True)
        with Session(techniques, [recorder]):
            torch.manual_seed(0)
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()
        told[bool(techniques)] = [loss for (loss,) in recorder.losses()]
    assert len(told[True]) == 3 and told[True] == pytest.approx(told[False], rel=0.01)
