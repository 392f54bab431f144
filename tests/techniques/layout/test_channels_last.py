"""`channels_last`: whenever a program needs the usual format, it has it, and its run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.worker.session import Session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.late = ""

    def forward(self, x: torch.Tensor) -> Any:
        z = F.relu(self.conv(x))
        self.seen = z
        if self.late == "view":
            z = z.view(-1).view(z.shape) * 1.0
        if self.late == "as_strided":
            z = torch.as_strided(z, z.shape, (144, 36, 6, 1))
        return self.last(z)


def weights_as_one(model: Any) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0.99, model.parameters())


def gradients_as_one(model: Any) -> None:
    flat = torch.cat([each.grad.view(-1) for each in model.parameters() if each.grad is not None])
    for each in model.parameters():
        if each.grad is not None:
            each.grad.view(-1).mul_(min(1.0, 1.0 / float(flat.norm())))


def data_in_place(model: Any) -> None:
    model.conv.weight.data.view(-1).mul_(0.9)
    model.conv.weight.detach().view(-1).add_(0.01)


def state_in_place(model: Any) -> None:
    model.optimizer.state[model.conv.weight]["momentum_buffer"].view(-1).mul_(0.5)


LATE: dict[str, Callable[[Any], Any]] = {
    "weights": weights_as_one,
    "gradients": gradients_as_one,
    "data": data_in_place,
    "state": state_in_place,
    "kept": lambda model: model.seen.view(-1).sum(),
    "in forward": lambda model: setattr(model, "late", "view"),
    "strided in forward": lambda model: setattr(model, "late", "as_strided"),
    "a hook": lambda model: model.conv.register_forward_hook(lambda module, given, made: made.view(-1).sum() and None),
}


def train(technique: bool, late: Callable[[Any], Any]) -> tuple[list[float], dict[str, str]]:
    torch.manual_seed(0)
    found = []
    with Session([("channels_last", {})] if technique else []) as session:
        model: Any = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        object.__setattr__(model, "optimizer", optimizer)
        for step in range(10):
            optimizer.zero_grad(set_to_none=False)
            result = model(torch.randn(4, 3, 8, 8))
            loss = result.square().mean() * 0.1
            if late is LATE["kept"] and step >= 5:
                loss = loss + late(model) * 1e-3
            loss.backward()
            if step == 5 and late is not LATE["kept"]:
                late(model)
            optimizer.step()
            found.append(loss.item())
        assert model.conv.weight.is_contiguous() or not session.seams.left_out
    return found, session.seams.left_out


@pytest.mark.parametrize("how", LATE)
def test_a_program_that_begins_to_need_the_usual_format_goes_on(how: str) -> None:
    plain, _ = train(False, LATE[how])
    found, left_out = train(True, LATE[how])
    assert found == pytest.approx(plain, rel=1e-4) and "view" in str(left_out) + "as_strided view"


def test_lbfgs_looks_at_all_gradients_as_one() -> None:
    def run(technique: bool) -> list[float]:
        torch.manual_seed(0)
        found = []
        with Session([("channels_last", {})] if technique else []):
            model = Net()
            optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
            x = torch.randn(4, 3, 8, 8)

            def closure() -> Any:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            for _ in range(3):
                found.append(float(optimizer.step(closure)))
        return found

    assert run(True) == pytest.approx(run(False), rel=1e-3)


def test_weights_that_somebody_else_refers_to_stay_as_they_are() -> None:
    with Session([("channels_last", {})]):
        model = Net()
        held, array = model.conv.weight.data, model.last.weight.data.numpy()
        torch.optim.SGD(model.parameters(), lr=0.1)
        held.zero_()
        array[:] = 1
        assert float(model.conv.weight.detach().abs().sum()) == 0 and bool((model.last.weight == 1).all())


def test_what_the_compiler_asks_of_a_tensor_is_no_view_of_the_programs() -> None:
    """On an H100 it was left out in the midst of a compiled step, and its tensors came to lie in the memory of CUDA
    graphs: "Detected 20 tensor(s) in the cudagraph pool not tracked as outputs" ended the program."""
    from torch._inductor.utils import clone_preserve_strides

    with Session([("channels_last", {})]) as session:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
            copy = clone_preserve_strides(model.last.weight)
            assert copy.stride() == model.last.weight.stride() != torch.empty(5, 4, 3, 3).stride()
            optimizer.step()
    assert not session.seams.left_out
