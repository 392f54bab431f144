"""Seams *state shown* and *module cast*: what a program saves, copies or gives another type is heard of."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from overdrive.worker.session import Session  # noqa: E402


def test_what_is_saved_or_copied_is_heard_of_once_and_no_trace_is_left() -> None:
    seen: list[Any] = []
    plain = vars(nn.Module)["state_dict"], vars(nn.Module)["__getstate__"], vars(torch.optim.Optimizer)["state_dict"]
    with Session(observers=[lambda seams: seams.state_shown.subscribe(seen.append)]):
        model = nn.Linear(2, 2)
        pair = nn.Sequential(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert not seen
        pair.state_dict()
        assert len(seen) == 1 and seen[0] is pair
        optimizer.state_dict()
        assert len(seen) == 2 and seen[1] is optimizer
        copy.deepcopy(model)
        pickle.dumps(model)
        copy.deepcopy(optimizer)
        assert [type(each) for each in seen[2:]] == [nn.Linear, nn.Linear, torch.optim.SGD]
    now = vars(nn.Module)["state_dict"], vars(nn.Module)["__getstate__"], vars(torch.optim.Optimizer)["state_dict"]
    assert all(one is other for one, other in zip(plain, now, strict=True))


def test_types_that_a_program_asks_for_are_heard_of() -> None:
    seen: list[Any] = []
    plain = nn.Module.to
    with Session(observers=[lambda seams: seams.module_cast.subscribe(lambda *told: seen.append(told[1]))]):
        model = nn.Linear(2, 2)
        model.float().double().to("cpu").to(torch.float16).to(torch.ones(1)).to("cpu", dtype=torch.bfloat16)
        model.type(torch.float64).cpu().eval()
        assert model.weight.dtype is torch.float64
    assert seen == [torch.float32, torch.float64, torch.float16, torch.float32, torch.bfloat16, torch.float64]
    assert nn.Module.to is plain
