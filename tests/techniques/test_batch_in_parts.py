"""A batch in parts (`micro_batch`): the same result and gradients, left out where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.records import StepRecord
from overdrive.worker.session import Session
from overdrive.worker.torch.digests import DigestLog

F = nn.functional
Forward = Callable[[Any, torch.Tensor], Any]
technique = "micro_batch"


class Net(nn.Module):
    """Layers, and what its call makes of them."""

    def __init__(self, forward: Forward, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.kept: Any = None
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 4))


def one_step(
    make: Callable[[], nn.Module], parts: int | None, loss_of: Any = None, batch: int = 12, **made: Any
) -> dict[str, Any]:
    """One training step; with `parts` the technique is in force."""
    torch.manual_seed(0)
    x = made.get("x", torch.randn(batch, 8))
    y = torch.randint(4, (batch,))
    with Session([(technique, {"parts": parts})] if parts else []) as session:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        result = model(x)
        loss = (loss_of or F.cross_entropy)(result, y)
        loss.backward()
        gradients = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
        optimizer.step()
    return {
        "result": result, "gradients": gradients, "left_out": session.seams.left_out, "model": model,
        "chance": torch.rand(3),
    }  # fmt: skip


def assert_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    for a, b in zip(one["gradients"], other["gradients"], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("parts", [2, 3, 5, 12, 100])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_are_those_of_the_whole_batch_whatever_its_loss(parts: int, reduction: str) -> None:
    def loss(result: Any, y: Any) -> Any:
        # One that no sum over parts could make: the samples meet in it.
        return F.cross_entropy(result, y, reduction=reduction) + result.logsumexp(0).square().sum()

    plain, split = one_step(mlp, None, loss), one_step(mlp, parts, loss)
    assert not split["left_out"]
    torch.testing.assert_close(plain["result"], split["result"])
    assert_alike(plain, split)


@pytest.mark.parametrize("parts", [2, 5])
def test_a_call_in_parts_is_one_call_in_the_log_of_a_proof(parts: int) -> None:
    """Each part was an evaluation there, of other inputs: no plan with the technique could be proved."""

    def log(techniques: Any, rows: slice = slice(None)) -> list[StepRecord]:
        torch.manual_seed(0)
        log = DigestLog("inputs")
        with Session(techniques, [log]) as session:
            model = mlp()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in torch.randn(2, 12, 8):
                F.cross_entropy(model(x[rows]), torch.arange(12)[rows] % 4).backward()
                optimizer.step()
                log.stepped()
            with torch.no_grad():
                model(torch.ones(4, 8))
            log.stepped()
        assert not session.seams.left_out
        return log.entries

    split = [(technique, {"parts": parts})]
    assert log(split) == log([]) != log(split, slice(8))


def test_only_one_part_is_kept_at_a_time() -> None:
    """The rows of activations that are alive at once, counted where they are saved and where they are let go."""

    def peak(parts: int | None) -> int:
        rows = most = 0

        class Held:
            def __init__(self, tensor: torch.Tensor) -> None:
                nonlocal rows, most
                self.tensor = tensor
                self.rows = len(tensor) if len(tensor) >= 16 else 0  # not the weights, which have 8
                rows += self.rows
                most = max(most, rows)

            def __del__(self) -> None:
                nonlocal rows
                rows -= self.rows

        wide = lambda: nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(10)])  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(lambda each: Held(each.detach()), lambda held: held.tensor):
            one_step(wide, parts, lambda result, y: result.sum(), batch=64)
        return most

    assert peak(4) < 0.5 * peak(None)


def test_how_often_a_part_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = nn.Linear.forward

    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return plain(self, x)

    monkeypatch.setattr(nn.Linear, "forward", counted)
    assert not one_step(lambda: Net(lambda self, x: self.a(x), a=nn.Linear(8, 4)), 3)["left_out"]
    assert calls == [4, 4, 4] * 2  # and none of those that were made for trying


SEEN: list[int] = []


def noting(self: Any, x: torch.Tensor) -> torch.Tensor:
    SEEN.append(len(x))
    return self.a(x)  # type: ignore[no-any-return]


def printing(self: Any, x: torch.Tensor) -> torch.Tensor:
    print(len(x), "rows")
    return self.a(x)  # type: ignore[no-any-return]


def test_a_model_that_does_more_than_compute_is_called_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    SEEN.clear()
    assert "changes" in str(one_step(lambda: Net(noting, a=nn.Linear(8, 4)), 3)["left_out"])
    assert SEEN == [12]
    assert "prints" in str(one_step(lambda: Net(printing, a=nn.Linear(8, 4)), 3)["left_out"])
    assert capsys.readouterr().out == "12 rows\n"


def test_a_model_that_begins_to_do_more_than_compute_is_called_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that is seen has changed before: it is its data that has it print, and note."""

    def late(self: Any, x: torch.Tensor) -> torch.Tensor:
        if float(x.detach().max()) > 100:
            printing(self, x)
            noting(self, x)
        return self.a(x)  # type: ignore[no-any-return]

    SEEN.clear()
    with Session([(technique, {"parts": 3})]) as session:
        model = Net(late, a=nn.Linear(8, 4))
        for scale in (1, 1, 1000, 1):
            x = torch.randn(12, 8) * scale
            result = model(x)
            model.eval()  # between the passes
            result.square().mean().backward()
            model.train()
            assert torch.allclose(model.a.weight.grad, 2 / 48 * result.detach().T @ x, rtol=1e-3, atol=1e-3)  # type: ignore[union-attr,operator]
            model.zero_grad()
    assert not session.seams.left_out and SEEN == [12] and capsys.readouterr().out == "12 rows\n"


