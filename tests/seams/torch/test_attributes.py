"""Seam *attribute set*: what is set on a module is heard of."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from overdrive.worker.session import Session


def test_what_is_set_on_a_module_is_heard_of_and_no_trace_is_left() -> None:
    seen: list[Any] = []
    plain = nn.Module.__setattr__
    with Session(observers=[lambda seams: seams.attribute_set.subscribe(lambda *it: seen.append(it))]):
        layer = nn.Linear(2, 2)
        layer.register_buffer("mask", None)
        seen.clear()
        layer.mask = torch.ones(2)
        layer.calls = 3
        assert seen == [(layer, "mask"), (layer, "calls")]
        assert layer.calls == 3 and layer.mask is layer._buffers["mask"]
    assert nn.Module.__setattr__ is plain


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last_loss = nn.Linear(2, 2), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last_loss = self.layer(x).sum()
        return x


def test_what_a_compiled_call_sets_stays_in_its_graph() -> None:
    """As the public llama2.c keeps its loss. `fullgraph`: what breaks the graph is an error of the program's."""
    torch.compiler.reset()
    with Session(observers=[lambda seams: seams.attribute_set.subscribe(lambda *_: time.get_clock_info("time"))]):
        model = Keeping()
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(1, 2))
        assert torch.equal(model.last_loss, model.layer(torch.ones(1, 2)).sum())
