"""What the code of a call asks of its batch, as the trial of its division finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Chance
from overdrive.model_state.division.norms import Norms
from overdrive.model_state.division.tree import flatten
from overdrive.model_state.division.trial import find_way

Asks = Callable[[torch.Tensor, torch.Tensor], Any]


class Asking(nn.Module):
    def __init__(self, what: Asks) -> None:
        super().__init__()
        self.inner, self.head, self._what = nn.Linear(6, 8), nn.Linear(8, 5), what

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        made = self.head(self.inner(x).tanh())
        return self._what(made * (1 + mask[:, :1]), mask)  # both are to be divided


SOME = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]] * 2).bool()


def found(what: Asks, mask: torch.Tensor = SOME, values: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Asking(what)
    leaves, build = flatten(((torch.randn(8, 6), mask), {}))
    return find_way(CallToDivide(model, model, leaves, build, 2, Chance(), Norms(None), values=values))


@pytest.mark.parametrize(
    ("what", "answers"),
    [
        (lambda made, mask: made if mask.all() else made * mask[:, :1], (False,)),
        (lambda made, mask: made * 2 if torch.any(mask) else made, (True,)),
        (lambda made, mask: made * 2 if mask.sum() > 3 and mask.long().max() == 1 else made, (True, True)),
        (lambda made, mask: made[:, : int(mask.sum(1).max())], (4,)),
        (lambda made, mask: made[:, : mask.sum(1).amin().item()], (1,)),
        (lambda made, mask: made if mask.sum() == mask.numel() else made * mask[:, :1], (False,)),
        (lambda made, mask: made if (made > 0).all() else made * 2, (False,)),
        (lambda made, mask: made * mask.sum() if mask.any() else made, (True,)),
        (lambda made, mask: made if torch.ones(3).all() or mask.all() else made * 2, (True,)),  # of a constant
        (lambda made, mask: made if mask.sum() > torch.tensor(3) else made * 2, (True,)),
    ],
)
def test_what_is_read_is_known_where_it_is_made_of_all_samples(what: Asks, answers: tuple[int, ...]) -> None:
    way = found(what)
    assert "reason" not in way and way["split"] == [0, 0] and way["joined"] == [[0, 1]], way
    assert way["asks"]["answers"] == [*answers]
    assert (way["asks"]["shapes"] is None) == all(isinstance(each, bool) for each in answers)


def test_that_all_are_counted_is_seen_though_a_part_has_fewer() -> None:
    way = found(lambda made, mask: made if mask.sum() == mask.numel() else made * 0, torch.ones(8, 4).bool())
    assert way["asks"]["answers"] == [True], way
    assert way["asks"]["reductions"] == [{"name": "sum", "rows": [0, 1], "counts": True}]


@pytest.mark.parametrize(
    "what",
    [
        lambda made, mask: made if mask[0, 0] else made * 2,  # each rank has another first sample
        lambda made, mask: made if mask[: len(mask) // 2].any() else made * 2,
        lambda made, mask: made if mask[-2:].any() else made * 2,
        lambda made, mask: made if (mask.sum() > mask.numel() // 3) else made * 2,  # numbers of its own part
        lambda made, mask: made if mask.sum() > 2 * len(mask) - 8 else made * 2,
        lambda made, mask: made if mask.sum() == 32 else made * 2,  # that is the batch's size by chance
        lambda made, mask: made if mask.sum() + mask[0, 0] > 2 else made * 2,
        lambda made, mask: made if made.max() > 9 else made * 2,  # with gradients
        lambda made, mask: made if made.detach().mean() > 9 else made * 2,
        lambda made, mask: made if made.median() > 9 else made * 2,
        lambda made, mask: made * mask.float().mean().item(),  # no two batches have the same
        lambda made, mask: made if mask.tolist()[0][0] else made * 2,
        lambda made, mask: made if mask.any(0).all() else made * 2,
        lambda made, mask: made[:, : mask.sum(1).max()],  # read where Python does not see it
        lambda made, mask: made if (mask[3:5].sum() + mask.long()).max() > 0 else made * 2,  # of a part's own sum
        lambda made, mask: [None for each in mask if each.any()] and made,  # one for each sample
    ],
)
def test_what_else_is_read_leaves_the_call_whole(what: Asks) -> None:
    assert "it looks at values of its batch" in found(what).get("reason", "")


def test_a_number_that_is_compared_with_the_size_of_the_batch_is_so_for_that_size_alone() -> None:
    way = found(lambda made, mask: made if int(mask.sum()) > 0.5 * mask.numel() else made * 2)
    assert way["asks"]["shapes"] == [[8, 6], [8, 4]]
    told = found(lambda made, mask: made if int(mask.sum()) > 0.7 * mask.numel() else made * 2)  # a part has fewer
    assert "depends on the rest of its batch" in told["reason"]


def test_what_is_asked_where_activations_are_made_again_leaves_the_call_whole() -> None:
    def asks(made: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda each: each if mask.all() else each.tanh(), made, use_reentrant=False)

    assert "its activations are made again in the backward pass" in found(asks)["reason"]


def test_nobody_but_who_can_answer_is_asked() -> None:
    told = found(lambda made, mask: made if mask.all() else made * 2, values=False)
    assert told == {"reason": "it looks at values of its batch (__bool__)"}


def test_a_call_that_reads_nothing_asks_nothing() -> None:
    way = found(lambda made, mask: made * mask.sum(1, keepdim=True))
    assert not way["asks"]["answers"] and not way["asks"]["reductions"]
