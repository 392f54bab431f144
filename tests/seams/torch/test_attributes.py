"""Seam *attribute set*: what is set on a module is heard of."""

from __future__ import annotations

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
