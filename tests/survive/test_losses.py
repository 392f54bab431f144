"""Losses while a run is made again: those of large tensors are computed once for each form of their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.survive.killed import files_of, survive

torch = pytest.importorskip("torch")
F: Any = torch.nn.functional


class Asked:
    """How often a loss was computed, and what goes back through it."""

    def __init__(self) -> None:
        from overdrive.survive.losses import Losses

        self.computed = self.passed = 0
        self._losses = Losses(self._pass)

    def _pass(self) -> None:
        self.passed += 1

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.computed += 1
            return getattr(F, name)(*args, **kwargs)

        found = self._losses.loss(name, call, args, kwargs)
        return call(*args, **kwargs) if found is None else found


def about(tensor: Any) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def test_a_loss_of_one_form_is_computed_once() -> None:
    asked, made, target = Asked(), torch.zeros(64, 100, requires_grad=True), torch.zeros(64, 100)
    classes = torch.zeros(64, dtype=torch.long)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("mse_loss", (made, target), {}),
        ("mse_loss", (made.detach(), target), {}),
        ("mse_loss", (made, target), {"reduction": "none"}),
        ("mse_loss", (made.double(), target.double()), {}),
        ("binary_cross_entropy", (made.sigmoid(), target), {"reduction": "sum"}),
        ("cross_entropy", (made, classes), {"weight": torch.ones(100), "label_smoothing": 0.1}),
        ("cross_entropy", (made.detach().t().contiguous().t(), classes), {}),
    ]
    for name, args, kwargs in calls:
        first, again = asked(name, *args, **kwargs), asked(name, *args, **kwargs)
        assert about(again) == about(first) and not again.any()
    assert asked.computed == len(calls)
    with torch.no_grad():
        assert not asked("mse_loss", made, target).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert asked("mse_loss", made, target).dtype == F.mse_loss(made, target).dtype
    assert asked.computed == len(calls) + 2 and not asked.passed
    asked("mse_loss", made, target).backward()
    assert asked.passed == 1  # whose graph is not there: the run is begun anew


def test_what_takes_no_time_or_cannot_be_told_is_computed() -> None:
    asked, small, large = Asked(), torch.zeros(8, 10), torch.zeros(8, 1000)
    for _ in range(2):
        asked("mse_loss", small, small)
        asked("triplet_margin_with_distance_loss", large, large, large, distance_function=torch.nn.PairwiseDistance())
    assert asked.computed == 4


SCRIPT = """
import os, signal
import torch
nn, F = torch.nn, torch.nn.functional
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(60, 600), nn.Dropout(0.3), nn.ReLU(), nn.Linear(600, 784))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
entropy, kept, gradients = nn.BCEWithLogitsLoss(reduction="none"), [], []
for step in range(1, 25):
    x, y = torch.randn(32, 60), torch.rand(32, 784)
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=step % 3 == 0):
        made = model(x)
        each = entropy(made, y)
        loss = each.mean() + F.mse_loss(made.sigmoid(), y) * 0.1
    kept.append((each, loss))  # of three steps, whose graphs are no longer there
    del kept[:-3]
    loss.backward()
    gradients = [*gradients[-2:], model[0].weight.grad]  # kept beyond `zero_grad`
    optimizer.step()
    print(step, f"{loss.item():.9f}", kept[0][0].sum().item(), sum(each.abs().sum().item() for each in gradients))
    if step == int(os.environ.get("DIES", 0)) and not os.path.exists(os.environ.get("DIED", "")):
        os.kill(os.getpid(), signal.SIGKILL)
print(*(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""


@pytest.mark.fault("killed")
def test_losses_and_gradients_that_a_program_keeps_are_what_they_were(tmp_path: Path) -> None:
    whole = survive(tmp_path, "whole", SCRIPT, "--no-plan")
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", SCRIPT, "--no-plan", dies=17)
    second = survive(tmp_path, "killed", SCRIPT, "--no-plan")
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
