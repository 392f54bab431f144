"""*Loss sent backward* is told of losses alone, not of what a backward pass sends backward itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from overdrive.worker.session import Session

HALF = ("autocast", {"dtype": "float16"})


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=True))


def gradients(*techniques: Any, observers: Any = ()) -> tuple[list[torch.Tensor], Session]:
    torch.manual_seed(0)
    with Session(techniques, observers) as session:
        model = Checkpointed()
        torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4, requires_grad=True)).pow(2).mean().backward()
    return [each.grad for each in model.parameters()], session


def test_what_a_reentrant_checkpoint_sends_backward_is_no_loss() -> None:
    sent: list[Any] = []
    done: list[Any] = []

    def observer(seams: Any) -> None:
        seams.loss_backward.subscribe(lambda loss: (sent.append(loss), loss)[1])
        seams.backward_done.subscribe(done.append)

    gradients(observers=[observer])
    assert len(sent) == len(done) == 1 and sent[0].dim() == 0


def test_a_reentrant_checkpoint_is_not_scaled_once_more() -> None:
    plain, _ = gradients()
    found, session = gradients(HALF)
    assert not session.seams.left_out
    for ours, theirs in zip(found, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-5)


@pytest.mark.parametrize("several", [False, True])
def test_a_pass_from_a_place_in_the_graph_is_the_program_s(several: bool) -> None:
    """Such a place is a tuple by itself, and no loss."""
    sent: list[Any] = []
    weight = torch.ones(3, requires_grad=True)
    with Session(
        [], [lambda seams: seams.loss_backward.subscribe(lambda loss: (sent.append(loss), loss)[1])]
    ) as session:
        edge, loss = get_gradient_edge((weight * 2).sum()), weight.sum()
        torch.autograd.backward((each for each in (edge, loss)) if several else edge)
        assert not session.seams.left_out
    assert weight.grad is not None and weight.grad.tolist() == [3.0 if several else 2.0] * 3
    assert len(sent) == several


def test_the_gradients_that_a_transform_asks_for_are_nobodys() -> None:
    asked: list[Any] = []

    def looks(seams: Any) -> None:
        seams.gradients_asked.subscribe(
            lambda outputs, call, inputs, *args, **kwargs: (asked.append(inputs), call(inputs, *args, **kwargs))[1]
        )

    value = torch.ones(2, requires_grad=True)
    with Session([], [looks]):
        torch.func.grad(lambda given: (given**2).sum())(torch.ones(2))
        torch.autograd.grad((value**2).sum(), [value])
    assert len(asked) == 1
