"""Steps of a run that are made again in forked processes: what is caught, what is not alarmed about, what is left."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from overdrive.core.contract import Contract  # noqa: E402
from overdrive.techniques.catalogue import also_in  # noqa: E402
from overdrive.worker.recording import Recorder  # noqa: E402
from overdrive.worker.sentinels.sentinels import Sentinels  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402

STEPS = 8
Each = Callable[[int], None]


class Eager(Sentinels):
    """Makes each step again that it can, and waits for what is told."""

    def _is_paid(self) -> bool:
        return True

    def settle(self) -> None:
        limit = time.monotonic() + 60
        while self._replay is not None and time.monotonic() < limit:
            self._look()
            time.sleep(0.001)
        self._look_on()  # the next step, too


@pytest.fixture(autouse=True)
def techniques() -> None:
    also_in(["tests.worker.late_faults"])


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.Flatten(), nn.Linear(4 * 36, 3))


def train(each: Each, workers: int = 0, steps: int = STEPS) -> dict[str, Any]:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(steps * 4, 2, 8, 8), torch.randint(0, 3, (steps * 4,)))
    loader = DataLoader(data, 4, shuffle=True, num_workers=workers)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        x.mul_(1.5)  # in the memory that workers share with us
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        x.add_(random.random())
        optimizer.step()
        losses.append(loss.item())
        each(step)
    return {"losses": losses, "chance": random.random(), "batch": x.sum().item()}


def watched(
    names: list[str], program: Callable[..., Any] = train, level: Contract = Contract.EXACT, **given: Any
) -> tuple[Eager, Session, Any]:
    """The program under these techniques, each step of it made again."""
    said: list[tuple[str, str]] = []
    recorder = Recorder()
    sentinels = Eager(lambda: recorder.clock.steps, dict.fromkeys(names, level))
    session = Session([(name, {}) for name in names], [recorder, sentinels], lambda *left: said.append(left))
    sentinels.session = session
    try:
        with session:
            result = program(lambda step: sentinels.settle(), **given)
    finally:
        if sentinels.in_copy:
            os._exit(9)
    return sentinels, session, result


@pytest.fixture
def plain() -> Iterator[Any]:
    yield train(lambda step: None)


def test_the_same_steps_are_the_same_and_leave_no_trace(plain: Any) -> None:
    sentinels, session, result = watched(["innocent"])
    assert (sentinels.same, sentinels.different, sentinels.off) == (STEPS - 1, 0, "")
    assert result == plain and not session.seams.left_out


@pytest.mark.parametrize("name", ["late_output", "late_gradient", "late_rate", "late_draw"])
def test_a_technique_that_turns_wrong_late_is_switched_off(name: str) -> None:
    sentinels, session, _ = watched(["innocent", name])
    assert sentinels.different == 1
    assert list(session.seams.left_out) == [name]
    assert session.seams.left_out[name].startswith("step 5, made again without it, came to another result (")
    assert sentinels.same == STEPS - 2
