"""What is watched for advice: nothing is told of a program that it does not do, and none fails for being watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from overdrive.worker.profiling.recorder import COUNTS, LINES, NotHere  # noqa: E402
from overdrive.worker.profiling.timeline import Timeline  # noqa: E402
from overdrive.worker.profiling.torch.details import TorchDetails  # noqa: E402
from overdrive.worker.profiling.torch.observing import Observing  # noqa: E402
from overdrive.worker.recording import Recorder  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402

Step = Callable[["torch.optim.Optimizer"], None]


def observed(net: Any, step: Step, steps: int = 3) -> Observing:
    observing = Observing(Timeline())
    with Session((), [observing]):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            step(optimizer)
    return observing


@contextmanager
def watched_closely() -> Iterator[Observing]:
    observing = Observing(Timeline())
    with Session((), [observing]):
        observing.start()
        yield observing
        observing.stop(1)


def test_a_model_in_evaluation_mode_that_is_trained_with_a_loss_that_is_a_module_is_no_evaluation() -> None:
    net, criterion = nn.Linear(4, 2).eval(), nn.CrossEntropyLoss()  # as Hugging Face's from_pretrained gives it

    def step(optimizer: Any) -> None:
        loss = criterion(net(torch.randn(3, 4)), torch.tensor([0, 1, 0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert observed(net, step).report()["evaluations"] == []


def test_a_backbone_in_evaluation_mode_whose_head_is_called_apart_is_no_evaluation() -> None:
    backbone, head = nn.Linear(4, 4).eval(), nn.Linear(4, 1)

    def step(optimizer: Any) -> None:
        features = {"both": (backbone(torch.randn(3, 4)), backbone(torch.randn(3, 4)))}  # as a perceptual loss does
        loss = (head(features["both"][0]) - head(features["both"][1])).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert observed(nn.ModuleList([backbone, head]), step).report()["evaluations"] == []


def test_gradients_that_are_asked_for_were_not_recorded_for_nothing() -> None:
    net, energy = nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 1)).eval()

    def step(optimizer: Any) -> None:
        x = torch.randn(3, 4, requires_grad=True)
        (forces,) = torch.autograd.grad(energy(x).sum(), x)
        loss = net(forces).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert observed(net, step).report()["evaluations"] == []


def test_an_evaluation_whose_gradients_nobody_uses_is_told_with_its_line() -> None:
    net, other = nn.Linear(4, 2), nn.Linear(4, 2).eval()

    def step(optimizer: Any) -> None:
        loss = net(torch.randn(3, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        other(torch.randn(3, 4))
        optimizer.step()

    (found,) = observed(net, step).report()["evaluations"]
    assert found["calls"] == 3 and found["amount"] > 0
    assert found["function"] == "step" and found["file"] == __file__


def test_a_layer_of_the_users_own_that_has_no_weight_is_called_as_ever() -> None:
    class ConvCell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = True
            self.gates = nn.Conv2d(1, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gates(x)

    cell, norm = ConvCell(), nn.BatchNorm2d(2)
    with watched_closely() as observing:
        norm(cell(torch.randn(2, 1, 3, 3)))
        norm(cell.gates(torch.randn(2, 1, 3, 3)))
    assert [each["layer"] for each in observing.report()["norms"]] == ["Conv2d(1, 2)"]


def test_64_bit_numbers_that_a_library_makes_for_itself_are_no_edit_of_the_users() -> None:
    """As torchdiffeq's solvers, which take times in 64 bits whatever they are given."""
    library: dict[str, Any] = {}
    source = "def solve(times): return times.to(dtype=float64) * 2"
    exec(compile(source, str(Path(torch.__file__).parents[1] / "solver.py"), "exec"), library)
    library["float64"] = torch.float64
    times = torch.zeros(3)
    with watched_closely() as observing:
        library["solve"](times)
    assert observing.report()["doubles"] == []
    with watched_closely() as observing:
        times.double()
    assert [each["call"] for each in observing.report()["doubles"]] == ["double"]


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_neither_counted_nor_watched(in_place: bool, tmp_path: Path) -> None:
    details, net = TorchDetails(Timeline(), tmp_path), nn.Linear(4, 2)
    model = net if in_place else torch.compile(net)
    if in_place:
        net.compile()
    with Session((), [details]):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        details._models = {id(model): model}
        for what in (COUNTS, LINES):
            with pytest.raises(NotHere):
                details.begin(what, Recorder())


def test_what_fails_while_modules_are_watched_does_not_fail_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> str:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("overdrive.worker.profiling.torch.observing._named", fails)
    with watched_closely() as observing:
        nn.Linear(4, 2)(torch.randn(3, 4))
    assert observing.report()["norms"] == []
