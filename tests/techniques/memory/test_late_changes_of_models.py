"""Models that change between the passes of a step, or late: `activation_checkpointing` is exact all the same.

Each program here trains some steps with and without it, and prints; all must come out the same, to the last bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from overdrive.model_state import contents
from overdrive.worker.session import Session
from tests.conftest import long_but

F = nn.functional
NAME = "activation_checkpointing"
GLOBAL: dict[str, Any] = {"scale": 1.0, "calls": 0}
log = logging.getLogger(__name__)


class Block(nn.Module):
    """Whose way through its code depends on all sorts of things."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale, self.late, self.seen = 1.0, "", [0.0]
        self.mask = torch.ones(8)
        self.table = {"shift": 0.0}
        self.weights = np.ones(3)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.up(self.norm(x) * self.mask + torch.zeros(8)) * GLOBAL["scale"] * float(self.weights.sum())
        if self.late == "counts":
            GLOBAL["calls"] += 1
        if self.late == "appends":
            self.seen.append(float(z.detach().mean()))
        if self.late == "draws":
            z = z + torch.randn(z.shape, generator=self.generator)
        if self.late == "keeps":
            self.kept = z
        if x.detach().max() > 50:
            print("large", tuple(x.shape))
            log.warning("large")
        return x + self.scale * self.down(self.drop(torch.tanh(z))) + self.table["shift"]


class Dropped(Block):
    """Another forward for the class of a block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


HELD: list[Any] = []  # memory of weights, from the beginning on
Act = Callable[[nn.Sequential], Any]


def train(technique: bool, between: Act, late: Act, steps: int = 9, make: Any = None) -> list[Any]:
    torch.manual_seed(0)
    GLOBAL.update(scale=1.0, calls=0)
    found: list[Any] = []
    with Session([(NAME, {"budget": 0.0})] if technique else []) as session:
        model = (make or (lambda: nn.Sequential(nn.Linear(8, 8), *[Block() for _ in range(4)])))()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        HELD[:] = [model[3].down.weight.data, model[4].up.weight.data.numpy()] if make is None else []
        for step in range(steps):
            if step == 4:
                late(model)
            x = torch.randn(64, 8) * (100 if late is larger and step == 6 else 1)
            optimizer.zero_grad()
            result = model(x)
            loss = result.square().mean()
            if step % 2:
                between(model)
            loss.backward()
            torch.set_default_dtype(torch.float32)
            optimizer.step()
            model.train()
            found.append(loss.item())
        assert NAME not in session.seams.left_out or "again and again" in session.seams.left_out[NAME]
    found += [each.tolist() for each in model.state_dict().values()]
    found += [None if each.grad is None else each.grad.tolist() for each in model.parameters()]
    found += [[block.seen for block in model if isinstance(block, Block)], GLOBAL["calls"], torch.rand(2).tolist()]
    return found


def nothing(model: Any) -> None:
    pass


def halves_data(model: Any) -> None:
    model[1].norm.running_mean.data.mul_(0.5)
    model[2].up.bias.data.add_(1e-3)
    model[3].down.weight.data.numpy()[:] *= 0.9
    model[3].mask.data.mul_(0.5)


def goes_through_evaluation(model: Any) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 8))


def changes_bias(model: Any) -> None:
    with torch.no_grad():
        model[1].up.bias.add_(0.1)  # PyTorch has not saved it


def freezes(model: Any) -> None:
    for each in model[2].parameters():
        each.requires_grad_(not each.requires_grad)


def larger(model: Any) -> None:
    """The data are, at a later step, and the blocks print."""


BETWEEN: dict[str, Act] = {
    "evaluation": goes_through_evaluation,
    "attribute": lambda model: setattr(model[1], "scale", 0.5),
    "dict": lambda model: model[2].table.update(shift=model[2].table["shift"] + 1),
    "list": lambda model: model[2].seen.append(1.0),
    "array": lambda model: model[1].weights.__imul__(1.1),
    "global": lambda model: GLOBAL.update(scale=GLOBAL["scale"] * 0.9),
    "data": halves_data,
    "memory held": lambda model: [each.__imul__(0.9) for each in HELD],
    "bias": changes_bias,
    "module": lambda model: setattr(model[2], "drop", nn.Dropout(0.5)),
    "hook": lambda model: model[1].up.register_forward_hook(lambda *_: GLOBAL.update(calls=GLOBAL["calls"] + 1)),
    "class": lambda model: setattr(model[3], "__class__", Dropped),
    "dtype": lambda model: torch.set_default_dtype(torch.float64),
}
LATE: dict[str, Act] = {
    **{late: lambda model, late=late: [setattr(each, "late", late) for each in model[1:]] for late in  # type: ignore[misc]
       ("counts", "appends", "draws", "keeps")},
    "hook": lambda model: model[1].up.register_forward_hook(lambda *_: GLOBAL.update(calls=GLOBAL["calls"] + 1)),
    "freezing": freezes,
    "prints": larger,
    "layer": lambda model: setattr(model[2], "up", nn.Linear(8, 32)),
    "block": lambda model: model.__setitem__(2, nn.Tanh()),
}  # fmt: skip


# Whether parameters are large ones matters to what is written to them; that all else is seen then too is for a release.
WRITES = ("data", "memory held", "bias", "dtype")


@pytest.mark.parametrize(
    ("how", "small"),
    long_but(
        [*((how, 1 << 20) for how in BETWEEN), *((how, 0) for how in WRITES)],
        [(how, small) for how in BETWEEN for small in (1 << 20, 0)],
    ),
)
def test_what_changes_between_the_passes(how: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_SMALL", small)  # 0: all parameters are large ones
    assert train(True, BETWEEN[how], nothing) == train(False, BETWEEN[how], nothing)


@pytest.mark.parametrize("how", LATE)
def test_what_changes_late(how: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    said = []
    found = []
    for technique in (False, True):
        found.append(train(technique, nothing, LATE[how]))
        said.append((capsys.readouterr().out, list(caplog.messages)))
        caplog.clear()
    assert found[0] == found[1] and said[0] == said[1]
    assert ("large" in said[0][0]) == (how == "prints")


def test_a_flat_sequential_whose_layers_change() -> None:
    def make() -> nn.Sequential:
        return nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1))])

    def exchange(model: Any) -> None:
        model[3] = nn.Linear(8, 8)

    for between, late in ((exchange, nothing), (nothing, exchange), (goes_through_evaluation, nothing)):
        assert train(True, between, late, make=make) == train(False, between, late, make=make)


def test_a_weight_that_pytorch_has_saved_and_that_is_written_to_is_an_error_as_ever() -> None:
    def writes(model: Any) -> None:
        with torch.no_grad():
            model[1].down.weight.add_(0.1)

    for technique in (False, True):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            train(technique, writes, nothing)


def test_saved_tensors_may_be_taken_twice_and_the_batch_written_to() -> None:
    """By the model's own function of autograd; and by the program through numpy, which no version counts."""
    found = []
    for technique in (False, True):
        torch.manual_seed(0)
        with Session([(NAME, {"budget": 0.0})] if technique else []):
            model = nn.Sequential(*[Block() for _ in range(3)])
            x = torch.randn(64, 8)
            loss = model(x).square().mean() + sum(Twice.apply(each.up.weight).mean() for each in model)  # type: ignore[union-attr]
            x.numpy()[:] = 0
            loss.backward(retain_graph=True)
            loss.backward()
        found.append([each.grad.tolist() for each in model.parameters()])  # type: ignore[union-attr]
    assert found[0] == found[1]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0] + 0 * ctx.saved_tensors[0]