def test_a_backward_pass_can_be_made_twice_where_the_program_keeps_its_graph() -> None:
    def twice(result: Any, y: Any) -> Any:
        loss = F.cross_entropy(result, y)
        loss.backward(retain_graph=True)
        return loss

    for dropout in (0.0, 0.5):
        make = lambda: mlp(dropout)  # noqa: B023, E731
        once, both = one_step(make, 3), one_step(make, 3, twice)
        assert not both["left_out"]
        for a, b in zip(once["gradients"], both["gradients"], strict=True):
            torch.testing.assert_close(2 * a, b)


def test_random_numbers_of_a_part_are_drawn_once_and_used_twice() -> None:
    """With its own masks drawn again in the backward pass, gradients would not be those of the result."""
    split = one_step(lambda: mlp(dropout=0.5), 3, lambda result, y: result.sum())
    assert not split["left_out"]
    model, hidden = split["model"], split["gradients"][3]
    assert torch.equal(hidden, torch.full_like(hidden, 12.0))
    # d(sum)/d(last weight) is the sum over the batch of the very activations that the result was made of.
    weight, bias = model[3].weight + 0.1 * split["gradients"][2], model[3].bias + 0.1 * split["gradients"][3]
    made = (split["gradients"][2] * weight).sum(1) + 12.0 * bias
    torch.testing.assert_close(made, split["result"].sum(0), rtol=1e-4, atol=1e-4)


def test_chance_goes_on_as_if_each_part_had_been_called_once() -> None:
    assert torch.equal(one_step(mlp, None)["chance"], one_step(mlp, 3)["chance"])
    torch.manual_seed(0)
    torch.randn(12, 8), torch.randint(4, (12,)), mlp(0.5)
    for _ in range(3):
        F.dropout(torch.ones(4, 32), 0.5)
    assert torch.equal(torch.rand(3), one_step(lambda: mlp(0.5), 3)["chance"])


def stays(self: Any, x: torch.Tensor) -> Any:
    self.kept = self.a(x)
    return self.kept


