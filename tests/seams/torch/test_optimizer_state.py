"""Seams *state asked* and *gradients clipped*: who reads an optimizer's state, and `clip_grad_norm_`, are seen."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from overdrive.seams.hub import Seams
from overdrive.seams.torch.optimizer_state import state_of
from overdrive.worker.session import Session


def test_who_reads_the_state_is_seen_and_no_trace_is_left() -> None:
    seen: list[Any] = []
    plain, load = vars(torch.optim.Optimizer).get("state"), torch.optim.Optimizer.load_state_dict
    with Session(observers=[lambda seams: seams.state_asked.subscribe(seen.append)]):
        optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))])
        assert state_of(optimizer) == {} and not seen
        for read in (lambda: optimizer.state, optimizer.state_dict, lambda: copy.deepcopy(optimizer)):
            seen.clear()
            read()
            assert seen[0] is optimizer
        saved = optimizer.state_dict()
        seen.clear()
        torch.optim.SGD([nn.Parameter(torch.ones(2))]).load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
        assert seen and seen[0] is not optimizer  # though SGD does not look at what it kept
        optimizer.load_state_dict(saved)
        del vars(optimizer)["state"]
        assert not hasattr(optimizer, "state")
    assert vars(torch.optim.Optimizer).get("state") is plain
    assert torch.optim.Optimizer.load_state_dict is load


def test_clipping_is_seen_as_a_whole() -> None:
    weight, seen = nn.Parameter(torch.ones(4)), []

    def observer(seams: Seams) -> None:
        def clipped(parameters: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((parameters, args, kwargs))
            return call(*args, **kwargs)

        seams.gradients_clipped.subscribe(clipped)

    weight.grad = torch.full((4,), 2.0)
    with Session(observers=[observer]):
        norm = nn.utils.clip_grad_norm_([weight], 1.0, norm_type=2.0)
    assert norm == 4 and seen == [([weight], (1.0,), {"norm_type": 2.0})]
    assert torch.allclose(weight.grad, torch.full((4,), 0.5))
