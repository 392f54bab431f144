"""Sums that a model's code takes over its batch by hand: which of them parts make up, as a trial finds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from overdrive.model_state.division.by_hand import taken
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Chance
from overdrive.model_state.division.losses import Losses
from overdrive.model_state.division.norms import Norms
from overdrive.model_state.division.sizes import Numbers
from overdrive.model_state.division.tree import flatten
from overdrive.model_state.division.trial import find_way
from overdrive.model_state.division.way import Way

Does = Callable[[torch.Tensor], Any]


class Model(nn.Module):
    def __init__(self, does: Does) -> None:
        super().__init__()
        self.inner, self.head, self._does = nn.Linear(6, 8), nn.Linear(8, 4), does

    def forward(self, x: torch.Tensor) -> Any:
        return self._does(self.head(self.inner(x).tanh()))


def found(does: Does, by_hand: bool = True, objects: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Model(does)
    leaves, build = flatten(((torch.randn(9, 6),), {}))
    losses = Losses()
    asked = (model, model, leaves, build, 2, Chance(), Norms(None), losses)
    with mock.patch.multiple(F, **{name: seen(losses, name) for name in ("mse_loss", "cross_entropy", "kl_div")}):
        return find_way(CallToDivide(*asked, by_hand=by_hand, objects=objects, values=True))


def seen(losses: Losses, name: str) -> Any:
    """As the seam has it."""
    plain = getattr(F, name)

    def loss(*args: Any, **kwargs: Any) -> Any:
        answer = losses.answer(name, plain, args, kwargs)
        return plain(*args, **kwargs) if answer is None else answer

    return loss


def balance(made: torch.Tensor) -> torch.Tensor:
    """As a mixture of experts has it, over layers one after the other."""
    shares = torch.cat([made.softmax(-1), made.square().softmax(-1)])
    chosen = F.one_hot(shares.argmax(-1), 4)
    return (chosen.float().mean(0) * shares.mean(0)).sum() * 4


OVER_SAMPLES: list[Does] = [
    lambda made: made - made.mean(0),
    lambda made: made / made.mean(dim=0, keepdim=True),
    lambda made: (made - made.mean(axis=0)) / made.std(0),
    lambda made: made * torch.var(made, 0, keepdim=True) + torch.std(made, dim=0, correction=0),
    lambda made: made * made.var(0, unbiased=False) * made.std(False),
    lambda made: made - sum(torch.var_mean(made, 0)),
    lambda made: made * torch.std_mean(made)[0],
    lambda made: made * torch.sum(made),
    lambda made: made.sum(0) / made.exp().sum(0) * made,
    lambda made: (made - made.mean(0)).square().mean(0) * made,  # by steps that look at each other
    lambda made: made.t() - made.mean(0)[:, None],
    lambda made: (made, made.square().mean()),
    lambda made: (made * (made > 0)).sum() / (made > 0).sum(),
    lambda made: made[made > 0].mean(),  # of which each part has as many as it has
    lambda made: F.mse_loss(made, made.roll(1, 1)) + 0.1 * balance(made),
    lambda made: F.cross_entropy(made, made.argmin(1)) + made.mean(0).square().sum(),
]


@pytest.mark.parametrize("does", OVER_SAMPLES)
def test_what_is_summed_over_samples_is_that_of_all(does: Does) -> None:
    way = found(does)
    assert way.get("by_hand"), way
    assert any(each["whole"] for each in way["by_hand"])
    assert "reason" in found(does, by_hand=False)


BY_HOW_MANY: list[tuple[Does, str]] = [
    (lambda made: made - made.sum(0) / len(made), "times"),
    (lambda made: made - made.sum(0).div(made.shape[0]), "times"),
    (lambda made: made - made.sum(0).div_(float(made.size(0))), "times"),
    (lambda made: made * (1 / made.sum(0) * len(made)), "times"),
    (lambda made: made.square().sum() / made.numel(), "times"),
    (lambda made: made.square().sum() / (len(made) * 3.5), "times"),
    (lambda made: (made - made.mean(0)).square().sum(0) / (len(made) - 1) * made, "more"),
    (lambda made: made * (made.sum(0) * (0.1 / len(made))), "share"),
    (lambda made: made / len(made), "times"),
    (lambda made: len(made) / (made.exp() + 1), "times"),
    (lambda made: (F.mse_loss(made, made.roll(1, 1), reduction="sum") + made.abs().sum()) / len(made), "times"),
    (lambda made: F.cross_entropy(made, made.argmin(1), reduction="sum") / made.shape[0] + made.mean(), "times"),
]


@pytest.mark.parametrize(("does", "kind"), BY_HOW_MANY)
def test_a_number_that_hangs_on_how_many_samples_there_are_is_that_of_all(does: Does, kind: str) -> None:
    way = found(does)
    rules = [each["rule"]["kind"] for each in (way.get("numbers") or {"each": ()})["each"] if each["rule"]]
    assert rules == [kind], way
    assert "reason" in found(does, by_hand=False)
    assert Way.of_plain(json.loads(json.dumps(way))).numbers == Numbers.of_plain(way["numbers"])


def test_an_exchange_that_fails_is_told() -> None:
    """Else this rank goes on with the sum of its part, and the others end for another reason, or wait."""
    losses = Losses()
    losses.sums, losses.whole = True, mock.Mock(side_effect=RuntimeError("a rank is gone"))
    with losses.active, pytest.raises(RuntimeError, match="a rank is gone"):
        seen(losses, "mse_loss")(torch.ones(2), torch.zeros(2), reduction="sum")


def test_a_divergence_by_the_batch_is_a_sum_of_shares() -> None:
    def does(made: torch.Tensor, turned: bool = False) -> torch.Tensor:
        one, other = made.log_softmax(1), made.softmax(1).roll(1, 1)
        return F.kl_div(*(each.t() if turned else each for each in (one, other)), reduction="batchmean")

    way = found(does)
    assert way["joined"] == [[-1, 0]] and way["by_hand"] is None and way["numbers"] is None
    assert "reason" in found(lambda made: does(made, turned=True)), "its first dimension has no samples"


def test_a_penalty_beside_a_loss_of_shares_is_counted_once() -> None:
    weight = nn.Parameter(torch.ones(3))
    does: Does = lambda made: F.cross_entropy(made, made.argmin(1)) + weight.square().sum()  # noqa: E731
    way = found(does)
    assert way["by_hand"] == [] and way["joined"] == [None], way
    assert "reason" in found(does, by_hand=False)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda made: made - made.sum(0) / len(made) ** 0.5, "depends on the rest of its batch"),
        (lambda made: made - made.sum(0) / min(len(made), 7), "depends on the rest of its batch"),
        (lambda made: made + torch.arange(len(made))[:, None] * len(made), "depends on the rest of its batch"),
        (lambda made: made - made[:2].mean(0), "depends on the rest of its batch"),
        (lambda made: made - made.flip(0) + made.mean(0), "depends on the rest of its batch"),
        (lambda made: made - made.median(0).values, "depends on the rest of its batch"),
        (lambda made: made * (made * made.roll(1, 0)).mean(), "it sums what is not one a sample"),
        (lambda made: made if made.mean() > 0 else made * 2, "it looks at values of its batch"),
        (lambda made: checkpoint(lambda x: (x - x.mean(0)).exp(), made, use_reentrant=False), "made again in"),
    ],
)
def test_what_is_more_than_a_sum_is_called_whole(does: Does, reason: str) -> None:
    assert reason in found(does)["reason"]


class Scaled(torch.autograd.Function):
    """A gradient that is no function of the whole's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / gradient.norm()