STRANGER = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), "batch normalisation"),
        (lambda: Net(lambda self, x: self.a(x) - self.a(x).mean(0), a=nn.Linear(8, 4)), "rest of its batch"),
        (lambda: Net(lambda self, x: self.a(x).sum().expand(12, 4), a=nn.Linear(8, 4)), "not one row a sample"),
        (lambda: Net(stays, a=nn.Linear(8, 4)), "changes 'kept' of a Net"),
        (lambda: Net(lambda self, x: STRANGER(self.a(x)), a=nn.Linear(8, 4)), "no parameters of it"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_split_is_left_as_it_is(make: Any, reason: str) -> None:
    plain, split = one_step(make, None), one_step(make, 3)
    assert reason in split["left_out"][technique]
    assert torch.equal(plain["result"], split["result"])
    for a, b in zip(plain["gradients"], split["gradients"], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(plain["chance"], split["chance"])


def test_a_term_that_has_no_weight_at_first_is_tried_when_it_has_one() -> None:
    def mixing(self: Any, x: torch.Tensor, share: Any) -> Any:
        made = self.a(x)
        return made + share * made.mean(0)

    torch.manual_seed(0)
    x = torch.randn(12, 8)
    for as_given in (float, torch.tensor):
        model = Net(mixing, a=nn.Linear(8, 4))
        with Session([(technique, {"parts": 3})]) as session:
            torch.optim.SGD(model.parameters(), lr=0.1)
            model(x, as_given(0.0)).square().mean().backward()
            assert not session.seams.left_out
            made = model(x, as_given(0.5))
        torch.testing.assert_close(made, model(x, 0.5))


def test_a_model_that_returns_its_loss_is_left_as_it_is() -> None:
    make = lambda: Net(lambda self, x: self.a(x).square().mean(), a=nn.Linear(8, 4))  # noqa: E731
    split = one_step(make, 3, lambda result, y: result)
    assert "not one row a sample" in split["left_out"][technique]


def test_hooks_of_the_program_see_the_whole_batch() -> None:
    seen = []

    def make() -> nn.Module:
        model = mlp()
        model[0].register_forward_hook(lambda module, args, result: seen.append(len(result)))
        return model

    split = one_step(make, 3)
    assert "hooks" in split["left_out"][technique] and seen == [12]


@pytest.mark.parametrize("again", [False, True], ids=["once", "create_graph"])
def test_hooks_on_a_parameters_gradient_are_called_once_with_the_whole(again: bool) -> None:
    seen: list[int] = []

    def halving() -> nn.Module:
        model = mlp()
        for each in model.parameters():
            each.register_hook(lambda gradient: (seen.append(1), gradient / 2 + 1)[1])  # type: ignore[no-untyped-call]
            each.register_post_accumulate_grad_hook(lambda parameter: (parameter.grad.mul_(3), None)[1])
        return model

    def loss(result: Any, y: Any) -> Any:
        made = F.cross_entropy(result, y)
        if again:
            made.backward(create_graph=True)
        return made

    plain, split = one_step(halving, None, loss), one_step(halving, 3, loss)
    assert not split["left_out"] and len(seen) == 2 * 4 * (2 if again else 1)
    assert_alike(plain, split)


def test_hooks_that_its_call_puts_on_gradients_see_those_of_the_whole_batch() -> None:
    seen: list[int] = []

    def hooking(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = self.a(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: seen.append(len(gradient)))
        return self.b(hidden)  # type: ignore[no-any-return]

    split = one_step(lambda: Net(hooking, a=nn.Linear(8, 8), b=nn.Linear(8, 4)), 3)
    assert "hooks on gradients" in split["left_out"][technique] and seen == [12]


@pytest.mark.parametrize("backward", [False, True])
def test_hooks_that_come_later_see_the_whole_batch(backward: bool) -> None:
    seen: list[int] = []
    with Session([(technique, {"parts": 3})]) as session:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            if step == 1 and backward:
                model[0].register_full_backward_hook(lambda module, given, arrived: seen.append(len(arrived[0])))
            elif step == 1:
                model[0].register_forward_hook(lambda module, args, result: seen.append(len(result)))
            model(torch.randn(12, 8)).square().mean().backward()
            optimizer.step()
    assert seen == [12, 12] and not session.seams.left_out


def test_results_of_any_structure_are_put_together() -> None:
    class Out(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(8, 4, batch_first=True)

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
            out, (hidden, _) = self.rnn(x)
            return {"out": out * scale, "hidden": hidden, "best": out.argmax(-1), "name": "lstm"}

    torch.manual_seed(0)
    x = torch.randn(6, 5, 8)
    loss = lambda result, y: result["out"].square().mean() + result["hidden"].sum()  # noqa: E731
    plain, split = one_step(Out, None, loss, x=x), one_step(Out, 3, loss, x=x)
    assert not split["left_out"] and split["result"]["name"] == "lstm"
    assert split["result"]["hidden"].shape == (1, 6, 4) and not split["result"]["best"].requires_grad
    torch.testing.assert_close(plain["result"]["hidden"], split["result"]["hidden"])
    assert torch.equal(plain["result"]["best"], split["result"]["best"])
    assert_alike(plain, split)


def test_gradients_reach_the_arguments_and_can_be_differentiated_again() -> None:
    """A gradient penalty, as of WGAN-GP: of a generated batch through a split critic."""
    found = []
    for techniques in ([], [(technique, {"parts": 3})]):
        torch.manual_seed(0)
        with Session(techniques) as session:
            maker, critic = mlp(), nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
            optimizer = torch.optim.SGD([*maker.parameters(), *critic.parameters()], lr=0.1)
            fake = maker(torch.randn(6, 8))
            (slope,) = torch.autograd.grad(critic(fake).sum(), fake, create_graph=True)
            ((slope.norm(dim=1) - 1).square().mean() + critic(fake).mean()).backward()
            optimizer.step()
            assert not session.seams.left_out
        found.append([each.grad for each in (*maker.parameters(), *critic.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_programs_autocast_holds_in_the_second_call_too() -> None:
    found = []
    for techniques in ([], [(technique, {"parts": 3})]):
        torch.manual_seed(0)
        with Session(techniques) as session:
            model = mlp()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = model(torch.randn(6, 8))
                # The same weight, by another way: the cast of the first must not take its gradient away.
                again = F.linear(torch.randn(6, 8), model[0].weight)
            (result.float().sum() + again.float().sum()).backward()
            optimizer.step()
            assert not session.seams.left_out and result.dtype is torch.bfloat16
        found.append([each.grad for each in model.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_closures_and_evaluation() -> None:
    with Session([(technique, {"parts": 2})]) as session:
        torch.manual_seed(0)
        model, x = mlp(), torch.randn(12, 8)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        before = closure().item()
        for _ in range(2):
            optimizer.step(closure)
        assert not session.seams.left_out and closure().item() < before
        model.eval()
        with torch.no_grad():
            assert model(x).grad_fn is None


def test_beside_another_technique_that_makes_trial_calls_it_is_in_force_too() -> None:
    """Each tries the model in a forked process, and the one's trial calls the model through the other."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.Tanh())

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 64), block(), block(), block(), nn.Linear(64, 4))

    plain = one_step(make, None, batch=120)
    torch.manual_seed(0)
    x, y = torch.randn(120, 8), torch.randint(4, (120,))
    with Session([("activation_checkpointing", {"budget": 0.0}), (technique, {"parts": 3})]) as session:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert not session.seams.left_out
    assert_alike(plain, {"gradients": [each.grad for each in model.parameters()]})
