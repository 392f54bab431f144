"""Models that a program traces before it trains them, as TensorBoard's `add_graph` does: the trace is the author's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from overdrive.worker.session import Session

TECHNIQUES = (
    "autocast",
    "bf16_weights",
    "channels_last",
    "compile",
    "fast_max_pool",
    "fft_convolution",
    "micro_batch",
    "activation_checkpointing",
)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_trace_holds_the_program_as_its_author_wrote_it(technique: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 2))
    x = torch.randn(4, 3, 8, 8)
    with Session([(technique, {})]):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        traced = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]  # and checked by a second one
        with torch.no_grad():
            assert torch.allclose(traced(x), model(x), atol=1e-5)
        kinds = {node.kind() for node in traced.inlined_graph.nodes()}
        model(x).sum().backward()
        optimizer.step()
    assert not {kind for kind in kinds if kind.startswith("prim::Python")} | kinds & {"aten::to", "aten::contiguous"}