def test_gradients_that_come_to_a_total_are_compared() -> None:
    assert "makes other gradients" in found(lambda made: Scaled.apply(made).square().mean())["reason"]  # type: ignore[no-untyped-call]


def test_nothing_is_watched_where_nothing_is_summed() -> None:
    assert found(lambda made: made / made.mean(-1, keepdim=True))["by_hand"] is None


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "dims", "keep", "correction"),
    [
        ("mean", (), {}, (0, 1, 2), False, 1),
        ("mean", (0,), {}, (0,), False, 1),
        ("sum", (-1, True), {}, (2,), True, 1),
        ("sum", (), {"axis": (0, -1), "keepdims": True}, (0, 2), True, 1),
        ("var", (False,), {}, (0, 1, 2), False, 0),
        ("std", (1, False, True), {}, (1,), True, 0),
        ("var_mean", (), {"dim": [0, 1], "correction": 2}, (0, 1), False, 2),
    ],
)
def test_what_is_asked_is_understood(
    name: str, args: Any, kwargs: Any, dims: tuple[int, ...], keep: bool, correction: float
) -> None:
    asked = taken(name, (torch.zeros(2, 3, 4), *args), kwargs)
    assert asked and (asked.dims, asked.keep, asked.correction) == (dims, keep, correction)


def test_what_is_not_understood_is_left_alone() -> None:
    x = torch.zeros(2, 3)
    assert taken("sum", (x,), {"out": x}) is None and taken("mean", (x, "N"), {}) is None
    assert taken("mean", (torch.tensor(1.0),), {}) is None