class Effects(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("in forward")
        self.seen.append(1.0)
        GLOBAL["calls"] += 1
        return super().forward(x)


def test_a_model_that_does_more_than_compute_does_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8), Effects(), Effects(), Effects())

    GLOBAL.update(calls=0)
    with Session([(NAME, {"budget": 0.0})]):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 8)).sum().backward()
        optimizer.step()
    assert capsys.readouterr().out == "in forward\n" * 3 and GLOBAL["calls"] == 3
    assert all(len(each.seen) == 2 for each in model[1:])  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["trace", "flops", "profile", "saved"])
def test_it_stands_aside_where_somebody_looks_on(how: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def look(model: nn.Module) -> Any:
        x = torch.randn(4, 8)
        if how == "trace":
            return torch.jit.trace(model.eval(), x, check_trace=False)(x).tolist()  # type: ignore[no-untyped-call]
        if how == "flops":
            with FlopCounterMode(display=False) as counter:
                model(x).sum().backward()
            return counter.get_total_flops()
        if how == "profile":
            with torch.profiler.profile() as profile:
                model(x).sum().backward()
            return sum(each.count for each in profile.key_averages() if each.key == "aten::addmm")
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each.shape) or each, lambda each: each):
            model(x).sum().backward()
        return saved

    found = []
    for technique in (False, True):
        torch.manual_seed(0)
        with Session([(NAME, {"budget": 0.0})] if technique else []):
            found.append(look(nn.Sequential(*[Block() for _ in range(3)])))
    assert found[0] == found[1]
